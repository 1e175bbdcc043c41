"""Publisher of a worker's log: new lines go to Redis, bounded, so that clients on any host can read
the end of it.

The log file stays the whole record. What cannot be written to Redis at once is left out there: logs
never wait for a store, and a store never waits for logs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sparkstorm.common.errors import StoreFullError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.worker_spec import RedisStores
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.keys import Keys

PERIOD_MS = 1_000
RETRY_MS = 30_000
MAX_CHUNK_BYTES = 4 * 1024
MAX_CHUNKS = 256  # of one worker in Redis: 1 MiB
MAX_BYTES_AT_ONCE = 64 * 1024  # what a worker prints faster than this is in its file only
KEPT_SECS = 7 * 24 * 3600  # after the last line


class LogPublisher:
    """One slot's publisher; `log_of` is the path of a topology's log in this slot. Errors of Redis
    pause it.
    """

    def __init__(
        self, slot: WorkerSlot, stores: RedisStores, log_of: Callable[[str], Path], timeout_s: float
    ) -> None:
        """`timeout_s`: for an answer of Redis."""
        self._slot = slot
        self._stores = stores
        self._log_of = log_of
        self._timeout_s = timeout_s
        self._at = ""  # topology of the last step, whose store is known
        self._link: Link | None = None  # to that store
        self._topology_id = ""
        self._position = 0
        self._due_ms = 0

    def step(self, topology_id: str, now_ms: int, store: str = "") -> None:
        """Publish what the log of that topology has got since the last time, if it is time to."""
        self._follow(topology_id, store)
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + (PERIOD_MS if self.publish(topology_id) else RETRY_MS)

    def publish(self, topology_id: str) -> bool:
        """Publish what is new; False when Redis did not take it."""
        # Last lines of a topology that the slot has left already: its store is not known any more.
        if self._stores.others and topology_id != self._at:
            return True
        self._follow(topology_id, "")
        if topology_id != self._topology_id:
            self._topology_id = topology_id
            self._position = -1
        try:
            chunks, position = self._new_chunks(self._log_of(topology_id))
        except OSError:  # there is no log yet
            return True
        try:
            if chunks:
                self._write(Keys(topology_id).log(self._slot), chunks)
        except (StoreUnavailableError, StoreFullError, StoreInconsistentError):
            return False
        self._position = position
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
        self._at, self._link = "", None

    def _follow(self, topology_id: str, store: str) -> None:
        """Write that topology's lines to the store that has its other keys, so that they end with
        them.
        """
        if self._link is not None and topology_id == self._at:
            return
        self.close()
        by_name = {other.name: other for other in self._stores.others}
        address = by_name.get(store, self._stores.home)
        # As one that only reads: a log waits for no rewrite of the server's file.
        self._link = Link(
            address, 0.0, may_write=False, timeout_s=self._timeout_s, tag=Keys(topology_id).prefix
        )
        self._at = topology_id

    def _new_chunks(self, path: Path) -> tuple[list[bytes], int]:
        """Return whole lines after the position, no more than Redis keeps, and the position after
        them.
        """
        with path.open("rb") as log:
            end = log.seek(0, 2)
            # a rotated log begins anew
            start = 0 if self._position > end else max(self._position, 0)
            skipped = max(0, end - start - MAX_BYTES_AT_ONCE)
            log.seek(start + skipped)
            data = log.read(end - start - skipped)
        whole_lines = data[: data.rfind(b"\n") + 1] or (
            data if len(data) >= MAX_CHUNK_BYTES else b""
        )
        position = start + skipped + len(whole_lines)
        if skipped and whole_lines:
            whole_lines = (
                b"[%d bytes are in the log file only]\n" % skipped
                + whole_lines[whole_lines.find(b"\n") + 1 :]
            )
        return [
            whole_lines[offset : offset + MAX_CHUNK_BYTES]
            for offset in range(0, len(whole_lines), MAX_CHUNK_BYTES)
        ], position

    def _write(self, key: str, chunks: list[bytes]) -> None:
        assert self._link is not None, "publish has followed a topology"
        adds = [("XADD", key, "MAXLEN", MAX_CHUNKS, "*", "f", chunk) for chunk in chunks]
        self._link.ask_once(*adds, ("EXPIRE", key, KEPT_SECS))
