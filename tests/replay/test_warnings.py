"""Warnings against differences: random topologies with bolts that hold inputs or change attributes,
live and replayed.

A component that differs although all of its inputs are equal must carry its own warning.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Effects,
    OutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.components import Conf
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source as Sender
from sparkstorm.replay import LocalResults, replay_locally
from sparkstorm.replay.plan import components_in_order
from sparkstorm.replay.tasks.attributes import Attributes
from sparkstorm.testing import CaptureBolt, LocalCluster
from sparkstorm.testing.complete import _captured
from sparkstorm.testing.components import fed
from tests.replay.bolts import FIELDS, Source
from tests.replay.random_topologies import ByHand, ByKey, Fussy, Once, Partial, Repeat, Shift

Outcome = tuple[Counter[str], list[Any], Counter[str]]
CASES = 300
CONF = {"topology.max.retries": 1, "topology.workers": 2}


class Pairs(Bolt):
    """Holds an input until the next one comes, and emits both at once."""

    outputs = FIELDS

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.open: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self.open.append(tup)
        if len(self.open) == 2:
            one, other = self.open
            self.collector.emit((one["key"], one["value"] - other["value"], other["ts"]), self.open)
            for each in self.open:
                self.collector.ack(each)
            self.open.clear()


class Joined(Pairs):
    """The same by key."""

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector, self.by_key = collector, dict[Any, Tuple]()

    def execute(self, tup: Tuple) -> None:
        former = self.by_key.pop(repr(tup["key"]), None)
        if former is None:
            self.by_key[repr(tup["key"])] = tup
            return
        self.collector.emit(
            (tup["key"], former["value"] * 3 - tup["value"], tup["ts"]), [former, tup]
        )
        self.collector.ack(former)
        self.collector.ack(tup)


class Numbered(BasicBolt):
    """Counts its calls in an attribute."""

    outputs = FIELDS

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.calls: Any = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.calls += 1
        collector.emit((tup["key"], tup["value"] + self.calls, tup["ts"]))


class Toggled(Numbered):
    """Lets every other one through: after two inputs nothing is to be seen."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.calls = not self.calls
        if self.calls:
            collector.emit(tup.values[:3])


class Last:
    """An object that a bolt keeps in an attribute."""

    def __init__(self) -> None:
        self.values: deque[int] = deque(maxlen=3)


class Recent(Numbered):
    """The sum of the last three, which lie in an object inside a list."""

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.inner = [{"last": Last()}]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        values = self.inner[0]["last"].values
        values.append(tup["value"])
        collector.emit((tup["key"], sum(values), tup["ts"]))


class FussyCalls(Numbered):
    """Counts calls, also those that fail."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        if tup["value"] % 7 == 3:
            raise ValueError("three of seven")


class AtLast(Numbered):
    """Succeeds at the second try."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] % 5 == 3 and not self.calls:
            self.calls = 1
            raise ValueError("not yet")
        self.calls = 0
        collector.emit(tup.values[:3])


class Differences(StatefulBolt):
    """The difference to the last value of the key; order matters."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        key = repr(tup["key"])
        collector.emit((tup["key"], tup["value"] - self.state.get(key, 0), tup["ts"]))
        self.state.put(key, tup["value"])


class Adds(StatefulBolt):
    """Only adds: free of order, and what it emits follows from the tuple."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup["key"], tup["value"])
        if tup["value"] % 2:
            self.state.add("odd")
        collector.emit((tup["key"], -tup["value"], tup["ts"]))


class Totals(Adds):
    """Emits the sum so far, which shows the order."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], self.state.add(tup["key"], tup["value"]), tup["ts"]))


class AddsSometimes(Adds):
    """Looks at its state before it adds."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.state.get(tup["key"], 0) < 60:
            self.state.add(tup["key"], tup["value"])


KEEPING = (
    Pairs,
    Joined,
    Numbered,
    Toggled,
    Recent,
    FussyCalls,
    AtLast,
    Differences,
    Adds,
    Totals,
    AddsSometimes,
)
GROUPINGS = (
    "fields",
    "fields",
    "fields",
    "global",
    "all",
    "shuffle",
    "partial_key",
    "local_or_shuffle",
    "custom",
)
PLAIN = (Shift, Repeat, ByHand, Fussy, Once, Partial)


def random_topology(random: Random) -> tuple[Topology, dict[str, list[Any]]]:
    """Spouts of one task, as LocalCluster's feeders; bolts of both kinds behind any grouping."""
    builder, streams, rows = TopologyBuilder(), [], {}
    for n in range(random.randint(1, 2)):
        builder.set_spout(f"s{n}", Source(*FIELDS))
        streams.append(f"s{n}")
        rows[f"s{n}"] = [
            (random.choice("abcde"), random.randint(-50, 50), at)
            for at in range(random.choice((0, 3, 20, 40)))
        ]
    for n in range(random.randint(1, 5)):
        bolt: Any = random.choice(KEEPING if random.random() < 0.5 else PLAIN)()
        declarer = builder.set_bolt(f"b{n}", bolt, random.randint(1, 3))
        for component in random.sample(streams, min(len(streams), random.choice((1, 1, 1, 2)))):
            match random.choice(GROUPINGS):
                case "fields" | "partial_key" as kind:
                    getattr(declarer, f"{kind}_grouping")(component, "key")
                case "custom":
                    declarer.custom_grouping(component, ByKey())
                case kind:
                    getattr(declarer, f"{kind}_grouping")(component)
        if bolt.outputs:
            streams.append(f"b{n}")
    return builder.build(), rows


def replayed(topology: Topology, rows: Any) -> LocalResults:
    effects = {c.id: Effects.RUN for c in topology.bolts}
    try:
        return replay_locally(topology, rows, conf=CONF, name="test", effects=effects)
    except ReplayFailedError:
        return replay_locally(
            topology, rows, conf=CONF, name="test", effects=effects, skip_bad=True
        )


def ran_live(topology: Topology, rows: Any, seed: int) -> dict[str, Outcome]:
    """Results of each bolt: emitted, parked, kept. Inputs may be held for ever, so the run ends
    when nothing else is left.
    """
    capture = CaptureBolt()
    feeders = {id: fed(topology.components[id].streams, of) for id, of in rows.items()}
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(_captured(topology, feeders, capture), CONF)
        with suppress(TimeoutError):
            cluster.run_until_idle(limit_secs=5)
        letters = cluster.dead_letters
        return {
            c.id: outcome(c.id, capture.values_of(c.id), cluster.state_by_task(c.id), letters)
            for c in topology.bolts
        }


def outcome(id: str, emitted: Any, states: Mapping[int, Any], letters: Any) -> Outcome:
    return (
        Counter(map(repr, emitted)),
        [states[task] for task in sorted(states) if states[task]],
        Counter(repr(letter.values) for letter in letters if letter.component == id),
    )


def differing(topology: Topology, found: LocalResults, live: Mapping[str, Outcome]) -> list[str]:
    """The components that differ although what they were sent is equal, as multisets."""
    unequal = {
        id
        for id, of in live.items()
        if of
        != outcome(
            id, found.outputs.get(id, ()), found.states_by_task.get(id, {}), found.dead_letters
        )
    }
    return [
        id
        for id in components_in_order(topology)
        if id in unequal and not any(s.component in unequal for s in topology.components[id].inputs)
    ]


def outcomes(seeds: range) -> Iterator[tuple[int, list[str], LocalResults, Topology]]:
    for seed in seeds:
        topology, rows = random_topology(Random(seed))
        found = replayed(topology, rows)
        yield seed, differing(topology, found, ran_live(topology, rows, seed)), found, topology


def kind_of(seed: int, topology: Topology, unequal: Collection[str], found: LocalResults) -> str:
    """Return whether a replay was equal to live runs and carried warnings; a component that differs
    carries one.
    """
    warned = {warning.component for warning in found.warnings}
    silent = [
        f"{id} ({type(topology.components[id].instance).__name__})"
        for id in unequal
        if id not in warned
    ]
    assert not silent, (
        f"seed {seed}: {silent} differ, and only these are warned: {list(map(str, found.warnings))}"
    )
    return f"{'unequal' if unequal else 'equal'}{', warned' if warned else ''}"


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_every_difference_carries_a_warning_of_its_component(block: int) -> None:
    tally: Counter[str] = Counter()
    seeds = range(block * CASES // 6, (block + 1) * CASES // 6)
    for seed, unequal, found, topology in outcomes(seeds):
        tally[kind_of(seed, topology, unequal, found)] += 1
    assert tally["unequal, warned"] > 5
    assert tally["equal"] > 5


def one_bolt(bolt: Any, tasks: int = 1, grouping: str = "global", spouts: int = 1) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source(*FIELDS), spouts)
    declarer = builder.set_bolt("bolt", bolt, tasks)
    more: dict[str, list[Any]] = {"fields": ["key"], "partial_key": ["key"], "custom": [ByKey()]}
    getattr(declarer, f"{grouping}_grouping")("source", *more.get(grouping, ()))
    return builder.build()


ROWS = [("ab"[n % 2], n, n) for n in range(40)]


HELD, CHANGED = "held inputs", "attributes"


@pytest.mark.parametrize(
    ("bolt", "kept"),
    [
        (Pairs(), HELD),
        (Joined(), HELD),
        (Numbered(), CHANGED),
        (Toggled(), CHANGED),
        (Recent(), CHANGED),
    ],
)
def test_what_a_bolt_was_seen_to_keep_is_warned_of_by_its_name(bolt: Any, kept: str) -> None:
    rows = {"source": ROWS}
    for grouping in ("local_or_shuffle", "partial_key", "custom"):
        causes = [
            (w.component, w.cause) for w in replayed(one_bolt(bolt, 2, grouping), rows).warnings
        ]
        assert causes == [("bolt", f"{kept} behind {grouping} grouping")]
    result = [w.cause for w in replayed(one_bolt(bolt, spouts=2), rows).warnings]
    assert result == ["order of senders"]
    assert replayed(one_bolt(bolt), rows).warnings == ()
    assert replayed(one_bolt(bolt, 2, "fields"), rows).warnings == ()


def test_inputs_that_failed_are_warned_of_where_a_later_try_gives_another_result() -> None:
    rows = {"source": ROWS}
    assert [w.cause for w in replayed(one_bolt(FussyCalls()), rows).warnings] == ["retries"]
    assert [w.cause for w in replayed(one_bolt(AtLast()), rows).warnings] == ["retries"]
    assert replayed(one_bolt(Fussy()), rows).warnings == ()


def test_only_senders_that_sent_are_several() -> None:
    """Two bolts send, but one of them has nothing to send; behind one key a bolt of three tasks is
    one sender.
    """
    rows_of_one = [("a", n, n) for n in range(40)]
    for rows, warned in (
        ({"a": rows_of_one, "b": []}, False),
        ({"a": rows_of_one, "b": ROWS}, True),
    ):
        builder = TopologyBuilder()
        for id in rows:
            builder.set_spout(id, Source(*FIELDS))
            builder.set_bolt(f"pass-{id}", Shift(), 3).fields_grouping(id, "key")
        builder.set_bolt("last", Differences(), 2).fields_grouping("pass-a", "key").fields_grouping(
            "pass-b", "key"
        )
        assert bool(replayed(builder.build(), rows).warnings) is warned


class Counted(Numbered):
    """Keeps its count where the class has it."""

    seen: Any = []  # noqa: RUF012 - what this is about

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.seen.append(1)


class Model:
    """Something large that cannot be pickled whole."""

    def __init__(self) -> None:
        self.lock, self.weights, self.hits = threading.Lock(), b"x" * (1 << 20), 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda bolt: setattr(bolt, "calls", 1), "calls"),
        (lambda bolt: setattr(bolt, "new", None), "new"),
        (lambda bolt: bolt.inner.append(1), "inner"),
        (lambda bolt: bolt.inner[0].update(x=1), "inner"),
        (lambda bolt: setattr(bolt.model, "hits", 1), "model"),
        (lambda bolt: bolt.random.random(), "random"),
        (lambda bolt: next(bolt.ids), "ids"),
        (lambda bolt: next(bolt.generator), "generator"),
        (lambda bolt: bolt.seen.append(1), "seen"),
        (lambda bolt: bolt.numbers.__setitem__(3, 9), "numbers"),
        (lambda bolt: None, ""),
    ],
)
def test_a_change_of_an_attribute_is_seen_wherever_it_lies(change: Any, name: str) -> None:
    bolt: Any = Counted()
    bolt.calls, bolt.inner, bolt.model, bolt.random = 0, [{}], Model(), Random(1)
    bolt.ids, bolt.generator, bolt.numbers = itertools.count(), (n for n in range(3)), np.zeros(9)
    watched = Attributes(bolt)
    watched.begin()
    watched.look(1)
    assert watched.changed == ""
    change(bolt)
    watched.look(100, is_last=True)
    assert watched.changed.rpartition(".")[2] == name


@pytest.mark.slow
def test_looking_at_attributes_is_seldom_and_bounded() -> None:
    bolt: Any = Counted()
    bolt.large, looks = [list(range(100)) for _ in range(50_000)], 0
    watched = Attributes(bolt)
    watched.begin()
    for _ in range(100_000):
        before = watched._next_look
        watched.look(1)
        looks += watched._next_look != before
    assert looks < 40


def test_looking_at_attributes_changes_no_batches_and_leaves_the_bolt_as_it_was() -> None:
    bolt: Any = Numbered()
    bolt.calls = 0
    watched = Attributes(bolt)
    watched.begin()
    bolt.execute(Tuple(("a", 1, 1), 0, Sender("source", 1, "default", FIELDS)), _Ignoring())
    watched.look(1, is_last=True)
    assert (watched.changed, "execute" in vars(bolt)) == ("calls", False)
    results = replay_locally(one_bolt(FussyCalls()), {"source": ROWS}, conf=CONF, skip_bad=True)
    # the failed fourth is tried again in its place
    assert [row[1] - row[2] for row in results["bolt"]][:4] == [1, 2, 3, 6]


class _Ignoring:
    """A collector of nothing."""

    def emit(self, values: Any) -> None: ...
