"""Failing records, failing bolts and effects in a replay: named, put aside, kept from happening."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

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
from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.replay import replay, replay_locally
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Count, Picky, Source, Split, one_bolt

VALUES = [("a",), ("b",), ("c",)]


class Sink(BasicBolt):
    """Would tell the world."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise AssertionError("the world was told")


class Keyed(BasicBolt):
    """Writes under the key of its effect."""

    outputs = ("key", "value")
    effects: Effects | None = Effects.IDEMPOTENT

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.context.effect_key(), tup.values[0]))


class Asks(Keyed):
    """The same, undeclared."""

    effects = None


class Refuses(Bolt):
    """Fails what it does not like by hand, one input later."""

    outputs = ("value",)

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.last: Tuple | None = None

    def execute(self, tup: Tuple) -> None:
        if self.last is not None:
            self.collector.fail(self.last, "too late")
        self.last = tup


class EmitsObject(BasicBolt):
    outputs = ("good", "bad")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((1, "\ud800"))


class CannotPrepare(BasicBolt):
    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        raise OSError("no such model")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise AssertionError("it was never prepared")


def test_a_failing_record_is_named_with_its_component_and_task() -> None:
    sentence = r"component 'bolt' \(task 2\) failed 4 times.*value='b'.*not this one"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(one_bolt(Picky("b")), {"source": VALUES})


def test_skipped_records_leave_no_trace_but_their_dead_letter() -> None:
    results = replay_locally(one_bolt(Picky("b")), {"source": VALUES}, skip_bad=True)
    assert sorted(results["bolt"]) == [("a",), ("c",)]
    (letter,) = results.dead_letters
    assert (letter.component, letter.values, letter.attempts) == ("bolt", ("b",), 4)
    assert results.counts["bolt"]["parked"] == 1


def test_an_input_failed_later_by_hand_is_put_aside_too() -> None:
    results = replay_locally(
        one_bolt(Refuses()), {"source": VALUES}, conf={"topology.max.retries": 0}, skip_bad=True
    )
    assert [d.values for d in results.dead_letters] == [("a",), ("b",)]
    assert results.counts["bolt"]["waiting"] == 1


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_value_that_cannot_travel_is_named_by_its_field(skip_bad: bool) -> None:
    topology = one_bolt(EmitsObject())
    if skip_bad:
        results = replay_locally(topology, {"source": VALUES}, skip_bad=True)
        assert "field 'bad'" in results.dead_letters[0].reason and len(results.dead_letters) == 3
    else:
        sentence = r"component 'bolt' \(task 2\) failed .* stream 'default', field 'bad'"
        with pytest.raises(ReplayFailedError, match=sentence):
            replay_locally(topology, {"source": VALUES})


def test_a_bolt_that_cannot_be_prepared_is_named() -> None:
    sentence = r"component 'bolt' \(task 2\) could not be prepared.*no such model"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(one_bolt(CannotPrepare()), {"source": VALUES}, effects={"bolt": Effects.RUN})


def test_a_bolt_that_can_only_have_effects_does_not_run_and_its_input_is_a_result() -> None:
    results = replay_locally(one_bolt(Sink()), {"source": VALUES})
    assert results["bolt!input"] == VALUES
    assert "bolt" not in results.counts


def test_effects_can_be_muted_or_run_by_the_caller() -> None:
    muted = replay_locally(one_bolt(Picky("b")), {"source": VALUES}, effects={"bolt": Effects.MUTE})
    assert list(muted.outputs) == ["source"]
    with pytest.raises(ReplayFailedError, match="the world was told"):
        replay_locally(one_bolt(Sink()), {"source": VALUES}, effects={"bolt": Effects.RUN})


def test_effects_have_keys_that_a_second_run_repeats() -> None:
    runs = [
        sorted(replay_locally(one_bolt(Keyed(), 2), {"source": VALUES * 3})["bolt"])
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len({key for key, _ in runs[0]}) == 9


def test_a_caller_that_calls_a_bolt_idempotent_gives_it_keys_and_nobody_else_has_any() -> None:
    found = replay_locally(
        one_bolt(Asks(), 2), {"source": VALUES * 3}, effects={"bolt": Effects.IDEMPOTENT}
    )["bolt"]
    assert len({key for key, _ in found}) == 9
    sentence = r"component 'bolt' calls effect_key\(\), but is not idempotent"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(one_bolt(Asks(), 2), {"source": VALUES})


def test_a_live_task_runs_the_same_code_without_a_key() -> None:
    done = complete_topology(one_bolt(Asks()), {"source": VALUES})
    assert [key for key, _ in done["bolt"]] == [None] * 3


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ({"bolt": "mute"}, "effects is .mute.; use one of Effects.RUN, Effects.IDEMPOTENT"),
        ({"blot": Effects.MUTE}, "effects names 'blot'"),
        ({"split": Effects.MUTE}, "'split' does not run in this replay.*'count' listens"),
    ],
)
def test_wrong_effects_are_refused(effects: dict[str, Any], said: str) -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value"))
    builder.set_bolt("split", Split()).shuffle_grouping("source")
    builder.set_bolt("count", Count()).fields_grouping("split", "word")
    builder.set_bolt("bolt", Sink()).fields_grouping("count", "word")
    with pytest.raises(InvalidTopologyError, match=said):
        replay_locally(builder.build(), {"source": []}, effects=effects)


def test_a_cycle_is_refused_by_the_names_on_it() -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value"))
    builder.set_bolt("one", Picky(0)).shuffle_grouping("source").shuffle_grouping("two")
    builder.set_bolt("two", Picky(0)).shuffle_grouping("one")
    with pytest.raises(InvalidTopologyError, match="one <- two <- one"):
        replay_locally(builder.build(), {"source": []})


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"lines": []}, "there is no spout 'lines', only source"),
        ({"source:late": []}, "has no stream 'late'; its streams are source:default"),
        ({"source": [], "source:default": []}, "given twice"),
        ({}, "spout 'source' has no input"),
        ({"bolt": []}, "there is no spout 'bolt'"),
    ],
)
def test_inputs_that_fit_no_spout_are_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTopologyError, match=said):
        replay_locally(one_bolt(Picky(0)), inputs)


class Putting(StatefulBolt):
    """Puts what cannot be written under a key for one of its inputs."""

    def __init__(self, put: Callable[[Any], object]) -> None:
        self.put = put

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add("inputs")
        if tup[0] == "b":
            self.put(self.state)


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda s: s.add("x", 2**9000), "a whole number of 9001 bits"),
        (lambda s: s.put("\ud800", 1), "surrogates"),
    ],
)
def test_a_state_that_cannot_be_written_is_named_and_its_record_can_be_skipped(
    put: Any, said: str
) -> None:
    sentence = rf"state of component 'bolt' \(task \d\): .*{said}.*; skip_bad names"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(one_bolt(Putting(put)), {"source": VALUES})
    results = replay_locally(one_bolt(Putting(put)), {"source": VALUES}, skip_bad=True)
    assert results.states["bolt"] == {"inputs": 2}
    assert [letter.values for letter in results.dead_letters] == [("b",)]


@pytest.mark.system
def test_on_spark_the_record_is_named_and_can_be_skipped(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(f"v{n}",) for n in range(200)], "value string")
    sentence = r"component 'bolt' \(task \d\) failed 4 times.*v77.*not this one"
    with pytest.raises(Exception, match=sentence):
        replay(one_bolt(Picky("v77"), 2), {"source": frame}, types={"bolt": "value string"})[
            "bolt"
        ].collect()
    results = replay(one_bolt(Picky("v77"), 2), {"source": frame}, skip_bad=True)
    assert results["bolt"].count() == 199
    (letter,) = results.dead_letters
    assert letter.component == "bolt"
    assert letter.fields == ("value",)
    assert letter.values == ("v77",)
    assert letter.attempts == 4
    assert letter.reason.startswith("ValueError: not this one (bolts.py, line ")
