"""Owns the thread that keeps the embedded servers alive: a dead one is started again on its port and its data.

Those who use the servers wait for them by themselves; nothing else has to be told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from sparkstorm.errors import EmbeddedServerError

_LOOK_EVERY_S = 0.1
_LONGEST_PAUSE_S = 10.0


class Server(Protocol):
    """What the guard needs of an embedded server."""

    def is_alive(self) -> bool: ...
    def restart(self) -> None: ...


class ServerGuard:
    """Looks after servers until stopped; a server that cannot be started is tried again after growing pauses."""

    def __init__(self, servers: Mapping[str, Server], say: Callable[[str], None]) -> None:
        self._servers = servers
        self._say = say
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-guard", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the restart at hand; from then on dead servers stay dead."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(max(_LOOK_EVERY_S, pause_s)):
            failed = [name for name, server in self._servers.items() if not server.is_alive() and not self._revive(name)]
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s or 0.5) if failed else 0.0

    def _revive(self, name: str) -> bool:
        began = time.monotonic()
        self._say(f"embedded {name} has ended unasked; it is started again on its data ...")
        try:
            self._servers[name].restart()
        except EmbeddedServerError as error:
            self._say(f"embedded {name} could not be started again: {error}")
            return False
        self._say(f"embedded {name} is back after {1000 * (time.monotonic() - began):,.0f} ms")
        return True
