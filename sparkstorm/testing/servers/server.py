"""Start and end of a server of your own: a child on loopback, under a life line to the process
that started it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

from sparkstorm.extensions.embedded.process import TetheredProcess, start_tethered

# a JVM on a machine that is busy with other tests; the servers need 1 to 6 s on a quiet one
_PATIENCE_S = 180.0


class OwnServer(ABC):
    """A server on loopback that ends with the process that started it, also when that one is
    killed.

    `folder` has data and log, which outlive `kill` and `start`. Without it a temporary folder is
    made, and deleted by `stop`. As a context manager it is started and stopped.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path | str | None = None) -> None:
        self._is_temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"sparkstorm-{self.name}-")).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._environment: Mapping[str, str] = MappingProxyType({})
        self._process: TetheredProcess | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the program, by its whole path, and its arguments."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it answers a request."""

    @property
    def pid(self) -> int:
        """Process id of the server; 0 while it does not run."""
        return self._process.pid if self._process else 0

    def start(self, patience_s: float = _PATIENCE_S) -> None:
        """Start it, and wait until it answers; EmbeddedServerError with the end of its log when it
        does not.
        """
        if self._process is None:
            self._process = start_tethered(
                self.name, self._command(), self.folder, self._environment
            )
            try:
                self._process.wait_ready(self.answers, patience_s)
            except BaseException:  # Ctrl-C too
                self.kill()
                raise

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """End it; data in a temporary folder are deleted."""
        self.kill()
        if self._is_temporary:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        """Start it."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()
