"""Protocol of the state store: a small tree of versioned nodes, after Storm 0.9's ClusterState.

Laws (tests/cluster/test_state_store.py runs them against every implementation)
- Paths are absolute ("/assignments/x"); parents are made when needed; the root always exists.
- A node's version starts at 0 and grows by one per `put`; `put(version=n)` succeeds only when n is
  the present version.
- Two reads of a path with one `change` have the same content: every write, and every creation, has
  a new one. A version does not show that: a node that was deleted and made again counts from 0.
- Ephemeral nodes die with the session that made them; `session_epoch` grows each time a session was
  lost, and the owner of an ephemeral node makes it again at its next tick.
- A hint given to a read is called at most once, some time after what was read may have changed,
  from any thread, maybe for nothing, maybe never: it may only enqueue or set a flag, and every
  reader polls besides.
- Only StoreUnavailableError (no answer, refused), StateConflictError (another writer was first) and
  ValueError (a path that is none, or more than MAX_NODE_BYTES) leave this seam.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

Hint = Callable[[], None]

# ZooKeeper cuts the connection at 1 MiB (jute.maxbuffer), which looks like a network fault; here it
# gets its name.
MAX_NODE_BYTES = 1_000_000


def no_hint() -> None:
    """Do nothing: the hint of a reader that polls a store which keeps what is read with a hint
    (watched.py).
    """


class Stored(NamedTuple):
    """Content of a node, the version that a compare-and-put must name, and the number of its last
    write (ZooKeeper's mzxid).
    """

    data: bytes
    version: int
    change: int


class StateStore(Protocol):
    """A tree of small versioned nodes with sessions; one object per process, usable from several
    threads.
    """

    @property
    def address(self) -> str:
        """Address of the store, for messages."""
        ...

    @property
    def is_connected(self) -> bool:
        """Return whether the store answered last; a guard reads this before it takes others for
        dead.
        """
        ...

    @property
    def session_epoch(self) -> int:
        """Number of sessions lost so far; a change means that its ephemeral nodes may be gone."""
        ...

    def ensure_path(self, path: str) -> None:
        """Make the node, empty, unless it is there."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Make a new node; raise StateConflictError when there is one."""
        ...

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node, None when there is none; the hint also fires when it appears."""
        ...

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Return `Stored.change` of a node without reading its content, None when there is none;
        the hint is one of `get`.
        """
        ...

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node, making it when no version is asked for; return its new version.

        With a version, raise StateConflictError unless the node exists with exactly that version.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove a node and everything below it; absent is fine."""
        ...

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node, sorted; empty when there is no such node."""
        ...

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node; a stale one of an older session of the same
        owner is replaced.
        """
        ...

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Make an ephemeral node if it does not exist; return whether this session holds it
        afterwards (elections).
        """
        ...

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make `prefix` + a growing ten-digit number; return the path. A lost reply may leave one
        more.
        """
        ...

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once."""
        ...


def check_size(path: str, data: bytes) -> bytes:
    """Return data that fits a node unchanged; raise ValueError for more."""
    if len(data) > MAX_NODE_BYTES:
        raise ValueError(f"{path}: {len(data)} bytes are more than a node takes ({MAX_NODE_BYTES})")
    return data


@lru_cache(4096)
def check_path(path: str) -> str:
    """Return a legal path unchanged; raise ValueError naming an illegal one (ZooKeeper's own
    rules).
    """
    parts = path.split("/")
    legal = (
        path.startswith("/")
        and "\x00" not in path
        and not any(part in ("", ".", "..") for part in parts[1:])
    )
    if path != "/" and not legal:
        raise ValueError(f"not a state path: {path!r}")
    return path
