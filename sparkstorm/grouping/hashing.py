"""Hash of fields grouping: equal in every process, on every machine and Python version, live and in
replay.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sparkstorm.model.compiled import core
from sparkstorm.model.values import value_types
from sparkstorm.model.values.value_types import RegisteredValue

_MASK = 2**64 - 1
# Fibonacci hashing (Knuth, TAOCP 6.4): spreads CRC32 over the high bits
_GOLDEN = 0x9E3779B97F4A7C15
_CRC_OF_TEXT = zlib.crc32(b"s")


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
        if value.is_finite() and value == value.to_integral_value():
            return b"i%d" % int(value)
        close = float(value)
        return (
            canonical_bytes(close)
            if close != close or Decimal(close) == value
            else b"d" + str(value.normalize()).encode()
        )
    if isinstance(value, datetime):  # before date, of which it is one
        return b"t" + value.astimezone(UTC).isoformat().encode()
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


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
