"""The compiled core packs and unpacks values as ormsgpack does, and leaves it what is unusual."""

from __future__ import annotations

import math
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID, SafeUUID, uuid1
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.compiled import core, description
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN, Codec
from tests.tiers import examples
from tests.transport.values import values

pytestmark = pytest.mark.skipif(core is None, reason=description)
CODEC = Codec()
EDGES = [
    sign * (1 << bits) + more
    for bits, more, sign in product((5, 7, 8, 15, 16, 31, 32, 62), (-1, 0, 1), (-1, 1))
]
SIZES = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 255, 256, 65_535, 65_536]


def shown(value: Any) -> Any:
    """Return a value in a form that tells types, floats that are no numbers, and orders apart."""
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return "mapping", [(shown(key), shown(item)) for key, item in value.items()]
    return type(value), repr(value)


def _has_bytes(value: Any) -> bool:
    return not (isinstance(value, datetime) and value.tzinfo is None)


def require_equal(value: Any) -> None:
    """Fail unless the core has the twin's bytes, and reads what the twin reads."""
    packed = CODEC._pack_plain(value)
    assert core.pack(value) == packed == CODEC.pack(value)
    found = core.unpack(packed)
    assert found is not NotImplemented
    assert shown(found) == shown(CODEC._unpack_plain(packed)) == shown(CODEC.unpack(packed))
    assert shown(core.unpack(memoryview(b"head" + packed)[4:])) == shown(found)


@settings(max_examples=examples(300), derandomize=True)
@given(values)
def test_values_have_the_bytes_of_the_twin_and_come_back_as_there(value: Any) -> None:
    require_equal(value)


def test_all_forms_of_numbers_are_the_twins() -> None:
    numbers = [*EDGES, INT_MIN, INT_MAX, 0, -1, 2**62, 0.0, -0.0, 1e-310, math.inf, math.nan]
    for number in numbers:
        require_equal(number)
    require_equal([*numbers, None, True, False])
    require_equal({number: number for number in numbers})


@pytest.mark.parametrize("size", SIZES)
def test_all_forms_of_what_has_a_length_are_the_twins(size: int) -> None:
    for value in ("x" * size, "é" * size, "\U0001f600" * size, b"x" * size):
        require_equal(value)
        require_equal({value: value})
    require_equal([1] * size)
    require_equal(("ab",) * size)
    require_equal(dict.fromkeys(range(size)))
    require_equal({f"key {n}": "x" for n in range(size)})


@pytest.mark.parametrize("depth", [1, 64, 70, 71, 72, 73, 74, 200, 254, 255, 256, 300])
@pytest.mark.parametrize("kind", ["list", "mapping"])
def test_deep_values_are_packed_and_refused_alike(kind: str, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {1: value}
    try:
        packed = Codec()._pack_plain(value)
    except (TypeError, ValueError):
        with pytest.raises(CodecError):
            Codec().pack(value)
        return
    assert CODEC.pack(value) == packed
    assert (core.pack(value) is None) == (depth > 72)
    assert (core.unpack(packed) is NotImplemented) == (depth > 72)
    assert shown(CODEC.unpack(packed)) == shown(CODEC._unpack_plain(packed))


class Word(str):
    __slots__ = ()


class Day(date):
    pass


class Id(UUID):
    pass


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        2**64,
        -(2**63) - 1,
        Decimal("1" * 201),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
        datetime(2024, 1, 1),
        Day(2024, 1, 1),
        Id(int=1),
        {1},
        frozenset("a"),
        object(),
        Word("x"),
        OrderedDict(a=1),
        "\ud800",
        bytearray(b"x"),
        1j,
    ],
)
def test_what_is_no_part_of_msgpack_is_left_to_the_twin(value: Any) -> None:
    for holder in (value, [1, value], {"k": [value]}):
        assert core.pack(holder) is None
        codec = Codec()
        try:
            packed = codec._pack_plain(holder)
        except (TypeError, ValueError):
            with pytest.raises(CodecError):
                codec.pack(holder)
        else:
            assert codec.pack(holder) == packed
            if value != OrderedDict(a=1):
                assert core.unpack(packed) in (NotImplemented, holder)


ZONES = ["Europe/Berlin", "America/Argentina/ComodRivadavia", "Asia/Kathmandu", "Etc/UTC", "UTC"]
zones = (
    st.just(UTC)
    | st.sampled_from(ZONES).map(ZoneInfo)
    | st.sampled_from(ZONES).map(ZoneInfo.no_cache)
    | st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
)
decimals: st.SearchStrategy[Any] = st.sampled_from(
    ["1.50", "-0", "0E+3", "1E-30", "NaN", "-NaN12", "sNaN", "Infinity", "9" * 200, "-" + "9" * 200]
).map(Decimal)
dated: st.SearchStrategy[Any] = (
    st.dates()
    | st.builds(
        lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold),
        st.datetimes() | st.datetimes().map(lambda at: at.replace(microsecond=0)),
        zones,
        st.integers(0, 1),
    )
    | st.datetimes()
    | st.decimals()
    | decimals
    | st.uuids()
)


@settings(max_examples=examples(600), derandomize=True)
@given(st.recursive(dated | values, lambda inner: st.lists(inner, max_size=3), max_leaves=4))
def test_dates_decimals_and_ids_are_those_of_the_twin(value: Any) -> None:
    def said(normalise: Callable[[Any], Any]) -> Any:
        try:
            return shown(normalise(value))
        except CodecError as error:
            return str(error)

    plain = said(_normalised_plainly)
    assert said(CODEC.normalise) == plain
    if isinstance(plain, str):
        return
    normal = CODEC.normalise(value)
    packed = CODEC._pack_plain(normal)
    assert core.pack(normal) in (packed, None)
    assert shown(CODEC.unpack(packed)) == shown(CODEC._unpack_plain(packed)) == shown(normal)


def _normalised_plainly(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_normalised_plainly(item) for item in value]
    return CODEC._normalise_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        date(1, 1, 1),
        date(9999, 12, 31),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC, fold=1),
        datetime(2024, 10, 27, 2, 30, 1, 5, tzinfo=ZoneInfo(ZONES[1])),
        *map(Decimal, ["1", "12", "123", "1.25", "1.2345678", "0." + "1" * 13, "1E+9", "-0.0"]),
        Decimal("9" * 200),
        UUID(int=0),
        UUID(int=2**128 - 1),
        uuid1(),
    ],
)
def test_usual_dates_decimals_and_ids_are_not_left_to_the_twin(value: Any) -> None:
    require_equal([value, value])
    assert core.normalise(None, value) is value


def test_a_date_in_too_deep_a_list_is_refused_as_by_the_twin() -> None:
    value: Any = date(2024, 1, 1)
    for _ in range(64):
        value = [value]
    assert CODEC.normalise(value) == value
    with pytest.raises(CodecError, match="deeper than 64"):
        CODEC.normalise([value])


marks = st.sampled_from([bytes([first]) for first in range(0x80, 0xE0)])
damaged = st.one_of(
    st.lists(marks | st.binary(max_size=5), max_size=30).map(b"".join),
    st.builds(
        lambda value, at, put, cut: (
            (packed := CODEC._pack_plain(value))[: at % (len(packed) + 1)]
            + put
            + packed[at % (len(packed) + 1) + cut :]
        ),
        values | dated.filter(_has_bytes),
        st.integers(0, 200),
        st.binary(max_size=3),
        st.integers(0, 3),
    ),
)


@settings(max_examples=examples(2000), derandomize=True)
@given(damaged)
@example(b"\xc7\x0b\x02\xaa2024-02-30")
@example(b"\xc7\x0c\x02\xaa2024-02-20x")
@example(b"\xc7\x0b\x02\xaa20240220  ")
@example(b"\xc7\x17\x03\x93\xb32024-02-20T24:00:00\x00\x00")
@example(b"\xc7\x17\x03\x93\xb32024-02-20T12:00:00\x00\x02")
@example(b"\xc7\x17\x03\x93\xb32024-02-20 12:00:00\x00\x00")
@example(b"\xc7\x17\x03\x93\xb32024-02-20T12:00:00\x01\x00")
@example(b"\xc7\x1a\x03\x93\xb32024-02-20T12:00:00\xa3Nix\x00")
@example(b"\xc7\x19\x03\x93\xb32024-02-20T12:00:00\xa2..\x00")
@example(b"\xd6\x04\xa3E.E")
@example(b"\xd6\x04\xa3NaN")
@example(b"\xc7\x05\x04\xa4sNaN")
@example(b"\xd4\x04\xa0")
@example(b"\xc7\x12\x05\xc4\x10" + b"x" * 15)
@example(b"\xc7\x12\x05\xc4\x11" + b"x" * 16)
@example(b"\xd4\x02")
@example(b"\xc7\x00\x03")
@example(b"\x81\xc7\x0b\x02\xaa2024-02-20\x01")
@example(b"")
@example(b"\xc1")
@example(b"\x81\x01\xc1")
@example(b"\x92\x01")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdd\xff\xff\xff\xff\x01")
@example(b"\x82\xa1a\x01\xa1a\x02")
@example(b"\x81\x91\x01\x02")
@example(b"\xca\x7f\xc0\x00\x01")
@example(b"\xa2\xc3\x28")
@example(b"\x01\x02")
def test_bytes_from_outside_are_read_as_by_the_twin_or_left_to_it(data: bytes) -> None:
    found = core.unpack(data)
    if found is NotImplemented:
        return
    plain = CODEC._unpack_plain(data)
    assert shown(found) == shown(plain)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", {"a": 2}),
        (b"\xca\x3f\x80\x00\x00", 1.0),
        (b"\xcd\x00\x01", 1),
        (b"\xd3" + b"\xff" * 8, -1),
        (b"\xd9\x01x", "x"),
        (b"\xc6\x00\x00\x00\x01x", b"x"),
    ],
)
def test_forms_that_nobody_writes_are_read(data: bytes, expected: Any) -> None:
    assert shown(core.unpack(data)) == shown(expected) == shown(CODEC._unpack_plain(data))


@pytest.mark.parametrize("data", [1, None, "text", [b"x"], memoryview(b"abcd")[::2]])
def test_what_are_no_bytes_are_left_to_the_twin(data: Any) -> None:
    assert core.unpack(data) is NotImplemented


def test_texts_are_known_by_all_of_their_bytes() -> None:
    chance = random.Random(7)
    texts = [
        "".join(chance.choice("ab") for _ in range(chance.choice([1, 3, 8, 17, 20, 24, 30])))
        for _ in range(20_000)
    ]
    packed = CODEC.pack(texts)
    for _ in range(2):
        assert core.unpack(packed) == texts


def test_a_text_that_comes_again_is_made_once() -> None:
    first, second = core.unpack(CODEC.pack(["a word", "a word"]))
    assert first is second
    long, longer = core.unpack(CODEC.pack(["word " * 9] * 2))
    assert long == longer and long is not longer


def test_texts_of_other_alphabets_are_not_taken_for_each_other() -> None:
    # The bytes of one are the characters of the other; two thousand places are soon the same.
    chance = random.Random(7)
    for _ in range(8_000):
        text = "".join(chr(chance.randrange(0xC0, 0x100)) for _ in range(4))
        texts = [text.encode().decode("latin-1"), text]
        assert core.unpack(CODEC.pack(texts)) == texts


def test_packing_leaves_no_memory_behind() -> None:
    value = {"a key": [1.5, "text " * 9, b"y"], "b": {"c": None}, "d": ["é"] * 3}
    odd = [value, {1}]
    zone = ZoneInfo("Europe/Berlin")
    dated = [datetime(2024, 1, 1, tzinfo=zone), date(2024, 1, 1), Decimal("2.5"), UUID(int=7)]
    packed = CODEC.pack(value)
    packed_dates = CODEC.pack([*dated, datetime(2024, 1, 1, 1, tzinfo=UTC)])
    (key, *_) = core.unpack(packed)

    def numbers() -> tuple[int, ...]:
        counted = (value["a key"], key, zone, Decimal, UUID, SafeUUID.unknown, UTC, *dated)
        return *map(sys.getrefcount, counted), sys.getallocatedblocks()

    for run in range(3):
        before = numbers()
        for _ in range(3_000):
            core.pack(value)
            core.pack(odd)
            core.unpack(packed)
            core.unpack(packed[:-1])
            core.unpack(packed + b"x")
            core.pack(dated)
            core.unpack(packed_dates)
            core.unpack(packed_dates[:-1])
            core.normalise(CODEC.rest, dated)
        assert all(now - then < 1000 for now, then in zip(numbers(), before, strict=True))
        before = numbers()
        for n in range(3_000):
            core.unpack(b"\xa8%08d" % (3_000 * run + n))  # they put former texts out
    assert all(now - then < 1000 for now, then in zip(numbers(), before, strict=True))


NAMES = ["", "a", "b", "ab", "é", "__class__", "__dict__", "__weakref__", "__slots__", "x" * 31]
RECORDS = st.recursive(
    st.integers(0, 300) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*NAMES, "x" * 32, 1, None]) | st.just("a"), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(100), derandomize=True)
@given(st.lists(RECORDS, max_size=4))
def test_mappings_with_the_keys_of_former_ones_are_read_as_by_the_twin(records: list[Any]) -> None:
    # each a second time, when its keys are known, and with the same keys in another order
    for record in [*records, *records, [records, records]]:
        require_equal(record)
        if isinstance(record, dict):
            require_equal(dict(reversed(record.items())))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 23, 24, 25, 40])
def test_mappings_of_many_keys_come_back_in_order_however_often(name: str, count: int) -> None:
    for first in range(5):
        mapping = {name: first} | {f"key {n}": first + n for n in range(count - 1)}
        require_equal(mapping)
        require_equal({**mapping, f"key {count - 2}": mapping})


def test_a_mapping_of_a_known_shape_is_changed_by_itself() -> None:
    packed = CODEC.pack({"a key": 1, "one more": 2})
    core.unpack(packed)
    mine, other = core.unpack(packed), core.unpack(packed)
    mine["third"] = 3
    del other["a key"]
    other["a key"] = [other]
    assert list(mine) == ["a key", "one more", "third"] and list(other) == ["one more", "a key"]
    assert core.unpack(packed) == {"a key": 1, "one more": 2}


def test_records_of_very_many_shapes_are_read() -> None:
    chance = random.Random(3)
    for _ in range(20_000):
        names = chance.sample(range(12), chance.randint(1, 4))
        record = {f"field {n}": {"in": n} for n in names}
        assert core.unpack(CODEC.pack(record)) == record
