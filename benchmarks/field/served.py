"""A peer's process that runs cases when it is asked, so that a round pays for no start of a JVM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.clock import MARK

ROOT = Path(__file__).parent.parent.parent
# A run takes seconds; on a busy machine minutes. A run that hangs must not take the table with it
_PATIENCE_S = 400.0
_END_S = 20.0


class PeerFailedError(Exception):
    """A peer's process has ended, hung or said that a case failed."""


class Served:
    """A process with `serve` of benchmarks/peers/clock.py; it starts with the first case that it is
    asked for, and again after a failure.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._warm: set[tuple[str, str]] = set()
        self._opened = contextlib.ExitStack()

    def run(self, kind: str, case: str, folder: Path) -> Mapping[str, Any]:
        """Return seconds, CPU and answer of a run; the first run of a case only warms the process.

        Raises PeerFailedError.
        """
        asked = json.dumps({"kind": kind, "case": case, "folder": str(folder)})
        if (kind, case) not in self._warm:
            self._ask(asked)
            self._warm.add((kind, case))
        return self._ask(asked)

    def close(self) -> None:
        """End the process: it ends by itself when nothing more can be asked."""
        process = self._process
        self._process = None
        self._warm.clear()
        with self._opened:
            if process is None or process.stdin is None:
                return
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _ask(self, asked: str) -> Mapping[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(asked + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith(MARK):
                    answer: Mapping[str, Any] = json.loads(line.removeprefix(MARK))
                    if "failed" in answer:
                        raise PeerFailedError(str(answer["failed"]))
                    return answer
        finally:
            timer.cancel()
        process.wait()
        self._log.seek(0)
        said = self._log.read()[-600:].strip()
        self.close()
        words = " ".join(self._command[1:])
        raise PeerFailedError(f"{words} ended with {process.returncode}: {said}")

    def _start(self) -> subprocess.Popen[str]:
        self._log = self._opened.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        if self._process.stdout is not None:
            self._opened.enter_context(self._process.stdout)
        return self._process
