"""Child process that ends with its starter, at any kind of death: both ends of the pipe between
them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def tied(command: list[str]) -> Iterator[None]:
    """Run a child whose standard input is a pipe of ours: it closes with this process, also when
    that one is killed.
    """
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        child.terminate()
        child.communicate(timeout=10)


def end_with_input() -> None:
    """Have this process end, as by SIGTERM, when its standard input does."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="starter", daemon=True).start()
