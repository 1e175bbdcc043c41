"""Session on the simulated state store that faults may meet: cut off, or with writes that are
refused or lose their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster.base import Hint, Stored
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.testing.simulation import SimulatedDeath


class FaultySession:
    """One session on the tree, which may be cut off, and whose writes may be refused or lose their
    answers.
    """

    def __init__(
        self, inner: LocalStateStore, who: str, on_write: Callable[[FaultySession], str]
    ) -> None:
        self.inner = inner
        self.who = who
        self._on_write = on_write
        self.is_cut = False
        self.is_dead = False

    @property
    def address(self) -> str:
        """Return the place of the store for messages."""
        return self.inner.address

    @property
    def is_connected(self) -> bool:
        """Return whether calls would succeed now."""
        return not (self.is_cut or self.is_dead) and self.inner.is_connected

    @property
    def session_epoch(self) -> int:
        """Sessions lost so far."""
        return self.inner.session_epoch

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node."""
        self._reach()
        return self.inner.get(path, hint)

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Number of a node's last write."""
        self._reach()
        return self.inner.last_change(path, hint)

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node."""
        self._reach()
        return self.inner.children(path, hint)

    def ensure_path(self, path: str) -> None:
        """Make the node unless it is there."""
        self._write(lambda: self.inner.ensure_path(path))

    def create(self, path: str, data: bytes) -> None:
        """Make a new node."""
        self._write(lambda: self.inner.create(path, data))

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node."""
        new_version: int = self._write(lambda: self.inner.put(path, data, version))
        return new_version

    def delete(self, path: str) -> None:
        """Remove a node."""
        self._write(lambda: self.inner.delete(path))

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node."""
        self._write(lambda: self.inner.put_ephemeral(path, data))

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Make an ephemeral node if there is none."""
        is_made: bool = self._write(lambda: self.inner.try_ephemeral(path, data))
        return is_made

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make a node with a growing number."""
        created: str = self._write(lambda: self.inner.create_sequential(prefix, data))
        return created

    def close(self) -> None:
        """End the session."""
        self.is_dead = True
        self.inner.close()

    def _reach(self) -> None:
        if self.is_cut or self.is_dead:
            raise StoreUnavailableError(f"the session of {self.who} is cut off")

    def _write(self, do: Callable[[], Any]) -> Any:
        self._reach()
        fate = self._on_write(self)
        if fate.endswith("DIES_BEFORE_WRITE"):
            raise SimulatedDeath(fate)
        if fate.endswith("WRITE_REFUSED"):
            raise StoreUnavailableError(f"{self.who}: the write did not reach the store")
        result = do()
        if fate.endswith("DIES_AFTER_WRITE"):
            raise SimulatedDeath(fate)
        if fate.endswith("ANSWER_LOST"):
            raise StoreUnavailableError(f"{self.who}: the answer to a write was lost")
        return result
