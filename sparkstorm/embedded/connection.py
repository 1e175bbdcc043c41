"""Owns the connection file: where a cluster's stores are and its one secret, from which every password is derived.

Whoever reads that file commands the cluster, so it is written with mode 0600 and refused with any other.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkstorm.errors import InvalidConfigError, StoreInconsistentError
from sparkstorm.model.records import decode_record, encode_record
from sparkstorm.model.redis_address import RedisAddress

_SECRET_BYTES = 32
_MAX_FILE_BYTES = 64 * 1024
_DEFAULT_REDIS_PORT = 6379
_URL_FORM = "expected redis://[[user]:password@]host[:port][/db]"


@dataclass(frozen=True, slots=True)
class ZooKeeperEndpoint:
    """Where ZooKeeper is ("host:port,host:port"), the root of our nodes, and the digest identity that owns them."""

    hosts: str
    root: str
    user: str
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Connection:
    """All that a driver, a notebook or a tool needs to join a cluster; `secret` is hexadecimal."""

    redis: RedisAddress
    zookeeper: ZooKeeperEndpoint
    secret: str = field(repr=False)


def new_secret() -> str:
    """A fresh cluster secret from the system's random source, in hexadecimal."""
    return secrets.token_hex(_SECRET_BYTES)


def redis_password(secret: str) -> str:
    """The password of a cluster's embedded Redis."""
    return derive(secret, "redis password").hex()


def zookeeper_password(secret: str) -> str:
    """The password of a cluster's digest identity in ZooKeeper."""
    return derive(secret, "zookeeper digest").hex()


def signing_key(secret: str) -> bytes:
    """The key that signs a cluster's blobs and assignments."""
    return derive(secret, "signatures")


def derive(secret: str, purpose: str) -> bytes:
    """32 bytes for one purpose (HMAC-SHA256): knowing one password tells nothing of the secret or of the others."""
    return hmac.digest(bytes.fromhex(secret), f"sparkstorm {purpose}".encode(), "sha256")


def parse_redis_url(url: str, password: str | None = None) -> RedisAddress:
    """Reads sparkstorm.redis.url; `password` stands in where the URL has none.

    Raises InvalidConfigError, which never quotes the URL: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_REDIS_PORT
        db = int(parts.path.strip("/") or 0)
    except ValueError as error:
        raise InvalidConfigError(f"sparkstorm.redis.url: bad port or database; {_URL_FORM}") from error
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or db < 0 or parts.query or parts.fragment:
        raise InvalidConfigError(f"sparkstorm.redis.url: {_URL_FORM}, with rediss:// for TLS")
    secret = unquote(parts.password or "") or password or ""
    return RedisAddress(parts.hostname, port, secret, unquote(parts.username or ""), db, parts.scheme == "rediss")


def save_connection(path: Path, connection: Connection) -> None:
    """Writes the file for its owner's eyes only, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_record(connection) + b"\n")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InvalidConfigError(f"{path} cannot be written: {error.strerror}") from error


def load_connection(path: Path) -> Connection:
    """Reads the file back.

    Raises InvalidConfigError when it is missing, may be read by others, belongs to somebody else or is damaged.
    """
    data = _read_private(path)
    try:
        connection = decode_record(Connection, data, str(path))
        if len(bytes.fromhex(connection.secret)) < _SECRET_BYTES:
            raise ValueError("too short")
    except (StoreInconsistentError, ValueError) as error:
        reason = error if isinstance(error, StoreInconsistentError) else f"{path}: its secret is damaged"
        raise InvalidConfigError(f"{reason}; delete the file, a new run writes it again") from error
    return connection


def _read_private(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidConfigError(f"connection file {path} cannot be read: {error.strerror}") from error
    try:
        _require_private(path, os.fstat(descriptor))
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
        raise InvalidConfigError(f"connection file {path} is not one: it is no regular file, or far too large")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidConfigError(f"connection file {path} can be read by others: chmod 600 {path}")
    if status.st_uid != os.geteuid():
        raise InvalidConfigError(f"connection file {path} belongs to user {status.st_uid}, not to you")
