"""The checker finds bolts that read the clock of the wall or unseeded chance, and accuses nobody
else.
"""

from __future__ import annotations

import datetime
import gc
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from random import choice
from time import time as wall_clock
from typing import Any, Literal

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import FeederSpout
from sparkstorm.testing.determinism import (
    Finding,
    NondeterminismError,
    check_deterministic,
    find_nondeterminism,
)

VIA: tuple[Literal["live", "replay"], ...] = ("live", "replay")
ROWS = {"numbers": [[n, n * 100] for n in range(12)]}


class Mapping(BasicBolt):
    """Emits what a function makes of a number."""

    outputs = ("value", "ts")

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.function(tup[0]), tup[1]))


class Keep(StatefulBolt):
    """Counts values."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(str(tup[0]))


class Sum(FoldingBolt):
    """A sum per window."""

    outputs = ("value",)

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + int(tup[0])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.value,))


def topology(function: Callable[[int], Any]) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", FeederSpout(("value", "ts")))
    builder.set_bolt("map", Mapping(function), 2).shuffle_grouping("numbers")
    builder.set_bolt("keep", Keep(), 2).fields_grouping("map", "value")
    return builder.build()


def square(n: int) -> int:
    return n * n


def seeded(n: int) -> float:
    return random.Random(n).random()


def coin(n: int) -> int:
    return choice([1, 2, 3])


def tired(n: int) -> int:
    return 7 if wall_clock() > 0 else 8


@pytest.mark.parametrize("function", [square, seeded])
def test_who_follows_from_the_input_is_not_accused(function: Callable[[int], Any]) -> None:
    for via in VIA:
        assert find_nondeterminism(topology(function), ROWS, via=via) == []
        check_deterministic(topology(function), ROWS, via=via)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (lambda n: time.time(), "time.time"),
        (lambda n: time.time_ns(), "time.time_ns"),
        (lambda n: time.monotonic(), "time.monotonic"),
        (lambda n: str(datetime.datetime.now()), "datetime.datetime.now"),
        (lambda n: random.random(), "random (unseeded)"),
        (coin, "random (unseeded)"),
        (lambda n: random.Random().random(), "random.Random() without a seed"),
        (lambda n: str(uuid.uuid4()), "os.urandom"),
    ],
)
def test_who_asks_the_machine_is_named_with_what_was_asked_for(
    function: Callable[[int], Any], asked: str
) -> None:
    for via in VIA:
        (finding,) = find_nondeterminism(topology(function), ROWS, via=via)
        # the code's copy of the generator is not the shared one
        is_copy = via == "replay" and function is coin
        assert (finding.component, finding.asked) == ("map", () if is_copy else (asked,))
        assert " on stream 'default' in one of them" in finding.example
    sentence = r"component 'map' asks for .* and gave different results in two runs"
    with pytest.raises(NondeterminismError, match=sentence):
        check_deterministic(topology(function), ROWS)


def test_a_callback_of_the_garbage_collector_is_no_request_of_the_bolt_that_it_interrupts() -> None:
    def timed(_phase: str, _info: dict[str, int]) -> None:  # as hypothesis does
        time.perf_counter()

    gc.callbacks.append(timed)
    try:
        assert find_nondeterminism(topology(lambda n: n + 0 * gc.collect(0)), ROWS) == []
    finally:
        gc.callbacks.remove(timed)


def test_asking_is_found_though_both_runs_agree_by_luck() -> None:
    assert find_nondeterminism(topology(tired), ROWS) == [Finding("map", ("time.time",))]
    assert find_nondeterminism(topology(lambda n: str(datetime.date.today())), ROWS)[0].asked == (
        "datetime.date.today",
    )
    assert find_nondeterminism(topology(lambda n: hash(str(n))), ROWS)[0].asked == ("hash",)


def test_differing_is_found_though_nothing_was_asked_for() -> None:
    calls: list[int] = []
    builder = TopologyBuilder()
    builder.set_spout("numbers", FeederSpout(("value", "ts")))
    builder.set_bolt("keep", Remembering(calls)).global_grouping("numbers")
    (finding,) = find_nondeterminism(builder.build(), ROWS)
    assert (finding.component, finding.asked) == ("keep", ())
    assert finding.example.startswith("state 'calls' is 12 and 24")


MEMORY: list[int] = []


class Remembering(StatefulBolt):
    """Lets a module's variable into its state."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        MEMORY.append(1)
        self.state.put("calls", len(MEMORY))


def test_windows_and_the_time_of_the_context_are_no_findings() -> None:
    class Stamped(BasicBolt):
        outputs = ("value", "ts")

        def prepare(self, conf: Any, context: Any) -> None:
            self.context = context

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((self.context.now_ms(), tup[1]))

    builder = TopologyBuilder()
    builder.set_spout("numbers", FeederSpout(("value", "ts")))
    builder.set_bolt("stamped", Stamped()).shuffle_grouping("numbers")
    bolt = Sum().with_tumbling_window(Duration.millis(500)).with_timestamp_field("ts")
    builder.set_bolt("windows", bolt).global_grouping("stamped")
    assert find_nondeterminism(builder.build(), ROWS) == []
    for field in (None, "ts"):
        assert (
            find_nondeterminism(
                builder.build(),
                {"numbers": {"default": ROWS["numbers"]}},
                via="replay",
                event_time=field,
            )
            == []
        )


class Editing(BasicBolt):
    outputs = ("value",)

    def execute(self, record: Tuple, collector: BasicOutputCollector) -> None:
        record["value"].append("edited")
        collector.emit((record["value"],))


@bolt("value")
def editing(record: Tuple) -> Any:
    record["value"].append("edited")
    yield (record["value"],)


class Appending(Sum):
    def fold(self, accumulator: int, tup: Tuple) -> int:
        tup["value"].append(accumulator)
        return accumulator + 1


class Copying(Editing):
    def execute(self, record: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(([*record["value"], "edited"],))


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("changing", [Editing(), editing, Appending(), Copying()])
def test_a_change_of_a_tuples_values_in_place_is_found(
    changing: Any, via: Literal["live", "replay"]
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("lists", FeederSpout(("value", "ts")))
    if isinstance(changing, Sum):
        changing.with_tumbling_window(Duration.millis(10)).with_timestamp_field("ts")
    builder.set_bolt("edit", changing).shuffle_grouping("lists")
    rows = {"lists": [[[n], n] for n in range(3)]}
    time = "ts" if via == "replay" else None
    found = find_nondeterminism(builder.build(), rows, via=via, event_time=time)
    assert [each.component for each in found] == ([] if isinstance(changing, Copying) else ["edit"])
    for each in found:
        assert "([0], 0) became ([0, " in str(each) and "in place" in str(each)


def test_asking_is_found_without_the_compiled_core_too() -> None:
    case = f"{__file__}::test_asking_is_found_though_both_runs_agree_by_luck"
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", case)
    done = subprocess.run(words, env={**os.environ, "SPARKSTORM_PURE": "1"}, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
