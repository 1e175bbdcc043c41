"""Spark's Python daemon of the replay tests: that of slots, with what a replay's worker imports
loaded before it forks.

A worker ends with each task that fails, and an import of Arrow and of the replay takes half a
second of CPU. The command line's replays have Spark's own daemon.
"""

from __future__ import annotations

import gc

from sparkstorm.driver import spark_daemon

gc.disable()  # as the daemon of slots, which begins with its collector off and ends with it on

import sparkstorm.replay.replay  # noqa: E402
import sparkstorm.replay.spout_history  # noqa: E402
import sparkstorm.replay.tasks.stage  # noqa: E402,F401

gc.freeze()
gc.enable()

if __name__ == "__main__":
    spark_daemon.manager()
