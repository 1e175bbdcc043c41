"""Keys of states: their form, order and equality."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from sparkstorm.common.model.values.codec import plain_scalar
from sparkstorm.common.model.values.value_types import checked

# a datetime is a date too
_KINDS: tuple[Any, ...] = (bool | int | float | Decimal, str, bytes, datetime, date, UUID)


def own_key(key: Any) -> Any:
    """Return a key of a state with its datetimes of fold 1 as `checked` returns them."""
    if type(key) is tuple:
        return tuple(map(_own_part, key)) if datetime in map(type, key) else key
    return _own_part(key)


def _own_part(key: Any) -> Any:
    is_other = type(key) is datetime and key.fold and type(key.tzinfo) is ZoneInfo
    return checked(key) if is_other else key


def keys_of(keys: Any) -> Any:
    """Return the keys that are given as a list or an Arrow array, or as tuples by the columns of an
    Arrow batch or table.
    """
    if hasattr(keys, "columns"):
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
    return keys.to_pylist() if hasattr(keys, "to_pylist") else keys


def kinds_of(keys: Iterable[Any]) -> set[type]:
    """Return the types of some keys, and those of the elements of tuples."""
    keys = list(keys)
    kinds = set(map(type, keys))
    if tuple in kinds:
        kinds.update(map(type, chain.from_iterable(key for key in keys if type(key) is tuple)))
    return kinds


def plain_key(key: Any) -> Any:
    """Return a key with its scalars of numpy's as plain values."""
    return tuple(map(plain_scalar, key)) if type(key) is tuple else plain_scalar(key)


def order_of(key: Any) -> tuple[Any, ...]:
    """Return the place of a key in the order of keys: by kind, then by value; tuples element by
    element.
    """
    if isinstance(key, tuple):
        return (len(_KINDS), tuple(map(order_of, key)))
    rank = next((rank for rank, kind in enumerate(_KINDS) if isinstance(key, kind)), -1)
    return (rank, key) if rank >= 0 else (rank,)


def begins(key: Any, prefix: Any) -> bool:
    """Return whether a key begins with a prefix: text with text, a tuple with its first parts."""
    if isinstance(prefix, str | bytes):
        return bool(type(key) is type(prefix) and key[: len(prefix)] == prefix)
    wanted = prefix if isinstance(prefix, tuple) else (prefix,)
    return isinstance(key, tuple) and key[: len(wanted)] == wanted


def as_key(key: Any) -> Any:
    """Return a key that was read: a list was a tuple."""
    return tuple(key) if isinstance(key, list) else key


class _Probe:
    """Look-up of a key that keeps the equal one which a dict holds: a dict compares that one with
    the key that it is asked for.
    """

    __slots__ = ("_hash", "_key", "found")

    def __init__(self, key: Any) -> None:
        self._key = key
        self._hash = hash(key)
        self.found = key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self._key != other:
            return False
        self.found = other
        return True


def form_in(mapping: dict[Any, Any], key: Any) -> Any:
    """Return the key of a dict that equals `key`, which may be of another type; `key` where there
    is none.
    """
    probe = _Probe(key)
    mapping.get(probe)
    return probe.found
