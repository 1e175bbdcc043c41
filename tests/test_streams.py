"""The chained face: the same topologies as by the builder, equal in replay, and errors that name
the step.
"""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparkstorm import streams
from sparkstorm.api import (
    Duration,
    KeyValueState,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
    fields,
    fold,
    spout,
    tumbling,
)
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay_locally
from sparkstorm.streams import Stream, stream
from sparkstorm.testing import TargetSink, complete_topology


@spout("line", "at_ms")
def lines() -> list[Any]:
    return [("to be or", 1_000), ("not to be a", 2_000), ("that is", 12_000)]


def split(tup: Tuple) -> Iterator[Any]:
    for word in tup["line"].split():
        yield word, tup["at_ms"]


def is_long(tup: Tuple) -> bool:
    return len(tup["word"]) > 1


def upper(tup: Tuple) -> tuple[str, int]:
    return tup["word"].upper(), tup["at_ms"]


def total(accumulator: int, tup: Tuple) -> int:
    return accumulator + 1


def count(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
    yield tup["word"], state.add(tup["word"], 1)


async def is_asked(tup: Tuple) -> bool:
    return False


def words() -> Stream:
    return stream(lines).flat_map(split, "word", "at_ms", parallelism=2).filter(is_long)


def totals() -> Stream:
    windows = (
        words()
        .map(upper, "word", "at_ms")
        .key_by("word")
        .window(tumbling(seconds=10), time="at_ms", lag=Duration.seconds(1))
    )
    return windows.fold(total, initial=0, parallelism=2)


def test_the_example_of_the_module_runs() -> None:
    assert doctest.testmod(streams).failed == 0


def test_a_chain_counts_in_windows_and_a_replay_is_equal() -> None:
    topology = totals().build()
    expected = [
        ("BE", 2, 9_999),
        ("IS", 1, 19_999),
        ("NOT", 1, 9_999),
        ("OR", 1, 9_999),
        ("THAT", 1, 19_999),
        ("TO", 2, 9_999),
    ]
    assert sorted(complete_topology(topology)["total"]) == expected
    rows = {"lines": [list(row) for row in lines()]}
    replayed = replay_locally(topology, rows, event_time="at_ms")
    assert sorted(replayed["total"]) == expected
    # the lag is short on purpose
    assert {warning.cause for warning in replayed.warnings} <= {"late data"}


def test_it_makes_what_the_builder_makes() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", lines)
    builder.set_bolt("split", bolt("word", "at_ms")(lambda tup: (yield tup)), 2, inputs="lines")
    builder.set_bolt(
        "total",
        fold(window=tumbling(seconds=10), key="word", time="at_ms", initial=0)(lambda a, t: a),
        2,
        inputs="split",
    )
    by_hand = builder.build()
    windows = (
        stream(lines)
        .flat_map(split, "word", "at_ms", parallelism=2)
        .key_by("word")
        .window(tumbling(seconds=10), time="at_ms")
    )
    chained = windows.fold(total, "word", "<lambda>", "at_ms", initial=0, parallelism=2).build()

    def shape(of: Topology) -> list[Any]:
        return [
            (c.id, c.kind, c.parallelism, c.conf, c.streams, c.inputs, type(c.instance)) for c in of
        ]

    assert shape(chained) == shape(by_hand)


def test_a_state_by_key_a_merge_and_two_ends() -> None:
    class Everything(StatefulBolt):
        def execute(self, tup: Tuple, collector: Any) -> None:
            self.state.add(tup["word"], tup["count"])

    more = stream(lines, name="more").flat_map(split, "word", "at_ms", name="more_words")
    counts = words().merge(more).key_by("word").update(count, "word", "count", parallelism=2)
    counted = counts.key_by("word").through(Everything(), parallelism=2)
    sink = TargetSink()
    topology = counted.build(counts.sink(sink, name="table"))
    assert [component.id for component in topology] == [
        "lines",
        "split",
        "is_long",
        "more",
        "more_words",
        "count",
        "everything",
        "table",
    ]
    assert topology.components["everything"].inputs[0].grouping == fields("word")
    done = complete_topology(topology)
    assert done.state("count") == {"to": 4, "be": 4, "or": 2, "not": 2, "that": 2, "is": 2, "a": 1}
    assert len(done["count"]) == 17


def test_a_function_of_a_window() -> None:
    def longest(window: Window) -> Iterator[str]:
        yield max((tup["word"] for tup in window), key=len)

    topology = words().window(tumbling(seconds=10), time="at_ms").apply(longest, "word").build()
    assert sorted(complete_topology(topology)["longest"]) == [("not",), ("that",)]


def test_an_error_names_the_step_and_the_line_of_its_function() -> None:
    def fails(tup: Tuple) -> int:
        return len(tup["word"]) // 0

    done = complete_topology(words().map(fails, "size").build(), conf={"topology.max.retries": 0})
    letter = done.dead_letters[0]
    assert letter.component == "fails"
    assert "test_streams.py" in str(letter) and "ZeroDivisionError" in str(letter)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a lambda": (
        lambda: words().map(lambda tup: 1, "a"),
        "a step has no name, since its function is '<lambda>': write a def",
    ),
    "one name twice": (
        lambda: words().map(upper, "word", "at_ms").map(upper, "word", "at_ms").build(),
        "two steps are named 'upper'; give one of them another name, as in name='more'",
    ),
    "a function without a yield": (
        lambda: words().flat_map(upper, "word"),
        "component 'upper': function upper (test_streams.py, line",
    ),
    "an unknown key": (
        lambda: words().key_by("wrod").update(count, "word", "count").build(),
        "by unknown field 'wrod'",
    ),
    "an unknown option": (
        lambda: words().window(tumbling(seconds=1), times="at_ms").fold(total, initial=0),
        "window(...) has no option 'times' here; it has time, lag, lateness, late_stream, merge; did you mean 'time'?",
    ),
    "a filter that is awaited by nobody": (
        lambda: words().filter(is_asked),
        "component 'is_asked': filter takes a function that returns its result; one with yield or async is",
    ),
    "a filter with a yield": (
        lambda: words().filter(split),
        "component 'split': filter takes a function that returns its result",
    ),
    "a map with a yield": (
        lambda: words().map(split, "word", "at_ms"),
        "component 'split': map takes a function that returns its result",
    ),
    "a map of a field": (
        lambda: words().map("word", "word", name="x"),  # type: ignore[arg-type]
        "component 'x': map takes a function of a tuple, not 'word'",
    ),
    "a map without fields": (
        lambda: words().map(upper),
        "component 'upper': map needs the names of its fields",
    ),
    "a merge with a stream with a key": (
        lambda: words().merge(words().key_by("word")),  # type: ignore[arg-type]
        "merge takes streams without keys, not a KeyedStream; write .key_by(...) behind it",
    ),
    "a filter of different fields": (
        lambda: stream(lines).merge(stream(lines, name="b").map(upper, "word")).filter(is_long),
        "component 'is_long': filter needs streams with the same fields, but 'lines' has line, at_ms and 'upper' has word",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_name_the_step(case: str) -> None:
    make, said = REFUSED[case]
    with pytest.raises(InvalidTopologyError) as refused:
        make()
    assert said in str(refused.value)
