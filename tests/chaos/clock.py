"""Clock of a chaos run's driver and of all that it starts: the machine's time plus an offset that
can be changed at any time.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class HostClock:
    """The offset, in a file that every process maps; `environ` is for those processes, empty
    without a C compiler.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        library = folder / "clock.so"
        self.set(0.0)
        compiler = shutil.which("cc")
        build = [compiler or "", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)]
        is_built = (
            compiler is not None
            and subprocess.run(build, capture_output=True, check=False).returncode == 0
        )
        self.environ: Mapping[str, str] = (
            {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)} if is_built else {}
        )

    def set(self, seconds: float) -> None:
        """Let the clock be so many seconds ahead of the machine's, or behind it, from now on."""
        offset = round(seconds * 1e9).to_bytes(8, "little", signed=True)
        with self._file.open("r+b" if self._file.exists() else "wb", buffering=0) as file:
            file.write(offset)
