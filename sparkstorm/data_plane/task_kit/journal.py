"""Journal of one task in the store: a list of msgpack mappings, appended per commit and read from
the oldest on.

Fields: `s` changed state pairs, `d` deleted state keys, `n` numbers of keys and of changes of a
lazy state, `v` the version of the state's form (absent: 1), `w` and `x` the same of windows, timers
and marks, `p` pending (spouts), `l` ledger (ackers), `o` spout position, `e` last epoch of a sink
with what its commit needs, `h` what a resting spout would hand over (in a list); `P` and `L` are
the whole of what `p` and `l` change. A delta is appended per commit. When the deltas outweigh twice
what is kept, a *sweep* appends everything once more, a few keys per commit, and then what lies
before its beginning is dropped. So what is written stays in proportion to what changes, what is
read at a restart to what is kept, and no commit waits for a large state to be written as a whole.

The sweep of a lazy state writes its changed keys to the task's base instead, so that the journal
does not grow with the state.

Law: reading all entries from the oldest on gives the task as of its last commit, at any moment of a
sweep. Left out: a snapshot under its own key, as Flink's checkpoints are: it must be written
as a whole before older deltas may go (decision 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkstorm.common.errors import CodecError, MalformedFrameError, StoreInconsistentError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.lazy_state import BaseWrites, LazyState
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.transport.base import Commit, TaskRecord

Fields = dict[str, Any]
# what is written at once, and by its field what is swept
Whole = tuple[Fields, Mapping[str, MemoryState]]

# A small journal is not swept: reading it at a restart costs less than writing it again. Half of it
# sweeps small states twice as often; with double a restart reads 256 kB more of a task. Not
# measured.
_SWEEP_FROM_BYTES = 256 * 1024
# Of a sweep per commit, so that no commit waits for a large state to be written as a whole: a
# million keys at once stopped a worker for 1.6 s (decision 4). Half of it makes sweeps twice as
# long, during which the deltas grow; double makes each of their commits longer.
_SWEEP_BYTES = 16 * 1024
_SWEEP_KEYS = 256
_FIELDS = frozenset("sdnvwxploPLeh")


_FAULTS = (
    MalformedFrameError,
    StoreInconsistentError,
    CodecError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@contextmanager
def reading(key: str) -> Iterator[None]:
    """Raise any error that a damaged record causes as StoreInconsistentError, which names its key
    in Redis and the remedy.
    """
    try:
        yield
    except _FAULTS as error:
        raise StoreInconsistentError(
            f"the key {key} in Redis is damaged, and its task cannot go on without it: {str(error)[:300]}; restore a backup of the "
            "key, or kill the topology and submit it again"
        ) from error


class Journal:
    """One task's entries: reads what a former owner left, appends what this one changes."""

    def __init__(self, task: int, codec: Codec) -> None:
        self.lazy: LazyState | None = None  # the task's state, if its sweep goes to a base
        self._task = task
        self._codec = codec
        self._entries = 0
        self._delta_bytes = 0  # since the last sweep began
        self._kept_bytes = 0  # what the last sweep wrote
        self._sweep: Iterator[Fields | BaseWrites] | None = None
        self._sweep_at = 0
        self._swept_bytes = 0

    def read(self, record: TaskRecord) -> Iterator[Fields]:
        """Every entry, oldest first."""
        # A former owner's deltas count: a task that moves often would else never sweep.
        self._entries = len(record.journal)
        self._delta_bytes = sum(map(len, record.journal))
        for data in record.journal:
            fields = self._codec.unpack(data)
            if not isinstance(fields, dict) or not _FIELDS.issuperset(fields):
                raise StoreInconsistentError(
                    f"the journal of task {self._task} holds what no owner writes: {str(fields)[:80]}"
                )
            yield fields

    def write(self, commit: Commit, delta: Fields, whole: Callable[[], Whole]) -> None:
        """Put a delta into the commit and, while the deltas outweigh what is kept, the next part of
        a sweep.
        """
        if not delta:
            return
        size = self._append(commit, delta)
        self._delta_bytes += size
        if self._sweep is None and self._is_heavy():
            self._sweep = _parts(*whole())
            # Entries from here on stay: they hold what changes while the sweep is under way.
            self._sweep_at = self._entries
            self._delta_bytes = 0
            self._swept_bytes = 0
        if self._sweep is not None:
            # At least twice what the delta adds: a sweep slower than the changes would never end.
            self._go_on(commit, self._sweep, max(_SWEEP_BYTES, 2 * size))

    def _is_heavy(self) -> bool:
        if self.lazy is not None and not self.lazy.wants_sweep(self._delta_bytes):
            return False
        least = (
            _SWEEP_FROM_BYTES
            if self.lazy is None
            else min(_SWEEP_FROM_BYTES, self.lazy.sweep_bytes)
        )
        return self._delta_bytes >= max(least, 2 * self._kept_bytes)

    def _go_on(self, commit: Commit, sweep: Iterator[Fields | BaseWrites], budget: int) -> None:
        while budget > 0:
            part = next(sweep, None)
            if part is None:
                # In the same commit as the sweep's last part: no owner sees the journal without
                # either.
                commit.dropped[self._task] = self._sweep_at
                self._entries -= self._sweep_at
                self._sweep = None
                self._kept_bytes = self._swept_bytes
                return
            if isinstance(part, list):
                commit.state += ((self._task, key, value) for key, value in part)
                budget -= sum(len(key) + len(value or b"") for key, value in part)
                continue
            size = self._append(commit, part)
            self._swept_bytes += size
            budget -= size

    def _append(self, commit: Commit, fields: Fields) -> int:
        data = self._codec.pack(fields)
        commit.journal.append((self._task, data))
        self._entries += 1
        return len(data)


def whole_and_deltas(entries: list[Fields], field: str) -> tuple[Any, list[Any]]:
    """The last whole of a field (None without any) and the deltas that came after it."""
    begin = max(
        (index for index, fields in enumerate(entries) if field.upper() in fields), default=-1
    )
    whole = entries[begin][field.upper()] if begin >= 0 else None
    return whole, [fields[field] for fields in entries[begin + 1 :] if fields.get(field)]


def _parts(fields: Fields, states: Mapping[str, MemoryState]) -> Iterator[Fields | BaseWrites]:
    if fields or not any(map(len, states.values())):
        # Never empty: a task with an initial journal takes an empty one for a loss of the store.
        yield fields
    for name, state in states.items():
        if isinstance(state, LazyState):
            yield from state.sweep(_SWEEP_KEYS)
            continue
        keys = state.keys()
        for start in range(0, len(keys), _SWEEP_KEYS):
            if pairs := state.pairs(keys[start : start + _SWEEP_KEYS]):
                yield {name: pairs}
