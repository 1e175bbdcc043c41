"""The command `sparkstorm`: submits topologies to a cluster that runs, shows and changes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status; Ctrl-C during the imports ends it without a
    traceback.
    """
    try:
        from sparkstorm.cli.__main__ import main as run

        return run(argv)
    except KeyboardInterrupt:
        sys.exit(130)
