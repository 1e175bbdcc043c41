"""Bytes store in Redis: one string per chunk, keys below a prefix of the cluster.

Its requests may all be applied twice, so a `transport.connection.Link` carries them. Left out:
redis-py's client, which takes longer to import than all that most verbs need.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkstorm.common.errors import StoreFullError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError

TAG = "sparkstorm:{blob}"
"""Beginning of all keys, which a link to a cluster needs."""
_WAIT_TURN_MS = 2_000
_KEYS_AT_ONCE = 1000


class RedisBytesStore:
    """Chunks as Redis strings, under the laws of BytesStore; threads take turns on the link.

    The braces keep all of them on one node of a Redis Cluster. They do not come first, since a
    viewer's rights are over keys that begin with braces.
    """

    def __init__(self, link: Link, prefix: str = f"{TAG}:") -> None:
        self._link = link
        self._prefix = prefix
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        with self._lock:
            self._link.close()

    def put(self, key: str, data: bytes) -> None:
        """Store a value."""
        self._ask(f"store blob chunk {key}", "SET", self._prefix + key, data)

    def get(self, key: str) -> bytes | None:
        """Read a value."""
        chunk = self._ask(f"read blob chunk {key}", "GET", self._prefix + key)
        return chunk if isinstance(chunk, bytes) else None

    def has(self, key: str) -> bool:
        """Return whether there is a value."""
        return bool(self._ask(f"look for blob chunk {key}", "EXISTS", self._prefix + key))

    def list_keys(self) -> list[str]:
        """All keys, sorted; a scan, for rare sweeps only."""
        pattern = _literal(self._prefix) + "*"
        all_keys = set[bytes]()
        cursor: Any = 0
        while True:
            cursor, keys = self._ask(
                "list blob chunks", "SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_AT_ONCE
            )
            all_keys.update(keys)
            if not int(cursor):
                return sorted(key.decode().removeprefix(self._prefix) for key in all_keys)

    def wait_copies(self, wanted: int, timeout_ms: int) -> int:
        """The server's own copy and those of its replicas (WAIT), asked for in turns shorter than
        the link's own time limit.
        """
        if wanted <= 1:
            return 1
        left_ms = timeout_ms or math.inf
        while True:
            turn_ms = int(min(left_ms, _WAIT_TURN_MS))
            copies = 1 + int(self._ask("wait for replicas", "WAIT", wanted - 1, turn_ms))
            left_ms -= turn_ms
            if copies >= wanted or left_ms <= 0:
                return copies

    def delete(self, key: str) -> None:
        """Delete a value."""
        self._ask(f"delete blob chunk {key}", "DEL", self._prefix + key)

    def _ask(self, what: str, *command: Any) -> Any:
        with _translated(what), self._lock:
            # A connection may have been lost since the last request, of which it says nothing
            # before the next one. Not more than that: Nimbus and a verb do not wait for a server.
            if self._link.is_open:
                try:
                    return self._link.ask_once(command)[0]
                except AccessRefusedError:
                    raise
                except StoreUnavailableError:
                    self._link.close()
            return self._link.ask_once(command)[0]


def _literal(prefix: str) -> str:
    return re.sub(r"([\[\]*?^\\])", r"\\\1", prefix)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except StoreFullError as error:
        raise StoreFullError(f"Redis is full: could not {what}") from error
    except AccessRefusedError as error:
        raise AccessRefusedError(
            f"Redis refuses the password and did not {what}: {error}"
        ) from error
    except (StoreUnavailableError, StoreInconsistentError) as error:
        raise StoreUnavailableError(f"Redis did not {what}: {error}") from error
