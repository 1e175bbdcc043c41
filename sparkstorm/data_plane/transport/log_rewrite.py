"""The one rewrite of Redis' append-only file that a restarted server needs before anything is
written to it.

A server that is killed may leave half a transaction at the end of its file. With
`aof-load-truncated yes` it cuts the file behind the last whole command and not before the
transaction's MULTI (aof.c, loadSingleAppendOnlyFile). Its memory is right then, but its file still
ends in an open MULTI: at the next load, all that was written since is taken into that half
transaction. BGREWRITEAOF replaces the file by what is in memory. One rewrite in a server's life is
enough, and the server's own statistics show whether there was one; so no process has to remember
it. Left out: `aof-load-truncated no`, with which the server does not start after a power cut, and
repairing the file from here, which would need its host (decision 33).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from redis.connection import Connection
from redis.exceptions import NoPermissionError, ResponseError

from sparkstorm.common.errors import StoreFullError, StoreUnavailableError

_LOG = logging.getLogger(__name__)
# The rewrite of a small file takes some milliseconds, and each start of a worker after that of a
# server waits for it; of a large one it takes minutes, for which ten looks a second are enough.
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
# After a rewrite that failed. Asked at every look, a server that cannot write its file would fork
# ten times a second for nothing.
_RETRY_EVERY_S = 1.0
# More often would fill the log of a worker that only waits; an operator looks within some tens of
# seconds.
_SAY_EVERY_S = 10.0
# 45 GB on a disk that writes 50 MB/s. Without a limit a worker would wait for a rewrite that a full
# disk never lets end; with a tenth of it, large stores could not be used on slow disks.
_LONGEST_REWRITE_S = 900.0
_RISK = (
    "a half commit that a crash leaves in its file cannot be removed; it would be found at the next restart, "
    "and its topology stopped"
)
# Once in a process and not once in a connection: a worker opens several, and a store that is away
# opens them again and again.
_said: set[str] = set()


class LogRewrite:
    """The wait of one connection for that rewrite.

    `patience_s` bounds the tries of a rewrite that fails; `on_wait` is called with the reason
    before every new look.
    """

    def __init__(
        self,
        connection: Connection,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._on_wait = on_wait
        self._where = (
            f"Redis at {getattr(connection, 'host', '?')}:{getattr(connection, 'port', '?')}"
        )
        self._began = time.monotonic()
        self._patience_s = patience_s
        self._problem = ""
        self._ask_due = self._began
        self._say_due = self._began + _SAY_EVERY_S

    def finish(self) -> None:
        """Return when the file is whole, or when this server cannot rewrite it (reported once in a
        process).

        StoreUnavailableError while the server still loads its file, or when a rewrite takes longer
        than 15 minutes; StoreFullError while the server cannot write its file and refuses every
        write, as it does on a full disk.
        """
        pause_s = _FIRST_PAUSE_S
        while not self._is_over(self._state()):
            self._on_wait(f"{self._where} rewrites its append-only file")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_over(self, state: dict[bytes, bytes]) -> bool:
        now = time.monotonic()
        if state.get(b"aof_enabled", b"0") == b"0" or _is_rewritten(state):
            return True
        if any(
            state.get(name, b"0") != b"0"
            for name in (b"aof_rewrite_in_progress", b"aof_rewrite_scheduled")
        ):
            self._say_progress(now)
            return False
        # Before the rewrite is asked for: on a full disk it cannot end. Else the wait's error would
        # come in place of MISCONF, and the worker could not be stopped meanwhile.
        # the server tries again by itself, once a second
        if state.get(b"aof_last_write_status", b"ok") != b"ok":
            raise StoreFullError(
                f"{self._where} refuses writes (MISCONF): it cannot write its append-only file; is its disk full?"
            )
        # Going on with a warning and not refusing: half a commit in the file is found by the counts
        # of {p}:steps (decision 33), so what is risked is a stopped topology, not a wrong one.
        if self._problem and now - self._began > self._patience_s:
            return self._give_up()
        return now >= self._ask_due and self._ask(now)

    def _ask(self, now: float) -> bool:
        """Ask for the rewrite; True when this user may not."""
        answer = self._exchange("BGREWRITEAOF")
        if not isinstance(answer, Exception):  # the next look shows whether it ended well
            self._problem, self._ask_due = (
                "the rewrite failed; the server's log says why",
                now + _RETRY_EVERY_S,
            )
            return False
        message = str(answer)
        if "in progress" in message:  # another worker was faster
            return False
        self._problem, self._ask_due = message, now + _RETRY_EVERY_S
        return (
            self._give_up()
            if isinstance(answer, NoPermissionError) or "unknown command" in message
            else False
        )

    def _give_up(self) -> bool:
        warning = f"{self._where} cannot rewrite its append-only file (BGREWRITEAOF: {self._problem}): {_RISK}"
        if warning not in _said:
            _said.add(warning)
            _LOG.warning(warning)
        return True

    def _say_progress(self, now: float) -> None:
        if now - self._began > _LONGEST_REWRITE_S:
            raise StoreUnavailableError(
                f"{self._where} has not rewritten its append-only file within {_LONGEST_REWRITE_S:g} s"
            )
        if now >= self._say_due:
            self._say_due = now + _SAY_EVERY_S
            _LOG.warning(
                "%s rewrites its append-only file, as it must after each start: waiting, %.0f s so far",
                self._where,
                now - self._began,
            )

    def _state(self) -> dict[bytes, bytes]:
        """The server's section on persistence; while it loads its file, that has nothing of use."""
        answer = self._exchange("INFO", "persistence")
        if isinstance(answer, Exception):
            self._problem = str(answer)
            self._give_up()
            return {}
        lines = (line.partition(b":") for line in bytes(answer).splitlines())
        state = {name: value.strip() for name, _, value in lines}
        if state.get(b"loading", b"0") != b"0":
            raise StoreUnavailableError(f"{self._where} is loading its data")
        return state

    def _exchange(self, *words: str) -> Any:
        # Not by a Link: this runs while a Link opens its connection.
        self._connection.send_command(*words, check_health=False)  # type: ignore[no-untyped-call]
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


def _is_rewritten(state: dict[bytes, bytes]) -> bool:
    """Return whether a rewrite has ended well since the server was started (-1: there was none)."""
    return (
        not state.get(b"aof_last_rewrite_time_sec", b"-1").startswith(b"-")
        and state.get(b"aof_last_bgrewrite_status") == b"ok"
    )
