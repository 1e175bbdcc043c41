"""Hash of fields grouping: equal in every process, on every machine and Python version, live and in
replay.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any
from uuid import UUID

from sparkstorm.model.compiled import core
from sparkstorm.model.values import value_types
from sparkstorm.model.values.value_types import RegisteredValue

_MASK = 2**64 - 1
# Fibonacci hashing (Knuth, TAOCP 6.4): spreads CRC32 over the high bits
_GOLDEN = 0x9E3779B97F4A7C15
_CRC_OF_TEXT = zlib.crc32(b"s")
# Digits of a whole decimal that is hashed as a number. Numbers have 2,467 at most (8,192 bits), so
# none equals a longer one. 1E+1000000 as a number took 31 s, and longer ones all memory.
_MOST_DIGITS = 2500
# Not the thread's, which is its user's: the hash is the same in every process.
_EXACTLY = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, capitals=1, traps=[])


def _stable_hash(value: Any) -> int:
    """Return a 32-bit hash of a value; twin of the core's `stable_hash`, which leaves unusual values
    to it.
    """
    if type(value) is str:  # as below but without a copy: this is the usual type of a key
        crc = zlib.crc32(value.encode("utf-8", "surrogatepass"), _CRC_OF_TEXT)
    elif type(value) is int:
        crc = zlib.crc32(b"i%d" % value)
    else:
        crc = zlib.crc32(canonical_bytes(value))
    return ((crc * _GOLDEN) & _MASK) >> 32


if core is not None:
    core.set_hashing(_stable_hash)
stable_hash: Callable[[Any], int] = _stable_hash if core is None else core.stable_hash
"""Returns a 32-bit hash of a value; numbers that compare equal (1, 1.0, True) hash alike, as in a
dict.
"""


def canonical_bytes(value: Any) -> bytes:
    """Return a value's bytes, with its kind and length; different values never have equal bytes."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        if value.is_integer():
            return b"i%d" % int(value)
        # equal bytes for every NaN
        return b"f" + struct.pack(">d", value if value == value else math.nan)
    if isinstance(value, bytes):
        return b"b" + value
    if value is None:
        return b"n"
    if isinstance(value, list | tuple):
        return b"l" + b"".join(_sized(canonical_bytes(item)) for item in value)
    if isinstance(value, dict):
        pairs = sorted((canonical_bytes(k), canonical_bytes(v)) for k, v in value.items())
        return b"m" + b"".join(_sized(k) + _sized(v) for k, v in pairs)
    return _further_bytes(value)


def _further_bytes(value: Any) -> bytes:
    """Return the bytes of values that msgpack has no form for; values that compare equal have equal
    bytes, as above.
    """
    if isinstance(value, Decimal):
        whole = whole_of(value)
        if whole is not None:
            return b"i%d" % whole
        close = float(value)
        return (
            canonical_bytes(close)
            if close != close or Decimal.from_float(close) == value
            else b"d" + _EXACTLY.to_sci_string(normalized(value)).encode()
        )
    if isinstance(value, datetime):  # before date, of which it is one
        return b"t" + _moment(value).encode()
    if isinstance(value, date):
        return b"D" + value.isoformat().encode()
    if isinstance(value, UUID):
        return b"u" + value.bytes
    if isinstance(value, set | frozenset):
        return b"S" + b"".join(sorted(_sized(canonical_bytes(item)) for item in value))
    name = value.name if isinstance(value, RegisteredValue) else value_types.name_of(type(value))
    if name is not None:
        content = (
            value.content if isinstance(value, RegisteredValue) else value_types.content_of(value)
        )
        return b"o" + _sized(name.encode()) + canonical_bytes(content)
    raise TypeError(
        f"a {type(value).__name__} cannot be a grouping key; group by text, numbers, bytes, dates, UUIDs, lists, sets, mappings or "
        "registered classes"
    )


def whole_of(value: Decimal) -> int | None:
    """Return a decimal as a whole number; None where it is none, or longer than any number."""
    if not value:
        return 0
    is_whole = (
        value.is_finite()
        and value.adjusted() < _MOST_DIGITS
        and value == value.to_integral_value(context=_EXACTLY)
    )
    return int(value) if is_whole else None


def normalized(value: Decimal) -> Decimal:
    """Return the one form of equal decimals, with all of their digits."""
    return value.normalize(_EXACTLY)


def _moment(value: datetime) -> str:
    # Equal datetimes of one zone may differ in `fold`; Python hashes both as fold 0.
    value = value.replace(fold=0)
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:  # in UTC it lies before year 1 or after 9999
        since = value.replace(tzinfo=None) - datetime.min - (value.utcoffset() or timedelta())
        return str(since // timedelta(microseconds=1))


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
