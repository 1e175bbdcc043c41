"""Bound on the memory of unpacked bytes: an empty list is 1 byte packed and some 80 bytes unpacked."""

from __future__ import annotations

import struct

import numpy as np

from sparkstorm.errors import MalformedFrameError

MAX_CONTAINERS = 8 << 20  # lists and mappings in one value: 0.7 GB when all are empty

_OPENS = np.zeros(256, bool)  # bytes that begin a list or mapping, wherever a value may begin
_OPENS[0x80:0xA0] = _OPENS[0xDC:0xE0] = True
# after the first byte: bytes of a value of fixed size, and the form of the length of one that has a length
_FIXED = {
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 1,
    0xD5: 1,
    0xD6: 1,
    0xD7: 1,
    0xD8: 1,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
_ONE, _TWO, _FOUR = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I")
_EXTENDED = {0xC7: 2, 0xC8: 3, 0xC9: 5}  # length and code; the content of an extension is packed values, and is counted too
_SIZED = {
    0xC4: (_ONE, 0),
    0xC5: (_TWO, 0),
    0xC6: (_FOUR, 0),
    0xD9: (_ONE, 0),
    0xDA: (_TWO, 0),
    0xDB: (_FOUR, 0),
}


def require_bounded(data: bytes | memoryview, most: int = MAX_CONTAINERS) -> None:
    """Raise MalformedFrameError if packed bytes hold more than `most` lists and mappings.

    Fewer bytes than `most` are not looked at. Longer ones are counted quickly first, which also counts bytes of texts that
    look like lists, and exactly only if that count is too large.
    """
    if len(data) <= most or np.count_nonzero(_OPENS[np.frombuffer(data, np.uint8)]) <= most:
        return
    if _count_containers(data, most) > most:
        raise MalformedFrameError(f"more than {most} lists and mappings in {len(data)} bytes")


def _count_containers(data: bytes | memoryview, most: int) -> int:
    """Return the number of lists and mappings, at most one more than `most`; damaged bytes end the count."""
    at, end, found = 0, len(data), 0
    while at < end and found <= most:
        first = data[at]
        at += 1
        if 0x80 <= first < 0xA0 or 0xDC <= first < 0xE0:
            found += 1
        if 0xA0 <= first < 0xC0:
            at += first & 31
        elif first in _SIZED:
            form, more = _SIZED[first]
            if at + form.size > end:
                break
            at += form.size + form.unpack_from(data, at)[0] + more
        else:
            at += _FIXED.get(first, 0) or _EXTENDED.get(first, 0)
    return found
