"""Guard of the embedded servers: starts one again, on its port and its data, when it has ended or
no longer answers.

Users of the servers wait for them by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sparkstorm.common.errors import EmbeddedServerError

_LOOK_EVERY_S = 0.1
_LONGEST_PAUSE_S = 10.0


class Server(Protocol):
    """An embedded server, as the guard sees it."""

    def is_alive(self) -> bool: ...
    def answers(self, limit_s: float) -> bool: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RestartPatience:
    """Limits after which a silent server is restarted: `misses` requests in a row without an
    answer, and `silence_s` seconds.

    A question is asked every `every_s` seconds and waits for `limit_s` seconds: a loaded machine is
    slow, and rarely silent.
    """

    every_s: float = 2.0
    limit_s: float = 5.0
    misses: int = 4
    silence_s: float = 20.0


class ServerGuard:
    """Guard of the embedded servers, on a thread for each, until stopped; failed restarts are tried
    again after growing pauses.
    """

    def __init__(
        self,
        servers: Mapping[str, Server],
        say: Callable[[str], None],
        patience: RestartPatience | None = None,
    ) -> None:
        self._say = say
        self._patience = patience or RestartPatience()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._watch, args=(name, server), name=f"{name}-guard", daemon=True
            )
            for name, server in servers.items()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the question or restart at hand; from then on dead servers stay dead."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, name: str, server: Server) -> None:
        pause_s = 0.0
        heard_s = time.monotonic()
        asked_s = 0.0
        misses = 0
        while not self._stopping.wait(max(_LOOK_EVERY_S, pause_s)):
            now_s = time.monotonic()
            if server.is_alive() and now_s - asked_s >= self._patience.every_s:
                asked_s = now_s
                misses = 0 if server.answers(self._patience.limit_s) else misses + 1
                heard_s = time.monotonic() if misses == 0 else heard_s
            if cause := self._cause(server, misses, time.monotonic() - heard_s):
                is_back = not self._stopping.is_set() and self._revive(name, server, cause)
                pause_s = 0.0 if is_back else min(_LONGEST_PAUSE_S, 2 * pause_s or 0.5)
                heard_s = time.monotonic()
                misses = 0

    def _cause(self, server: Server, misses: int, silent_s: float) -> str:
        """Return why a server needs a restart; empty when it does not."""
        if not server.is_alive():
            return "has ended unasked"
        if misses >= self._patience.misses and silent_s >= self._patience.silence_s:
            return f"lives but has not answered for {silent_s:.0f} s"
        return ""

    def _revive(self, name: str, server: Server, cause: str) -> bool:
        began = time.monotonic()
        self._say(f"embedded {name} {cause}; it is started again on its data ...")
        try:
            server.kill()  # one that hangs would not end when asked to
            server.restart()
        except EmbeddedServerError as error:
            self._say(f"embedded {name} could not be started again: {error}")
            return False
        self._say(f"embedded {name} is back after {1000 * (time.monotonic() - began):,.0f} ms")
        return True
