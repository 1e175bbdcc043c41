"""Election of the leading Nimbus: an ephemeral node decides, and a Nimbus that no longer leads can
write nothing.

Left out: kazoo's election recipe and Storm's leader latch, whose holder may still write in a
session that began later, when another leads (decision 35); and a lease by clocks, which a paused
machine outlives.
"""

import os

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import Hint, StateStore, Stored


def own_name() -> str:
    """Return this process as a candidate: host and process id."""
    return f"{os.uname().nodename}:{os.getpid()}"


class LeaderStore:
    """A Nimbus's session: it may write only while it leads, and only in the session in which it was
    elected.

    A Nimbus that was stopped in the middle of a turn (by SIGSTOP, a full disk, a long pause of its
    machine) may find another leading when it goes on. Its session has ended by then, so what is
    left of its turn is refused.
    """

    def __init__(self, inner: StateStore) -> None:
        self._inner = inner
        self._elected_in: int | None = None

    def _led(self) -> StateStore:
        # Checked at each write and not once a turn: a session may end between two writes.
        if self._elected_in is None or self._elected_in != self._inner.session_epoch:
            raise StoreUnavailableError(
                f"this Nimbus does not lead at {self._inner.address}; it writes nothing there"
            )
        return self._inner

    @property
    def address(self) -> str:
        """Address of the store, for messages."""
        return self._inner.address

    @property
    def is_connected(self) -> bool:
        """Return whether the store answered last."""
        return self._inner.is_connected

    @property
    def session_epoch(self) -> int:
        """Sessions lost so far."""
        return self._inner.session_epoch

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Take part in the election at the leader's path; another path only while leading."""
        # Any other ephemeral node is a write like others.
        if path != paths.LEADER:
            return self._led().try_ephemeral(path, data)
        # Read before the request: a session that is lost while the answer travels is not the one
        # that was elected. And until the answer is yes, also if none comes, this Nimbus does not
        # lead.
        epoch = self._inner.session_epoch
        self._elected_in = None
        if self._inner.try_ephemeral(path, data):
            self._elected_in = epoch
        return self._elected_in is not None

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node."""
        return self._inner.get(path, hint)

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Number of a node's last write."""
        return self._inner.last_change(path, hint)

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node."""
        return self._inner.children(path, hint)

    def ensure_path(self, path: str) -> None:
        """Make the node, empty, unless it is there."""
        self._led().ensure_path(path)

    def create(self, path: str, data: bytes) -> None:
        """Make a new node."""
        self._led().create(path, data)

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node."""
        return self._led().put(path, data, version)

    def delete(self, path: str) -> None:
        """Remove a node and everything below it."""
        self._led().delete(path)

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node."""
        self._led().put_ephemeral(path, data)

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make `prefix` + a growing number."""
        return self._led().create_sequential(prefix, data)

    def close(self) -> None:
        """End the session, and with it the leadership."""
        self._elected_in = None
        self._inner.close()
