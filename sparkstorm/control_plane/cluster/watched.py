"""Reads of a slot that are repeated when something changed: a session whose reads with a hint are
kept until the hint is due.

The pollers of a slot read the same few nodes four times a second. What they read with a hint has a
watch, so it is read again only when the watch has fired. Reads without a hint always go to the
store: they come before a write. A re-read without news fetches no content that is the same: a
thousand slots with a large topology would move some 18 MB/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast
from zlib import crc32

from sparkstorm.control_plane.cluster.base import Hint, StateStore, Stored

REREAD_MS = 30_000
"""Age at which a node is read again though its watch did not fire.

A watch fires once and belongs to a connection. kazoo calls every watcher when a connection or a
session ends, so none is lost in a way that is known. The re-read bounds what an unknown one costs:
with half of it five kept nodes would be 0.3 requests/s and slot, with double of it a lost watch
would delay the end of a topology by a minute.
"""

_T = TypeVar("_T")
_Key = tuple[str, bool]  # path, and whether it is about the names of the children


class _Cached:
    """Last answer about one node; its `fire` is the watcher, so that one node has one watcher
    however often it is read.
    """

    def __init__(self) -> None:
        self.answer: object = None
        self.is_fresh = False
        self.read_again_ms = self.asked_ms = 0
        self._hints: list[Hint] = []

    def fire(self) -> None:
        """Forget the answer and call the hints; any thread. What was read meanwhile may be older:
        it counts as old too.
        """
        self.is_fresh = False
        hints = self._hints
        self._hints = []
        for hint in hints:
            hint()

    def wants(self, hint: Hint) -> None:
        """Have a hint called at the next change."""
        if hint not in self._hints:
            self._hints.append(hint)


class WatchedStore:
    """Another session's store under the laws of StateStore, whose reads with a hint are answered
    from memory while nothing changed.

    One thread reads through it. `now_ms` is the clock of the re-reads; `seed` (of a slot, say)
    spreads them, so that a thousand slots that were started together do not read again together.
    """

    def __init__(self, store: StateStore, now_ms: Callable[[], int], seed: str = "") -> None:
        self._store = store
        self._now_ms = now_ms
        self._seed = seed
        self._cached: dict[_Key, _Cached] = {}
        self._epoch = store.session_epoch
        self._sweep_ms = 0

    @property
    def address(self) -> str:
        """Address of the store, for messages."""
        return self._store.address

    @property
    def is_connected(self) -> bool:
        """Return whether the store answered last."""
        return self._store.is_connected

    @property
    def session_epoch(self) -> int:
        """Number of sessions lost so far."""
        return self._store.session_epoch

    def ensure_path(self, path: str) -> None:
        """Make the node, empty, unless it is there."""
        self._store.ensure_path(path)

    def create(self, path: str, data: bytes) -> None:
        """Make a new node; raise StateConflictError when there is one."""
        self._forget(path)
        self._store.create(path, data)

    def get(self, path: str, hint: Hint | None = None) -> Stored | None:
        """Read a node, None when there is none."""
        return self._read((path, False), hint, lambda watch, last: self._get(path, watch, last))

    def last_change(self, path: str, hint: Hint | None = None) -> int | None:
        """Return `Stored.change` of a node, from the kept content when there is a hint."""
        if hint is None:
            return self._store.last_change(path)
        stored = self.get(path, hint)
        return None if stored is None else stored.change

    def put(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write a node; compare the version when one is given."""
        self._forget(path)
        return self._store.put(path, data, version)

    def delete(self, path: str) -> None:
        """Remove a node and everything below it; absent is fine."""
        self._forget(path)
        self._store.delete(path)

    def children(self, path: str, hint: Hint | None = None) -> list[str]:
        """Names below a node, sorted."""
        return list(
            self._read((path, True), hint, lambda watch, _: self._store.children(path, watch))
        )

    def put_ephemeral(self, path: str, data: bytes) -> None:
        """Write this session's own ephemeral node."""
        self._forget(path)
        self._store.put_ephemeral(path, data)

    def try_ephemeral(self, path: str, data: bytes) -> bool:
        """Make an ephemeral node if it does not exist; return whether this session holds it
        afterwards.
        """
        self._forget(path)
        return self._store.try_ephemeral(path, data)

    def create_sequential(self, prefix: str, data: bytes) -> str:
        """Make `prefix` + a growing ten-digit number; return the path."""
        self._forget(prefix)
        return self._store.create_sequential(prefix, data)

    def close(self) -> None:
        """End the session."""
        self._store.close()

    def _get(self, path: str, watch: Hint | None, last: object) -> Stored | None:
        """Read a node, its content only if that is another one than last time: each slot keeps
        every assignment.
        """
        if isinstance(last, Stored) and self._store.last_change(path, watch) == last.change:
            return last
        return self._store.get(path, watch)

    def _read(self, key: _Key, hint: Hint | None, ask: Callable[[Hint | None, object], _T]) -> _T:
        """Answer from memory or ask the store; `ask` gets the last answer if no change of it is
        known.
        """
        if hint is None:
            return ask(None, None)
        now_ms = self._now_ms()
        if self._epoch != self._store.session_epoch:  # a new session has no watches
            self._epoch = self._store.session_epoch
            self._cached = {}
        cached = self._cached.setdefault(key, _Cached())
        cached.asked_ms = now_ms
        if not cached.is_fresh or now_ms >= cached.read_again_ms:
            self._sweep(now_ms)
            last = cached.answer if cached.is_fresh else None
            # before the read: a change during it makes the answer old at once
            cached.is_fresh = True
            cached.read_again_ms = (
                now_ms
                + REREAD_MS * 3 // 4
                + crc32(f"{self._seed}{key}".encode()) % (REREAD_MS // 2)
            )
            try:
                cached.answer = ask(cached.fire, last)
            except BaseException:
                cached.is_fresh = False
                raise
        cached.wants(hint)
        if not cached.is_fresh:
            cached.fire()  # it changed before the hint was noted
        return cast(_T, cached.answer)

    def _forget(self, path: str) -> None:
        """Read again what this session writes: its own change is news for the next read, before the
        watch fires.
        """
        for key in ((path, False), (path.rpartition("/")[0] or "/", True)):
            if (cached := self._cached.get(key)) is not None:
                cached.is_fresh = False

    def _sweep(self, now_ms: int) -> None:
        """Drop nodes that are not read any more, those of topologies that are gone."""
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + REREAD_MS
            self._cached = {
                key: cached
                for key, cached in self._cached.items()
                if now_ms - cached.asked_ms < REREAD_MS
            }
