"""Probes of a host's ways to Redis and to Spark's driver: threads of the slot that plays supervisor.

Workers themselves would report Redis late: a commit on a connection without answers waits ten
seconds, and an idle worker sends nothing. Spark misses a driver or an executor after
`spark.network.timeout` (120 s), and until then nobody names the host.
"""

from __future__ import annotations

import contextlib
import select
import socket
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
    """Answer of a supervisor's probe: since when its host does not reach Redis, or the driver."""

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds it has not answered, and why; (0, "") while it does."""

    def close(self) -> None:
        """End it."""


class _Looking:
    """Thread of a probe, begun with the first question about it."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._answered_s = clock()
        self._problem = ""
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def _silent_ms(self) -> int:
        """Return the time since the last answer; begin to look if nothing does."""
        if self._thread is None:
            self._answered_s = self._clock()
            self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
            self._thread.start()
        return round(1000 * (self._clock() - self._answered_s))

    def _look(self) -> None:
        """Keep the time of the last answer, and what is wrong, until the probe is over."""
        raise NotImplementedError

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_S)


class RedisProbe(_Looking):
    """A probe with its own connection; `connect` makes a client whose requests end after
    ANSWER_S.
    """

    def __init__(
        self, connect: Callable[[], redis.Redis], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("store-probe", clock)
        self._connect = connect

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds Redis has not answered, and why; the first call begins
        to ask.
        """
        silent_ms = self._silent_ms()
        return (silent_ms, self._problem or "no answer") if silent_ms >= 1000 * AWAY_S else (0, "")

    def _look(self) -> None:
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


class DriverProbe(_Looking):
    """A probe of the port of Spark's driver: it holds a connection on which nothing is sent, and
    the kernel looks each second whether the other end is there.

    Left out: to connect anew for each look, which costs the driver of a hundred hosts a hundred
    connections a second. `address` is "HOST:PORT".
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("driver-probe", clock)
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds the driver was not reached, and why; the first call
        begins to look.
        """
        silent_ms = self._silent_ms()
        problem = self._problem
        return (max(1, silent_ms), problem) if problem else (0, "")

    def _look(self) -> None:
        """Hold a connection; a driver that is silent or cannot be connected again is away."""
        while not self._is_over.wait(EVERY_S):
            try:
                with socket.create_connection(self._address, ANSWER_S) as connection:
                    self._problem, self._answered_s = "", self._clock()
                    self._hold(connection)
            except TimeoutError:
                self._problem = "no answer"
            except OSError as error:
                self._problem = error.strerror or str(error)

    def _hold(self, connection: socket.socket) -> None:
        """Return when the other end has ended the connection; TimeoutError when it is silent."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Two lost answers end it, so that it is given up after 3 s: one lost packet names no host.
        for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 2)):
            # elsewhere than on Linux the kernel's own times hold
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        while not self._is_over.is_set():
            if select.select([connection], [], [], EVERY_S)[0]:
                try:
                    if not connection.recv(4096):
                        return
                except ConnectionError:
                    return
            self._answered_s = self._clock()
