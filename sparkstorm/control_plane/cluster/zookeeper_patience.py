"""Time limits of requests and connections to ZooKeeper, and the pauses between the tries of one
request.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import InterruptedError as RetryInterruptedError
from kazoo.retry import RetryFailedError

ANSWERS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
NO_ANSWER = (
    RetryFailedError,
    RetryInterruptedError,
    ConnectionClosedError,
    KazooTimeoutError,
    KazooException,
)
_FIRST_WAIT_S = 2.0
# of each request once an ending owner's patience is used up: a server that is back answers within
# that
_LAST_TRY_S = 0.1


class Pauses:
    """Pauses between the tries of one request: after a lost connection they end as soon as there is
    one again.

    The growing pauses of the settings are for a server that is away; a restarted one would be
    waited for long after it is back.
    """

    def __init__(
        self, is_connected: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._is_connected = is_connected
        self._sleep = sleep
        self._is_cut = self._has_slept = False

    def watching(self, ask: Callable[[], Any]) -> Any:
        """Make one try, and note whether it has lost its connection."""
        self._is_cut = self._has_slept = False
        try:
            return ask()
        except (ConnectionLoss, SessionExpiredError):
            self._is_cut = True
            raise

    def sleep(self, seconds: float) -> None:
        """Sleep a part of a pause (kazoo makes parts of 0.1 s), unless it is over early; the first
        part always.
        """
        if not (self._is_cut and self._has_slept and self._is_connected()):
            self._has_slept = True
            self._sleep(seconds)


class SessionPatience:
    """Time limit of each request, and after `bound` of all unanswered ones together: a context of
    one request.

    Entered, it returns the seconds that the request may take. Answered requests use nothing up, so
    that a long end of an owner keeps its patience for a server that goes away later. Threads may
    overlap: each counts its own wait.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._left_s: float | None = None
        self._began = threading.local()

    def bound(self, total_s: float) -> None:
        """Give all requests from now on that remain unanswered so many seconds in sum; a second
        bound is no new time.
        """
        if self._left_s is None:
            self._left_s = total_s

    def __enter__(self) -> float:
        self._began.at = self._clock()
        return (
            self._limit_s
            if self._left_s is None
            else min(self._limit_s, max(_LAST_TRY_S, self._left_s))
        )

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if (
            self._left_s is not None
            and isinstance(error, NO_ANSWER)
            and not isinstance(error, ANSWERS)
        ):
            self._left_s -= self._clock() - self._began.at


class BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's handler with a bound on the wait for the answer to a connection's first requests.

    A server that is starting may accept a connection and never answer on it. Kazoo waits for it as
    long as the session lasts, 20 s, and does not see that the server has served all others since.
    Each wait without success doubles the next one, for a server that is only slow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wait_s = _FIRST_WAIT_S

    def select(self, *arguments: Any, **options: Any) -> Any:
        """Wait for sockets; one that is read alone is a connection's own, before or within an
        answer.
        """
        readers, writers, others, timeout_s = arguments
        is_answer = len(readers) == 1 and not writers
        if not is_answer or timeout_s is None or timeout_s <= self._wait_s:
            return super().select(*arguments, **options)
        ready = super().select(readers, writers, others, self._wait_s)
        self._wait_s = _FIRST_WAIT_S if ready[0] else 2 * self._wait_s
        return ready
