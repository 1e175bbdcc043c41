"""Trial of a topology's code in a fresh process: code that does not import is found before any worker gets it.

`python -m sparkstorm.blobs.trial` reads the bytes of a topology, opens them as a worker does and makes an instance of every
component. It sees this Python's installed packages and what travels along, not the folder of the one who submits.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from sparkstorm.blobs.topology_code import open_topology
from sparkstorm.errors import InvalidTopologyError, SparkStormError

_PATIENCE_SECS = 120
_REFUSED = 3


def try_code(name: str, code: bytes) -> None:
    """Open the code in a process of its own; InvalidTopologyError says why it does not open."""
    if problem := problem_with(code):
        raise InvalidTopologyError(f"upgrade of {name}: {problem}")


def problem_with(code: bytes) -> str:
    """Return why the code does not open in a fresh process of this Python; empty when it does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sparkstorm.blobs.trial"]
        try:
            ended = subprocess.run(command, input=code, cwd=folder, capture_output=True, timeout=_PATIENCE_SECS, check=False)
        except subprocess.TimeoutExpired:
            return f"the new code did not open within {_PATIENCE_SECS} s"
    if not ended.returncode:
        return ""
    lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {ended.returncode}"]
    return f"the new code does not open in a fresh process: {lines[-1][:500]}"


def main() -> int:
    """Open what comes on standard input; its exit status."""
    code = sys.stdin.buffer.read()
    with tempfile.TemporaryDirectory() as folder:
        try:
            topology, make_instance = open_topology(code, hashlib.sha256(code).hexdigest(), Path(folder) / "modules.zip")
            for component in topology:
                make_instance(component.id)
        except SparkStormError as error:
            print(str(error).replace("\n", " "), file=sys.stderr)
            return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
