"""User code inside a worker: emitters, runners of bolts, state, windows, watermarks. Shared with
batch replay.
"""

import sparkstorm.data_plane.executor.forks  # noqa: F401  # before any user code runs
