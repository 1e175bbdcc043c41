"""Checks the closed set of values: what may travel, what it looks like on the other side, and what
is refused how.
"""

from __future__ import annotations

import enum
import gc
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import CodecError, MalformedFrameError
from sparkstorm.common.model.compiled import core, description
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN, Codec
from sparkstorm.common.model.values.value_types import register
from tests.tiers import examples
from tests.transport.values import values

CODEC = Codec()
ACT: list[Callable[[], None]] = []
"""Calls that the next reads of the field `value` of an `Acting` make, the last one first."""


@dataclass
class Acting:
    """A registered class that runs code of its own when its field is read."""

    value: Any = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "value" and ACT:
            ACT.pop()()
        return object.__getattribute__(self, name)


@dataclass
class Money:
    """A registered class that changes what it is given."""

    amount: Decimal

    def __post_init__(self) -> None:
        self.amount = self.amount.quantize(Decimal("0.01"))


register([f"{__name__}:{kind.__name__}" for kind in (Acting, Money)])


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


@settings(max_examples=examples(300), derandomize=True)
@given(values)
def test_what_normalise_returns_is_what_the_other_side_reads(value: Any) -> None:
    normal = CODEC.normalise(value)
    assert same(CODEC.unpack(CODEC.pack(normal)), normal)
    assert same(CODEC.normalise(normal), normal)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(k, q) and same(v, w) for (k, v), (q, w) in pairs)
    return bool(one == other)


PLAIN = Codec()
PLAIN.normalise = PLAIN._normalise_plain  # the twin all the way down
ODD: Any = [
    object(),
    "\ud800",
    ["ok", "\udfff"],
    {"\ud800": 1},
    2**63,
    -(2**63) - 1,
    [2**63, {2**64: 1}],
    2**9000,
    {1: {2.5: {None: {b"k": {True: ()}}}}},
    {(1, 2): 3},
    {Level.LOW: 1},
    Word("x"),
    [Word("x")],
    Fraction(1, 3),
    np.int64(3),
    {"k": np.float32(0.5)},
    {np.int64(3): "a", 3: "b"},
    np.arange(3),
    {1, 2},
    [{"a": frozenset("ab")}, Decimal("-0")],
    "\U0001f600 caf\u00e9",
    range(3),
]


def outcome(codec: Codec, value: Any) -> tuple[Any, ...]:
    try:
        found = codec.normalise(value)
    except CodecError as error:
        return "refused", str(error)
    return "taken", repr(found), type(found)


@pytest.mark.skipif(core is None, reason=description)
@settings(max_examples=examples(200), derandomize=True)
@given(
    st.lists(values | st.sampled_from(ODD), max_size=3),
    st.sampled_from(["bare", "list", "mapping"]),
)
def test_the_core_and_its_twin_normalise_alike(items: list[Any], nest: str) -> None:
    value = (
        items
        if nest == "list"
        else tuple(items)
        if nest == "bare"
        else {"k": items, "odd": items[-1:]}
    )
    assert outcome(CODEC, value) == outcome(PLAIN, value)


@pytest.mark.parametrize("depth", [63, 64, 65, 66])
def test_the_core_and_its_twin_bound_the_same_depth(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    assert outcome(CODEC, value) == outcome(PLAIN, value)


@pytest.mark.skipif(core is None, reason=description)
@pytest.mark.parametrize("change", ["clear", "add"])
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_a_container_that_a_value_in_it_changes_is_an_error(kind: str, change: str) -> None:
    def act() -> None:
        if change == "clear":
            container.clear()
        elif kind == "list":
            container.append(1)
        else:
            container["added"] = 1

    items = [1, Acting(), *range(100)]
    container: Any = items if kind == "list" else {str(n): item for n, item in enumerate(items)}
    ACT.append(act)
    with pytest.raises(RuntimeError, match=f"a {kind} changed while it was emitted"):
        CODEC.normalise(container)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        {"a": 1, "b": {"c": [2, {"d": 3}]}, "e": ({"f": 4},)},
        {n: [n] for n in range(20)},
    ],
)
def test_a_copy_shares_no_container_with_what_was_emitted(value: dict[Any, Any]) -> None:
    shrunk = {**value, **dict.fromkeys("xyzuvw")}  # a table with room that its copy may keep
    for key in "xyzuvw":
        del shrunk[key]
    for emitted in (value, shrunk):
        copy = CODEC.normalise(emitted)
        assert containers(copy).isdisjoint(containers(emitted))
        assert list(copy) == list(emitted)
        assert same(copy, PLAIN.normalise(emitted))
        copy["new"] = 1
        assert "new" not in emitted


def containers(value: Any) -> set[int]:
    """Return the identities of a value's containers."""
    if not isinstance(value, list | tuple | dict):
        return set()
    inner = value.values() if isinstance(value, dict) else value
    return {id(value)}.union(*map(containers, inner))


def test_normalising_leaves_no_memory_behind() -> None:
    value = {"a": [1, 2.5, ("x", b"y")], "b": {"c": None}, "d": [Decimal(1)] * 3}
    CODEC.normalise(value)
    before = sys.getrefcount(value["a"]), len(gc.get_objects())
    for _ in range(1000):
        CODEC.normalise(value)
        with pytest.raises(CodecError):
            CODEC.normalise([value, object()])
    # a traceback may hold it; a leak would be 1,000
    assert sys.getrefcount(value["a"]) - before[0] < 10
    assert len(gc.get_objects()) - before[1] < 500


def test_tuples_become_lists_at_every_depth() -> None:
    assert CODEC.normalise((1, [(2,)], {"k": (3, (4,))})) == [1, [[2]], {"k": [3, [4]]}]
    assert CODEC.unpack(CODEC.pack(CODEC.normalise(((),)))) == [[]]


def test_normalise_copies_containers_so_that_later_changes_do_not_travel() -> None:
    inner = [1]
    normal = CODEC.normalise({"k": inner})
    inner.append(2)
    assert normal == {"k": [1]}


def test_nan_infinities_minus_zero_and_none_survive() -> None:
    found = CODEC.unpack(CODEC.pack([math.nan, math.inf, -math.inf, -0.0, None, True]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, 0.0, None, True]
    assert math.copysign(1, found[3]) == -1
    assert found[5] is True


@pytest.mark.parametrize("number", [INT_MIN, INT_MAX, 0, -1])
def test_whole_numbers_of_64_bits_travel(number: int) -> None:
    assert CODEC.unpack(CODEC.pack(CODEC.normalise(number))) == number


@pytest.mark.parametrize("number", [2**63, INT_MIN - 1, 2**64, 10**40])
def test_wider_numbers_travel_in_lists_and_mappings(number: int) -> None:
    value = [number, {"k": [number]}, {number: 1}]
    assert CODEC.unpack(CODEC.pack(CODEC.normalise(value))) == value


def test_text_that_is_not_utf_8_is_refused_with_place_and_way_out() -> None:
    mend = r"not valid UTF-8 \(surrogates not allowed at 2\); decode it with errors='replace'"
    with pytest.raises(CodecError, match=mend):
        CODEC.normalise({"k": "ab\ud800"})
    with pytest.raises(CodecError, match="UTF-8"):
        CODEC.normalise({"\udfff": 1})
    with pytest.raises(CodecError, match="surrogates"):
        CODEC.pack("\ud800")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"),
        (bytearray(b"x"), "bytearray"),
        (1j, "complex"),
        (range(3), "range"),
        (Level.LOW, "tests.model.test_codec.Level"),
        (Word("x"), "tests.model.test_codec.Word"),
        (len, "builtin_function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize(
    "nest", [lambda v: v, lambda v: [1, (v,)], lambda v: {"k": v}], ids=["bare", "list", "mapping"]
)
def test_a_type_outside_the_set_is_named_with_the_way_out(value: Any, name: str, nest: Any) -> None:
    with pytest.raises(
        CodecError,
        match=rf"a value of type {name}.*which is not one of none, true/false, numbers.*(convert|register) it",
    ):
        CODEC.normalise(nest(value))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (np.int64(3), r"numpy\.int64.*use \.item\(\)"),
        (np.float64(3), r"numpy\.float64.*use \.item\(\)"),
        (np.bool_(True), r"numpy\.bool.*use \.item\(\)"),
        (np.str_("x"), r"numpy\.str_.*use \.item\(\)"),
        (np.arange(3), r"numpy\.ndarray.*use \.tolist\(\)"),
    ],
)
def test_numpy_values_that_were_not_normalised_are_refused_with_the_call_that_mends_it(
    value: Any, hint: str
) -> None:
    with pytest.raises(CodecError, match=hint):
        CODEC.pack(value)


@pytest.mark.parametrize(
    "key", [(1, 2), frozenset(), 1j, Level.LOW], ids=lambda key: type(key).__name__
)
def test_mapping_keys_are_scalars(key: Any) -> None:
    sentence = f"a mapping key of type {type(key).__name__}; keys are text"
    with pytest.raises(CodecError, match=sentence):
        CODEC.normalise({key: 1})


def test_depth_is_bounded() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value]
    assert CODEC.unpack(CODEC.pack(CODEC.normalise(value))) == value
    for _ in range(10):
        value = {"k": (value,)}
    with pytest.raises(CodecError, match="nest deeper than 64"):
        CODEC.normalise(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CodecError, match="nest deeper"):
        CODEC.normalise(endless)
    with pytest.raises(CodecError, match="Recursion"):
        CODEC.pack(endless)


# -- registered types


def test_a_registered_value_is_the_same_on_a_local_hop_as_after_the_wire() -> None:
    assert str(CODEC.normalise([Money(Decimal("1.23456"))])[0].amount) == "1.23"


def test_a_class_that_fails_is_named_with_its_reason() -> None:
    def act() -> None:
        raise ZeroDivisionError("no way")

    value = Acting()
    ACT.append(act)
    with pytest.raises(CodecError, match=r"the serializer of .*Acting failed: no way"):
        CODEC.normalise([value])
    with pytest.raises(CodecError, match=r"the serializer of .*failed: a value of type object"):
        CODEC.pack(Acting(object()))
    assert CODEC.unpack(CODEC.pack(Acting(7))) == Acting(7)  # the failure leaves nothing behind


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\xd9\x05abc",
        b"\xa1\xff",
        b"\xd4\x07\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xd4\x01\x01",
        b"\xc7\x06\x01\x92\xa1z\x91\xa1q",
        b"\xc7\x04\x01\x92\x90\x01\x01",
        b"\x81\x80\x01",
    ],
)
def test_bytes_that_are_not_ours_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        CODEC.unpack(data)


@dataclass(frozen=True)
class _Unregistered:
    n: int


def test_the_advice_for_a_class_is_one_that_is_taken() -> None:
    @dataclass(frozen=True)
    class Inside:
        n: int

    script = type("Point", (_Unregistered,), {"__module__": "__main__"})
    own = f"register it: topology.serializers: [{__name__}:_Unregistered]"
    moved = "move {0} to the top level of a module of its own and register it: topology.serializers: [MODULE:{0}]"
    for kind, mend in (
        (_Unregistered, own),
        (Inside, moved.format("Inside")),
        (script, moved.format("Point")),
    ):
        with pytest.raises(CodecError, match=f"; {re.escape(mend)}$"):
            CODEC.normalise(kind(1))
