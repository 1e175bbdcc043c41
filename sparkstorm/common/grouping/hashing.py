"""Hash of fields grouping: Spark's own (Murmur3 of 32 bits), equal in every process, on every machine
and Python version, live and in replay.

So Spark brings the rows of a replay, by its hash partitioning, to the tasks that have their keys live
(replay/sql_shuffle.py). Source: `Murmur3_x86_32` and `HashExpression` of Spark, of which files of
bucketed tables depend too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any
from uuid import UUID

from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.values import value_types
from sparkstorm.common.model.values.value_types import RegisteredValue

# Of Spark's hash partitioning. Another one would bring keys to other tasks than Spark does.
_SEED = 42
_BITS = 2**32 - 1
_MOST_LONG = 2**63 - 1
# Digits of a whole decimal that is hashed as a number. Numbers have 2,467 at most (8,192 bits), so
# none equals a longer one. 1E+1000000 as a number took 31 s, and longer ones all memory.
_MOST_DIGITS = 2500
# Not the thread's, which is its user's: the hash is the same in every process.
_EXACTLY = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, capitals=1, traps=[])


def _stable_hash(value: Any, seed: int = _SEED) -> int:
    """Return the signed 32-bit hash of a value; twin of the core's `stable_hash`, which leaves
    unusual values to it.

    A list is hashed item by item, each with the hash so far as its seed, as Spark hashes several
    columns; None leaves the seed as it is.
    """
    if isinstance(value, str):
        return _hash_of_bytes(value.encode("utf-8", "surrogatepass"), seed)
    if isinstance(value, Decimal):
        value = _plain_number(value)
    if isinstance(value, float):
        if not value.is_integer():
            # One form of every NaN, as Spark has it
            bits = struct.pack(">d", value if value == value else math.nan)
            return _hash_of_long(int.from_bytes(bits), seed)
        value = int(value)
    if isinstance(value, int) and -_MOST_LONG - 1 <= value <= _MOST_LONG:
        return _hash_of_long(value, seed)
    if isinstance(value, bytes):
        return _hash_of_bytes(value, seed)
    if value is None:
        return seed
    if isinstance(value, list | tuple):
        for item in value:
            seed = _stable_hash(item, seed)
        return seed
    return _hash_of_bytes(canonical_bytes(value), seed)


def _hash_of_long(number: int, seed: int) -> int:
    """Return the hash of a whole number of 64 bits: Spark's `hashLong`."""
    return _finished(_mixed(_mixed(seed, number & _BITS), number >> 32 & _BITS), 8)


def _plain_hash_of_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes: Spark's `hashUnsafeBytes`, whose last bytes are mixed one by one."""
    aligned = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:aligned]):
        seed = _mixed(seed, word)
    for (byte,) in struct.iter_unpack("b", data[aligned:]):
        seed = _mixed(seed, byte & _BITS)
    return _finished(seed, len(data))


def _mixed(state: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _BITS
    word = (word << 15 | word >> 17) * 0x1B873593 & _BITS
    state = state & _BITS ^ word
    return (state << 13 & _BITS | state >> 19) * 5 + 0xE6546B64 & _BITS


def _finished(state: int, size: int) -> int:
    state = state & _BITS ^ size
    state = (state ^ state >> 16) * 0x85EBCA6B & _BITS
    state = (state ^ state >> 13) * 0xC2B2AE35 & _BITS
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


# In the core also for values that are left to the twin: a mapping of 200 bytes takes 50 us in Python.
_hash_of_bytes: Callable[[bytes, int], int] = (
    _plain_hash_of_bytes if core is None else core.hash_of_bytes
)
if core is not None:
    core.set_hashing(_stable_hash)
stable_hash: Callable[[Any], int] = _stable_hash if core is None else core.stable_hash
"""Returns the signed 32-bit hash of a value; numbers that compare equal (1, 1.0, True) hash alike, as
in a dict. The same as Spark's `hash` of BIGINT, STRING and BINARY, of several columns too.
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
        plain = _plain_number(value)
        return (
            b"d" + _EXACTLY.to_sci_string(normalized(plain)).encode()
            if isinstance(plain, Decimal)
            else canonical_bytes(plain)
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


def _plain_number(value: Decimal) -> int | float | Decimal:
    """Return the whole number or float that equals a decimal; else the decimal."""
    number = whole_of(value)
    if number is not None:
        return number
    close = float(value)
    return close if close != close or Decimal.from_float(close) == value else value


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
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:  # in UTC it lies before year 1 or after 9999
        since = value.replace(tzinfo=None) - datetime.min - (value.utcoffset() or timedelta())
        return str(since // timedelta(microseconds=1))


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
