"""Bound on the memory of unpacked bytes: a none is 1 byte packed and 8 bytes unpacked, an empty
list 80.
"""

from __future__ import annotations

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.values import value_types

# of one value, in bytes; half of it would refuse a list of 11 million numbers
MAX_MEMORY = 768 << 20
MOST_PER_BYTE = 168  # of weight: a small negative number in a set

# bytes of memory of a value, with its place in a list or mapping, as tracemalloc has shown them on
# CPython 3.11
_PLAIN = 10  # none, true and false, and the small numbers and empty texts that exist once
_NUMBER = 40
_WIDE = 56
_TEXT = 80  # and one to four bytes for each of its own
_LIST = 88  # also an empty mapping
_MAPPING = 184
_PAIR = 68
_EXTENSION = 256  # an empty set takes most; its content is packed values, which are weighed too
_ELEMENT = 128  # of a set, or a pair of a wide mapping: their tables
_WITH_ELEMENTS = frozenset({value_types.SET, value_types.FROZEN_SET, value_types.MAPPING})
_MOST_EXTENSIONS = 64  # in each other: the codec refuses more
_FIXED = {  # after the first byte: bytes of a value of fixed size, and its weight
    0xCA: (4, _NUMBER),
    0xCB: (8, _NUMBER),
    0xCC: (1, _PLAIN),
    0xCD: (2, _NUMBER),
    0xCE: (4, _NUMBER),
    0xCF: (8, _WIDE),
    0xD0: (1, _NUMBER),
    0xD1: (2, _NUMBER),
    0xD2: (4, _NUMBER),
    0xD3: (8, _WIDE),
}
_BYTES, _STRINGS, _LISTS, _MAPPINGS, _EXTENSIONS = range(5)
_SHORT = {  # what has its length in its first byte: its kind, and that length
    **{0x80 + length: (_MAPPINGS, length) for length in range(16)},
    **{0x90 + length: (_LISTS, length) for length in range(16)},
    **{0xA0 + length: (_STRINGS, length) for length in range(32)},
    **{0xD4 + power: (_EXTENSIONS, 1 << power) for power in range(5)},
}
_SIZED = {  # what begins with a length: its kind, and the bytes of that length
    0xC4: (_BYTES, 1),
    0xC5: (_BYTES, 2),
    0xC6: (_BYTES, 4),
    0xC7: (_EXTENSIONS, 1),
    0xC8: (_EXTENSIONS, 2),
    0xC9: (_EXTENSIONS, 4),
    0xD9: (_STRINGS, 1),
    0xDA: (_STRINGS, 2),
    0xDB: (_STRINGS, 4),
    0xDC: (_LISTS, 2),
    0xDD: (_LISTS, 4),
    0xDE: (_MAPPINGS, 2),
    0xDF: (_MAPPINGS, 4),
}


def require_bounded(data: bytes | memoryview, most: int = MAX_MEMORY) -> None:
    """Raise MalformedFrameError if packed values weigh more than `most`, in bytes of memory once
    unpacked.

    Nothing is unpacked. Fewer bytes than `most` / MOST_PER_BYTE cannot weigh so much and are not
    looked at.
    """
    if len(data) > most // MOST_PER_BYTE and weigh(data, most) > most:
        raise MalformedFrameError(
            f"values of {len(data)} bytes that would take more than {most >> 20} MiB of memory; divide them"
        )


def weigh_plain(data: bytes | memoryview, most: int) -> int:
    """Return the weight of packed values, or the first sum above `most`; damaged bytes weigh
    nothing. Twin of the core's.

    The content of an extension ends with it, even if the values in it claim a greater length.
    """
    offset = 0
    stop = len(data)
    total = 0
    outer: list[int] = []  # ends of what the extensions at hand lie in
    opens = False  # whether an extension with elements begins here
    while True:
        while outer and offset >= stop:
            stop = outer.pop()
        if offset >= stop or total > most:
            return total
        first = data[offset]
        has_elements = opens
        opens = False
        offset += 1
        if first < 0x80 or first >= 0xE0:
            total += _NUMBER if 0xE0 <= first < 0xFB else _PLAIN
            continue
        if first in _FIXED:
            size, weight = _FIXED[first]
            offset = min(offset + size, stop)
            total = total + weight
            continue
        if first in _SHORT:
            kind, length = _SHORT[first]
        elif first in _SIZED:
            kind, size = _SIZED[first]
            if size > stop - offset:
                offset = stop
                continue
            length = int.from_bytes(data[offset : offset + size], "big")
            offset += size
        else:
            total += _PLAIN
            continue
        if kind == _LISTS:
            total += _LIST + (_ELEMENT * min(length, stop - offset) if has_elements else 0)
        elif kind == _MAPPINGS:
            pairs = min(length, (stop - offset) // 2)
            total += _MAPPING + _PAIR * pairs if pairs else _LIST
        elif kind == _EXTENSIONS:
            if offset == stop:  # its code is missing
                continue
            total += _EXTENSION
            opens = data[offset] in _WITH_ELEMENTS
            offset += 1
            if len(outer) < _MOST_EXTENSIONS:
                outer.append(stop)
                stop = min(offset + length, stop)
        else:
            end = min(offset + length, stop)
            wide = 1 if kind == _BYTES or end == offset else _width(max(data[offset:end]))
            total += _PLAIN if end == offset else _TEXT + (end - offset) * wide
            offset = end


def _width(most: int) -> int:
    """Return the bytes of each character of a text, after its highest byte of UTF-8."""
    return 1 if most < 0xC4 else 2 if most < 0xF0 else 4


weigh = weigh_plain if core is None else core.weigh
