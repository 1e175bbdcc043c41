"""Blocking bolts with real threads, acks from elsewhere, and the clock's own tuples."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.metrics import TaskMetrics
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.worker.tasks.blocking_bolt import MAX_QUEUED, ThreadedBolt
from sparkstorm.testing import AckFailTracker, CaptureBolt, FeederSpout, Shared
from tests.topologies import feed, ran, running
from tests.waiting import wait_until
from tests.worker.building import Collecting, chain

GUARANTEES = pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])


class BlockingPass(BasicBolt):
    """Hands on from its own thread."""

    outputs = ("value",)
    blocking = True

    def __init__(self) -> None:
        self.threads: Shared[set[str]] = Shared(set())

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.threads.value.add(threading.current_thread().name)
        collector.emit((tup[0],))


class Waits(BasicBolt):
    """Waits on its own thread until its gate is open."""

    blocking = True

    def __init__(self) -> None:
        self.is_in: Shared[threading.Event] = Shared(threading.Event())
        self.gate: Shared[threading.Event] = Shared(threading.Event())
        self.done: Shared[list[int]] = Shared([])

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.is_in.value.set()
        self.gate.value.wait(60)
        self.done.value.append(tup[0])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_blocking_bolt_runs_on_its_own_thread_and_everything_is_acked(workers: int) -> None:
    spout, capture, bolt = FeederSpout(), CaptureBolt(), BlockingPass()
    with ran(
        chain(spout, bolt, capture, parallelism=2),
        spout,
        range(1000),
        {"topology.workers": workers},
    ):
        assert sorted(capture.values) == [(n,) for n in range(1000)]
        assert sorted(spout.acked) == list(range(1000))
        assert bolt.threads.value == {"blocking-bolt"}


def test_a_thread_that_blocks_stops_nobody_else_in_its_worker() -> None:
    spout, capture, builder = FeederSpout(), CaptureBolt(), TopologyBuilder()
    bolt = Waits()
    builder.set_spout("spout", spout)
    builder.set_bolt("waits", bolt).shuffle_grouping("spout")
    builder.set_bolt("capture", capture).shuffle_grouping("spout")
    with running(builder.build(), thread_patience_secs=0) as cluster:
        feed(spout, range(20))
        cluster.run_until(lambda: len(capture.values) == 20)
        assert not spout.acked
        bolt.gate.value.set()
        cluster.run_until(lambda: len(spout.acked) == 20)


def test_a_simulation_does_not_wait_for_threads_whose_outcomes_a_full_disk_keeps_from_being_taken_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Shared[threading.Semaphore] = Shared(threading.Semaphore(0))

    class Waits(BasicBolt):
        blocking = True

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            assert calls.value.acquire(timeout=60)

    spout = FeederSpout()
    with running(chain(spout, Waits()), thread_patience_secs=0) as cluster:
        feed(spout, range(2))
        cluster.advance(1)
        store, process = cluster.topology().store, cluster.topology().worker_of("bolt").process
        assert process is not None and process.worker is not None
        (bolt,) = (
            b
            for b in process.worker.task_set.bolts.values()
            if isinstance(b.runner.bolt, ThreadedBolt)
        )
        runner = bolt.runner
        assert isinstance(runner, ManualRunner)
        store.is_disk_full = True
        # the commit of the first outcome is refused; the second one waits for it
        for _ in range(2):
            calls.value.release()
            wait_until(lambda: runner.has_posts, "an outcome")
            cluster.advance(1)
        assert runner.has_posts

        def wait(timeout: float) -> bool:
            raise AssertionError("the thread has nothing to do")

        with monkeypatch.context() as patched:
            patched.setattr(process._post, "wait", wait)
            cluster.advance(10)
        store.is_disk_full = False
        cluster.run_until(lambda: len(spout.acked) == 2)


def test_rows_that_wait_for_a_busy_thread_do_not_time_out() -> None:
    spout, bolt = FeederSpout(), Waits()
    with running(chain(spout, bolt), {"topology.workers": 2}, thread_patience_secs=0) as cluster:
        feed(spout, range(5))
        cluster.advance(seconds=300)
        assert (spout.acked, spout.failed) == ([], [])
        bolt.gate.value.set()
        cluster.run_until(lambda: len(spout.acked) == 5)
        assert not spout.failed


def test_inputs_that_wait_for_a_thread_do_not_count_as_kept_by_user_code() -> None:
    gate: Shared[threading.Event] = Shared(threading.Event())

    class KeepsTheFirst(Collecting):
        blocking = True

        outputs = ()

        def execute(self, tup: Tuple) -> None:
            if tup[0] > 0:
                gate.value.wait(60)
                self.collector.ack(tup)

    spout = FeederSpout()
    with running(chain(spout, KeepsTheFirst()), thread_patience_secs=0) as cluster:
        feed(spout, range(5))
        process = cluster.topology().worker_of("bolt").process
        assert process is not None and process.worker is not None
        counts = process.worker.progress.counts_by_task
        cluster.run_until(lambda: any(count.held for count in counts.values()))
        assert [count.held for count in counts.values() if count.component == "bolt"] == [1]
        assert sum(count.pending for count in counts.values()) == 5
        gate.value.set()
        cluster.run_until(lambda: len(spout.acked) == 4)


def test_a_post_that_comes_while_a_step_begins_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of user code may post at any place of the loop."""
    steps: list[bool] = []
    with running(chain(FeederSpout(), CaptureBolt())) as cluster:
        cluster.run_until_idle()
        process = cluster.topology().worker_of("bolt").process
        assert process is not None and process.run is not None
        process._post.clear()
        look = process._newest

        def look_while_a_thread_posts() -> int:
            if not steps:
                process._post.set()
            return look()

        run = process.run
        step = run.step
        process._is_late = False

        def noted(is_woken: bool = True) -> float | None:
            steps.append(is_woken)
            return step(is_woken)

        monkeypatch.setattr(run, "step", noted)
        monkeypatch.setattr(process, "_newest", look_while_a_thread_posts)
        process._run(run)
        assert steps == [True] or process._post.is_set()


def test_a_blocking_bolts_latency_is_the_time_of_its_calls() -> None:
    spout, bolt = FeederSpout(), Waits()
    with running(chain(spout, bolt), thread_patience_secs=0) as cluster:
        spout.feed([0])
        cluster.run_until(bolt.is_in.value.is_set)
        cluster.advance(seconds=3)
        bolt.gate.value.set()
        cluster.run_until(lambda: len(spout.acked) == 1)
        process = cluster.topology().worker_of("bolt").process
        assert process is not None and process.worker is not None
        latencies = [stats.get("execute_us") for stats in by_executor(process.worker.summary())]
        (took,) = [latency["p50"] for latency in latencies if latency and latency["p50"] > 1000]
        # the clock may go on between the release and the end of the call
        assert 3_000_000 <= took <= 10_000_000


def by_executor(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [stats for stats in summary.values() if isinstance(stats, dict) and "busy_us" in stats]


@GUARANTEES
def test_a_blocking_bolt_that_always_raises_fails_like_any_other(guarantee: str) -> None:
    class Raises(BasicBolt):
        outputs = ("value",)
        blocking = True

        def __init__(self) -> None:
            self.tries: Shared[list[int]] = Shared([])

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.tries.value.append(tup[0])
            collector.emit((tup[0],))
            raise OSError("no answer")

    spout, capture, bolt = FeederSpout(), CaptureBolt(), Raises()
    with ran(
        chain(spout, bolt, capture),
        spout,
        [1],
        {"topology.delivery.guarantee": guarantee, "topology.max.retries": 2},
    ) as cluster:
        assert capture.values == []
        assert spout.failed == [0]
        assert len(bolt.tries.value) == (3 if guarantee == "exactly-once" else 1)
        reasons = [letter.reason.partition(" (")[0] for letter in cluster.dead_letters]
        assert reasons == ["OSError: no answer"] * (guarantee == "exactly-once")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_blocking_stateful_bolt_counts_exactly_over_failures_and_crashes(workers: int) -> None:
    class Counts(StatefulBolt):
        blocking = True

        def prepare(self, conf: Any, context: Any) -> None:
            self.calls = 0

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put(tup[0] % 3, self.state.get(tup[0] % 3, 0) + 1)
            self.calls += 1
            if self.calls % 4 == 0:
                raise RuntimeError("now and then")

    spout = FeederSpout()
    with running(
        chain(spout, Counts()), {"topology.workers": workers, "topology.max.retries": 20}
    ) as cluster:
        for n in range(90):
            spout.feed([n])
            if n % 30 == 29:
                cluster.advance(ms=20)
                cluster.kill_worker("bolt")
        cluster.run_until_idle()
        assert cluster.state("bolt") == {0: 30, 1: 30, 2: 30}
        assert sorted(spout.acked) == list(range(90))


class RefusesSome:
    """A grouping that raises once for each third value."""

    def __init__(self) -> None:
        self.refused: set[int] = set()

    def prepare(self, tasks: list[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        if values[0] % 3 == 0 and values[0] not in self.refused:
            self.refused.add(values[0])
            raise ValueError("once")
        return self.tasks


@pytest.mark.parametrize("blocking", [False, True])
def test_an_outcome_that_fails_in_the_loop_leaves_no_trace_in_the_state(blocking: bool) -> None:
    class Counts(StatefulBolt):
        outputs = ("n", "of_all", "of_mine")

        def init_state(self, state: Any) -> None:
            super().init_state(state)
            state.put("began", True)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            of_all, of_mine = self.state.add("all"), self.state.add(tup[0] % 2)
            if tup[0] == 0 and of_all == 1:
                raise ValueError("the first call of all")
            collector.emit((tup[0], of_all, of_mine))

    spout, capture, builder = FeederSpout(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    bolt = type("Counting", (Counts,), {"blocking": blocking})()
    builder.set_bolt("bolt", bolt).global_grouping("spout")
    builder.set_bolt("capture", capture).custom_grouping("bolt", RefusesSome())
    with ran(builder.build(), spout, range(60), {"topology.max.retries": 5}) as cluster:
        state = {"began": True, "all": 60, 0: 30, 1: 30}
        assert cluster.state("bolt") == state
    rows = capture.values
    assert sorted(n for n, _, _ in rows) == list(range(60))
    assert [of_all for _, of_all, _ in rows] == list(range(1, 61))
    result = sorted((n % 2, of_mine) for n, _, of_mine in rows)
    assert result == [(parity, count) for parity in (0, 1) for count in range(1, 31)]


@pytest.mark.parametrize("blocking", [False, True])
def test_an_input_that_is_executed_once_more_is_as_it_came(blocking: bool) -> None:
    class Changes(StatefulBolt):
        outputs = ("n", "items")

        def prepare(self, conf: Any, context: Any) -> None:
            self.calls = context.counter("calls")

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.calls.inc()
            self.state.add("all")
            tup["items"].append("seen")
            collector.emit((tup["n"], tup["items"]))

    spout, capture, builder = FeederSpout(["n", "items"]), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    bolt = type("Changing", (Changes,), {"blocking": blocking})()
    builder.set_bolt("bolt", bolt).global_grouping("spout")
    builder.set_bolt("capture", capture).custom_grouping("bolt", RefusesSome())
    with running(builder.build(), {"topology.max.retries": 5}) as cluster:
        for n in range(30):
            spout.feed([n, []])
        cluster.run_until_idle()
        assert cluster.state("bolt") == {"all": 30}
        assert cluster.topology().metrics("bolt")["calls"].value == 30
    assert sorted(capture.values) == [(n, ["seen"]) for n in range(30)]


def test_inputs_with_a_thread_survive_the_death_of_their_worker() -> None:
    spout, bolt = FeederSpout(), Waits()
    with running(chain(spout, bolt), {"topology.workers": 2}, thread_patience_secs=0) as cluster:
        feed(spout, range(5))
        cluster.advance(ms=100)
        cluster.kill_worker("bolt")
        cluster.advance(ms=500)
        bolt.gate.value.set()
        cluster.run_until(lambda: len(spout.acked) == 5)
        assert set(bolt.done.value) == set(range(5))


class FromElsewhere(Collecting):
    """Has another thread emit and ack."""

    def execute(self, tup: Tuple) -> None:
        threading.Thread(target=self._finish, args=(tup,)).start()

    def _finish(self, tup: Tuple) -> None:
        if tup[0] % 5 == 4:
            self.collector.fail(tup, "from elsewhere")
        else:
            self.collector.emit((tup[0],), anchors=tup)
            self.collector.ack(tup)


@pytest.mark.parametrize("workers", [1, 2])
@GUARANTEES
def test_acks_and_emissions_from_any_thread_are_taken_in_by_the_loop(
    guarantee: str, workers: int
) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with running(
        chain(spout, FromElsewhere(), capture),
        {
            "topology.delivery.guarantee": guarantee,
            "topology.workers": workers,
            "topology.max.retries": 1,
        },
    ) as cluster:
        feed(spout, range(50))
        cluster.run_until(lambda: len(spout.acked) + len(spout.failed) == 50)
        assert sorted(spout.failed) == [n for n in range(50) if n % 5 == 4]
        assert sorted(capture.values) == [(n,) for n in range(50) if n % 5 != 4]


def test_a_foreign_thread_is_told_at_once_what_it_may_not_emit() -> None:
    told: Shared[list[str]] = Shared([])

    class Wrong(Collecting):
        def execute(self, tup: Tuple) -> None:
            thread = threading.Thread(target=self._finish, args=(tup,))
            thread.start()
            thread.join()

        def _finish(self, tup: Tuple) -> None:
            try:
                self.collector.emit((1, 2, 3), anchors=tup)
            except Exception as error:
                told.value.append(str(error))
            self.collector.ack(tup)

    spout = FeederSpout()
    with ran(chain(spout, Wrong()), spout, [1]):
        assert "emitted 3 values for 1 field" in told.value[0]
        assert spout.acked == [0]


# -- ticks


class CountsTicks(BasicBolt):
    """Counts ticks and the rest."""

    def __init__(self) -> None:
        self.ticks: Shared[list[int]] = Shared([])

    def prepare(self, conf: Any, context: Any) -> None:
        self.now_ms = context.now_ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup.is_tick:
            assert (tup.component, tup.stream, tup.fields) == (
                "__system",
                "__tick",
                ("rate_secs",),
            ), "as in Storm"
            self.ticks.value.append(self.now_ms())


def test_ticks_come_at_their_period_and_only_to_those_who_asked() -> None:
    bolt, spout = CountsTicks(), FeederSpout()
    with running(chain(spout, bolt, bolt_conf={"topology.tick.tuple.freq.secs": 5})) as cluster:
        start_ms = cluster.now_ms
        cluster.advance(seconds=60)
        assert [round((at - start_ms) / 1000) for at in bolt.ticks.value] == list(range(5, 61, 5))


def test_ticks_for_everybody_by_the_topologys_key() -> None:
    bolt = CountsTicks()
    with running(
        chain(FeederSpout(), bolt, parallelism=3),
        {"topology.tick.tuple.freq.secs": 1, "topology.workers": 2},
    ) as cluster:
        cluster.advance(seconds=10.5)
        assert len(bolt.ticks.value) == 30


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("acks", [True, False])
def test_a_tick_needs_no_ack_and_is_never_held(acks: bool, blocking: bool) -> None:
    class Manual(Collecting):
        outputs = ()

        def execute(self, tup: Tuple) -> None:
            if acks or not tup.is_tick:
                self.collector.ack(tup)

    bolt = type("Manual", (Manual,), {"blocking": blocking})()
    spout = FeederSpout()
    with running(chain(spout, bolt, bolt_conf={"topology.tick.tuple.freq.secs": 1})) as cluster:
        cluster.advance(seconds=5)
        spout.feed([1])
        cluster.advance(seconds=5)
        assert spout.acked == [0]
        assert not cluster.errors
        assert not any(keys.held for keys in cluster.topology().store.task_keys.values())
        cluster.kill_worker(0)
        cluster.advance(seconds=5)
        assert not cluster.topology().waiting()


@pytest.mark.parametrize("blocking", [False, True])
def test_a_bolt_that_raises_on_a_tick_is_reported_and_goes_on(blocking: bool) -> None:
    class Raises(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup.is_tick:
                raise ValueError("no ticks please")

    bolt = type("Raises", (Raises,), {"blocking": blocking})()
    spout = FeederSpout()
    with running(chain(spout, bolt, bolt_conf={"topology.tick.tuple.freq.secs": 1})) as cluster:
        cluster.advance(seconds=1.5)
        result = [error.text.partition(" (")[0] for error in cluster.errors]
        assert result == ["on a tick: ValueError: no ticks please"]
        spout.feed([1])
        cluster.advance(seconds=0.1)
        assert spout.acked == [0]
        assert not cluster.dead_letters


def test_what_is_emitted_on_a_tick_may_be_anchored_to_held_inputs() -> None:
    class Batches(Collecting):
        def prepare(self, conf: Any, context: Any, collector: Any) -> None:
            super().prepare(conf, context, collector)
            self.held: list[Tuple] = []

        def execute(self, tup: Tuple) -> None:
            if not tup.is_tick:
                self.held.append(tup)
                return
            if self.held:
                self.collector.emit((sum(t[0] for t in self.held),), anchors=self.held)
                for held in self.held:
                    self.collector.ack(held)
            self.held = []

    spout, capture, tracker = FeederSpout(), CaptureBolt(), AckFailTracker()
    spout.tracker = tracker
    with running(
        chain(spout, Batches(), capture, bolt_conf={"topology.tick.tuple.freq.secs": 10}),
        {"topology.workers": 3},
    ) as cluster:
        feed(spout, range(5))
        cluster.advance(seconds=9)
        assert capture.values == []
        cluster.kill_worker("bolt")  # what it held comes again
        cluster.run_until_idle()
        assert capture.values == [(10,)]
        assert sorted(tracker.acked) == [0, 1, 2, 3, 4]


def test_a_stopping_worker_waits_for_the_row_its_thread_is_at_and_no_other() -> None:
    executed: list[int] = []
    is_in_a_row, may_end = threading.Event(), threading.Event()

    class Slow(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            executed.append(tup[0])
            is_in_a_row.set()
            may_end.wait(60)

        def cleanup(self) -> None:
            executed.append(-1)

    class Loop:
        """Worker's loop that takes in nothing more."""

        metrics = TaskMetrics()

        def post(self, call: Any) -> None: ...

        def now_ms(self) -> int:
            return 0

    threaded = ThreadedBolt(Slow(), None, Codec())
    loop: Any = Loop()
    source: Any = None
    threaded.prepare({}, loop, loop)
    for n in range(MAX_QUEUED):
        threaded.execute(Tuple((n,), (), source))
    assert is_in_a_row.wait(60)
    stopping = threading.Thread(target=threaded.cleanup)
    stopping.start()
    wait_until(lambda: threaded._queue.qsize() == 1, "the dropping of the rows that wait")
    may_end.set()
    stopping.join(60)
    assert executed == [0, -1]
