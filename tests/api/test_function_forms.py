"""Function forms behave as the class forms do: live with deaths of workers, and in a batch
replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    Effects,
    FoldingBolt,
    KeyValueState,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
    bolt,
    fold,
    tumbling,
    windowed,
)
from sparkstorm.replay import EventTime, LocalResults, replay_locally
from sparkstorm.testing import FeederSpout, LocalCluster, complete_topology
from tests.tiers import examples

CONF = {"topology.max.retries": 1, "topology.workers": 2}
BOLTS = ("split", "count", "last", "sums", "members")
Line = tuple[str, int]


@bolt("word", "length", "at_ms")
def split(tup: Tuple) -> Iterator[Any]:
    for word in tup["line"].split():
        yield word, len(word), tup["at_ms"]
        if word == "bad":
            raise ValueError("bad word")


class Split(BasicBolt):
    outputs = ("word", "length", "at_ms")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["line"].split():
            collector.emit((word, len(word), tup["at_ms"]))
            if word == "bad":
                raise ValueError("bad word")


@bolt("word", key="word", order_insensitive=True)
def count(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
    if state.add(tup["word"], 1) % 2:
        yield tup["word"] if tup["word"] != "odd" else object()  # which cannot be emitted


class Count(StatefulBolt):
    outputs = ("word",)
    key_fields = ("word",)
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.state.add(tup["word"], 1) % 2:
            collector.emit([tup["word"] if tup["word"] != "odd" else object()])


@bolt(effects=Effects.RUN)
def last(tup: Tuple, state: KeyValueState) -> None:
    state[tup["word"]] = (
        [len(state), tup["word"]] if tup["word"] not in state else state[tup["word"]]
    )


class Last(StatefulBolt):
    effects = Effects.RUN

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        word = tup["word"]
        self.state[word] = [len(self.state), word] if word not in self.state else self.state[word]


@fold(
    "word",
    "letters",
    "at_ms",
    window=tumbling(ms=50),
    key="word",
    time="at_ms",
    initial=0,
    lag=Duration.millis(30),
)
def sums(total: int, tup: Tuple) -> int:
    return total + int(tup["length"])


class Sums(FoldingBolt):
    outputs = ("word", "letters", "at_ms")

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + int(tup["length"])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.value, window.last_ms))


@windowed("word", "letters", window=tumbling(ms=100), time="at_ms", late_stream="late")
def members(window: Window) -> Iterator[Any]:
    yield from sorted((tup["word"], tup["letters"]) for tup in window)


class Members(WindowedBolt):
    outputs = ("word", "letters")

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        for row in sorted((tup["word"], tup["letters"]) for tup in window):
            collector.emit(row)


def of_functions(spout: Any, tasks: int) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("split", split, tasks, inputs="lines")
    builder.set_bolt("count", count, tasks, inputs="split")
    builder.set_bolt("last", last, inputs="count")
    builder.set_bolt("sums", sums, tasks, inputs="split")
    builder.set_bolt("members", members, inputs={"sums": "global"})
    return builder.build()


def of_classes(spout: Any, tasks: int) -> Topology:
    by_word = (
        Sums()
        .with_tumbling_window(Duration.millis(50))
        .with_key("word")
        .with_lag(Duration.millis(30))
    )
    all_words = Members().with_tumbling_window(Duration.millis(100)).with_late_tuple_stream("late")
    builder = TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split(), tasks).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), tasks).fields_grouping("split", "word")
    builder.set_bolt("last", Last()).shuffle_grouping("count")
    builder.set_bolt("sums", by_word.with_timestamp_field("at_ms"), tasks).fields_grouping(
        "split", "word"
    )
    builder.set_bolt("members", all_words.with_timestamp_field("at_ms")).global_grouping("sums")
    return builder.build()


def source() -> FeederSpout:
    return FeederSpout(("line", "at_ms"))


def test_both_forms_make_the_same_topology() -> None:
    functions, classes = of_functions(source(), 3), of_classes(source(), 3)
    for component in functions:
        other = classes.components[component.id]
        assert (component.streams, component.inputs, component.conf) == (
            other.streams,
            other.inputs,
            other.conf,
        ), component.id


WORDS = st.lists(st.sampled_from(("a", "bb", "odd", "dddd", "ä")), max_size=4)
LINES = st.lists(
    st.builds(
        lambda words, bad, at_ms: (" ".join([*words, *bad]), at_ms),
        WORDS,
        st.just([]) | st.just(["bad"]),
        st.integers(0, 400),
    ),
    max_size=12,
)


def parked(letters: Any) -> list[str]:
    """Return what of dead letters does not name a line of the form's source."""
    return sorted(
        f"{d.component} {d.values} {d.attempts} {d.reason.partition(' (')[0]}" for d in letters
    )


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(lines=LINES, tasks=st.integers(1, 3), seed=st.integers(0, 9))
def test_a_live_run_of_functions_is_that_of_classes(
    lines: list[Line], tasks: int, seed: int
) -> None:
    runs = [
        complete_topology(make(source(), tasks), {"lines": lines}, conf=CONF, seed=seed)
        for make in (of_functions, of_classes)
    ]
    for name in BOLTS:
        found = [(run[name] if name != "last" else [], run.state_by_task(name)) for run in runs]
        assert found[0] == found[1], name
    assert runs[0].values("members", "late") == runs[1].values("members", "late")
    assert parked(runs[0].dead_letters) == parked(runs[1].dead_letters)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(lines=LINES, tasks=st.integers(1, 3), is_timed=st.booleans(), skip_bad=st.booleans())
def test_a_replay_of_functions_is_that_of_classes(
    lines: list[Line], tasks: int, is_timed: bool, skip_bad: bool
) -> None:
    if not skip_bad:  # the way for replays that put nothing aside
        lines = [(line.replace("odd", "o").replace("bad", "b"), at_ms) for line, at_ms in lines]
    found: list[LocalResults] = [
        replay_locally(
            make(source(), tasks),
            {"lines": lines},
            conf=CONF,
            skip_bad=skip_bad,
            event_time=EventTime("at_ms") if is_timed else None,
        )
        for make in (of_functions, of_classes)
    ]
    assert found[0].outputs == found[1].outputs
    assert found[0].states_by_task == found[1].states_by_task
    assert parked(found[0].dead_letters) == parked(found[1].dead_letters)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    lines=LINES, kills=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(BOLTS)), max_size=3)
)
def test_functions_count_exactly_whatever_dies_and_as_their_replay_does(
    lines: list[Line], kills: list[tuple[int, str]]
) -> None:
    good = [(line.replace("odd", "o").replace("bad", "b"), at_ms) for line, at_ms in lines]
    spout = source()
    with LocalCluster() as cluster:
        cluster.submit(of_functions(spout, 2), CONF)
        for row in good:
            spout.feed(row)
        spout.finish()
        for rounds, victim in kills:
            for _ in range(rounds):
                cluster.simulation.run_round()
            cluster.kill_worker(victim)
        cluster.run_until_idle()
        expected = Counter(word for line, _ in good for word in line.split())
        replayed = replay_locally(of_functions(source(), 2), {"lines": good}, conf=CONF)
        assert cluster.state("count") == replayed.states["count"] == expected
        assert cluster.dead_letters == []
