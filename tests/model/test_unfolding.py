"""Weights of packed values: no less than what unpacking takes, the same in both cores, whatever the
bytes claim.
"""

from __future__ import annotations

import datetime
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.unfolding import (
    MOST_PER_BYTE,
    require_bounded,
    weigh,
    weigh_plain,
)

CODEC, ALL = Codec(), 1 << 60
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
keys = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9)
values = st.recursive(
    scalars | st.sets(st.integers(-40, 400), max_size=9) | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(keys, inner, max_size=20),
    max_leaves=30,
)


def pack(value: Any) -> bytes:
    return CODEC.pack(CODEC.normalise(value))


def repeated(unit: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + unit * count


UNITS = {
    "none": b"\xc0", "small": b"\xe0", "byte": b"\xd0\x80", "two bytes": b"\xcd\x01\x01", "wide": b"\xcf" + b"\xff" * 8,
    "float": b"\xcb" + b"\x01" * 8, "empty text": b"\xa0", "letter": b"\xa1a", "text": b"\xa7abcdefg", "latin": b"\xa2\xc3\xa9",
    "emoji": b"\xbf\xf0\x9f\x98\x80" + b"a" * 27, "bytes": b"\xc4\x14" + b"a" * 20, "list": b"\x90", "list of one": b"\x91\xc0",
    "list of 15": b"\x9f" + b"\xc0" * 15, "mapping": b"\x80", "mapping of one": b"\x81\xe0\xe0", "deep": b"\x81\xc0" * 5 + b"\xc0",
}  # fmt: skip
LARGE: dict[str, Any] = {
    "decimals": [Decimal(n) for n in range(9000)],
    "times": [datetime.datetime(2020, 1, 1 + n % 28, tzinfo=datetime.UTC) for n in range(9000)],
    "sets": [set(range(n, n + 5)) for n in range(9000)],
    "a set": set(range(200_000, 300_000)),
    "a mapping": dict.fromkeys(range(1000, 88383)),
    "mappings": [dict.fromkeys(range(1000, 1011)) for _ in range(4000)],
    "a wide mapping": {2**70 + n: n for n in range(30_000)},
}


@pytest.mark.parametrize("data", [
    *(pytest.param(repeated(unit, 20_000), id=name) for name, unit in UNITS.items()),
    *(pytest.param(pack(value), id=name) for name, value in LARGE.items()),
])  # fmt: skip
def test_values_take_no_more_memory_than_they_weigh(data: bytes) -> None:
    CODEC.unpack(data)
    tracemalloc.start()
    value = CODEC.unpack(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value and peak < 1.02 * weigh(data, ALL) + 10_000


@given(values)
def test_what_is_too_short_to_weigh_too_much_does_not(value: Any) -> None:
    data = pack(value)
    weight = weigh(data, ALL)
    assert weight <= MOST_PER_BYTE * len(data)
    require_bounded(data, weight)
    if len(data) > (weight - 1) // MOST_PER_BYTE:
        with pytest.raises(MalformedFrameError):
            require_bounded(data, weight - 1)


heads = st.sampled_from([*range(0x80, 0xA4), *range(0xC0, 0xE2), 0xFA, 0xFB, 0, 1, 2, 6, 7, 9]).map(
    lambda n: bytes([n])
)
hostile = st.lists(heads | st.binary(max_size=5), max_size=40).map(b"".join)


@given(hostile | values.map(pack), st.integers(0, 3000), st.integers(0, 200))
def test_both_cores_weigh_the_same(data: bytes, most: int, end: int) -> None:
    for part in (data, data[:end], memoryview(data)[end:]):
        assert weigh(part, ALL) == weigh_plain(part, ALL)
        assert weigh(part, most) == weigh_plain(part, most)


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x04",
        b"\xda\xff",
        b"\xbf",
    ],
)
@pytest.mark.parametrize("count", [weigh, weigh_plain])
def test_a_length_that_is_claimed_in_an_extension_hides_nothing_behind_it(
    count: Any, claim: bytes
) -> None:
    """The codec reads the first value of an extension's content and no further."""
    content = b"\xa15" + claim
    data = b"\x92\xc7" + bytes([len(content)]) + b"\x04" + content + repeated(b"\x90", 1000)
    assert CODEC.unpack(data)[0] == Decimal(5)
    assert 1000 * 88 <= count(data, ALL) < 1000 * 88 + 2000
