"""Publisher of a worker's log: new lines go to Redis, bounded, so that clients on any host can read
the end of it.

The log file stays the whole record. What cannot be written to Redis at once is left out there: logs
never wait for a store, and a store never waits for logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import redis

from sparkstorm.model.assignment import WorkerSlot
from sparkstorm.transport.keys import Keys

PERIOD_MS = 1_000
RETRY_MS = 30_000
MAX_CHUNK_BYTES = 4 * 1024
MAX_CHUNKS = 256  # of one worker in Redis: 1 MiB
MAX_BYTES_AT_ONCE = 64 * 1024  # what a worker prints faster than this is in its file only
KEPT_SECS = 7 * 24 * 3600  # after the last line


class LogPublisher:
    """One slot's publisher; `log_of` is the path of a topology's log in this slot. Errors of Redis
    pause it.

    `client` is the home store's, `others` make those of the other stores by name.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        client: redis.Redis,
        log_of: Callable[[str], Path],
        others: Mapping[str, Callable[[], redis.Redis]] | None = None,
    ) -> None:
        self._slot = slot
        self._client = client
        self._log_of = log_of
        self._others = others or {}
        # topology of the last step; client of its store, if not home
        self._at: tuple[str, redis.Redis | None] = ("", None)
        self._topology_id = ""
        self._position = 0
        self._due_ms = 0

    def step(self, topology_id: str, now_ms: int, store: str = "") -> None:
        """Publish what the log of that topology has got since the last time, if it is time to."""
        if self._at[0] != topology_id:
            self._follow(topology_id, store)
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + (PERIOD_MS if self.publish(topology_id) else RETRY_MS)

    def publish(self, topology_id: str) -> bool:
        """Publish what is new; False when Redis did not take it."""
        # Last lines of a topology that the slot has left already: its store is not known any more.
        if self._others and topology_id != self._at[0]:
            return True
        if topology_id != self._topology_id:
            self._topology_id = topology_id
            self._position = -1
        try:
            chunks, position = self._new_chunks(self._log_of(topology_id))
        except OSError:  # there is no log yet
            return True
        try:
            if chunks:
                self._write(self._at[1] or self._client, Keys(topology_id).log(self._slot), chunks)
        except redis.RedisError:
            return False
        self._position = position
        return True

    def close(self) -> None:
        """Close the connection."""
        self._follow("", "")
        with contextlib.suppress(redis.RedisError):
            self._client.close()

    def _follow(self, topology_id: str, store: str) -> None:
        """Write that topology's lines to the store that has its other keys, so that they end with
        them.
        """
        before = self._at[1]
        self._at = (topology_id, self._others[store]() if store in self._others else None)
        if before is not None:
            with contextlib.suppress(redis.RedisError):
                before.close()

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
        whole = data[: data.rfind(b"\n") + 1] or (data if len(data) >= MAX_CHUNK_BYTES else b"")
        position = start + skipped + len(whole)
        if skipped and whole:
            whole = (
                b"[%d bytes are in the log file only]\n" % skipped + whole[whole.find(b"\n") + 1 :]
            )
        return [
            whole[at : at + MAX_CHUNK_BYTES] for at in range(0, len(whole), MAX_CHUNK_BYTES)
        ], position

    def _write(self, client: redis.Redis, key: str, chunks: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for chunk in chunks:
            pipeline.xadd(key, {"f": chunk}, maxlen=MAX_CHUNKS, approximate=False)
        pipeline.expire(key, KEPT_SECS)
        pipeline.execute()
