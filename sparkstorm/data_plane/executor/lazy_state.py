"""Key-value state that outgrows memory: keys are read from the store on first use, and forgotten
when others are used more.

The task's journal holds the newest changes, as for a MemoryState. Its sweep writes each changed key
into the store's *base* (data_plane/transport/state_base.py) in place of the journal, so a restart reads a
short journal and no base. Four layers answer a look-up: keys used lately, keys used before those,
keys that are changed and not in the base yet (*pinned*), and the base. Dropping the second layer
whenever the first is full approximates LRU, at the price of one dictionary look-up per use. Keys of
the first layer that are not changed for long move to the second, since a small dictionary stays in
the processor's caches.

Law: a result is that of a state in memory, wherever values lie. Left out: writing each changed key
to its hash in every commit, which costs a write per key and epoch, and no reader outside could see
the state as of one commit (decision 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from itertools import repeat
from operator import is_
from typing import Any, Protocol

from sparkstorm.common.errors import (
    CodecError,
    MalformedFrameError,
    SparkStormError,
    StoreInconsistentError,
)
from sparkstorm.common.grouping.hashing import normalized, whole_of
from sparkstorm.common.model.values.codec import Codec, plain_scalar
from sparkstorm.common.model.values.keys import as_key, form_in, keys_of, own_key
from sparkstorm.data_plane.executor.state import MISSING, MemoryState

_UNKNOWN: Any = object()
_PLAIN = frozenset({str, int, bytes})
_WITH_KEY = b"\xc1"  # no packed value begins with it
# Keys of one read. Half of it makes two round trips of a block of many new keys; double keeps Redis
# at one answer for longer, and every other worker waiting.
_AT_ONCE = 4096
# Changes per key used lately, after which keys that have not changed are set aside. After a fill
# the dictionary of the keys used lately kept 50,000 of them next to the few in use; half of it moves
# keys that come back, double keeps the large dictionary for twice as long.
_IDLE_AFTER = 8
# Of journal, after which a sweep begins anyway: a restart reads about so much. Half of it writes
# keys that change often twice as often into the base.
_PINNED_BYTES = 2 << 20
BaseWrites = list[tuple[bytes, bytes | None]]
"""Packed keys with their packed values, or None for one that is deleted."""


class UnreadableStateError(BaseException):
    """A read of the store that failed inside user code; no Exception, so that it fails the worker
    and not the tuple.
    """

    def __init__(self, cause: SparkStormError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def surfacing() -> Iterator[None]:
    """Raise the cause of an UnreadableStateError."""
    try:
        yield
    except UnreadableStateError as error:
        raise error.cause from error


class Base(Protocol):
    """One task's base in the store, as of its last commit."""

    @property
    def name(self) -> str:
        """Name of its keys in Redis, for errors."""

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the packed values of packed keys, None for each that is not there."""

    def scan(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield every packed key with its packed value, in parts."""


class LazyState(MemoryState):
    """KeyValueState of any size over a base; about `most` keys that are also in the base are kept
    in memory.

    Reads need no fence of their own: a worker that was cut off may see a newer owner's values, but
    its commit, and with it all that it has made of them, is refused.
    """

    __slots__ = (
        "_absent",
        "_base",
        "_changes",
        "_former",
        "_most",
        "_pinned",
        "_size",
        "coming",
        "serial",
    )

    def __init__(self, codec: Codec, base: Base, most: int, is_strict: bool = False) -> None:
        super().__init__(codec, is_strict)
        self._base = base
        self._most = most
        self._former: dict[Any, Any] = {}  # used before those in _data
        self._absent: set[Any] = set()  # keys that there are not, unless they are in _data
        self._pinned: dict[Any, Any] = {}  # as of the last commit, MISSING for deleted ones
        self._changes = 0  # of keys, one per commit at the most, since keys were set aside
        self._size = 0  # keys as of the last commit
        self.serial = 0  # commits that have changed this state
        # keys of the rows that are executed, for the first that is missing
        self.coming: Callable[[], Iterable[Any]] | None = None

    # -- the store's side --------------------------------------------------------------------------

    def load(self, pairs: Iterable[Any], deleted: Iterable[Any] = ()) -> None:
        """Apply changes of a journal, none of which need be in the base."""
        self._load_into(self._pinned, pairs)
        # Of a key that is gone the form does not matter: the canonical one can be compared with all.
        gone = map(_canonical, map(as_key, deleted))
        self._load_into(self._pinned, ((key, MISSING) for key in gone))

    def resume(self, marks: list[Any] | None) -> None:
        """Go on from the marks of the last commit; from none when a memory backend or a checkpoint
        has written the journal.
        """
        size, serial = marks or (sum(value is not MISSING for value in self._pinned.values()), 0)
        if type(size) is not int or type(serial) is not int or size < 0:
            raise StoreInconsistentError(f"the marks of a state are {marks!r:.60}")
        self._size = size
        self.serial = serial

    def marks(self) -> dict[str, Any]:
        """Return the journal's field with number of keys and serial number as of `take_changes`."""
        return {"n": [self._size, self.serial]}

    def take_changes(self) -> tuple[list[tuple[Any, Any]], list[Any]]:
        self._size = len(self)
        self.coming = None
        pairs, deleted = super().take_changes()
        if self._has_forms:
            for key in (*(key for key, _ in pairs), *deleted):
                self._pinned.pop(key, None)  # the form of before, if it was deleted since
        self._pinned.update(pairs)
        self._pinned |= dict.fromkeys(map(self._gone, deleted), MISSING)
        self.serial += 1
        self._changes += len(pairs)
        if self._changes > _IDLE_AFTER * len(self._data) > 2 * _IDLE_AFTER * len(pairs):
            self._set_aside(pairs)
        return pairs, deleted

    @property
    def sweep_bytes(self) -> int:
        """Bytes of journal that a sweep is worth: what about half of the keys in memory take."""
        return 8 * self._most

    def wants_sweep(self, journal_bytes: int) -> bool:
        """Return whether enough has changed since the last sweep."""
        return journal_bytes >= _PINNED_BYTES or len(self._pinned) > self._most // 2

    def sweep(self, most: int) -> Iterator[BaseWrites]:
        """Yield all pinned keys for the base, `most` in a part; each part must be in the commit
        that is being made.
        """
        keys = list(self._pinned)
        for start in range(0, len(keys), most):
            values = ((key, self._pinned.pop(key, _UNKNOWN)) for key in keys[start : start + most])
            yield [
                (
                    self._packed_key(key),
                    None if value is MISSING else self._packed_value(key, value),
                )
                for key, value in values
                if value is not _UNKNOWN
            ]

    # -- the bolt's side ---------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        key = own_key(key)
        if key not in self._data:
            self._find(key)
        return MemoryState.get(self, key, default)

    def put(self, key: Any, value: Any) -> None:
        key = own_key(key)
        if key not in self._data:
            self._find(key)
        MemoryState.put(self, key, value)

    def add(self, key: Any, amount: float = 1) -> Any:
        key = own_key(key)
        if key not in self._data:
            self._find(key)
        return MemoryState.add(self, key, amount)

    def add_batch(self, keys: Any, amounts: Any = 1) -> None:
        keys = list(keys_of(keys))
        self.expect(keys)
        super().add_batch(keys, amounts)

    def delete(self, key: Any) -> None:
        key = own_key(key)
        if key not in self._data:
            self._find(key)
        MemoryState.delete(self, key)
        self._absent.add(self._gone(key))

    def __contains__(self, key: Any) -> bool:
        key = own_key(key)
        if key not in self._data:
            self._find(key)
        return key in self._data

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        return MemoryState.get(self, key)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def __len__(self) -> int:
        made, gone = (
            list(map(is_, self.undo[offset::3], repeat(MISSING))).count(True) for offset in (1, 2)
        )
        return self._size + made - gone

    def roll_back(self, mark: int) -> None:
        keys = self.undo[mark::3]
        super().roll_back(mark)
        self._absent.update(self._gone(key) for key in keys if key not in self._data)

    def expect(self, keys: Iterable[Any]) -> None:
        """Read all these keys that are not in memory at once, because they will be used."""
        self._make_room()
        wanted = [
            key
            for key in dict.fromkeys(map(own_key, keys))
            if key not in self._data and key not in self._absent and not self._recall(key)
        ]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            for key, value in self._read(some):
                self._keep(key, value)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return self._handed_out(self.every_pair())

    def every_pair(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value as of now, read from the store while it is gone through; not
        beyond the call of the bolt.
        """
        keys = self.undo[::3]
        changes = dict(zip(keys, self.undo[2::3], strict=True))
        self._note_forms(keys)
        if not self._has_forms:
            return self._merged(self._pinned | changes)
        changed = {key: value for key, value in self._pinned.items() if key not in changes}
        for key, value in changes.items():
            changed[form_in(self._data, key)] = value
        return self._merged(changed)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.every_pair())

    def keys(self) -> list[Any]:
        return list(self)

    def pairs(self, keys: Iterable[Any]) -> list[list[Any]]:
        keys = list(keys)
        self.expect(keys)
        pairs = [[key, self._data[key]] for key in keys if key in self]
        if self._has_forms:
            pairs = [[form_in(self._data, key), value] for key, value in pairs]
        return pairs

    def snapshot(self) -> list[list[Any]]:
        return [[key, value] for key, value in self.every_pair()]

    def count_of(self, *kinds: type) -> int:
        return sum(type(value) in kinds for _, value in self.every_pair())

    # -- inside ------------------------------------------------------------------------------------

    def _merged(self, changed: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        serial = self.serial
        yield from ((key, value) for key, value in changed.items() if value is not MISSING)
        with self._reading():
            for part in self._base.scan():
                for packed, stored in part:
                    # The pairs before are of another commit than those to come: a caller would mix
                    # both.
                    if serial != self.serial:
                        raise RuntimeError(
                            "a lazy state (topology.state.backend) was gone through beyond the call that began it"
                        )
                    key, value = unpacked_pair(self._codec, packed, stored)
                    if key not in changed:
                        yield key, value

    def _find(self, key: Any) -> None:
        """Bring a key that is not in _data there, or note that there is none."""
        if key in self._absent:
            return
        self._make_room()
        if self._recall(key):
            return
        # Once per block: a wrong guess costs one read and not one per key.
        coming = self.coming
        self.coming = None
        if coming is not None:
            # NaN or a class among them: no key of a state, so the bolt uses another one
            with suppress(CodecError):
                self.expect((key, *coming()))
        if key not in self._data and key not in self._absent:
            self._keep(*self._read([key])[0])

    def _recall(self, key: Any) -> bool:
        """Take a key from memory; whether it was there."""
        if type(key) not in _PLAIN:
            self._note_forms((key,))
        layer = self._former
        value = layer.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            layer = self._pinned
            value = layer.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            return False
        self._keep(form_in(layer, key) if self._has_forms else key, value)
        return True

    def _keep(self, key: Any, value: Any) -> None:
        if value is MISSING:
            self._absent.add(self._gone(key))
        else:
            self._data[key] = value

    def _gone(self, key: Any) -> Any:
        """Return a key under which there is nothing as it is kept: of several forms the canonical
        one, since Python cannot compare a Decimal with a whole number of numpy.
        """
        return _canonical(key) if self._has_forms else key

    def _make_room(self) -> None:
        """Forget the keys that were used least lately; changes that are not committed stay."""
        if len(self._data) + len(self._absent) <= max(1, self._most // 2):
            return
        # Two thirds of what is there has changed: making room would only walk through it at each
        # key.
        if 2 * len(self.undo) > 3 * len(self._data):
            # an epoch that changes more than there is room for: there will be room after its commit
            return
        data = self._data
        changed = dict.fromkeys(self.undo[::3])
        self._note_forms(changed)
        self._absent = {self._gone(key) for key in changed if key not in data}
        kept_keys = [key for key in changed if key in data]
        if self._has_forms:
            kept_keys = [form_in(data, key) for key in kept_keys]
        self._former, self._data = data, {key: data[key] for key in kept_keys}

    def _set_aside(self, changed: list[tuple[Any, Any]]) -> None:
        """Move all other keys from those used lately to those used before; nothing may be
        uncommitted.
        """
        self._absent.difference_update(self._data)
        if len(self._former) + len(self._data) > self._most:
            self._former = self._data
        else:
            for key in (*self._absent, *(self._data if self._has_forms else ())):
                self._former.pop(key, None)
            self._former |= self._data
        self._data = dict(changed)
        self._changes = 0

    def _read(self, keys: list[Any]) -> list[tuple[Any, Any]]:
        """Return (key, value) from the base, each key in its form there, MISSING for no value."""
        packed = [self._packed_key(key) for key in keys]
        with self._reading():
            values = self._base.read(packed)
            return [self._pair(*asked) for asked in zip(keys, packed, values, strict=True)]

    def _pair(self, key: Any, packed: bytes, stored: bytes | None) -> tuple[Any, Any]:
        if stored is None:
            return key, MISSING
        if stored[:1] == _WITH_KEY:
            self._has_forms = True
        elif type(key) in _PLAIN:
            return key, self._codec.unpack(stored)
        pair = unpacked_pair(self._codec, packed, stored)
        if pair[0] != key:
            raise MalformedFrameError(f"the value of {key!r:.60} was written for {pair[0]!r:.60}")
        return pair

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (MalformedFrameError, CodecError) as error:
            damage = StoreInconsistentError(
                f"a key of {self._base.name} in Redis is damaged, and its task cannot go on without it: {str(error)[:200]}; "
                "restore a backup, or kill the topology and submit it again"
            )
            raise UnreadableStateError(damage) from error
        except SparkStormError as error:
            raise UnreadableStateError(error) from error

    def _packed_key(self, key: Any) -> bytes:
        return self._codec.pack(key if type(key) in _PLAIN else _canonical(self._new_key(key)))

    def _packed_value(self, key: Any, value: Any) -> bytes:
        parts = key if type(key) is tuple else (key,)
        # the packed key may be that of another form of an equal key
        if any(type(part) not in _PLAIN for part in parts):
            return _WITH_KEY + self._codec.pack([key, value])
        return self._codec.pack(value)


def unpacked_pair(codec: Codec, packed: bytes, stored: bytes) -> tuple[Any, Any]:
    """Return key and value of a base; MalformedFrameError when they are none."""
    if stored[:1] != _WITH_KEY:
        return as_key(codec.unpack(packed)), codec.unpack(stored)
    pair = codec.unpack(stored[1:])
    if type(pair) is not list or len(pair) != 2:
        raise MalformedFrameError("a value that was written with its key holds no pair")
    return as_key(pair[0]), pair[1]


def _canonical(key: Any) -> Any:
    """Return the one form of all keys that compare equal: 1 for 1.0 and True, as in a dict."""
    if type(key) in _PLAIN:
        return key
    if type(key) is tuple:
        return tuple(map(_canonical, key))
    key = plain_scalar(key)
    if isinstance(key, bool):
        return int(key)
    if isinstance(key, float):
        return int(key) if key.is_integer() else key
    if isinstance(key, Decimal):
        return _canonical_decimal(key)
    if isinstance(key, datetime):
        # Where `fold` changes the offset, a datetime equals none of another zone (PEP 495).
        if key.utcoffset() != key.replace(fold=1 - key.fold).utcoffset():
            return key
        key = key.replace(fold=0)
        with suppress(OverflowError):  # not in UTC: before year 1 or after 9999
            return key.astimezone(UTC)
    return key


def _canonical_decimal(key: Decimal) -> Any:
    if (number := whole_of(key)) is not None:
        return number
    close = float(key)
    return close if close == close and Decimal.from_float(close) == key else normalized(key)
