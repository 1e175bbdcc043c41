"""Values beyond JSON's are the same live, after crashes and in replay, and results get Spark's
types where those fit exactly.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.column_types import parse_type
from sparkstorm.common.model.values.tagged import tag_text
from sparkstorm.replay import replay_locally
from sparkstorm.replay.results.types import TAGGED, arrow_type, seen_type, state_values, typed_array
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.model.test_value_types import Colour, Order

DAY = datetime.date(2024, 2, 29)
# as a tuple or a state holds it
BERLIN = Codec().normalise(
    datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
)
CONF = {
    "topology.serializers": [
        "tests.model.test_value_types:Order",
        "tests.model.test_value_types:Colour",
    ]
}
VALUES: list[Any] = [
    DAY, BERLIN, Decimal("1.50"), UUID(int=9), {1, "a"}, frozenset({DAY}), 2**100, np.int64(7), Colour.RED,
    Order(UUID(int=1), Decimal("9.99"), Colour.BLUE, [DAY]), {DAY: [Decimal(1)]},
]  # fmt: skip
KEYS = [DAY, BERLIN, Decimal("1.50"), UUID(int=9), 2**100]


class Make(BasicBolt):
    outputs = ("key", "value", "price")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        n = tup[0]
        collector.emit((KEYS[n % len(KEYS)], VALUES[n % len(VALUES)], Decimal(n) / 4))


class Keep(StatefulBolt):
    outputs = ("key", "total")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        total = self.state.add(tup["key"], tup["price"])
        self.state.put(
            (tup["key"], "seen"), [*self.state.get((tup["key"], "seen"), []), tup["value"]]
        )
        collector.emit((tup["key"], total))


def topology(spout: FeederSpout) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("make", Make(), inputs="numbers")
    builder.set_bolt("keep", Keep(), parallelism=3).fields_grouping("make", "key")
    return builder.build()


def test_live_after_crashes_and_in_replay_states_are_equal() -> None:
    spout, rows = FeederSpout(), [(n,) for n in range(44)]
    with LocalCluster(seed=5) as cluster:
        cluster.submit(topology(spout), {**CONF, "topology.workers": 3})
        for at, row in enumerate(rows):
            spout.feed(row)
            if at % 11 == 10:
                cluster.advance(ms=100)
                cluster.kill_worker("keep")
        cluster.run_until_idle()
        assert not cluster.dead_letters
        live = cluster.state("keep")
    assert set(live) == {*KEYS, *((key, "seen") for key in KEYS)}
    assert sum(live[key] for key in KEYS) == Decimal(sum(range(44))) / 4
    replayed = replay_locally(topology(FeederSpout()), {"numbers": rows}, conf=CONF)
    assert replayed.states["keep"].keys() == live.keys()
    for key in KEYS:
        assert replayed.states["keep"][key] == live[key]
        result = sorted(map(repr, live[key, "seen"]))
        assert result == sorted(map(repr, replayed.states["keep"][key, "seen"]))
    assert {type(value) for key in KEYS for value in live[key, "seen"]} >= {
        datetime.date,
        Decimal,
        UUID,
        set,
        frozenset,
        Order,
        Colour,
    }


UTC_TIME = BERLIN.astimezone(datetime.UTC)


@pytest.mark.parametrize(("values", "kind"), [
    ([DAY, None], pa.date32()), ([UTC_TIME], pa.timestamp("us", "UTC")),
    ([Decimal("1.50"), Decimal("22.75")], pa.decimal128(38, 2)),
    ([[DAY], []], pa.list_(pa.date32())),
    ([BERLIN], TAGGED), ([Decimal("1.5"), Decimal("1.50")], TAGGED), ([Decimal("-0")], TAGGED), ([Decimal("NaN")], TAGGED),
    ([2**70], TAGGED), ([{1}], TAGGED), ([UUID(int=1)], TAGGED), ([Colour.RED], TAGGED), ([1, Decimal(1)], TAGGED),
])  # fmt: skip
def test_a_result_has_a_type_where_it_holds_every_value_exactly_and_else_is_tagged_text(
    values: list[Any], kind: pa.DataType
) -> None:
    assert seen_type(values) == kind
    array = typed_array(values, kind, "c")
    assert list(map(repr, state_values(array, False))) == list(map(repr, values))


def test_a_states_times_are_those_of_utc_in_any_zone_of_the_session() -> None:
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    zone = pa.timestamp("us", "America/New_York")
    kind = pa.struct([("_1", zone), ("_2", pa.list_(zone)), ("_3", pa.map_(zone, zone))])
    array = pa.array([{"_1": at, "_2": [at], "_3": [(at, at)]}], kind)
    assert repr(state_values(array, False)) == repr([[at, [at], {at: at}]])


def test_a_mapping_that_is_no_struct_stays_one_among_keys() -> None:
    mapping = pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64()))
    tagged = pa.array([tag_text({"a": 1}), tag_text([1, 2])])
    assert state_values(mapping, True) == [{"x": 1}]
    assert state_values(tagged, True) == [{"a": 1}, (1, 2)]


@pytest.mark.parametrize(("declared", "kind"), [
    ("date", pa.date32()), ("timestamp", pa.timestamp("us", "UTC")), ("decimal(10,2)", pa.decimal128(10, 2)),
    ("map<string, decimal(5, 1)>", pa.map_(pa.string(), pa.decimal128(5, 1))),
])  # fmt: skip
def test_types_are_declared_by_sparks_names(declared: str, kind: pa.DataType) -> None:
    assert arrow_type(parse_type(declared)) == kind
