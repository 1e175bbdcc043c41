"""Copies the Grafana board and the alert rules for Prometheus over /metrics into a folder:
`python -m sparkstorm.web.boards FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

MONITORING: Final = Path(__file__).with_name("monitoring")


def main(folder: str) -> None:
    """Write the board and the rules into a folder, over those of an earlier version."""
    shutil.copytree(MONITORING, folder, dirs_exist_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
