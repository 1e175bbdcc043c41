"""A bolt that changes the values of its tuples in place, against the rule: whom it reaches is the
same live and in a replay.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    StatefulBolt,
    TimedBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.testing import LocalCluster, complete_topology
from tests.replay.bolts import Source


class Passing(BasicBolt):
    outputs = ("value", "at")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["value"], tup["at"]))


class Editing(Passing):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        tup["value"].append("edited")
        super().execute(tup, collector)
        tup["value"].append("later")


class Failing(Passing):
    """Fails each second try, with a change that it has made before."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.tries += 1
        tup["value"].append("tried")
        if self.tries % 2:
            raise ValueError("each second one")
        super().execute(tup, collector)


class Refusing(Passing):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        tup["value"].append("tried")
        raise ValueError("each one")


class Keeping(StatefulBolt):
    outputs = ("value", "at")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        former = self.state.get("all", [])
        self.state.put("all", [*former, tup["value"]])
        tup["value"].append("later")
        collector.emit((self.state.get("all"), tup["at"]))


def topology(bolt: BasicBolt, grouping: str) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value", "at"))
    builder.set_bolt("sender", Passing()).shuffle_grouping("source")
    for sender in ("source", "sender"):
        changing = builder.set_bolt(f"{sender}-changing", bolt, 2 if grouping == "all" else 1)
        getattr(changing, f"{grouping}_grouping")(sender)
        builder.set_bolt(f"{sender}-sibling", Passing()).shuffle_grouping(sender)
    return builder.build()


ROWS: list[tuple[list[Any], int]] = [([1], 1), ([2], 2), ([[3], {"a": [4]}], 3)]


@pytest.mark.parametrize("event_time", [None, EventTime("at")])
@pytest.mark.parametrize("grouping", ["shuffle", "all", "global"])
@pytest.mark.parametrize("bolt", [Editing, Failing, Refusing, Keeping])
def test_changes_of_a_receiver_reach_no_other_one_as_live(
    bolt: type[BasicBolt], grouping: str, event_time: EventTime | None
) -> None:
    built = topology(bolt(), grouping)
    conf = {"topology.max.retries": 2}
    live = complete_topology(built, {"source": ROWS}, conf=conf)
    given = [(list(value), at) for value, at in ROWS]
    found = replay_locally(
        built, {"source": given}, conf=conf, skip_bad=True, event_time=event_time
    )
    for component in built.components:
        if component.endswith("changing") and bolt is Failing and grouping == "all":
            continue  # which of its tries fails depends on when a live run tries again
        assert Counter(map(repr, found[component])) == Counter(map(repr, live[component]))
    letters = [
        Counter(repr((letter.component, letter.values)) for letter in each.dead_letters)
        for each in (found, live)
    ]
    assert letters[0] == letters[1]
    assert given == ROWS


class ByHand(Bolt):
    """Fails its first two tries, after it has changed what it got; acks at the next input."""

    outputs = ("value", "at")

    def prepare(self, conf: Any, context: Any, collector: OutputCollector) -> None:
        self.collector = collector
        self.tries = Counter[int]()

    def execute(self, tup: Tuple) -> None:
        self.tries[tup["at"]] += 1
        seen = repr(tup["value"])
        tup["value"].append("tried")
        if self.tries[tup["at"]] < 3:
            raise ValueError(seen)
        self.collector.emit((seen, tup["at"]), tup)
        self.collector.ack(tup)


class OnThread(Passing):
    """The same on its own thread."""

    blocking = True

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = Counter[int]()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.tries[tup["at"]] += 1
        seen = repr(tup["value"])
        tup["value"].append("tried")
        if self.tries[tup["at"]] < 3:
            raise ValueError(seen)
        collector.emit((seen, tup["at"]))


class AtOnce(OnThread):
    """The same without a thread."""

    blocking = False


class InWindow(TimedBolt):
    """The same in a bolt that is given its tuples by event time."""

    outputs = ("value", "at")
    in_order = False

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = Counter[int]()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        OnThread.execute(self, tup, collector)  # type: ignore[arg-type]


class InOrder(InWindow):
    in_order = True


BOLTS: dict[str, Any] = {
    "by hand": ByHand,
    "on a thread": OnThread,
    "at once": AtOnce,
    "timed": lambda: InWindow().with_timestamp_field("at"),
    "in order": lambda: InOrder().with_timestamp_field("at"),
}


@pytest.mark.parametrize("event_time", [None, EventTime("at")])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("retries", [1, 2])
@pytest.mark.parametrize("bolt", BOLTS)
def test_a_further_try_and_a_dead_letter_have_the_values_that_were_sent(
    bolt: str,
    retries: int,
    workers: int,
    event_time: EventTime | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where values are not checked at each emit, the compiled core emits.
    monkeypatch.setattr(LocalCluster, "checks_values", retries == 1)
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value", "at"))
    builder.set_bolt("sender", Passing()).shuffle_grouping("source")
    for sender in ("source", "sender"):
        builder.set_bolt(f"{sender}-bolt", BOLTS[bolt]()).local_or_shuffle_grouping(sender)
    conf = {"topology.max.retries": retries, "topology.workers": workers}
    live = complete_topology(builder.build(), {"source": ROWS}, conf=conf)
    replayed = replay_locally(
        builder.build(),
        {"source": ROWS},
        conf=conf,
        skip_bad=retries == 1,  # values are checked then
        event_time=event_time,
    )
    for found in (live, replayed):
        for name in ("source-bolt", "sender-bolt"):
            values = sorted((at, value) for value, at in found[name])
            assert values == [(at, repr(value)) for value, at in ROWS if retries == 2]
        letters = [row for each in found.dead_letters if (row := each.values)]
        result = sorted(letters, key=repr)
        assert result == (sorted([*ROWS, *ROWS], key=repr) if retries == 1 else [])
