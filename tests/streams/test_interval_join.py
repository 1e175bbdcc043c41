"""IntervalJoinBolt: against nested loops, live and replayed, and what it keeps and refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import Duration, InvalidTopologyError, TopologyBuilder
from sparkstorm.streams import IntervalJoinBolt
from sparkstorm.testing import FeederSpout, complete_topology
from tests.streams.joining import (
    LAG,
    LEFT,
    RIGHT,
    ROWS,
    Rows,
    live_and_replayed,
    numbered,
    topology,
    with_a_death,
)
from tests.tiers import examples
from tests.topologies import building, running

BOUNDS = st.tuples(st.integers(-20, 20), st.integers(-20, 20)).map(sorted)
KINDS = ["inner", "left", "right", "full"]


def joined(kind: Any, lower: int, upper: int, stream: str = "") -> IntervalJoinBolt:
    join = IntervalJoinBolt("left", "k", LEFT).join(
        "right", fields=RIGHT, lower=Duration(lower), upper=Duration(upper), kind=kind
    )
    join = join.with_timestamp_field("at").with_lag(LAG).with_time_output("joined")
    return join.with_unmatched_stream(stream) if stream else join


def by_hand(
    kind: str, lower: int, upper: int, stream: str, left: Rows, right: Rows
) -> Counter[Any]:
    """Nested loops."""
    found: Counter[Any] = Counter()
    pairs = [
        (a, b)
        for a in left
        for b in right
        if a[0] is not None and a[0] == b[0] and lower <= b[2] - a[2] <= upper
    ]
    found.update(("default", (a[0], a[1], a[2], b[1], b[2], max(a[2], b[2]))) for a, b in pairs)
    name = stream or "default"
    if kind in ("left", "full"):
        for row in left:
            if not any(row is a for a, _ in pairs):
                found[name, (*row, None, None, _over(row, upper))] += 1
    if kind in ("right", "full"):
        for row in right:
            if not any(row is b for _, b in pairs):
                found[name, (row[0], None, None, row[1], row[2], _over(row, -lower))] += 1
    return found


def _over(row: Any, wait_ms: int) -> int:
    """Return when a row's last partner could come: at once, if all were before it."""
    return int(row[2] + (max(wait_ms, 0) if row[0] is not None else 0))


@given(ROWS, ROWS, BOUNDS, st.sampled_from(KINDS), st.booleans())
@settings(max_examples=examples(60), derandomize=True, deadline=None)
def test_it_equals_nested_loops_live_and_replayed(
    left: Any, right: Any, bounds: Any, kind: str, has_stream: bool
) -> None:
    stream = "alone" if has_stream and kind != "inner" else ""
    rows = numbered(left), numbered(right)
    lower, upper = bounds
    expected = by_hand(kind, lower, upper, stream, *rows)
    for found in live_and_replayed(joined(kind, lower, upper, stream), *rows):
        assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_busy_key_and_rows_out_of_order_equal_nested_loops(kind: str) -> None:
    """More rows than one entry of the state has."""
    left = [[1, n, n * 37 % 400] for n in range(150)]
    right = [[1, n, n * 53 % 900] for n in range(150)]
    expected = by_hand(kind, -30, 60, "", left, right)
    assert len(expected) > 1_000
    for found in live_and_replayed(joined(kind, -30, 60), left, right):
        assert found == expected


def test_a_busy_key_changes_no_copy_of_the_state() -> None:
    """Else a warning tells users so, in a test of theirs."""
    left, right = FeederSpout(LEFT), FeederSpout(RIGHT)
    builder = building(left=left, right=right)
    join = IntervalJoinBolt("left", "k", LEFT).join("right", fields=RIGHT, within=Duration(90))
    builder.set_bolt("join", join.with_timestamp_field("at"), inputs=["left", "right"])
    with running(builder.build()) as cluster:
        for n in range(40):
            left.feed([1, n, n])
        for at_ms in (60, 80):  # the second row meets those of an epoch before
            right.feed([1, 0, at_ms - 10])
            for spout in (left, right):
                spout.feed([2, 0, at_ms])
            cluster.run_until_idle()
        assert cluster.counts("join").emitted == 81


@pytest.mark.parametrize(("lower", "upper"), [(-30, 0), (-30, 60), (0, 60)])
def test_a_busy_key_has_partners_at_both_bounds_and_leaves_nothing(lower: int, upper: int) -> None:
    """Full entries of the state whose rows all have one time, at a bound of the others."""
    left = [[1, n, 100] for n in range(70)]
    right = [[1, n, at_ms] for at_ms in (69, 70, 100, 160, 161) for n in range(40)]
    done = complete_topology(topology(joined("full", lower, upper)), {"left": left, "right": right})
    expected = by_hand("full", lower, upper, "", left, right)
    assert Counter(("default", row) for row in done["join"]) == expected
    assert done.state("join") == {}


@pytest.mark.parametrize(("lower", "upper"), [(10, 60), (390, 395), (-395, -390)])
def test_rows_that_come_in_any_order_equal_nested_loops_too(lower: int, upper: int) -> None:
    class AtOnce(IntervalJoinBolt):
        in_order = False

    left = [[n % 2, n, n * 37 % 400] for n in range(90)]
    right = [[n % 2, n, n * 53 % 400] for n in range(90)]
    join = AtOnce("left", "k", LEFT).full_join(
        "right", fields=RIGHT, lower=Duration(lower), upper=Duration(upper)
    )
    join = join.with_timestamp_field("at").with_lag(LAG).with_time_output("joined")
    done = complete_topology(topology(join), {"left": left, "right": right})
    result = Counter(("default", row) for row in done["join"])
    assert result == by_hand("full", lower, upper, "", left, right)
    assert done.state("join") == {}


def test_results_come_in_the_order_of_their_times_so_a_window_behind_needs_no_lag() -> None:
    left = [[n % 3, n, n * 10] for n in range(40)]
    right = [[n % 3, n, n * 10 + 5] for n in range(40)]
    done = complete_topology(topology(joined("full", -20, 45), 1), {"left": left, "right": right})
    times = [row[-1] for row in done["join"]]
    assert times == sorted(times) and len(times) > 70


def test_rows_are_released_when_the_watermark_passes() -> None:
    left, right = FeederSpout(LEFT), FeederSpout(RIGHT)
    builder = building(left=left, right=right)
    join = IntervalJoinBolt("left", "k", LEFT).left_join("right", fields=RIGHT, within=Duration(10))
    builder.set_bolt("join", join.with_timestamp_field("at"), inputs=["left", "right"])
    with running(builder.build()) as cluster:
        for n in range(100):
            left.feed([n, n, n])
            right.feed([n, n, n])
        cluster.run_until_idle()
        # a row stays until the watermark (99) is more than 10 ms past it
        assert sorted(cluster.state("join")) == list(range(89, 99))
        left.finish()
        right.finish()
        cluster.run_until_idle()
        assert cluster.state("join") == {}


def test_late_rows_go_to_the_late_stream() -> None:
    join = IntervalJoinBolt("left", "k", LEFT).left_join("right", fields=RIGHT, within=Duration(5))
    join = join.with_timestamp_field("at").with_lag(Duration(10)).with_late_tuple_stream("late")
    rows = {"left": [[1, 0, 100], [1, 1, 50]], "right": [[1, 0, 100]]}
    done = complete_topology(topology(join), rows)
    assert done["join"] == [(1, 0, 100, 0, 100)]
    assert done.values("join", "late") == [("left", "default", 50, {"k": 1, "l": 1, "at": 50})]


def test_select_names_the_output_and_keys_may_have_other_names_on_each_side() -> None:
    builder = building(
        orders=FeederSpout(["id", "user", "at"]), pay=FeederSpout({"ok": ["order", "user", "at"]})
    )
    join = IntervalJoinBolt("orders", ["id", "user"]).left_join(
        "pay:ok", ["order", "user"], upper=Duration(5)
    )
    join = join.select("id", "pay:ok:at as paid_at", "user").with_timestamp_field("at")
    builder.set_bolt("join", join, 2, inputs=["orders", "pay:ok"])
    paid = {"ok": [["a", "x", 4], ["b", "x", 2]]}
    done = complete_topology(
        builder.build(), {"orders": [["a", "x", 1], ["b", "y", 1]], "pay": paid}
    )
    assert sorted(done["join"]) == [("a", 4, "x"), ("b", None, "y")]


@pytest.mark.parametrize("at_ms", range(0, 60, 12))
def test_no_pair_is_lost_or_doubled_when_workers_die(at_ms: int) -> None:
    rows = [[n % 4, n, n * 5] for n in range(40)], [[n % 4, n, n * 9] for n in range(20)]
    assert with_a_death(joined("full", -7, 30), *rows, at_ms) == by_hand("full", -7, 30, "", *rows)


def build(make: Any) -> None:
    made = make()
    if isinstance(made, IntervalJoinBolt):
        topology(made.with_timestamp_field("at"))


HOUR = Duration.hours(1)
WRONG: dict[str, tuple[Any, str]] = {
    "no bounds": (
        lambda: IntervalJoinBolt("left", "k").join("right"),
        "'right' needs its bounds: either within, or lower and upper",
    ),
    "two kinds of bounds": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR, upper=HOUR),
        "either within, or lower and upper",
    ),
    "bounds the wrong way": (
        lambda: IntervalJoinBolt("left", "k").join("right", lower=HOUR, upper=Duration(1)),
        "no time lies from 3600000 to 1 ms",
    ),
    "a number for a duration": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=cast(Any, 30)),
        "within is 30; write a Duration, as Duration.minutes(30)",
    ),
    "a length of no whole milliseconds": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=Duration(cast(Any, 1.5))),
        "a Duration is 1.5; write a whole number of milliseconds, or Duration.seconds(1.5)",
    ),
    "a length beyond all times": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=Duration(2**53 + 1)),
        "a Duration is 9007199254740993; write a whole number of milliseconds",
    ),
    "a length that is text": (
        lambda: IntervalJoinBolt("left", "k").join(
            "right", within=Duration.minutes(cast(Any, "5"))
        ),
        "a Duration of '5': write a number",
    ),
    "an unknown kind": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR, kind=cast(Any, "outer")),
        "no join of the kind 'outer'; it has inner, left, right, full",
    ),
    "no output": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR),
        "component 'join': IntervalJoinBolt needs its output: select(...), or the fields of both",
    ),
    "no second stream": (
        lambda: IntervalJoinBolt("left", "k"),
        "needs a second stream: join(...)",
    ),
    "a third stream": (
        lambda: joined("inner", 0, 1).join("more", within=HOUR),
        "joins two streams, and 'more' is the third",
    ),
    "a join to itself": (
        lambda: IntervalJoinBolt("left", "k").join("left", within=HOUR),
        "'left' is joined to itself; send one side through another bolt",
    ),
    "a stream that is no input": (
        lambda: IntervalJoinBolt("left", "k").join("rihgt", within=HOUR).select("l"),
        "joins 'rihgt', which is no input of it: add it to inputs",
    ),
    "an unknown key": (
        lambda: IntervalJoinBolt("left", "kk", LEFT),
        "has the key 'kk', which is no field of 'left': did you mean 'k'?",
    ),
    "a key that is not among the fields": (
        lambda: IntervalJoinBolt("left", "id", LEFT),
        "has the key 'id', which is no field of 'left': it has k, l, at",
    ),
    "keys of two lengths": (
        lambda: IntervalJoinBolt("left", "k").join("right", ["k", "r"], within=HOUR),
        "'right' has a key of 2 fields, 'left' one of 1",
    ),
    "a field that the stream does not have": (
        lambda: IntervalJoinBolt("left", "k", LEFT).join(
            "right", fields={"k": "bigint", "rr": "bigint"}, within=HOUR
        ),
        "is given the field 'rr', which is no field of 'right': did you mean 'r'?",
    ),
    "a late stream with the name of an output": (
        lambda: topology(
            IntervalJoinBolt("left", "k", ["k", "at"])
            .left_join("right", fields=["k", "at", "r"], within=HOUR)
            .with_timestamp_field("at")
            .with_unmatched_stream("rest")
            .with_late_tuple_stream("rest")
        ),
        "component 'join': its late stream needs a stream of its own, and 'rest' is another output; rename one",
    ),
    "a list of columns": (
        lambda: (
            IntervalJoinBolt("left", "k").join("right", within=HOUR).select(cast(Any, ["k", "r"]))
        ),
        "select has ['k', 'r']; write each column as a text",
    ),
    "a column that no stream has": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR).select("k", "x"),
        "select has 'x', which is no field of 'left' or 'right': it has k, l, at, r",
    ),
    "a column of an unknown stream": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR).select("rigth:r"),
        "select has 'rigth:r', but 'rigth' is none of the joined streams: left, right",
    ),
    "a column twice": (
        lambda: IntervalJoinBolt("left", "k").join("right", within=HOUR).select("k", "right:k"),
        "the output has the field 'k' twice; give one another name: 'source:field as name'",
    ),
    "a clash with the right stream's name": (
        lambda: IntervalJoinBolt("left", "k", ["k", "at", "right_at"]).join(
            "right", fields=["k", "at"], within=HOUR
        ),
        "the output has the field 'right_at' twice; name the fields that you want",
    ),
    "a stream of rows without partners that has none": (
        lambda: joined("inner", 0, 1, "alone"),
        "emits no row without a partner to 'alone': use left_join",
    ),
    "the default stream for rows without partners": (
        lambda: joined("left", 0, 1, "default"),
        "the unmatched stream needs a name of its own, not 'default'",
    ),
    "a number for a key": (
        lambda: IntervalJoinBolt("left", 5),  # type: ignore[arg-type]
        "the key of 'left' is 5; write a name, or a list of names",
    ),
    "a number for a stream": (
        lambda: IntervalJoinBolt("left", "k").join(5, within=HOUR),  # type: ignore[arg-type]
        "source is 5; write a name, or a list of names",
    ),
    "no stream": (lambda: IntervalJoinBolt([], "k"), "source names no stream; name a component"),
    "fields as a text": (
        lambda: IntervalJoinBolt("left", "k", "k"),
        "fields of 'left' is 'k'; write a list of names, or types by name",
    ),
    "a number for fields": (
        lambda: IntervalJoinBolt("left", "k", 5),  # type: ignore[arg-type]
        "fields of 'left' is 5; write a list of names, or types by name",
    ),
    "no time": (
        lambda: topology(IntervalJoinBolt("left", "k").join("right", within=HOUR).select("k")),
        "IntervalJoinBolt joins by event time: name its field, with_timestamp_field(...)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_join_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(InvalidTopologyError) as error:
        build(make)
    assert sentence in str(error.value)


def test_an_input_that_is_not_joined_is_refused() -> None:
    builder = TopologyBuilder()
    for name in ("left", "right", "more"):
        builder.set_spout(name, FeederSpout(LEFT if name == "left" else RIGHT))
    builder.set_bolt("join", joined("inner", 0, 1), inputs=["left", "right", "more"])
    with pytest.raises(InvalidTopologyError, match="has the input 'more:default', which it does"):
        builder.build()


def test_a_field_that_one_stream_of_a_side_lacks_is_refused() -> None:
    builder = TopologyBuilder()
    for name, fields in {
        "left": LEFT,
        "more": {"k": "bigint", "at": "bigint"},
        "right": RIGHT,
    }.items():
        builder.set_spout(name, FeederSpout(fields))
    join = IntervalJoinBolt(["left", "more"], "k").join("right", within=HOUR).select("k", "l", "r")
    builder.set_bolt("join", join.with_timestamp_field("at"), inputs=["left", "more", "right"])
    sentence = "select has 'l', which is no field of 'left' or"
    with pytest.raises(InvalidTopologyError, match=sentence):
        builder.build()


@pytest.mark.parametrize(
    ("key", "what"), [([1], "a list"), (float("nan"), "NaN"), (frozenset([1]), "a frozenset")]
)
def test_a_key_that_cannot_be_one_is_parked_with_its_field(key: Any, what: str) -> None:
    rows: dict[str, Rows] = {"left": [[key, 0, 5], [2, 1, 6]], "right": [[2, 0, 6]]}
    done = complete_topology(
        topology(joined("inner", 0, 1)), rows, conf={"topology.max.retries": 0}
    )
    assert done["join"] == [(2, 1, 6, 0, 6, 6)]
    (letter,) = done.dead_letters
    assert f"key field 'k' holds {what}" in letter.failure.text
