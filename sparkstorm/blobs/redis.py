"""Bytes store in Redis: one string per chunk, keys below a prefix of the cluster."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from sparkstorm.errors import StoreFullError, StoreUnavailableError
from sparkstorm.transport.connection import AccessRefusedError
from sparkstorm.transport.log_rewrite import LogRewrite

_PATIENCE_S = 10.0

_WAIT_TURN_MS = 2_000


class RedisBytesStore:
    """Chunks as Redis strings, under the laws of BytesStore; the client must not decode
    responses.
    """

    def __init__(self, client: redis.Redis, prefix: str = "sparkstorm:blob:") -> None:
        self._client = client
        self._prefix = prefix

    def put(self, key: str, data: bytes) -> None:
        """Store a value."""
        with _translated(f"store blob chunk {key}"):
            self._client.set(self._prefix + key, data)

    def get(self, key: str) -> bytes | None:
        """Read a value."""
        with _translated(f"read blob chunk {key}"):
            found = self._client.get(self._prefix + key)
        return found if isinstance(found, bytes) else None

    def has(self, key: str) -> bool:
        """Return whether there is a value."""
        with _translated(f"look for blob chunk {key}"):
            return bool(self._client.exists(self._prefix + key))

    def list_keys(self) -> list[str]:
        """All keys, sorted; a scan, for rare sweeps only."""
        with _translated("list blob chunks"):
            found = [
                key.decode() for key in self._client.scan_iter(match=_literal(self._prefix) + "*")
            ]
        return sorted(key.removeprefix(self._prefix) for key in found)

    def wait_copies(self, wanted: int, timeout_ms: int) -> int:
        """The server's own copy and those of its replicas (WAIT), asked for in turns shorter than
        the client's own time limit.
        """
        if wanted <= 1:
            return 1
        with _translated("wait for replicas"):
            left_ms = timeout_ms or math.inf
            while True:
                turn_ms = int(min(left_ms, _WAIT_TURN_MS))
                copies = 1 + int(self._client.wait(wanted - 1, turn_ms))
                left_ms -= turn_ms
                if copies >= wanted or left_ms <= 0:
                    return copies

    def delete(self, key: str) -> None:
        """Delete a value."""
        with _translated(f"delete blob chunk {key}"):
            self._client.delete(self._prefix + key)


def greet(connection: Any) -> None:
    """Open a connection of a client that will write: to a restarted server only when its
    append-only file is whole.
    """
    connection.on_connect()
    try:
        LogRewrite(connection, _PATIENCE_S).finish()
    except (StoreFullError, StoreUnavailableError) as error:
        raise redis.ConnectionError(str(error)) from error  # lets redis-py close the connection


def _literal(prefix: str) -> str:
    return re.sub(r"([\[\]*?^\\])", r"\\\1", prefix)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise StoreFullError(f"Redis is full: could not {what}") from error
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise AccessRefusedError(
            f"Redis refuses the password and did not {what}: {error}"
        ) from error
    except (redis.exceptions.RedisError, OSError) as error:
        raise StoreUnavailableError(f"Redis did not {what}: {error}") from error
