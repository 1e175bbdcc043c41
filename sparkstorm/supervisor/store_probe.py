"""Probe of a host's way to Redis: a thread of the slot that plays supervisor asks for an answer
twice a second.

Workers themselves would report it late: a commit on a connection without answers waits ten seconds,
and an idle worker sends nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

import redis

EVERY_S = 0.5
ANSWER_S = 1.0
AWAY_S = 2.0
"""Time without an answer after which Redis counts as away.

Half of it would name a host for one lost packet or a slow script of Redis; with double of it Nimbus
would not know within 3 s.
"""


class StoreProbe(Protocol):
    """Answer of a supervisor's probe: since when its host does not reach Redis."""

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds Redis has not answered, and why; (0, "") while it
        does.
        """

    def close(self) -> None:
        """End it."""


class RedisProbe:
    """A probe with a connection of its own; `connect` makes a client whose requests end after
    ANSWER_S.
    """

    def __init__(
        self, connect: Callable[[], redis.Redis], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._answered_s = clock()
        self._problem = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds Redis has not answered, and why; the first call begins
        to ask.
        """
        if self._thread is None:
            self._answered_s = self._clock()
            self._thread = threading.Thread(target=self._ask, name="store-probe", daemon=True)
            self._thread.start()
        silent_s = self._clock() - self._answered_s
        return (
            (round(1000 * silent_s), self._problem or "no answer")
            if silent_s >= AWAY_S
            else (0, "")
        )

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_S)

    def _ask(self) -> None:
        client = self._connect()
        while not self._is_over.wait(EVERY_S):
            try:
                client.ping()
                self._problem, self._answered_s = "", self._clock()
            except redis.ConnectionError as error:
                self._problem = str(error) or type(error).__name__
            except redis.TimeoutError:
                self._problem = f"no answer within {ANSWER_S:g} s"
            except redis.RedisError:  # it has answered
                self._problem, self._answered_s = "", self._clock()
        with contextlib.suppress(redis.RedisError):
            client.close()
