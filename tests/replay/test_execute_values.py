"""Values of one source executed at once equal rows executed one by one: results, states, counts,
and the sentence of a failure.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.components import Effects
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import LocalResults, replay_locally
from tests.replay.bolts import Count, Source
from tests.replay.random_topologies import Rows, random_topology


class FailsFirst(StatefulBolt):
    """Emits to both streams and counts, then raises when it sees a value for the first time in this
    process's task.
    """

    outputs = {"default": ("value",), "other": ("value", "times")}  # noqa: RUF012

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        value = tup["value"]
        collector.emit((value,))
        collector.emit([value, self.state.add(value)], "other")
        self.state.put("last", value)
        if value not in self.seen:
            self.seen.append(value)
            raise ValueError("never seen")


class Keeps(BasicBolt):
    """Keeps its inputs and tells at every call what all of them hold."""

    outputs = ("all",)

    def __init__(self) -> None:
        self.kept: list[Tuple] = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.kept.append(tup)
        collector.emit([repr([(t.values, t.component, t.task, t.stream) for t in self.kept])])


class KeepsQuietly(StatefulBolt):
    """The same without outputs."""

    def __init__(self) -> None:
        self.kept: list[Tuple] = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] != 2:
            self.kept.append(tup)
        self.state.put(
            len(self.kept), repr([(t.values, t.component, t.task, t.stream) for t in self.kept])
        )


class WideWords(BasicBolt):
    """Wrong width for some, a value of no known type for others."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        value = tup["value"]
        collector.emit(
            (value, value)
            if value == 1
            else (object(),)
            if value == 2
            else ("\ud800",)
            if value == 3
            else (value,)
        )


def behind(bolt: BasicBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value"))
    builder.set_bolt("bolt", bolt, 2).fields_grouping("source", "value")
    if not bolt.outputs:
        return builder.build()
    field = "value" if isinstance(bolt, FailsFirst) else next(iter(bolt.outputs))
    builder.set_bolt("count", Count(), 3).fields_grouping("bolt", field)
    builder.set_bolt("every", Count(), 2).all_grouping("bolt")
    return builder.build()


def outcome(topology: Topology, rows: Rows, at_once: bool) -> Any:
    # effects with keys: row by row
    effects = {c.id: Effects.RUN if at_once else Effects.IDEMPOTENT for c in topology.bolts}
    try:
        found: LocalResults = replay_locally(topology, rows, effects=effects, partitions=2)
    except ReplayFailedError as error:
        return str(error)
    outputs = {name: Counter(map(repr, of)) for name, of in found.outputs.items()}
    return outputs, found.states_by_task, found.counts


@pytest.mark.slow
def test_random_topologies_give_the_same_both_ways() -> None:
    for seed in range(60):
        topology, rows = random_topology(Random(seed))
        assert outcome(topology, rows, at_once=True) == outcome(topology, rows, at_once=False), (
            f"seed {seed}"
        )


@pytest.mark.parametrize("bolt", [FailsFirst, Keeps, KeepsQuietly])
def test_rows_that_fail_leave_no_trace_and_tuples_may_be_kept(bolt: type[BasicBolt]) -> None:
    rows: Rows = {"source": [(n % 5,) for n in range(23)]}
    edges = [outcome(behind(bolt()), rows, at_once) for at_once in (True, False)]
    assert edges[0] == edges[1] and not isinstance(edges[0], str)
    if bolt is FailsFirst:
        assert edges[0][2]["bolt"]["emitted"] == 2 * 23


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (1, "emitted 2 values for 1 field"),
        (2, "a value of type object"),
        (3, r"field 'word': text that is not valid UTF-8"),
    ],
)
def test_what_cannot_be_emitted_is_said_in_the_same_words(bad: int, said: str) -> None:
    edges = [
        outcome(behind(WideWords()), {"source": [(7,), (bad,), (8,)]}, at_once)
        for at_once in (True, False)
    ]
    assert edges[0] == edges[1]
    with pytest.raises(ReplayFailedError, match=said):
        raise ReplayFailedError(edges[0])
