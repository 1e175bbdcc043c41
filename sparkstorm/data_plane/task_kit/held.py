"""Inputs that need a further try: their values as they were before the first one, and the record of
a held input in the store, as the worker that holds it writes it and as a client reads it.

Law: a failed try leaves nothing, also not in lists and mappings among its input's values. Left out:
a copy of every row: rows that come as bytes or in a batch are read again where they fail, and of
others those are copied that hold a list or mapping. Left out too: senders that note whether they have
emitted one. There are several ways to emit, and one of them did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sparkstorm.common.errors import MalformedFrameError, StoreInconsistentError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.roots import ID_LIMIT
from sparkstorm.common.model.tuples import Roots, Source, Tuple
from sparkstorm.common.model.values.codec import KEYS, Codec
from sparkstorm.data_plane.transport.frames import Row

_VALUES = itemgetter(0)


Values = tuple[Any, ...]


class Originals:
    """Values of rows that run, as they were before user code had them."""

    def __init__(
        self, current: Callable[[], Iterable[Values]], original: Callable[[int], Values]
    ) -> None:
        """`original` returns the values of the row at a place among the current ones."""
        self._current = current
        self._original = original

    def of(self, values: Values) -> Values:
        """Return what the values of one of the rows were."""
        if has_containers(values):
            for index, current in enumerate(self._current()):
                if current is values:
                    return self._original(index)
        return values


def copied(codec: Codec, rows: Sequence[Row]) -> Originals | None:
    """Return copies of those rows that hold what can be changed in place; None without any."""
    if not can_change(rows):
        return None
    copies = {
        index: fresh(codec, row[0])
        for index, row in enumerate(rows)
        if type(row[0]) is tuple and has_containers(row[0])
    }
    return Originals(lambda: map(_VALUES, rows), copies.__getitem__)


def can_change(rows: Sequence[Row]) -> bool:
    """Return whether a value of these rows can be changed in place."""
    # A pass in Python was 13 % of the Python of a replayed Nexmark q7 by rows.
    if core is not None and type(rows) is list:
        return not core.are_immutable(rows, KEYS)
    return can_change_plainly(rows)


def can_change_plainly(rows: Sequence[Row]) -> bool:
    """Return the same without the compiled core."""
    values = chain.from_iterable(row[0] for row in rows if type(row[0]) is tuple)
    return not KEYS.issuperset(map(type, values))


def fresh(codec: Codec, values: Values) -> Values:
    """Return values that share no list and no mapping with these."""
    return tuple(map(codec.normalise, values)) if has_containers(values) else values


def has_containers(values: Values) -> bool:
    """Return whether one of the values can be changed in place."""
    return not KEYS.issuperset(map(type, values))


class HeldRecord(NamedTuple):
    """An input that was executed and is neither acked nor given up."""

    sender: int
    channel: str
    values: tuple[Any, ...]
    roots: Roots
    edge: int  # 0: not drawn
    attempts: int
    born_ms: int
    failure: Failure | None  # of its last try


def pack_held(
    codec: Codec, tup: Tuple, edge: int, attempts: int, born_ms: int, failure: Failure | None
) -> bytes:
    """Return the bytes of a held input."""
    roots = list(tup.roots) if type(tup.roots) is tuple else tup.roots
    row = None if failure is None else failure.to_row()
    return codec.pack(
        [tup.source.task, tup.source.channel, list(tup.values), roots, edge, attempts, born_ms, row]
    )


def unpack_held(codec: Codec, key: str, data: bytes) -> HeldRecord:
    """Return the held input of a record; StoreInconsistentError names its key when it is none of
    ours.
    """
    fields: Any = codec.unpack(data)
    try:
        task, stream, values, roots, edge, attempts, born_ms, failure = fields
        if type(task) is not int or type(stream) is not str or type(values) is not list:
            raise ValueError("its source or its values are of another type")
        if (
            any(type(number) is not int for number in (edge, attempts, born_ms))
            or not 0 <= edge < ID_LIMIT
        ):
            raise ValueError("its edge, tries or birth are no whole numbers")
        cause = None if failure is None else Failure.from_row(failure)
        return HeldRecord(
            task, stream, tuple(values), _checked_roots(roots), edge, attempts, born_ms, cause
        )
    except (TypeError, ValueError, MalformedFrameError) as error:
        raise not_ours(key, error) from error


def not_ours(key: str, error: Exception) -> StoreInconsistentError:
    """Return the error for a held input that no worker of this topology can have written."""
    return StoreInconsistentError(f"held input '{key}' is not a record of ours: {error}")


def _checked_roots(roots: Any) -> Roots:
    several = roots if type(roots) is list else [roots]
    if any(type(root) is not int or not 0 <= root < ID_LIMIT for root in several):
        raise ValueError("its roots are no ids")
    return tuple(roots) if type(roots) is list else int(roots)


class PendingInput:
    """One input, its edge id (0: not drawn yet), tries so far, and when it is due again (None: user
    code has it).
    """

    __slots__ = (
        "tuple",
        "edge",
        "attempts",
        "due_ms",
        "born_ms",
        "failure",
        "key",
        "original",
        "is_stored",
        "since_us",
    )

    def __init__(
        self, tup: Tuple, edge: int, born_ms: int, key: str, original: tuple[Any, ...]
    ) -> None:
        self.tuple = tup
        self.original = original  # its values before user code had them
        self.edge = edge
        self.attempts = 0
        self.due_ms: int | None = None
        self.born_ms = born_ms
        self.failure: Failure | None = None  # of its last try
        self.key = key
        self.is_stored = False
        # when its first execute in this process began; 0 for one that was restored
        self.since_us = 0

    def encode(self, codec: Codec) -> bytes:
        """The record that brings this input back after a crash."""
        tup = Tuple(self.original, self.tuple.roots, self.tuple.source)
        return pack_held(codec, tup, self.edge, self.attempts, self.born_ms, self.failure)


def decode_held(
    codec: Codec, key: str, data: bytes, find_source: Callable[[int, str], Source], now_ms: int
) -> PendingInput:
    """A stored input; it is due at once, in the order of the keys."""
    unpacked = unpack_held(codec, key, data)
    try:
        source = find_source(unpacked.sender, unpacked.channel)
        if len(unpacked.values) != len(source.fields):
            raise ValueError(f"its values are not those of the fields {', '.join(source.fields)}")
    except (TypeError, ValueError, MalformedFrameError) as error:
        raise not_ours(key, error) from error
    tup = Tuple(fresh(codec, unpacked.values), unpacked.roots, source)
    held = PendingInput(tup, unpacked.edge, unpacked.born_ms, key, unpacked.values)
    held.attempts = unpacked.attempts
    held.failure = unpacked.failure
    held.due_ms = now_ms
    held.is_stored = True
    return held
