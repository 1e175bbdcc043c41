"""State store on ZooKeeper through kazoo: sessions, access rights, bounded waits, translated
errors.

Refuses to be used in another process than the one that made it (kazoo's threads do not survive a
fork) and never calls ZooKeeper from a kazoo callback (they run on kazoo's own thread and would
dead-lock): hints and session events only set fields or call the caller's non-blocking hint.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kazoo.client import KazooClient, KazooRetry
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import ForceRetryError
from kazoo.security import ACL, Id, Permissions, make_digest_acl, make_digest_acl_credential

from sparkstorm.common.errors import (
    InvalidConfigError,
    ReadOnlyConnectionError,
    StateConflictError,
    StoreUnavailableError,
    show,
)
from sparkstorm.common.settings import ZooKeeperSettings
from sparkstorm.common.tls import TlsFiles
from sparkstorm.control_plane.cluster.base import Hint, Stored, check_path, check_size
from sparkstorm.control_plane.cluster.zookeeper_patience import (
    ANSWERS,
    NO_ANSWER,
    BoundedHandler,
    Pauses,
    SessionPatience,
)
from sparkstorm.control_plane.cluster.zookeeper_rollback import SessionRenewal

_LOG = logging.getLogger(__name__)
# a restarted server is back within that; also of the end of a session, which kazoo gives 20 s
_CLOSING_S = 2.0

_READS = ("look at", "read", "list")

# kazoo reports every reconnect with tracebacks; what matters of it reaches the caller as
# StoreUnavailableError.
QUIET = logging.getLogger("sparkstorm.zookeeper.kazoo")
QUIET.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """Address of ZooKeeper and time limits of its client; `root` is Storm's
    storm.zookeeper.root.
    """

    hosts: str  # "host:port,host:port"
    root: str = "/storm"
    user: str | None = None
    password: str | None = None
    session_timeout_ms: int = 20_000
    connection_timeout_ms: int = 10_000
    retries: int = 5
    retry_interval_ms: int = 1_000
    retry_ceiling_ms: int = 30_000
    request_timeout_ms: int = 10_000  # of one request, all its tries included
    # digest identity ("user:hash") that may read what this session makes; none when empty
    viewer: str = ""
    is_read_only: bool = False  # the identity is a viewer's: nothing is made at the start
    is_bound: bool = False  # a request that was cut is not sent again under a later session
    tls: TlsFiles | None = None  # None: not encrypted

    def with_patience_of(self, conf: Mapping[str, Any]) -> "ZooKeeperAddress":
        """The same address with the timeouts and retries of the storm.zookeeper.* keys."""
        settings = ZooKeeperSettings.of(conf)
        return replace(
            self,
            session_timeout_ms=settings.session_ms,
            connection_timeout_ms=settings.connection_ms,
            retries=settings.retries,
            retry_interval_ms=settings.retry_ms,
            retry_ceiling_ms=settings.longest_retry_ms,
            request_timeout_ms=settings.request_ms,
        )


@dataclass(frozen=True, slots=True)
class _Watcher:
    """A hint as kazoo calls it; equal for equal hints: kazoo keeps watchers in a set per path, so a
    poll does not pile them up.
    """

    hint: Hint

    def __call__(self, _event: object) -> None:
        self.hint()


class ZooKeeperStateStore:
    """A session with ZooKeeper, under the laws of StateStore; raises StoreUnavailableError when it
    cannot be opened.

    `say` gets a sentence when the server has lost what the session has seen, and the session is
    made anew.
    """

    def __init__(
        self, address: ZooKeeperAddress, say: Callable[[str], None] = _LOG.warning
    ) -> None:
        self._conf = address
        self._say = say
        try:
            self._root = check_path(address.root).rstrip("/")
            self._client = _make_client(address)
        except ValueError as error:  # kazoo's of a port
            raise InvalidConfigError(
                f"no ZooKeeper is at {show(address.hosts)} with the root {show(address.root)}: {error}; "
                "see storm.zookeeper.servers, storm.zookeeper.port and storm.zookeeper.root"
            ) from error
        self._pid = os.getpid()
        self._epoch = 0
        self._closed = False
        # session and version of its ephemeral nodes, as it wrote them last
        self._written: dict[str, tuple[int, int]] = {}
        self._patience = SessionPatience(address.request_timeout_ms / 1000)
        self.rollbacks = 0
        """Number of times that the server was older than the session, which was then made anew."""
        self._renewal = SessionRenewal(
            self._client, lambda: _make_client(address), self._note_rollback
        )
        self._client.add_listener(self._note_session)
        self._start()

    def _start(self) -> None:
        try:
            self._client.start(timeout=self._conf.connection_timeout_ms / 1000)
            if not self._conf.is_read_only:
                self.ensure_path("/")
        except (KazooTimeoutError, KazooException) as error:
            self._end()
            raise StoreUnavailableError(
                f"ZooKeeper at {self.address} does not answer within {self._conf.connection_timeout_ms} ms ({error})"
            ) from error
        except BaseException:
            self._end()
            raise

    @property
    def address(self) -> str:
        """Hosts and root, for messages."""
        return f"{self._conf.hosts}{self._root}"

    @property
    def is_connected(self) -> bool:
        """Return whether the session is connected now."""
        return not self._closed and self._client.state == KazooState.CONNECTED

    @property
    def session_epoch(self) -> int:
        """Sessions lost so far."""
        return self._epoch

    def _note_session(self, state: str) -> None:
        if state == KazooState.LOST:
            self._epoch += 1
        self._renewal.note(state)

    def _note_rollback(self) -> None:
        self.rollbacks += 1
        self._say(
            f"ZooKeeper at {self.address} was emptied or put back to an older state: a new session is begun; topologies that it "
            "does not know any more are stopped, and what Redis keeps of them is named among Nimbus's problems"
        )

    def _at(self, path: str) -> str:
        check_path(path)
        return (self._root + path).rstrip("/") or "/"

    def _call(
        self, what: str, path: str, request: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Send one request, again after a cut, each try with a deadline; translate what cannot be
        fixed.
        """
        if os.getpid() != self._pid:
            raise StoreUnavailableError(
                f"the ZooKeeper session of process {self._pid} cannot be used in {os.getpid()}"
            )
        try:
            epoch = self._epoch
            pauses = Pauses(lambda: bool(self._client.connected))
            with self._patience as limit_s:
                until_s = time.monotonic() + limit_s
                retry = self._retry(pauses, limit_s)
                return retry(
                    pauses.watching, lambda: self._ask(epoch, until_s, request, arguments, options)
                )
        except ANSWERS:
            raise
        except (NoAuthError, AuthFailedError) as error:
            if self._conf.is_read_only:
                raise ReadOnlyConnectionError(
                    f"ZooKeeper at {self.address} refuses to {what} {path} for a viewer"
                ) from error
            raise StoreUnavailableError(
                f"ZooKeeper at {self.address} refuses to {what} {path}: storm.zookeeper.auth.user or "
                f"storm.zookeeper.auth.password is not the one that made this tree"
            ) from error
        except NO_ANSWER as error:
            # kazoo keeps what it could not send, and an answer may be lost behind its write
            later = "" if what in _READS else "; what was asked may still be done when it is back"
            raise StoreUnavailableError(
                f"ZooKeeper at {self.address} did not answer the request to {what} {path} ({type(error).__name__}){later}"
            ) from error

    def _node(
        self, what: str, path: str, request: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Ask about the node at a path."""
        return self._call(what, path, request, self._at(path), *arguments, **options)

    def _ask(
        self,
        epoch: int,
        until_s: float,
        request: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if self._conf.is_bound and self._epoch != epoch:
            raise StoreUnavailableError(f"the session with ZooKeeper at {self.address} was lost")
        try:
            return request(*arguments, **options).get(timeout=max(0.0, until_s - time.monotonic()))
        except KazooTimeoutError as error:
            raise ForceRetryError from error

    def _retry(self, pauses: Pauses, limit_s: float) -> KazooRetry:
        conf = self._conf
        return KazooRetry(
            max_tries=conf.retries,
            delay=conf.retry_interval_ms / 1000,
            max_delay=conf.retry_ceiling_ms / 1000,
            deadline=limit_s,
            sleep_func=pauses.sleep,
            interrupt=lambda: self._closed,
        )

    def _watcher(self, hint: Hint | None) -> Callable[[object], None] | None:
        return None if hint is None else _Watcher(hint)

    def ensure_path(self, path: str) -> None:
        """Make the node, empty, unless it is there."""
        self._ensure(path)

    def ensure_hidden(self, path: str) -> None:
        """Make the node, empty, unless it is there; viewers may not read it."""
        parent = path.rpartition("/")[0]
        self._ensure(parent or "/")
        self._create_or_leave(
            path,
            self._at(path),
            [acl for acl in self._client.default_acl or () if acl.perms == Permissions.ALL],
        )

    def _ensure(self, path: str) -> None:
        parts = [part for part in self._at(path).split("/") if part]
        for depth in range(1, len(parts) + 1):
            step = "/" + "/".join(parts[:depth])
            if self._call("look at", path, self._client.exists_async, step) is None:
                self._create_or_leave(path, step)

    def _create_or_leave(self, path: str, step: str, acl: list[ACL] | None = None) -> None:
        try:
            self._call("make", path, self._client.create_async, step, b"", acl or None)
        except NodeExistsError:
            return  # made by another between our look and our create: just what was asked for

    def _make(self, path: str, data: bytes, **options: Any) -> str:
        """Create a node, and its parents when they are missing."""
        check_size(path, data)
        try:
            return str(self._node("make", path, self._client.create_async, data, **options))
        except NoNodeError:
            self.ensure_path(path.rpartition("/")[0] or "/")
            return str(self._node("make", path, self._client.create_async, data, **options))

    def create(self, path: str, data: bytes) -> None:
        """Make a new node; raise StateConflictError when there is one."""
        try:
            self._make(path, data)
        except NodeExistsError as error:
            raise StateConflictError(f"{path}: there is such a node already") from error

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node, None when there is none; the hint also fires when it appears."""
        watcher = self._watcher(hint)
        try:
            data, stat = self._node("read", path, self._client.get_async, watcher)
            return Stored(bytes(data), int(stat.version), int(stat.mzxid))
        except NoNodeError:
            # else it appeared in between
            return self.get(path) if self._is_there(path, watcher) else None

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Return `Stored.change` of a node without reading its content, None when there is none."""
        stat = self._node("look at", path, self._client.exists_async, self._watcher(hint))
        return None if stat is None else int(stat.mzxid)

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node; compare the version when one is given."""
        check_size(path, data)
        try:
            wanted = -1 if version is None else version
            return int(self._node("write", path, self._client.set_async, data, wanted).version)
        except NoNodeError as error:
            if version is not None:
                raise StateConflictError(
                    f"{path}: expected version {version}, found no node"
                ) from error
            return self._put_new(path, data)
        except BadVersionError as error:
            # Perhaps our own put, sent again after its reply was cut: the caller reads again and
            # sees that it is done.
            raise StateConflictError(
                f"{path}: another writer replaced version {version} first"
            ) from error

    def _put_new(self, path: str, data: bytes) -> int:
        try:
            self._make(path, data)
            return 0
        except NodeExistsError:
            return self.put(path, data)

    def delete(self, path: str) -> None:
        """Remove a node and everything below it; absent is fine."""
        while True:
            for name in self.children(path):
                self.delete(f"{path.rstrip('/')}/{name}")
            try:
                self._node("delete", path, self._client.delete_async)
                return
            except NoNodeError:
                return
            except NotEmptyError:
                continue  # another session added a child meanwhile

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node, sorted; empty when there is no such node."""
        watcher = self._watcher(hint)
        try:
            return sorted(self._node("list", path, self._client.get_children_async, watcher))
        except NoNodeError:
            return self.children(path) if self._is_there(path, watcher) else []

    def _is_there(self, path: str, watcher: Callable[[object], None] | None) -> bool:
        """Return whether a node that was missing has come; without a watcher it is not looked at."""
        if watcher is None:
            return False
        return self._node("look at", path, self._client.exists_async, watcher) is not None

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node; a stale one of an older session of the same
        owner is replaced.
        """
        session, version = self._written.pop(path, (0, 0))
        if session and session == self._session():
            # No other session has written since this one did: one request. Another owner's node has
            # another version.
            with contextlib.suppress(StateConflictError):
                self._written[path] = session, self.put(path, data, version)
                return
        while True:
            holder = self._holder(path)
            if holder == self._session():
                self._written[path] = holder, self.put(path, data)
                return
            if holder is not None:
                self.delete(path)
            try:
                self._make(path, data, ephemeral=True)
                return
            except NodeExistsError:
                continue  # our own create whose reply was cut, or a rival: look again

    def _session(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def _holder(self, path: str) -> int | None:
        stat = self._node("look at", path, self._client.exists_async)
        return None if stat is None else int(stat.ephemeralOwner)

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Make an ephemeral node if it does not exist; return whether this session holds it
        afterwards.
        """
        try:
            self._make(path, data, ephemeral=True)
        except NodeExistsError:
            return self._holder(path) == self._session()
        return True

    def create_ephemeral(self, path: str, data: bytes, acl: list[ACL] | None) -> None:
        """Make an ephemeral node under a name that is this session's alone; `acl` in place of the
        tree's own.
        """
        # our own create, sent again after its reply was cut
        with contextlib.suppress(NodeExistsError):
            self._make(path, data, ephemeral=True, acl=acl)

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make `prefix` + a growing ten-digit number; return the path. A lost reply may leave one
        more.
        """
        return self._make(prefix, data, sequence=True)[len(self._root) :]

    def open_to_viewer(self, hidden: str) -> None:
        """Let the address's viewer read a tree that an earlier release made; what lies below
        `hidden` stays closed.
        """
        viewer = ACL(Permissions.READ, Id("digest", self._conf.viewer))
        if (
            not self._conf.viewer
            or viewer in self._node("look at", "/", self._client.get_acls_async)[0]
        ):
            return
        waiting = ["/"]
        to_open = []
        while waiting:
            path = waiting.pop()
            to_open.append(path)
            waiting += [
                child
                for name in self.children(path)
                if (child := f"{path.rstrip('/')}/{name}") != hidden
            ]
        for path in reversed(to_open):  # the root last: it marks that all is done
            with contextlib.suppress(NoNodeError):
                acls, _ = self._node("look at", path, self._client.get_acls_async)
                if viewer not in acls:
                    self._node("open", path, self._client.set_acls_async, [*acls, viewer])

    def hurry(self) -> None:
        """Wait only briefly for answers from now on, for all of them together: the owner is about
        to close.
        """
        self._patience.bound(_CLOSING_S)

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once, or with its time-out when the server is
        away or silent.
        """
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._end()

    def _end(self) -> None:
        # kazoo waits for a silent server as long as the session lasts; what is left of its threads
        # ends with the process
        ending = threading.Thread(target=self._stop, name="zookeeper-end", daemon=True)
        ending.start()
        ending.join(_CLOSING_S)

    def _stop(self) -> None:
        self._renewal.close()
        with contextlib.suppress(KazooException):  # a thread of kazoo's that did not end
            self._client.stop()
            self._client.close()


def viewer_identity(user: str, password: str) -> str:
    """Return the identity under which ZooKeeper knows a user: name and hash, which open nothing."""
    return str(make_digest_acl_credential(user, password))


def _make_client(address: ZooKeeperAddress) -> KazooClient:
    secured = address.password is not None
    user = address.user or "sparkstorm"
    acl = [make_digest_acl(user, address.password, all=True)] if secured else None
    if acl and address.viewer:
        acl.append(ACL(Permissions.READ, Id("digest", address.viewer)))
    return KazooClient(
        hosts=address.hosts,
        timeout=address.session_timeout_ms / 1000,
        auth_data=[("digest", f"{user}:{address.password}")] if secured else None,
        default_acl=acl,
        logger=QUIET,
        handler=BoundedHandler(),
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 0.5},
        **(address.tls.for_kazoo() if address.tls else {}),
    )
