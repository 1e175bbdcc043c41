"""Checks values beyond msgpack's own: each comes back as it was, through bytes, tagged text and
grouping hashes.
"""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import CodecError, InvalidConfigError, MalformedFrameError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.values import value_types
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import from_json, to_json
from sparkstorm.common.model.values.value_types import RegisteredValue, check_serializers, register
from tests.tiers import examples
from tests.transport.values import scalars

CODEC = Codec()


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass(frozen=True)
class Order:
    """A registered class that holds values of every kind."""

    id: UUID
    price: Decimal
    colour: Colour
    tags: list[Any] = field(default_factory=list)


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Meter:
    """A class whose constructor changes what it is given, and keeps more than its fields."""

    reading: int
    looks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.reading < 0:
            raise ValueError("a negative reading")
        self.reading += 1
        self.unit = "kWh"


HERE = __name__
register([f"{HERE}:{name}" for name in ("Colour", "Order", "Right", "Meter")])

zones = st.sampled_from(
    [
        datetime.UTC,
        datetime.timezone(datetime.timedelta(hours=5, minutes=30)),
        ZoneInfo("Europe/Berlin"),
    ]
)
moments = st.datetimes(
    datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1), timezones=zones
)
further = (
    st.dates()
    | moments
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.integers(-(2**300), 2**300)
    | st.sampled_from(Colour)
)
keys = scalars.filter(lambda value: value == value) | further
values: st.SearchStrategy[Any] = st.recursive(
    scalars | further | st.sets(keys, max_size=4) | st.frozensets(keys, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(
            Order,
            st.uuids(),
            st.decimals(allow_nan=False),
            st.sampled_from(Colour),
            st.lists(inner, max_size=2),
        )
    ),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Equal and of equal types all the way down; datetimes with the same zone, decimals with the
    same digits.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, datetime.datetime):
        return (one, one.utcoffset(), one.fold, str(one.tzinfo)) == (
            other,
            other.utcoffset(),
            other.fold,
            str(other.tzinfo),
        )
    return str(one) == str(other) if isinstance(one, Decimal) else bool(one == other)


@settings(max_examples=examples(300), derandomize=True)
@given(values)
def test_every_value_comes_back_from_bytes_and_from_text_as_it_was(value: Any) -> None:
    normal = CODEC.normalise(value)
    assert same(normal, CODEC.normalise(normal))
    packed = CODEC.pack(normal)
    assert same(CODEC.unpack(packed), normal)
    assert CODEC.pack(CODEC.unpack(packed)) == packed
    assert same(from_json(to_json(normal)), normal)


@settings(max_examples=examples(300), derandomize=True)
@given(keys)
def test_equal_keys_hash_alike_wherever_they_are(key: Any) -> None:
    assert stable_hash(CODEC.unpack(CODEC.pack(CODEC.normalise(key)))) == stable_hash(key)


@pytest.mark.parametrize(("one", "other"), [
    (Decimal("2.0"), 2), (Decimal("0.5"), 0.5), (Decimal("1E+2"), 100.0), (Decimal("0.10"), Decimal("0.1")),
    (2**70, Decimal(2**70)),
    (datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC), datetime.datetime(2024, 5, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))),
    ({1, 2}, frozenset({2, 1})),
])  # fmt: skip
def test_what_compares_equal_reaches_the_same_task(one: Any, other: Any) -> None:
    assert one == other and stable_hash(one) == stable_hash(other)


@pytest.mark.parametrize(("value", "plain"), [
    (np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("x"), "x"), (np.bytes_(b"x"), b"x"),
    (np.datetime64("2024-05-01"), datetime.date(2024, 5, 1)), ([np.uint8(1)], [1]),
])  # fmt: skip
def test_scalars_of_numpy_become_plain_values(value: Any, plain: Any) -> None:
    assert same(CODEC.normalise(value), plain)


@pytest.mark.parametrize(("value", "said"), [
    (datetime.datetime(2024, 5, 1), "a datetime without a zone .*tzinfo=datetime.UTC"),
    (2**9000, "a whole number of 9001 bits; the most are 8192"),
    ({(1, 2)}, "an element of a set of type tuple"),
    (Decimal("sNaN"), "signalling NaN"),
    (np.longdouble(1), "numpy.longdouble"),
    (np.arange(3), r"numpy\.ndarray.*use \.tolist\(\)"),
    (datetime.time(1), "a value of type datetime.time"),
])  # fmt: skip
def test_what_has_no_exact_form_is_refused_with_the_way_out(value: Any, said: str) -> None:
    with pytest.raises(CodecError, match=said):
        CODEC.normalise([value])


def test_a_registered_value_has_the_fields_that_were_sent_whatever_its_constructor_does_and_however_often_it_is_sent() -> (
    None
):
    meter = Meter(4)
    meter.looks = 7
    for sent in (meter, [meter, Right.READ | Right.WRITE, Right.READ, Right(0)]):
        found = CODEC.normalise(from_json(to_json(CODEC.normalise(sent))))
        assert found == sent
    assert (found[0].reading, found[0].looks, found[0].unit) == (5, 7, "kWh")
    meter.reading = -1
    sentence = r"of type .*Meter that cannot be read back: .*a negative reading"
    with pytest.raises(CodecError, match=sentence):
        CODEC.normalise(meter)


@dataclass
class Basket(dict[str, int]):
    """A mapping with a field next to its items."""

    owner: str = ""


@dataclass
class Noon(datetime.date):
    """A date with a field next to it."""

    place: str = ""


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "y"


@pytest.mark.parametrize(("name", "base"), [("Basket", "dict"), ("Noon", "date")])
def test_a_dataclass_that_is_more_than_its_fields_is_refused(name: str, base: str) -> None:
    said = f"{HERE}:{name}: the class derives from {base}, whose content would be lost"
    with pytest.raises(InvalidConfigError, match=said):
        register([f"{HERE}:{name}"])


def test_an_enum_of_numbers_or_texts_is_registered() -> None:
    register([f"{HERE}:Level", f"{HERE}:Word"])
    found = CODEC.unpack(CODEC.pack(CODEC.normalise([Level.LOW, Word.YES])))
    assert found == [Level.LOW, Word.YES] and list(map(type, found)) == [Level, Word]


class Unregistered(enum.Enum):
    ONE = 1


def test_a_class_that_is_not_registered_is_refused_with_the_line_that_registers_it() -> None:
    with pytest.raises(CodecError, match=rf"topology.serializers: \[{HERE}:Unregistered\]"):
        CODEC.normalise(Unregistered.ONE)


def test_a_process_without_the_class_reads_a_record_that_packs_to_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = Order(UUID(int=7), Decimal("1.50"), Colour.RED, [1])
    packed = CODEC.pack([order, {Colour.BLUE: 1}])
    line, hashed = to_json(order), stable_hash(order)
    monkeypatch.setattr(value_types, "_classes", {})
    monkeypatch.setattr(value_types, "_names", {})
    with pytest.raises(MalformedFrameError, match=f"unregistered type '{HERE}:"):
        CODEC.unpack(packed)
    found = Codec(is_lenient=True).unpack(packed)
    assert isinstance(found[0], RegisteredValue) and found[0].content["price"] == Decimal("1.50")
    assert CODEC.pack(found) == packed
    assert isinstance(from_json(line), RegisteredValue) and to_json(from_json(line)) == line
    assert stable_hash(found[0]) == hashed


@pytest.mark.parametrize(("name", "said"), [
    ("nothing", "no dataclass or enum; write module:Class"),
    ("no_such_module:X", "No module named"),
    (f"{HERE}:Missing", "no attribute"),
    (f"{HERE}:CODEC", "no dataclass or enum"),
])  # fmt: skip
def test_a_name_that_registers_nothing_is_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"topology\.serializers.*{said}"):
        register([name])


def test_a_class_beside_the_components_is_refused_before_it_becomes_several() -> None:
    sentence = "'shop' defines components and travels by value; put the class into another module"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_serializers(["shop:Order"], ["shop"])
    check_serializers(["shop_values:Order"], ["shop"])


@pytest.mark.parametrize("data", [
    b"\xc7\x03\x02\xa2xx", b"\xd4\x02\x01", b"\xd4\x09\xc0", b"\xc7\x05\x08\xa4zzzz", b"\xd4\x63\x01", b"\xc7\x02\x06\x91\x90",
], ids=repr)  # fmt: skip
def test_damaged_extensions_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        CODEC.unpack(data)
