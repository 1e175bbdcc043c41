"""Live shadow of a gray upgrade: new code next to a task that works, compared row by row before any
worker is upgraded.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    StatefulBolt,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.errors import IllegalTransitionError, InvalidTopologyError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import MASTER, Topology
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.upgrade import UpgradeOptions, UpgradeStage
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.extensions.recording import live_shadow
from sparkstorm.extensions.recording.recorder import Recorder
from sparkstorm.extensions.recording.segments import Beginning, Call, Limits
from sparkstorm.extensions.upgrade.gray_upgrade import classify
from sparkstorm.extensions.upgrade.state import GrayUpgradeState
from sparkstorm.testing import FeederSpout
from tests.sim.test_gray_upgrade import Bench, Count

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class Number(StatefulBolt):
    """Numbers the words of its task, in its state; a version may be wrong at every n-th, or do
    something else there.
    """

    outputs = ("word", "code")

    def __init__(self, wrong_every: int = 0, then: str = "emit") -> None:
        self.wrong_every, self.then = wrong_every, then

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = self.state.add("seen", 1)
        is_wrong = bool(self.wrong_every) and number % self.wrong_every == 0
        if is_wrong and self.then == "state":
            self.state.put("odd", number)
        if is_wrong and self.then == "exit":
            os._exit(7)
        while is_wrong and self.then == "hang":
            pass
        collector.emit((tup["word"], "odd" if is_wrong and self.then == "emit" else "one"))


class Out(BasicBolt):
    """Writes to the outside."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Nothing here."""


def numbered(spout: FeederSpout, number: Number | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("words", spout)
    builder.set_bolt("tag", number or Number(), 2).shuffle_grouping("words")
    builder.set_bolt("count", Count(), 3).fields_grouping("tag", "word")
    builder.set_bolt("out", Out()).shuffle_grouping("tag")
    return builder.build()


class Totals(WindowedBolt):
    """Counts the tuples of each second of event time and word; a version may be wrong about every
    n-th second.
    """

    outputs = ("word", "code")

    def __init__(self, wrong_every: int = 0, fails: bool = False) -> None:
        self.wrong_every, self.fails = wrong_every, fails

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        second = window.start // 1000
        is_wrong = bool(self.wrong_every) and second % self.wrong_every == self.wrong_every - 1
        if is_wrong and self.fails:
            raise ValueError("the new code does not like this second")
        for tup in window.get():
            collector.emit((tup["word"], "odd" if is_wrong else "one"))


class Late(TimedBolt):
    """Emits each word a second of event time after it came; a version may forget every n-th
    second.
    """

    outputs = ("word", "code")

    def __init__(self, wrong_every: int = 0, fails: bool = False) -> None:
        self.wrong_every = wrong_every

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.timers.set_event_timer(f"{tup['word']} {tup['at_ms']}", tup["at_ms"] + 1000)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        is_wrong = bool(self.wrong_every) and timer.at_ms // 1000 % self.wrong_every == 0
        collector.emit((timer.name.split()[0], "odd" if is_wrong else "one"))


def timed(
    spout: FeederSpout,
    kind: type[Totals | Late] = Totals,
    wrong_every: int = 0,
    fails: bool = False,
) -> Topology:
    spout.outputs = ("word", "at_ms")
    bolt = kind(wrong_every, fails).with_timestamp_field("at_ms").with_lag(Duration.seconds(1))
    if isinstance(bolt, Totals):
        bolt = bolt.with_tumbling_window(Duration.seconds(1)).with_key("word")
    builder = TopologyBuilder()
    builder.set_spout("words", spout)
    builder.set_bolt("tag", bolt, 2).fields_grouping("words", "word")
    builder.set_bolt("count", Count(), 3).fields_grouping("tag", "word")
    return builder.build()


class TimedBench(Bench):
    """Bench whose words have times, some of them out of order."""

    def __init__(self, kind: type[Totals | Late]) -> None:
        self.number = 0
        super().__init__(make_topology=lambda spout: timed(spout, kind))

    def counts(self) -> Mapping[str, Counter[str]]:
        self.spout.finish()
        return super().counts()

    def feed(self, number: int = 40) -> None:
        for _ in range(number):
            word = f"word{self.number % 7}"
            self.spout.feed([word, self.number * 250 + 300 * (self.number % 2)])
            self.fed[word] += 1
            self.number += 1


class ShadowBench(Bench):
    """Bench whose topology numbers words."""

    def __init__(self, **conf: Any) -> None:
        super().__init__(make_topology=numbered, **conf)

    def start(self, number: Number | None = None, tuples: int = 200, **conf: Any) -> None:
        self.upgrade(
            numbered(self.spout, number),
            worker__num=1,
            shadow__component="tag",
            shadow__tuples=tuples,
            **conf,
        )

    def refusal(self) -> Failure:
        """The reason of a rollback, once the topology is ACTIVE again; no worker ran the new
        code.
        """
        assert self.new_workers() == set()
        self.run(lambda: self.status() is TopologyStatus.ACTIVE)
        assert self.new_workers() == set()
        assert GrayUpgradeState(self.state).upgrade_state(self.id).upgrade is None
        error: Failure
        (error,) = self.state.read_errors(self.id, MASTER)
        assert sum(self.counts()["one"].values()) == sum(self.fed.values())
        return error

    def shadow_of(self) -> Any:
        beats = [
            self.state.read_worker_beat(self.id, slot.slot)
            for slot in self.cluster.topology().workers
        ]
        return next(
            (beat.stats["shadow"] for beat in beats if beat is not None and "shadow" in beat.stats),
            None,
        )


def test_code_without_a_difference_passes_the_bar_and_its_first_batch_follows() -> None:
    with ShadowBench() as bench:
        bench.start(Number(0, "same, though other code"), tuples=150)
        assert classify(bench.state.read_upgrade(bench.id), 0) is UpgradeStage.SHADOWING
        sentence = "still runs as a shadow of 'tag': its first batch follows by itself"
        with pytest.raises(IllegalTransitionError, match=sentence):
            bench.service.continue_upgrade("test", UpgradeOptions(worker_num=1))
        with pytest.raises(IllegalTransitionError, match="a gray upgrade of test is in progress"):
            bench.start()
        bench.run(lambda: bench.shadow_of() is not None and bench.shadow_of()["compared"] > 0)
        assert bench.new_workers() == set()
        bench.run(lambda: bench.rests(1))
        assert len(bench.new_workers()) == 1 and bench.state.read_upgrade(bench.id).shadow.is_passed
        bench.run(lambda: bench.shadow_of() is None)
        bench.service.complete_upgrade("test")
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.counts().keys() == {"one"}


@pytest.mark.parametrize(
    ("number", "words", "first"),
    [
        (
            Number(100),
            r"1 of \d+ tuples come out differently in the shadow of tag#\d, before any worker",
            ": emitted: ",
        ),
        (Number(100, "state"), r"1 of \d+ tuples come out differently", ": changed state: "),
        (
            Number(20, "exit"),
            r"the shadow of tag#\d ended: the new code cannot be stepped through: .*status 7",
            "",
        ),
        (
            Number(20, "hang"),
            r"the shadow of tag#\d ended: the new code does not return: no answer for 4 s",
            "",
        ),
    ],
    ids=["1 % other answers", "1 % other state", "ends its process", "never returns"],
)
def test_other_code_is_refused_before_any_worker_runs_it(
    number: Number, words: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number.then == "hang":
        monkeypatch.setattr(live_shadow, "_PATIENCE_S", 4.0)
    with ShadowBench() as bench:
        bench.start(number, tuples=10_000)
        error = bench.refusal()
        assert re.search(words, error.text), error
        assert first in error.traceback


def test_the_shadow_begins_anew_with_the_state_of_that_moment_when_its_worker_dies() -> None:
    with ShadowBench() as bench:
        bench.start(tuples=100)
        bench.run(lambda: bench.shadow_of() is not None and bench.shadow_of()["compared"] > 20)
        for number in range(len(bench.cluster.topology().workers)):
            bench.cluster.kill_worker(number)
        bench.run(lambda: bench.rests(1))
        assert len(bench.new_workers()) == 1
        bench.service.roll_back_upgrade("test")
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.counts().keys() == {"one"}


@pytest.mark.parametrize("kind", [Totals, Late])
def test_windows_and_timers_without_a_difference_pass_the_bar(kind: type[Totals | Late]) -> None:
    with TimedBench(kind) as bench:
        bench.upgrade(
            timed(bench.spout, kind), worker__num=1, shadow__component="tag", shadow__tuples=150
        )
        bench.run(lambda: bench.rests(1))
        assert len(bench.new_workers()) == 1 and bench.counts().keys() == {"one"}


@pytest.mark.parametrize(
    ("kind", "fails", "part"),
    [(Totals, False, "emitted"), (Totals, True, "emitted"), (Late, False, "emitted")],
    ids=["1 % other windows", "1 % failing windows", "1 % other timers"],
)
def test_windows_and_timers_of_other_code_are_refused_before_any_worker_runs_it(
    kind: type[Totals | Late], fails: bool, part: str
) -> None:
    with TimedBench(kind) as bench:
        bench.upgrade(
            timed(bench.spout, kind, 100, fails),
            worker__num=1,
            shadow__component="tag",
            shadow__tuples=1_000_000,
        )
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.new_workers() == set()
        assert GrayUpgradeState(bench.state).upgrade_state(bench.id).upgrade is None
        (error,) = bench.state.read_errors(bench.id, MASTER)
        assert re.search(
            r"1 of \d+ tuples come out differently in the shadow of tag#\d, before any worker",
            error.text,
        ), error
        assert f": {part}: " in error.traceback
        assert bench.counts().keys() == {"one"}


def test_a_state_that_is_too_large_is_said() -> None:
    with ShadowBench(topology__record__state__keys=0) as bench:
        bench.run(lambda: bench.fed["word0"] >= 30)
        bench.start()
        assert "more keys than topology.record.state.keys" in bench.refusal().text


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("out", "'out' writes to the outside"),
        ("words", "'words', which is no bolt: count, out, tag are"),
        ("x", "names 'x'"),
    ],
)
def test_what_has_effects_cannot_be_shadowed(component: str, words: str) -> None:
    with ShadowBench() as bench, pytest.raises(InvalidTopologyError, match=words):
        bench.upgrade(numbered(bench.spout), worker__num=1, shadow__component=component)


class Slow:
    """File that waits with its first rows."""

    codec = Codec()
    over, fill, rests_until_ms = 0, (0, 0), 0

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.lost: list[int] = []
        self.rows = 0

    def take(self, beginning: Beginning | None, calls: Iterable[Call], now_ms: int) -> None:
        assert self.may_go.wait(60)
        self.lost += [beginning.lost] if beginning is not None else []
        self.rows += sum(len(call.values) for call in calls)

    def close(self) -> None:
        """Nothing to close."""


def test_a_shadow_that_falls_behind_skips_rows_and_counts_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_shadow, "_MOST_WAITING_ROWS", 100)
    desk, file = live_shadow.RestingDesk(), Slow()
    recorder = Recorder(desk, file, None, Limits(1 << 60, 1 << 60, 0), lambda: 0)
    given = 0

    def give() -> None:
        nonlocal given
        rows = [Tuple((given,), 0, Source("words", 1, "default", ("n",)))] * 10
        recorder.executed(rows, [], (), [row.values for row in rows])
        recorder.committed()
        given += 10

    for _ in range(30):
        give()
    file.may_go.set()
    until = time.monotonic() + 30
    while len(file.lost) < 2 and time.monotonic() < until:
        give()
    desk.close([file])
    assert file.lost[1] >= 200, "what came while it was full"
    assert file.rows + sum(file.lost) + recorder.lost == given
