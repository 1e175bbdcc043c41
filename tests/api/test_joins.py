"""JoinBolt: against nested loops, over workers and kills, with errors that name the remedy."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import Count, Duration, JoinBolt, TopologyBuilder, fields
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, complete_topology

CET = timezone(timedelta(hours=1))
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6)


def joined(kinds: tuple[str, str]) -> JoinBolt:
    join = JoinBolt("a", key="k")
    for source, kind in zip(("b", "c"), kinds, strict=True):
        join = getattr(join, kind)(source, key=f"{source}_k")
    return join.select("k", "a:v as a", "b:v as b", "c:v as c")


def topology(
    join: JoinBolt,
    parallelism: int = 2,
    inputs: Any = ("a", "b", "c"),
    capture: CaptureBolt | None = None,
) -> Topology:
    builder = TopologyBuilder()
    for source in "abc":
        builder.set_spout(source, FeederSpout(["k" if source == "a" else f"{source}_k", "v", "ts"]))
    builder.set_bolt("join", join, parallelism, inputs=inputs)
    if capture is not None:
        builder.set_bolt("capture", capture, inputs="join")
    return builder.build()


def by_hand(sides: list[list[tuple[int, int]]], kinds: tuple[str, str]) -> Counter[Any]:
    """Nested loops."""
    rows: list[tuple[Any, ...]] = [(k, v) for k, v in sides[0]]
    for side, kind in zip(sides[1:], kinds, strict=True):
        longer = []
        for row in rows:
            partners: list[Any] = [v for k, v in side if k == row[0]]
            longer += [(*row, v) for v in partners or ([None] if kind == "left_join" else [])]
        rows = longer
    return Counter(rows)


@pytest.mark.slow
@given(ROWS, ROWS, ROWS, st.sampled_from(list(product(("join", "left_join"), repeat=2))))
@settings(max_examples=25, derandomize=True)
def test_a_join_of_three_streams_over_several_tasks_equals_nested_loops(
    a: list[Any], b: list[Any], c: list[Any], kinds: tuple[str, str]
) -> None:
    join = joined(kinds).with_tumbling_window(Duration.seconds(1)).with_timestamp_field("ts")
    rows = {name: [[*row, 5] for row in side] for name, side in (("a", a), ("b", b), ("c", c))}
    spouts = {name: FeederSpout(["k" if name == "a" else f"{name}_k", "v", "ts"]) for name in "abc"}
    builder, capture = TopologyBuilder(), CaptureBolt()
    for name, spout in spouts.items():
        builder.set_spout(name, spout)
    builder.set_bolt("join", join, 3, inputs=["a", "b", "c"])
    builder.set_bolt("capture", capture, inputs="join")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2})
        for name, spout in spouts.items():
            for row in rows[name]:
                spout.feed(row)
            spout.finish()
        cluster.run_until_idle()
    assert Counter(capture.values) == by_hand([a, b, c], kinds)


@pytest.mark.parametrize("at_ms", range(0, 60, 15))
def test_windows_of_a_join_survive_a_kill_and_rows_of_other_windows_do_not_meet(at_ms: int) -> None:
    spouts = {name: FeederSpout(["k" if name == "a" else f"{name}_k", "v", "ts"]) for name in "abc"}
    builder, capture = TopologyBuilder(), CaptureBolt()
    for name, spout in spouts.items():
        builder.set_spout(name, spout)
    join = (
        joined(("join", "left_join")).with_tumbling_window(Duration(10)).with_timestamp_field("ts")
    )
    builder.set_bolt("join", join, 2, inputs=["a", "b", "c"])
    builder.set_bolt("capture", capture, inputs="join")
    with LocalCluster(seed=at_ms) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 3})
        for ts in (1, 11):
            for name in "abc"[: 3 if ts == 1 else 2]:
                for key in range(4):
                    spouts[name].feed([key, f"{name}{key}", ts])
        cluster.advance(ms=at_ms)
        cluster.kill_worker("join")
        for spout in spouts.values():
            spout.finish()
        cluster.run_until_idle()
    assert Counter(capture.values) == Counter(
        (key, f"a{key}", f"b{key}", c) for key in range(4) for c in (f"c{key}", None)
    )


def test_a_stream_can_be_joined_to_one_that_may_be_missing_and_streams_have_names_of_their_own() -> (
    None
):
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout(["k"]))
    builder.set_spout("b", FeederSpout({"odd": ["k", "v"], "even": ["k", "v"]}))
    join = (
        JoinBolt("a", "k")
        .left_join("b:odd", "k")
        .join("b:even", "k", to="b:odd")
        .select("k", "b:odd:v as odd", "b:even:v as even")
    )
    builder.set_bolt("join", join.with_tumbling_window(Count(5)), inputs=["a", "b:odd", "b:even"])
    rows: Any = {"a": [[1], [2]], "b": {"odd": [[1, "x"]], "even": [[1, "y"], [2, "z"]]}}
    assert complete_topology(builder.build(), rows)["join"] == [(1, "x", "y")]


def test_keys_that_compare_equal_join_as_they_are_grouped() -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout(["k"]))
    builder.set_spout("b", FeederSpout(["k", "v"]))
    join = JoinBolt("a", ("k",)).join("b", ["k"]).select("a:k", "v").with_tumbling_window(Count(2))
    builder.set_bolt("join", join, 3, inputs=["a", "b"])
    assert complete_topology(builder.build(), {"a": [[1]], "b": [[True, 7]]})["join"] == [(1, 7)]


@dataclass
class Point:
    """Has no hash."""

    x: int


@pytest.mark.parametrize("key", [[1], {1}, {"a": [1]}, Point(1), None])
def test_keys_without_a_hash_and_none_join_by_their_values(key: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout(["k"]))
    builder.set_spout("b", FeederSpout(["k", "v"]))
    join = JoinBolt("a", "k").join("b", "k").select("v").with_tumbling_window(Count(3))
    builder.set_bolt("join", join, 3, inputs=["a", "b"])
    conf = {"topology.serializers": [f"{__name__}:Point"]}
    done = complete_topology(
        builder.build(), {"a": [[key]], "b": [[key, 1], [copy.deepcopy(key), 2]]}, conf=conf
    )
    assert (done["join"], done.dead_letters) == ([(1,), (2,)], [])


@dataclass(frozen=True)
class Part:
    """Compares without one of its fields."""

    number: int
    note: str = field(default="", compare=False)


@dataclass(frozen=True, eq=False)
class Ident:
    """Equals itself alone."""

    number: int


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize(
    ("key", "other", "is_joined"),
    [
        (frozenset({1}), {1}, True),
        (Ident(1), Ident(1), True),
        (Part(1, "a"), Part(1, "b"), False),
        (float("nan"), float("nan"), True),
        ([float("nan")], [float("nan")], True),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=CET), True),
        (1, Decimal("1.0"), True),
        ("1", 1, False),
    ],
    ids=repr,
)
def test_keys_join_where_fields_grouping_makes_the_same_of_them(
    key: Any, other: Any, is_joined: bool, tasks: int
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout(["k"]))
    builder.set_spout("b", FeederSpout(["k", "v"]))
    join = JoinBolt("a", "k").join("b", "k").select("v").with_tumbling_window(Count(2))
    builder.set_bolt("join", join, tasks, inputs=["a", "b"])
    conf = {"topology.serializers": [f"{__name__}:Part", f"{__name__}:Ident"]}
    done = complete_topology(builder.build(), {"a": [[key]], "b": [[other, 1]]}, conf=conf)
    assert done["join"] == [(1,)] * is_joined


def built(join: JoinBolt, **inputs: Any) -> Topology:
    """Return a topology of this join over windows of two."""
    return topology(join.with_tumbling_window(Count(2)), **inputs)


def of_two(*given: Any) -> JoinBolt:
    return JoinBolt("a", "k").join("b", *(given or ("b_k",)))


def of_three() -> JoinBolt:
    return joined(("join", "join"))


SHUFFLED = dict.fromkeys("abc", "shuffle")
BY_V = {"a": fields("k"), "b": fields("v"), "c": fields("c_k")}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: built(JoinBolt("a", "k").select("k")), "needs at least one join"),
        (lambda: built(of_two()), r"and a select\(...\)"),
        (
            lambda: JoinBolt("a", "k").join("b", "b_k", to="d"),
            "is joined to 'd', which is none of the streams before it: a",
        ),
        (lambda: of_two(["b_k", "v"]), "'b' has a key of 2 fields, 'a' one of 1"),
        (lambda: JoinBolt("a", ()), "'a' needs at least one key field"),
        (lambda: JoinBolt("a", "k").join("a:default", "k"), "is joined twice"),
        (lambda: of_three().select("k", "b:k as k"), "has the field 'k' twice"),
        (lambda: built(of_three(), inputs=["a", "b"]), "joins 'c', which is no input of it"),
        (lambda: built(of_two().select("k")), "has the input 'c:default'"),
        (
            lambda: built(JoinBolt("a", "x").join("b", "b_k").select("k"), inputs=["a", "b"]),
            "'x'",
        ),
        (lambda: built(of_three().select("b:gone")), "select has 'b:gone', which no joined"),
        (lambda: built(of_three(), inputs=SHUFFLED), "by shuffle grouping"),
        (lambda: built(of_three(), inputs=BY_V), "is grouped by v; use fields_grouping"),
    ],
)
def test_a_join_that_cannot_work_is_refused_in_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidTopologyError, match=sentence):
        make()
