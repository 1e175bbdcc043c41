"""Hash of fields grouping: equal in every process, on every machine and Python version, live and in replay."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # Fibonacci hashing (Knuth, TAOCP 6.4): spreads CRC32 over the high bits
_CRC_OF_TEXT = zlib.crc32(b"s")


def stable_hash(value: Any) -> int:
    """Return a 32-bit hash of a value; numbers that compare equal (1, 1.0, True) hash alike, as in a dict."""
    if type(value) is str:  # as below but without a copy: this is the usual type of a key
        crc = zlib.crc32(value.encode("utf-8", "surrogatepass"), _CRC_OF_TEXT)
    elif type(value) is int:
        crc = zlib.crc32(b"i%d" % value)
    else:
        crc = zlib.crc32(canonical_bytes(value))
    return ((crc * _GOLDEN) & _MASK) >> 32


def canonical_bytes(value: Any) -> bytes:
    """Return a value's bytes, with its kind and length; different values never have equal bytes."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        if value.is_integer():
            return b"i%d" % int(value)
        return b"f" + struct.pack(">d", value if value == value else math.nan)  # equal bytes for every NaN
    if isinstance(value, bytes):
        return b"b" + value
    if value is None:
        return b"n"
    if isinstance(value, list | tuple):
        return b"l" + b"".join(_sized(canonical_bytes(item)) for item in value)
    if isinstance(value, dict):
        pairs = sorted((canonical_bytes(k), canonical_bytes(v)) for k, v in value.items())
        return b"m" + b"".join(_sized(k) + _sized(v) for k, v in pairs)
    raise TypeError(f"a {type(value).__name__} cannot be a grouping key; group by text, numbers, bytes, lists or mappings")


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
