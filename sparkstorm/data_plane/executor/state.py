"""Key-value state of a task in memory: reads, writes, undo of a failed execute, changes for the
next commit.

Law: what the state holds is what the last commit and this epoch's successful calls have put; values
are copies, so that user code cannot change them unseen. Left out: a copy of the state per epoch, as
a snapshot for undo: it would cost the state's size and not the changes'. A commit is made from the
undo list: at a million keys 0.2 us a word instead of 1.4 with a look-up for each key.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.codec import (
    KEY_TYPES,
    KEYS,
    SCALARS,
    Codec,
    no_key,
    plain_scalar,
)
from sparkstorm.common.model.values.keys import (
    as_key,
    begins,
    form_in,
    keys_of,
    kinds_of,
    order_of,
    own_key,
    plain_key,
)
from sparkstorm.common.model.values.value_types import ONE_FORM

MISSING: Any = object()
"""In place of a value: there is none under the key."""
_KEYS_AND_TUPLES: frozenset[Any] = KEYS | {tuple}
# Items of the log, three a change, from which on it is worth a call at the end of a turn. From
# 90 to 3,000 the cost of a word was the same within 3 %.
_LEAST_TO_KEEP = 100
_NUMBERS = frozenset({int, float, bool, Decimal})
_ONE_FORM: frozenset[Any] = ONE_FORM | {tuple}


class Cells(NamedTuple):
    """Cells ("a", start, *key) of windows: positions of time and key in a row, length of a cell,
    and the least and last time.
    """

    time_at: int
    key_at: tuple[int, ...]
    length: int
    floor: int
    last: int


class MemoryState:
    """KeyValueState over a dict; each change appends key, former and new value to `undo`, from
    which the commit is made.
    """

    __slots__ = (
        "_codec",
        "_data",
        "_has_deleted",
        "_has_forms",
        "_kept",
        "_unchecked",
        "handed",
        "scanned",
        "undo",
        "used",
        "walked",
    )

    def __init__(self, codec: Codec, is_strict: bool = False) -> None:
        self._codec = codec
        # strict: even numbers and text are looked at
        self._unchecked = frozenset() if is_strict else SCALARS
        self._data: dict[Any, Any] = {}
        self.used: dict[Any, None] | None = None  # keys that `noting` has noted
        # of tests: key, value and its copy, of what `get` has handed out
        self.handed: list[tuple[Any, Any, Any]] | None = None
        # key, former value, new value, key … since the last take_changes(): cheaper than tuples.
        # With the new values, a commit is made without looking a key up again: beyond some 50,000
        # keys each look-up misses the processor's caches.
        self.undo: list[Any] = []
        self._has_deleted = False  # since the last take_changes()
        # whether a key has been used that may equal one of another form, as True does 1
        self._has_forms = False
        # newest values of changes since then that are not in `undo` any more
        self._kept: dict[Any, Any] = {}
        self.scanned = 0  # keys that calls of `scan` have read
        self.walked = False  # whether user code has gone through its keys in their own order

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key; lists and mappings are handed out as copies, so that undo stays
        possible.
        """
        key = key if type(key) in SCALARS else own_key(key)
        value = self._data.get(key, default)
        if type(value) in SCALARS or value is default:
            return value
        return self._copied(key, value)

    def _copied(self, key: Any, value: Any) -> Any:
        copy = self._codec.normalise(value)
        if self.handed is not None:
            self.handed.append((key, value, copy))
        return copy

    def _handed_out(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Return pairs for user code: as by `get`, lists and mappings are copies."""
        return (
            (key, value if type(value) in SCALARS else self._copied(key, value))
            for key, value in pairs
        )

    def put(self, key: Any, value: Any) -> None:
        """Set a value of the codec's closed set."""
        if type(value) not in self._unchecked:
            value = self._codec.normalise(value)
        key = key if type(key) in SCALARS else own_key(key)
        data = self._data
        former = data.get(key, MISSING)
        if former is MISSING:
            key = self._new_key(key)
        undo = self.undo
        undo.append(key)
        undo.append(former)
        undo.append(value)
        data[key] = value

    def add(self, key: Any, amount: float = 1) -> Any:
        """Add to the number under a key (none counts as 0) and return the sum."""
        key = key if type(key) in SCALARS else own_key(key)
        data = self._data
        former = data.get(key, MISSING)
        if former is MISSING:
            key = self._new_key(key)
            total = amount
        else:
            try:
                total = former + amount
            except (TypeError, OverflowError, RuntimeWarning):  # the latter two: numpy's
                total = None
        kind = type(total)
        # the usual one first: a look into the set costs more
        if kind is not int and kind not in _NUMBERS:
            plain = plain_scalar(amount)
            if plain is not amount:
                return self.add(key, plain)
            raise CodecError(
                f"state key {key!r}: {amount!r} cannot be added to {former!r:.60}"
                if former is not MISSING
                else f"state key {key!r}: {amount!r} is no number"
            )
        # A whole number of more than 8,192 bits would be found by the commit alone, which ends the
        # worker.
        if not self._unchecked:
            total = self._codec.normalise(total)
        undo = self.undo
        undo.append(key)
        undo.append(former)
        undo.append(total)
        data[key] = total
        return total

    def add_batch(self, keys: Any, amounts: Any = 1) -> None:
        """Add to the numbers under many keys: lists, Arrow arrays, or one amount for all; all or
        none when one raises.
        """
        keys = keys_of(keys)
        if hasattr(amounts, "to_pylist"):
            amounts = amounts.to_pylist()
        elif hasattr(amounts, "dtype") and hasattr(amounts, "tolist"):  # numpy, pandas
            amounts = amounts.tolist()
        is_one = isinstance(amounts, int | float | Decimal)
        if not is_one and not isinstance(amounts, Iterable):
            raise CodecError(
                f"add_batch: the amounts are {amounts!r:.60}; give a number, or a list of one number for each key"
            )
        mark = len(self.undo)
        add = self.add
        try:
            if is_one:
                for key in keys:
                    add(key, amounts)
            else:
                for key, amount in zip(keys, amounts, strict=True):
                    add(key, amount)
        except BaseException:
            self.roll_back(mark)
            raise

    def fold_cells(
        self,
        rows: list[Any],
        begin: int,
        cells: Cells,
        initial: Callable[[], Any],
        fold: Callable[[Any, Any], Any],
        logs: tuple[list[Any], list[Any]],
        marks: list[int],
        begun: list[Any],
    ) -> int:
        """Replace the value under each row's cell (`initial()` where there is none) by fold(it,
        tuple), and add new cells to `begun`.

        It ends at a row of another source, or without a plain time and key in these cells, and
        returns that row's place; `begin` without the compiled core. Where a call raises, `marks`
        has the row's place and the lengths of `logs` and of `undo` before it.
        """
        if core is None:
            return begin
        end: int = core.fold_cells(
            rows,
            begin,
            cells,
            self._data,
            self.undo,
            self._unchecked,
            initial,
            fold,
            self._codec.normalise,
            self._check_key,
            MISSING,
            Tuple,
            logs,
            marks,
            begun,
        )
        return end

    def delete(self, key: Any) -> None:
        """Forget a key."""
        key = key if type(key) in SCALARS else own_key(key)
        if key in self._data:
            if type(key) is not str:
                key = form_in(self._data, key)  # roll_back puts it back as it was
            self.undo += key, self._data.pop(key), MISSING
            self._has_deleted = True

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value, as of now."""
        self.walked = True
        return self._handed_out(list(self._data.items()))

    def scan(
        self, start: Any = None, stop: Any = None, prefix: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Keys from `start` to before `stop`, or that begin with `prefix`, in order, each with its
        value.
        """
        low = order_of(start)
        high = order_of(stop)
        entries = []
        self.scanned += len(self)
        for key, value in self.every_pair():
            order = order_of(key)
            if (
                (start is None or order >= low)
                and (stop is None or order < high)
                and (prefix is None or begins(key, prefix))
            ):
                entries.append((order, key, value))
        entries.sort(key=itemgetter(0))
        return self._handed_out((key, value) for _, key, value in entries)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Any) -> bool:
        return (key if type(key) in SCALARS else own_key(key)) in self._data

    def __iter__(self) -> Iterator[Any]:
        self.walked = True
        return iter(list(self._data))

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def roll_back(self, mark: int) -> None:
        """Undo every change made since `undo` had this length."""
        if self.handed:
            self.handed.clear()
        while len(self.undo) > mark:
            self.undo.pop()
            former = self.undo.pop()
            key = self.undo.pop()
            if former is MISSING:
                self._data.pop(key, None)
            else:
                self._data[key] = former

    def holds(self, key: Any, value: Any) -> bool:
        """Return whether this very value is still the one under a key."""
        return self._data.get(key) is value

    @property
    def has_changes(self) -> bool:
        """Return whether `take_changes` would return anything."""
        return bool(self.undo or self._kept)

    def keep_changes(self) -> None:
        """Keep the changes so far as they are: nothing undoes them any more.

        Of each key the newest value alone stays. A log of all of an epoch's changes keeps every
        value between in memory, and is read again when it has left the processor's caches: a word
        costs 1.04 (64 tasks) and 1.07 times the CPU without this (decision 77).
        """
        if len(self.undo) >= _LEAST_TO_KEEP:
            self._put_last_values(self._kept)

    def take_changes(self) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """Return changed (key, value) pairs and deleted keys since the last call."""
        value_by_key = self._take_last_values()
        deleted = (
            [k for k, value in value_by_key.items() if value is MISSING]
            if self._has_deleted
            else []
        )
        for key in deleted:
            del value_by_key[key]
        self._has_deleted = False
        if not self._has_forms:
            return list(value_by_key.items()), deleted
        # A call may have used another form of the key than the one that stays, as in a dict: the
        # journal and the base say the latter.
        return [(form_in(self._data, key), v) for key, v in value_by_key.items()], deleted

    def _take_last_values(self) -> dict[Any, Any]:
        """Return the newest value of each changed key, MISSING for one that was deleted."""
        values = self._kept
        self._kept = {}
        self._put_last_values(values)
        return values

    def _put_last_values(self, values: dict[Any, Any]) -> None:
        # One pass in the core: these lists and the mapping were a third of what closing a commit of
        # a word count costs.
        usual = _KEYS_AND_TUPLES if self._has_forms else _ONE_FORM
        if core is not None and core.last_values(self.undo, usual, values) is not None:
            return
        keys = self.undo[::3]
        kinds = kinds_of(keys)
        self._has_forms = self._has_forms or not kinds <= _ONE_FORM
        # a scalar of numpy's is found under the plain key that it equals
        if not kinds <= _KEYS_AND_TUPLES:
            keys = list(map(plain_key, keys))
        values.update(zip(keys, self.undo[2::3], strict=True))  # the last one of a key wins
        self.undo.clear()

    def marks(self) -> dict[str, Any]:
        """Return what the journal keeps of this state next to its changes: nothing."""
        return {}

    def keys(self) -> list[Any]:
        """Every key, as of now."""
        return list(self._data)

    def pairs(self, keys: Iterable[Any]) -> list[list[Any]]:
        """[key, value] of those keys that there are."""
        data = self._data
        if self._has_forms:
            keys = [form_in(data, key) for key in keys]
        return [[k, data[k]] for k in keys if k in data]

    def every_pair(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value as it lies there, as of now; not to be changed."""
        return zip(*self.columns(), strict=True)

    def columns(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the keys and the values in the same order, as of now: lists, or Arrow arrays; not
        to be changed.
        """
        return list(self._data), list(self._data.values())

    def release(self) -> None:
        """Free every key and value: nothing reads this state any more."""
        self._data.clear()
        self.undo.clear()
        self._kept.clear()

    def count_of(self, *kinds: type) -> int:
        """Return the number of values of some types."""
        if set(map(type, self._data.values())).isdisjoint(kinds):
            return 0
        counts = Counter(map(type, self._data.values()))
        return sum(counts[kind] for kind in kinds)

    def snapshot(self) -> list[list[Any]]:
        """Every [key, value]."""
        return [[k, v] for k, v in self._data.items()]

    def load(self, pairs: Iterable[Any], deleted: Iterable[Any] = ()) -> None:
        """Apply stored changes; keys that were tuples come back as tuples."""
        self._load_into(self._data, pairs)
        for key in deleted:
            self._data.pop(as_key(key), None)

    def _load_into(self, data: dict[Any, Any], pairs: Iterable[Any]) -> None:
        # Unchecked: they were checked when they were put, and a frame's values come from the codec.
        loaded = [(as_key(key), value) for key, value in pairs]
        self._note_forms(key for key, _ in loaded)
        if self._has_forms:
            for key, _ in loaded:
                data.pop(key, None)  # a dict would keep the form of before
        data.update(loaded)

    def _note_forms(self, keys: Iterable[Any]) -> None:
        self._has_forms = self._has_forms or not kinds_of(keys) <= _ONE_FORM

    def form_of(self, key: Any) -> Any:
        """Return a key that was just read or put as the state holds it: of two that are equal, the
        first one.
        """
        return form_in(self._data, own_key(key))

    def is_key(self, key: Any) -> bool:
        """Return whether the state could hold a value under this key."""
        try:
            self._check_key(key)
            self._codec.normalise(key)
        except CodecError:
            return False
        return True

    def _new_key(self, key: Any) -> Any:
        """Return a key as the state keeps it; CodecError for what is no key."""
        if type(key) in SCALARS and self._unchecked and key == key:
            return key
        key = plain_key(key)
        self._check_key(key)
        return key

    def _check_key(self, key: Any) -> None:
        if type(key) in SCALARS and self._unchecked and key == key:
            return
        for part in key if type(key) is tuple else (key,):
            if (type(part) not in KEYS or part != part) and (what := no_key(part)):
                raise CodecError(
                    f"a state key holds {what}; keys are {KEY_TYPES}, and tuples of them"
                )
            if not self._unchecked:
                self._codec.normalise(part)


if core is not None:
    for _kind, _name in enumerate(("add", "get", "put")):
        _plain = getattr(MemoryState, _name)
        setattr(MemoryState, _name, core.StateMethod(_kind, MemoryState, _plain, MISSING))


class Noting(MemoryState):
    """Mixin of a state that notes the keys which are used, whether they are there or not."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self._note(key)
        super().put(key, value)

    def add(self, key: Any, amount: float = 1) -> Any:
        self._note(key)
        return super().add(key, amount)

    def delete(self, key: Any) -> None:
        self._note(key)
        super().delete(key)

    def __contains__(self, key: Any) -> bool:
        self._note(key)
        return super().__contains__(key)

    def _note(self, key: Any) -> None:
        if self.used is not None:
            self.used[own_key(key)] = None


@contextmanager
def noting(state: MemoryState, used: dict[Any, None]) -> Iterator[None]:
    """Note in `used` which keys of this state are used in here; the state stays the same object."""
    kind = type(state)
    state.used, state.__class__ = used, _noting_class(kind)  # type: ignore[arg-type]  # mypy takes a class with slots for unhashable
    try:
        yield
    finally:
        state.used = None
        state.__class__ = kind


@functools.cache
def _noting_class(kind: type[MemoryState]) -> type[MemoryState]:
    return type(f"Noting{kind.__name__}", (Noting, kind), {"__slots__": ()})


def merged_states(component: str, states: Mapping[int, Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return the states of a bolt's tasks, given by task id, as one; ValueError names a key that
    several tasks have.
    """
    merged: dict[Any, Any] = {}
    owners: dict[Any, int] = {}
    for task, state in states.items():
        for key in state.keys() & merged.keys():
            raise ValueError(
                f"tasks {owners[key]} and {task} of '{component}' both have the key {key!r:.80} "
                f"({merged[key]!r:.40} and {state[key]!r:.40}): look at each task's state by itself "
                "(state_by_task), or group by the key"
            )
        merged |= state
        owners |= dict.fromkeys(state, task)
    return merged
