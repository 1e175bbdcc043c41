"""Owns what the store keeps of a task between commits: a list of deltas on top of a snapshot, each a msgpack mapping.

Fields: `s` changed state pairs, `d` deleted state keys, `w` and `x` the same of windows, timers and marks, `p` pending
(spouts), `l` ledger (ackers), `o` spout position. A delta is appended per commit; when the deltas outweigh twice the last
snapshot a new snapshot replaces them all, so that what is written stays in proportion to what changes, and what is read
at a restart to what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparkstorm.errors import StoreInconsistentError
from sparkstorm.model.codec import Codec
from sparkstorm.transport.base import Commit, TaskRecord

_SNAPSHOT_FROM_BYTES = 256 * 1024
_FIELDS = frozenset("sdwxplo")


class Journal:
    """One task's deltas: reads what a former owner left, appends what this one changes."""

    def __init__(self, task: int, codec: Codec) -> None:
        self._task = task
        self._codec = codec
        self._delta_bytes = 0
        self._snapshot_bytes = 0

    def read(self, record: TaskRecord) -> Iterator[dict[str, Any]]:
        """The snapshot, then every delta, oldest first."""
        self._snapshot_bytes = len(record.snapshot or b"")
        self._delta_bytes = sum(map(len, record.journal))
        for data in [*([record.snapshot] if record.snapshot else []), *record.journal]:
            fields = self._codec.unpack(data)
            if not isinstance(fields, dict) or not _FIELDS.issuperset(fields):
                raise StoreInconsistentError(f"the journal of task {self._task} holds what no owner writes: {str(fields)[:80]}")
            yield fields

    def write(self, commit: Commit, delta: dict[str, Any], snapshot: Callable[[], dict[str, Any]]) -> None:
        """Put a delta into the commit, or a snapshot in its place when the deltas have grown too long."""
        if not delta:
            return
        data = self._codec.pack(delta)
        self._delta_bytes += len(data)
        if self._delta_bytes < max(_SNAPSHOT_FROM_BYTES, 2 * self._snapshot_bytes):
            commit.journal.append((self._task, data))
            return
        whole = self._codec.pack(snapshot())
        commit.snapshots[self._task] = whole
        self._snapshot_bytes, self._delta_bytes = len(whole), 0
