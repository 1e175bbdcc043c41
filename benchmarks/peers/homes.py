"""The folder where peers are kept between runs: jars of Storm, an environment of Flink.

It lies in the user's cache (XDG_CACHE_HOME, else ~/.cache), so that a fresh clone finds what an
older one has installed.
"""

import os
from pathlib import Path

PEERS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sparkstorm" / "peers"
