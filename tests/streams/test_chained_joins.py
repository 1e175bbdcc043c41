"""Joins, and other streams than the default one, in the chained face."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import Duration, InvalidTopologyError, Tuple
from sparkstorm.replay import replay_locally
from sparkstorm.streams import IntervalJoinBolt, Stream, stream
from sparkstorm.testing import FeederSpout, complete_topology

ORDER = {"order_id": "string", "user": "string", "at_ms": "bigint"}
PAYMENT = {"order_id": "string", "paid": "double", "at_ms": "bigint"}
USER = {"user": "string", "country": "string", "op": "string", "at_ms": "bigint"}
ROWS: dict[str, list[list[Any]]] = {
    "orders": [["a", "ann", 1_000], ["b", "bob", 2_000], ["c", "ann", 9_000], ["d", "bob", 500]],
    "payments": [["a", 1.5, 1_500], ["c", 2.5, 9_900]],
    "users": [
        ["ann", "NL", "upsert", 0],
        ["bob", "BE", "upsert", 0],
        ["bob", None, "delete", 8_000],
    ],
}


def orders() -> Stream:
    return stream(FeederSpout(ORDER), name="orders")


def payments() -> Stream:
    return stream(FeederSpout(PAYMENT), name="payments")


def users() -> Stream:
    return stream(FeederSpout(USER), name="users")


def paid(**options: Any) -> Stream:
    return (
        orders()
        .key_by("order_id")
        .join(
            payments().key_by("order_id"),
            time="at_ms",
            upper=Duration.seconds(2),
            kind="left",
            **options,
        )
    )


def is_paid(tup: Tuple) -> bool:
    return tup["paid"] is not None


def test_two_joins_and_their_other_streams_live_and_replayed() -> None:
    joined = paid(name="paid", unmatched_stream="unpaid", late_stream="late", parallelism=2)
    located = joined.key_by("user").join_as_of(
        users().key_by("user"),
        time="at_ms",
        kind="left",
        deletes={"op": "delete"},
        lag=Duration.seconds(2),
        select=["order_id", "paid", "country"],
        name="located",
    )
    unpaid = joined.side("unpaid").map(lambda tup: tup["order_id"], "order_id", name="unpaid")
    late = joined.side("late").map(lambda tup: tup["values"]["order_id"], "order_id", name="late")
    topology = located.filter(is_paid).build(unpaid, late)
    assert topology.components["paid"].streams["default"].types == {
        "order_id": "string",
        "user": "string",
        "at_ms": "bigint",
        "paid": "double",
        "payments_at_ms": "bigint",
    }
    expected: dict[str, list[Any]] = {
        "is_paid": [("a", 1.5, "NL"), ("c", 2.5, "NL")],
        "unpaid": [("b",)],
        "late": [("d",)],
    }
    live = complete_topology(topology, ROWS)
    assert {name: sorted(live[name]) for name in expected} == expected
    by_arrival = {**ROWS, "orders": sorted(ROWS["orders"], key=lambda row: row[2])}
    replayed = replay_locally(topology, by_arrival, event_time="at_ms", outputs=expected)
    # in the order of time no order is late
    assert sorted(replayed["unpaid"]) == [("b",), ("d",)] and replayed["late"] == []


def test_it_makes_what_the_builder_makes() -> None:
    made = paid(lag=Duration.seconds(1)).build().components["join"]
    by_hand = (
        IntervalJoinBolt("orders", "order_id", ORDER)
        .left_join("payments", "order_id", PAYMENT, upper=Duration.seconds(2))
        .with_timestamp_field("at_ms")
        .with_lag(Duration.seconds(1))
    )
    assert made.conf == by_hand.time_conf()
    assert list(made.streams["default"].fields) == list(by_hand.outputs)
    result = [(each.component, each.grouping.fields) for each in made.inputs]
    assert result == [("orders", ("order_id",)), ("payments", ("order_id",))]


def test_a_text_for_select_is_one_column() -> None:
    assert paid(select="user").build().components["join"].streams["default"].fields == ("user",)


def test_merged_streams_and_other_streams_are_sides_too() -> None:
    more = stream(FeederSpout({"default": list(ORDER), "old": list(ORDER)}), name="more")
    both = orders().merge(more.side("old"))
    made = both.key_by("order_id").join(
        payments().key_by("order_id"), time="at_ms", within=Duration.seconds(1)
    )
    feeds: dict[str, Any] = {
        "orders": [["a", "ann", 1_000]],
        "more": {"default": [["a", "x", 1_000]], "old": [["a", "bob", 1_200]]},
        "payments": [["a", 1.5, 1_500]],
    }
    done = complete_topology(made.build(), feeds)
    assert sorted(row[1] for row in done["join"]) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: paid(lags=1),
            "component 'join': a join has no option 'lags'; it has time, lag, late_stream, "
            "unmatched_stream, time_output, select; did you mean 'lag'?",
        ),
        (
            lambda: orders().side("late"),
            "step 'orders' has no stream 'late': a late stream is named",
        ),
        (
            lambda: (
                orders()
                .merge(users())
                .key_by("user")
                .join(users().key_by("user"), time="at_ms", within=Duration(1))
            ),
            "component 'join': a join needs streams with the same fields, but 'orders' has",
        ),
        (
            lambda: orders().key_by("user").join_as_of(users().key_by("usr")),
            "AsOfJoinBolt has the key 'usr', which is no field of 'users': did you mean 'user'?",
        ),
        (
            lambda: orders().key_by("user").join_as_of(users().key_by("user"), lag=Duration(1)),
            "component 'join': lag is that of event time; name its field by time, or drop lag",
        ),
        (
            lambda: orders().key_by("user").join_as_of(users()),  # type: ignore[arg-type]
            "component 'join': a join takes streams with keys, not a Stream; write .key_by(...)",
        ),
        (
            lambda: orders().key_by(["user"]),  # type: ignore[arg-type]
            "key_by takes names of fields, as in key_by('user', 'city'), not ['user']",
        ),
        (lambda: orders().key_by(), "key_by has no field; name some, as in key_by('user', 'city')"),
    ],
    ids=[
        "option",
        "stream",
        "fields",
        "key",
        "lag",
        "no key",
        "list",
        "no field",
    ],
)
def test_a_wrong_chain_is_refused_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidTopologyError) as error:
        make()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("make", "name", "sentence"),
    [
        (orders, "join", "a stream needs keys for join: write .key_by(...) before .join(...)"),
        (
            lambda: orders().key_by("user"),
            "filter",
            "a stream with keys has no filter: write .filter(...) before .key_by(...)",
        ),
        (orders, "joint", "object has no attribute 'joint'"),
    ],
    ids=["no keys", "keys", "neither"],
)
def test_a_step_of_other_streams_is_an_attribute_error_that_names_the_remedy(
    make: Any, name: str, sentence: str
) -> None:
    assert not hasattr(make(), name)
    with pytest.raises(AttributeError) as error:
        getattr(make(), name)
    assert sentence in str(error.value)
