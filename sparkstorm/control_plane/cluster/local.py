"""In-process twin of the state store: one tree, many sessions that a test may expire or cut off."""

import threading
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from sparkstorm.common.errors import StateConflictError, StoreUnavailableError
from sparkstorm.control_plane.cluster.base import Hint, Stored, check_path, check_size


@dataclass(slots=True)
class _Node:
    data: bytes = b""
    version: int = 0
    change: int = 0
    owner: int = 0  # the session of an ephemeral node, 0 for a lasting one
    next_number: int = 0
    children: dict[str, "_Node"] = field(default_factory=dict)


class LocalStateTree:
    """Tree that LocalStateStore sessions share, in place of the ZooKeeper servers."""

    Checkpoint: TypeAlias = _Node

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_down = False  # a test's switch: every session gets StoreUnavailableError meanwhile
        self._root = _Node()
        self._sessions = self._changes = 0
        # Hints on a node's data and on its children's names, as ZooKeeper keeps its watches.
        self._data_hints: dict[str, list[Hint]] = {}
        self._name_hints: dict[str, list[Hint]] = {}

    def open_session(self) -> int:
        """Number of a fresh session."""
        with self.lock:
            self._sessions += 1
            return self._sessions

    def end_session(self, session: int) -> None:
        """Drop what that session held."""
        with self.lock:
            for path in self._ephemeral_paths(self._root, "", session):
                self.remove(path)

    def checkpoint(self) -> "LocalStateTree.Checkpoint":
        """Return a copy of all nodes, as of the servers' disks."""
        with self.lock:
            return deepcopy(self._root)

    def restore(self, checkpoint: "LocalStateTree.Checkpoint | None") -> set[int]:
        """Put all nodes back to a copy, or remove all; every hint is called. Return the sessions
        whose nodes are back.
        """
        with self.lock:
            self._root = _Node() if checkpoint is None else deepcopy(checkpoint)
            hints = [
                hint
                for path_hints in (*self._data_hints.values(), *self._name_hints.values())
                for hint in path_hints
            ]
            self._data_hints = {}
            self._name_hints = {}
            for hint in hints:
                hint()
            return _owners(self._root)

    def _ephemeral_paths(self, node: _Node, path: str, session: int) -> list[str]:
        own = [path] if node.owner == session else []
        return own + [
            ephemeral_path
            for name, child in node.children.items()
            for ephemeral_path in self._ephemeral_paths(child, f"{path}/{name}", session)
        ]

    def find(self, path: str) -> _Node | None:
        """The node at a path."""
        node: _Node | None = self._root
        for part in _parts(path):
            node = node.children.get(part) if node else None
        return node

    def make(self, path: str, data: bytes = b"", owner: int = 0) -> _Node:
        """Make a node with its parents; StateConflictError when it is there."""
        parts = _parts(path)
        check_size(path, data)
        if not parts or self.find(path):
            raise StateConflictError(f"{path}: there is such a node already")
        parent = self._root
        above = ""
        for part in parts[:-1]:
            above += "/" + part
            if part not in parent.children:
                self.make(above)
            parent = parent.children[part]
        if parent.owner:
            raise ValueError(f"{path}: an ephemeral node has no children")
        node = parent.children[parts[-1]] = _Node(data, change=self.next_change(), owner=owner)
        self.note_names(path)
        return node

    def next_change(self) -> int:
        """Number of the next write; a restored tree goes on counting, so that none is given
        twice.
        """
        self._changes += 1
        return self._changes

    def remove(self, path: str) -> None:
        """Remove a node and all below it."""
        parts = _parts(path)
        parent = self.find("/" + "/".join(parts[:-1])) if parts else None
        if parent and parent.children.pop(parts[-1], None):
            self.note_names(path)

    def watch_data(self, path: str, hint: Hint | None) -> None:
        """Keep a hint for the next change of a node, or its coming."""
        _add(self._data_hints, path, hint)

    def watch_names(self, path: str, hint: Hint | None) -> None:
        """Keep a hint for the next child that comes or goes."""
        _add(self._name_hints, path, hint)

    def note_data(self, path: str) -> None:
        """Call the hints on a node's data."""
        for hint in self._data_hints.pop(path, []):
            hint()

    def note_names(self, path: str) -> None:
        """Call the hints of a node that came or went, of all below it, and of its parent's
        children.
        """
        parent = "/" + "/".join(_parts(path)[:-1])
        for hint in self._name_hints.pop(parent, []):
            hint()
        for hints in (self._data_hints, self._name_hints):
            for hinted_path in [
                hinted_path
                for hinted_path in hints
                if hinted_path == path or hinted_path.startswith(path + "/")
            ]:
                for hint in hints.pop(hinted_path, []):
                    hint()


def _owners(node: _Node) -> set[int]:
    owners = {owner for child in node.children.values() for owner in _owners(child)}
    return owners | {node.owner} if node.owner else owners


def _add(hints: dict[str, list[Hint]], path: str, hint: Hint | None) -> None:
    path_hints = hints.setdefault(path, [])
    if hint and hint not in path_hints:
        path_hints.append(hint)


@lru_cache(4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in check_path(path).split("/") if part)


class LocalStateStore:
    """One session on a LocalStateTree, under the laws of StateStore."""

    def __init__(self, tree: LocalStateTree | None = None) -> None:
        self.tree = tree or LocalStateTree()
        self._session = self.tree.open_session()
        self._epoch = 0
        self._closed = False

    @property
    def address(self) -> str:
        """Address of the store, for messages."""
        return "this process"

    @property
    def is_connected(self) -> bool:
        """Return whether calls would succeed now."""
        return not (self._closed or self.tree.is_down)

    @property
    def session_epoch(self) -> int:
        """Sessions lost so far."""
        return self._epoch

    def expire_session(self) -> None:
        """Lose the session as after a long cut: ephemeral nodes go, a new session begins."""
        self.tree.end_session(self._session)
        self._session = self.tree.open_session()
        self._epoch += 1

    def renew_session(self) -> None:
        """Begin a new session, as after the servers have forgotten this one: its nodes, if there
        are any, stay.
        """
        self._session = self.tree.open_session()
        self._epoch += 1

    def _open(self, path: str) -> str:
        if not self.is_connected:
            raise StoreUnavailableError(
                f"the local state store is {'closed' if self._closed else 'down'}"
            )
        return check_path(path)

    def ensure_path(self, path: str) -> None:
        """Make the node, empty, unless it is there."""
        with self.tree.lock:
            if self.tree.find(self._open(path)) is None:
                self.tree.make(path)

    def create(self, path: str, data: bytes) -> None:
        """Make a new node; raise StateConflictError when there is one."""
        with self.tree.lock:
            self.tree.make(self._open(path), data)

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node, None when there is none."""
        with self.tree.lock:
            node = self.tree.find(self._open(path))
            self.tree.watch_data(path, hint)
            return Stored(node.data, node.version, node.change) if node else None

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Return `Stored.change` of a node, None when there is none."""
        stored = self.get(path, hint)
        return None if stored is None else stored.change

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node; compare the version when one is given."""
        with self.tree.lock:
            node = self.tree.find(self._open(path))
            if version is not None and (node is None or node.version != version):
                actual = f"version {node.version}" if node else "no node"
                raise StateConflictError(f"{path}: expected version {version}, found {actual}")
            if node is None:
                return self.tree.make(path, data).version
            node.data = check_size(path, data)
            node.version += 1
            node.change = self.tree.next_change()
            self.tree.note_data(path)
            return node.version

    def delete(self, path: str) -> None:
        """Remove a node and everything below it; absent is fine."""
        with self.tree.lock:
            self.tree.remove(self._open(path))

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node, sorted."""
        with self.tree.lock:
            node = self.tree.find(self._open(path))
            self.tree.watch_names(path, hint)
            return sorted(node.children) if node else []

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node, replacing a stale one."""
        with self.tree.lock:
            node = self.tree.find(self._open(path))
            if node and node.owner == self._session:
                self.put(path, data)
                return
            self.tree.remove(path)
            self.tree.make(path, data, self._session)

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Make an ephemeral node if it does not exist; return whether this session holds it
        afterwards.
        """
        with self.tree.lock:
            node = self.tree.find(self._open(path)) or self.tree.make(path, data, self._session)
            return node.owner == self._session

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make `prefix` + a growing ten-digit number; return the path."""
        with self.tree.lock:
            parent_path = check_path(self._open(prefix)).rpartition("/")[0] or "/"
            parent = self.tree.find(parent_path) or self.tree.make(parent_path)
            path = f"{prefix}{parent.next_number:010d}"
            parent.next_number += 1
            self.tree.make(path, data)
            return path

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once."""
        self.tree.end_session(self._session)
        self._closed = True
