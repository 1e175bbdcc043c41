"""Connection file: addresses of a cluster's stores and its secret, from which every password is
derived.

Law: read access to that file is full access to the cluster, so it is written with mode 0600 and
refused with any other. Left out: a password for each purpose in the file, of which one would be
forgotten when they change; all come from one secret (HMAC), and none reveals another. A server that
hands out addresses, which would need an address itself.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.status import ADDED_LATER
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.tls import NO_FILES, TlsFiles

VIEWER = "sparkstorm-viewer"  # user of a cluster's ZooKeeper and embedded Redis that may only read
# As long as what HMAC-SHA256 makes of it: more would add nothing.
_SECRET_BYTES = 32
# A connection file has some hundred bytes. Without a bound, a path to a device would be read for
# ever.
_MAX_FILE_BYTES = 64 * 1024
_DEFAULT_REDIS_PORT = 6379
_DEFAULT_SENTINEL_PORT = 26379
_URL_FORM = "expected redis://[[user]:password@]host[:port][/db][#name]"
# short and plain: it is in records, messages and tables
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True, slots=True)
class ZooKeeperEndpoint:
    """Address of ZooKeeper ("host:port,host:port"), the root of the cluster's nodes, and the digest
    identity that owns them.
    """

    hosts: str
    root: str
    user: str
    password: str = field(default="", repr=False)
    tls: TlsFiles | None = field(default=None, metadata=ADDED_LATER)  # None: not encrypted


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses and secret (hexadecimal) with which a driver, a notebook or a tool joins a
    cluster.
    """

    redis: RedisAddress
    zookeeper: ZooKeeperEndpoint
    secret: str = field(repr=False)
    other_redis: tuple[RedisAddress, ...] = field(default=(), metadata=ADDED_LATER)

    @property
    def stores(self) -> RedisStores:
        """All stores; `redis` is the home store."""
        return RedisStores(self.redis, self.other_redis)


@dataclass(frozen=True, slots=True)
class ReadOnlyConnection:
    """Addresses and identities that may read, without a secret: the connection of a viewer."""

    redis: RedisAddress
    zookeeper: ZooKeeperEndpoint
    other_redis: tuple[RedisAddress, ...] = field(default=(), metadata=ADDED_LATER)

    @property
    def stores(self) -> RedisStores:
        """All stores; `redis` is the home store."""
        return RedisStores(self.redis, self.other_redis)


def new_secret() -> str:
    """A fresh cluster secret from the system's random source, in hexadecimal."""
    return secrets.token_hex(_SECRET_BYTES)


def redis_password(secret: str) -> str:
    """The password of a cluster's embedded Redis."""
    return derive(secret, "redis password").hex()


def zookeeper_password(secret: str) -> str:
    """The password of a cluster's digest identity in ZooKeeper."""
    return derive(secret, "zookeeper digest").hex()


def viewer_redis_password(secret: str) -> str:
    """The password of the user of a cluster's embedded Redis that may only read."""
    return derive(secret, "redis viewer").hex()


def viewer_zookeeper_password(secret: str) -> str:
    """The password of the digest identity that may read a cluster's records."""
    return derive(secret, "zookeeper viewer").hex()


def signing_key(secret: str) -> bytes:
    """The key that signs a cluster's blobs and assignments."""
    return derive(secret, "signatures")


def derive(secret: str, purpose: str) -> bytes:
    """32 bytes for one purpose (HMAC-SHA256): one password reveals neither the secret nor another
    password.
    """
    return hmac.digest(bytes.fromhex(secret), f"sparkstorm {purpose}".encode(), "sha256")


def parse_redis_url(
    url: str,
    password: str | None = None,
    files: TlsFiles = NO_FILES,
    where: str = "sparkstorm.redis.url",
) -> RedisAddress:
    """Read the URL of a Redis; `password` is used where the URL has none, `files` where it is
    rediss://.

    Raises InvalidConfigError, which names `where` and never quotes the URL: it may hold a password.
    """
    scheme, kind, rest = url.partition("+")
    kind = f"{kind}{rest.partition(':')[0]}" if ":" not in scheme else ""
    try:
        if kind in _OF_SEVERAL:
            parts = urlsplit(url.replace(kind, "", 1))
            return _OF_SEVERAL[kind](parts, scheme, password, files, where)
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_REDIS_PORT
        db = int(parts.path.strip("/") or 0)
    except ValueError:
        # its text, and so a traceback, could show a part of the password
        raise InvalidConfigError(f"{where}: bad port or database; {_URL_FORM}") from None
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or db < 0 or parts.query:
        raise InvalidConfigError(f"{where}: {_URL_FORM}, with rediss:// for TLS")
    if parts.fragment and not _NAME.fullmatch(parts.fragment):
        raise InvalidConfigError(
            f"{where}: a store's name (#name) has up to 60 letters, digits, dots, dashes or underscores"
        )
    secret = unquote(parts.password or "") or password or ""
    is_tls = parts.scheme == "rediss"
    user = unquote(parts.username or "")
    return RedisAddress(
        parts.hostname,
        port,
        secret,
        user,
        db,
        is_tls,
        files if is_tls else NO_FILES,
        parts.fragment,
    )


def _watched(
    parts: SplitResult, scheme: str, password: str | None, files: TlsFiles, where: str
) -> RedisAddress:
    """Return the address of a URL with Sentinels; ValueError for a bad port or database."""
    master, _, db = parts.path.strip("/").partition("/")
    servers = _servers_of(parts, _DEFAULT_SENTINEL_PORT)
    if scheme not in ("redis", "rediss") or not servers or not _NAME.fullmatch(master):
        raise InvalidConfigError(
            f"{where}: expected redis+sentinel://[[user]:password@]host[:port][,host[:port]]/master[/db][#name], with "
            "rediss+sentinel:// for TLS"
        )
    address = _of_first(parts, scheme, password, files, servers)
    return replace(address, db=int(db or 0), master=master, sentinels=tuple(map(_place, servers)))


def _clustered(
    parts: SplitResult, scheme: str, password: str | None, files: TlsFiles, where: str
) -> RedisAddress:
    """Return the address of a URL with nodes of a cluster; ValueError for a bad port."""
    servers = _servers_of(parts, _DEFAULT_REDIS_PORT)
    db = parts.path.strip("/")
    if scheme not in ("redis", "rediss") or not servers or (db and not db.isdecimal()):
        raise InvalidConfigError(
            f"{where}: expected redis+cluster://[[user]:password@]host[:port][,host[:port]][#name], with rediss+cluster:// for TLS"
        )
    if int(db or 0) != 0:
        raise InvalidConfigError(
            f"{where}: a cluster has database 0 alone, and the URL says {int(db)}: leave it out"
        )
    address = _of_first(parts, scheme, password, files, servers)
    return replace(address, nodes=tuple(map(_place, servers)))


_OF_SEVERAL: Final = {"+sentinel": _watched, "+cluster": _clustered}


def _servers_of(parts: SplitResult, port: int) -> list[tuple[str, int]]:
    """Return host and port of each server of a URL with several; none when it is unfit."""
    # One by one, since a URL has one host: `urlsplit` takes the commas for a part of a name.
    host_parts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    if parts.query or not _NAME.fullmatch(parts.fragment or "x"):
        return []
    servers = [(part.hostname, part.port or port) for part in host_parts if part.hostname]
    return servers if len(servers) == len(host_parts) else []


def _place(server: tuple[str, int]) -> str:
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _of_first(
    parts: SplitResult,
    scheme: str,
    password: str | None,
    files: TlsFiles,
    servers: Sequence[tuple[str, int]],
) -> RedisAddress:
    """Return the address of the first server, with the identity of all."""
    user, _, secret = parts.netloc.rpartition("@")[0].partition(":")
    host, port = servers[0]
    return RedisAddress(
        host,
        port,
        unquote(secret) or password or "",
        unquote(user),
        tls=scheme == "rediss",
        tls_files=files if scheme == "rediss" else NO_FILES,
        name=parts.fragment,
    )


def save_connection(path: Path, connection: Connection | ReadOnlyConnection) -> None:
    """Write the file, readable by its owner only, whole or not at all."""
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
    """Read the file back.

    Raises InvalidConfigError when it is missing, may be read by others, belongs to another user or
    is damaged.
    """
    data = _read_private(path)
    try:
        return _decode(data, str(path))
    except (StoreInconsistentError, ValueError) as error:
        reason = (
            error if isinstance(error, StoreInconsistentError) else f"{path}: its secret is damaged"
        )
        raise InvalidConfigError(f"{reason}; delete the file, a new run writes it again") from error


def _decode(data: bytes, where: str) -> Connection:
    connection = decode_record(Connection, data, where)
    if len(bytes.fromhex(connection.secret)) < _SECRET_BYTES:
        raise ValueError("too short")
    return connection


def load_any_connection(path: Path) -> Connection | ReadOnlyConnection:
    """Read a connection file of either kind; raises as `load_connection`."""
    return decode_any_connection(_read_private(path), str(path))


def decode_any_connection(data: bytes, where: str) -> Connection | ReadOnlyConnection:
    """Return the connection in the bytes of a connection file; InvalidConfigError names `where` and
    what is wrong.
    """
    try:
        is_read_only = b'"ReadOnlyConnection"' in data
        return (
            decode_record(ReadOnlyConnection, data, where) if is_read_only else _decode(data, where)
        )
    except StoreInconsistentError as error:
        raise InvalidConfigError(f"{error}; it is not the connection file of a cluster") from error
    except ValueError as error:
        raise InvalidConfigError(f"{where}: its secret is damaged") from error


def read_only_path(path: Path) -> Path:
    """Return the path of the read-only connection file next to a connection file."""
    return path.with_name(f"{path.stem}-read-only{path.suffix}")


def _read_private(path: Path) -> bytes:
    return read_private(path, "connection file", os.O_NOFOLLOW)


def read_private(path: Path, what: str, flags: int = 0) -> bytes:
    """Bytes of a file that its owner alone may read; `flags` are those of os.open beyond the usual
    ones.

    Raises InvalidConfigError, in words that call the file `what`, when it is missing, open to
    others, too large or another user's. Root's files are accepted: secrets that a container mounts
    are root's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        raise InvalidConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    try:
        _require_private(f"{what} {path}", path, os.fstat(descriptor))
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _require_private(name: str, path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
        raise InvalidConfigError(f"{name} is not one: it is no regular file, or far too large")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidConfigError(f"{name} can be read by others: chmod 600 {path}")
    if status.st_uid not in (os.geteuid(), 0):
        raise InvalidConfigError(f"{name} belongs to user {status.st_uid}, not to you")
