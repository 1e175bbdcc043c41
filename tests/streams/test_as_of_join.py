"""AsOfJoinBolt: against nested loops, live and replayed, as a table with deletes, and what it
refuses.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import Duration, InvalidTopologyError, Source, TopologyBuilder, Tuple
from sparkstorm.streams import AsOfJoinBolt
from sparkstorm.testing import CaptureBolt, FeederSpout, complete_topology
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


def joined(kind: str, within: int | None, deletes: Any = None, stream: str = "") -> AsOfJoinBolt:
    join = AsOfJoinBolt("left", "k", LEFT).join(
        "right",
        fields=RIGHT,
        within=None if within is None else Duration(within),
        deletes=deletes,
        kind=kind,  # type: ignore[arg-type]
    )
    join = join.with_timestamp_field("at").with_lag(LAG)
    return join.with_unmatched_stream(stream) if stream else join


def by_hand(
    kind: str, within: int | None, ends: list[int], stream: str, left: Rows, right: Rows
) -> Counter[Any]:
    """For each left row the last version of its key at or before its time."""
    found: Counter[Any] = Counter()
    for row in left:
        before = [b for b in right if b[0] is not None and b[0] == row[0] and b[2] <= row[2]]
        # of the same time the one that came last
        last = max(before, key=lambda b: (b[2], b[1]), default=None)
        is_there = last is not None and last[1] not in ends
        if last is not None and is_there and (within is None or last[2] >= row[2] - within):
            found["default", (*row, last[1], last[2])] += 1
        elif kind == "left":
            found[stream or "default", (*row, None, None)] += 1
    return found


@given(
    ROWS,
    ROWS,
    st.sampled_from(["inner", "left"]),
    st.one_of(st.none(), st.integers(0, 30)),
    st.booleans(),
)
@settings(max_examples=examples(60), derandomize=True, deadline=None)
def test_it_equals_nested_loops_live_and_replayed(
    left: Any, right: Any, kind: str, within: int | None, has_deletes: bool
) -> None:
    ends = [1, 4, 7] if has_deletes else []
    rows = numbered(left), numbered(right)
    stream = "alone" if kind == "left" and has_deletes else ""
    join = joined(kind, within, {"r": ends} if ends else None, stream)
    expected = by_hand(kind, within, ends, stream, *rows)
    for found in live_and_replayed(join, *rows):
        assert found == expected


def test_a_version_ends_with_its_age_and_a_deleted_key_is_gone() -> None:
    feeds = FeederSpout(LEFT), FeederSpout(RIGHT)
    builder = TopologyBuilder()
    for name, feed in zip(("left", "right"), feeds, strict=True):
        builder.set_spout(name, feed)
    join = joined("left", 10, {"r": 7}).with_lag(Duration(0))
    builder.set_bolt("join", join, inputs=["left", "right"])
    with running(builder.build()) as cluster:
        for n in range(40):
            feeds[1].feed([n, n, n])
            feeds[0].feed([-1, n, n])
            if n == 38:
                feeds[1].feed([37, 7, n])
        cluster.run_until_idle()
        versions = cluster.state("join")
        assert sorted(key for key in versions if isinstance(key, int)) == [*range(28, 37), 38]
        assert versions[30] == {"at_ms": 30, "row": {"k": 30, "r": 30, "at": 30}}


def test_rows_of_one_time_are_stored_one_by_one() -> None:
    """Else a busy key with times of whole days would copy all rows of a day for each."""

    class Noted(dict[Any, Any]):
        def put(self, key: Any, value: Any) -> None:
            self[key] = value
            sizes.append(len(repr(value)))

    sizes: list[int] = []
    fields = {("left", "default"): tuple(LEFT), ("right", "default"): tuple(RIGHT)}
    join = joined("left", None)
    join._check_inputs("join", fields)
    join.timers = cast(Any, SimpleNamespace(set_event_timer=lambda name, at_ms: None))
    join.prepare({}, None)
    join.init_state(cast(Any, Noted()))
    for _ in range(100):
        tup = Tuple((1, 1, 5), 0, Source("left", 1, "default", tuple(LEFT)))
        join.execute(tup, cast(Any, None))
    assert max(sizes) == len(repr([1, 1, 5]))


def test_a_table_is_joined_by_a_foreign_key() -> None:
    builder = building(
        orders=FeederSpout(["id", "user_id", "at"]), users=FeederSpout(["id", "name", "op", "at"])
    )
    join = AsOfJoinBolt("orders", "user_id").left_join("users", "id", deletes={"op": ["delete"]})
    join = join.select("orders:id as order", "name").with_timestamp_field("at")
    builder.set_bolt("join", join, 2, inputs=["orders", "users"])
    users: Rows = [
        [None, "Nobody", "insert", 0],
        ["u", "Ann", "insert", 1],
        ["u", "Anne", "update", 5],
        ["u", None, "delete", 9],
    ]
    orders: Rows = [[n, "u", at] for n, at in enumerate((0, 1, 4, 5, 8, 9, 10))]
    done = complete_topology(builder.build(), {"orders": orders, "users": users})
    names = [None, "Ann", "Ann", "Anne", "Anne", None, None]
    assert sorted(done["join"]) == [*enumerate(names)]
    assert done.state("join") == {}


def test_values_that_end_a_key_may_be_a_set_and_those_of_rows_of_any_type() -> None:
    join = joined("left", None, {"r": {7}})
    rows: dict[str, Rows] = {"left": [[1, 0, 5]], "right": [[1, [1], 1], [1, 7, 2]]}
    done = complete_topology(topology(join), rows)
    assert (done["join"], done.dead_letters) == ([(1, 0, 5, None, None)], [])


def test_without_a_time_rows_meet_the_version_that_is_there() -> None:
    left, right = FeederSpout(LEFT), FeederSpout(RIGHT)
    builder = building(left=left, right=right)
    capture = CaptureBolt()
    join = AsOfJoinBolt("left", "k", LEFT).left_join("right", fields=RIGHT)
    builder.set_bolt("join", join, 2, inputs=["left", "right"])
    builder.set_bolt("capture", capture, inputs="join")
    with running(builder.build()) as cluster:
        for version in (1, 2):
            left.feed([1, version, 0])
            cluster.run_until_idle()
            right.feed([1, version, 100])
            cluster.run_until_idle()
        left.feed([1, 3, 0])
        cluster.run_until_idle()
    assert [row[3] for row in capture.values] == [None, 1, 2]


@pytest.mark.parametrize("at_ms", range(0, 60, 12))
def test_no_row_is_lost_or_doubled_when_workers_die(at_ms: int) -> None:
    rows = [[n % 4, n, n * 5] for n in range(40)], [[n % 4, n, n * 9] for n in range(20)]
    assert with_a_death(joined("left", 12), *rows, at_ms) == by_hand("left", 12, [], "", *rows)


def at_once() -> AsOfJoinBolt:
    class AtOnce(AsOfJoinBolt):
        in_order = False

    return AtOnce("left", "k", LEFT).join("right", fields=RIGHT).with_timestamp_field("at")


def plain(**options: Any) -> AsOfJoinBolt:
    return AsOfJoinBolt("left", "k", LEFT).join("right", fields=RIGHT, **options)


WRONG: dict[str, tuple[Any, str]] = {
    "a kind that it has not": (
        lambda: plain(kind="full"),
        "AsOfJoinBolt has no join of the kind 'full'; it has inner, left",
    ),
    "an age that is no duration": (
        lambda: plain(within=5),
        "within is 5; write a Duration of 0 or more, as Duration.minutes(30)",
    ),
    "an age below 0": (
        lambda: plain(within=Duration(-5)),
        "write a Duration of 0 or more",
    ),
    "an age without a time": (
        lambda: plain(within=Duration(5)),
        "within is an age in event time: name its field, with_timestamp_field(...)",
    ),
    "deletes that are no mapping": (
        lambda: plain(deletes="op"),
        'deletes is \'op\'; write the values by field, as {"op": "delete"}',
    ),
    "deletes of an unknown field": (
        lambda: plain(deletes={"rr": 1}),
        "deletes names 'rr', which is no field of 'right': did you mean 'r'?",
    ),
    "any order": (at_once, "so rows come in its order: drop in_order = False"),
    "times without a time": (
        lambda: plain().with_time_output("t"),
        "'t' would hold event times: name their field, with_timestamp_field(...)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_join_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(InvalidTopologyError) as error:
        topology(make())
    assert sentence in str(error.value)
