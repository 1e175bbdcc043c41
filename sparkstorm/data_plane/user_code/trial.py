"""Trial of a topology's code in a fresh process: code that does not import is found before any
worker gets it.

`python -m sparkstorm.data_plane.user_code.trial CODE FOLDER` opens the bytes in a file as a worker does, makes an
instance of every component and imports the classes that its settings name. It sees this Python's
installed packages and what travels along, not the submitter's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sparkstorm.common.errors import InvalidTopologyError, SparkStormError
from sparkstorm.data_plane.user_code.topology_code import check_classes, open_topology

_PATIENCE_SECS = 120
_REFUSED = 3


def try_code(name: str, code: bytes) -> None:
    """Open the code in its own process; InvalidTopologyError has the reason why it does not
    open.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code")
        path.write_bytes(code)
        with contextlib.closing(CodeTrial(path, cwd=folder)) as trial:
            trial.wait()
            if problem := trial.poll():
                raise InvalidTopologyError(f"upgrade of {name}: {problem}")


class CodeTrial:
    """A fresh process of this Python that opens the code in a file; it ends itself after two
    minutes.

    `environment`: its variables, those of this process if None; `cwd`: its working folder;
    `scratch`: the folder for its temporary files. OSError when the machine refuses it.
    """

    def __init__(
        self,
        code: Path,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="trial-", dir=scratch, ignore_cleanup_errors=True
        )
        self._errors = Path(self._folder.name, "errors")
        command = [
            sys.executable,
            "-m",
            "sparkstorm.data_plane.user_code.trial",
            str(code),
            self._folder.name,
        ]
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    cwd=cwd,
                    start_new_session=True,
                )
        except BaseException:
            self._folder.cleanup()
            raise

    def poll(self) -> str | None:
        """Return None while it runs, then why the code does not open: empty when it does."""
        status = self._process.poll()
        if not status:
            return status if status is None else ""
        if status == -signal.SIGALRM:
            return f"the code did not open within {_PATIENCE_SECS} s"
        with contextlib.suppress(OSError):
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            if lines:
                return f"the code does not open in a fresh process: {lines[-1][:500]}"
        return f"the code does not open in a fresh process: exit status {status}"

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()

    def close(self) -> None:
        """Kill it with its children if it still runs, and remove the temporary files."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()


def main(code_path: str, folder: str) -> int:
    """Open the code in a file, with a folder for the modules that travel along; its exit status."""
    signal.alarm(_PATIENCE_SECS)
    code = Path(code_path).read_bytes()
    try:
        topology, make_instance = open_topology(
            code, hashlib.sha256(code).hexdigest(), Path(folder) / "modules.zip"
        )
        for component in topology:
            make_instance(component.id)
        check_classes(code)
    except SparkStormError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
