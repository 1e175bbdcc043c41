"""Screens of the page over simulated clusters whose time stands still: each screen of a topology
that works, and states that are rare - nothing runs, stores and leader are away, a topology is
deactivated, killed, upgraded or large, names are hostile, the connection is read-only.

Nothing on them depends on when or how often they are made, so their pictures are equal to the pixel
(`tests.browser.pictures`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    TopologyBuilder,
    TransactionalSink,
    Tuple,
    WindowedBolt,
)
from sparkstorm.client.looks.stacks import Stack, Stacks
from sparkstorm.client.looks.traces import Trace, TraceEvent
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.upgrade import UpgradeStage
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.control_plane.insight.reading import StoreReading
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.data_plane.transport.progress import STATES as STATES_OF_LOOP
from sparkstorm.extensions.upgrade.handle import UpgradeStatus
from sparkstorm.extensions.upgrade.live_shadow import ShadowFigures
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.browser.world import CONF, Take, idle, order, sums_of
from tests.insight.watched import watched
from tests.web.listening import LargeSource, Listening, listening, nowhere
from tests.web.served import SimulatedClient

HOSTILE = "</script><img src=x onerror=alert(1)>\u202egnp.exe" + " and a name without an end" * 6


@dataclass(frozen=True)
class Screen:
    """One screen: the name of its picture, its query, words that are on it when it is there, the
    labels of buttons to be pressed one after the other, and a selector of what is there then.
    """

    name: str
    query: Mapping[str, str]
    words: str
    press: tuple[str, ...] = ()
    then: str = ""


class Fixed:
    """A source that gives the readings of another one, changed; the same one again and again while
    it stands still, or an error in their place.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._last: StoreReading | None = None
        self.change: Callable[[StoreReading], StoreReading] = lambda reading: reading
        self.error = ""
        self.is_still = False

    def read(self) -> StoreReading:
        if self.error:
            raise StoreUnavailableError(self.error)
        if self._last is None or not self.is_still:
            self._last = self._source.read()
        return self.change(self._last)


# A page that gets no sample for 5 s says so. One a second would load the machine for nothing.
_SAMPLE_S = 2.0


@contextmanager
def _standing(
    sampler: Sampler, opened: Any = nowhere, is_read_only: bool = False
) -> Iterator[Listening]:
    """Serve a cluster whose time stands still, and sample it, so that no page waits for news."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_SAMPLE_S):
            sampler.step()

    thread = threading.Thread(target=run)
    with listening(sampler, opened, is_read_only=is_read_only) as at:
        thread.start()
        try:
            yield at
        finally:
            ended.set()
            thread.join()


Served = tuple[Listening, list[Screen]]


@contextmanager
def _nothing() -> Iterator[Served]:
    with LocalCluster(is_lively=True) as cluster:
        cluster.advance(seconds=3)
        sampler = Sampler(cluster.source())
        sampler.step()
        with _standing(sampler) as at:
            yield (
                at,
                [
                    Screen("empty", {}, "No topology runs here"),
                    Screen("unknown", {"topology": "nowhere"}, "is not alive"),
                ],
            )


@contextmanager
def _unread() -> Iterator[Served]:
    source = Fixed(None)
    source.error = "ZooKeeper at 10.0.0.7:2181 does not answer: connection refused"
    sampler = Sampler(source)
    sampler.step()
    with _standing(sampler) as at:
        yield at, [Screen("unread", {}, "does not answer")]


@contextmanager
def _with(
    name: str, fault: Callable[[Fixed], None], words: str, of_topology: str = ""
) -> Iterator[Served]:
    with watched() as run:
        run.feed(20)
        source = Fixed(run.cluster.source())
        sampler = Sampler(source)
        sampler.step()
        fault(source)
        sampler.step()
        with _standing(sampler) as at:
            cluster = Screen(f"{name}-cluster", {}, words)
            at_topology = {"topology": "words"}
            yield at, [cluster, Screen(f"{name}-topology", at_topology, of_topology or "words")]


def _zookeeper(source: Fixed) -> None:
    source.error = "ZooKeeper does not answer"


def _redis(source: Fixed) -> None:
    problem = "Redis at 10.0.0.8:6379 does not answer: connection refused"

    def change(reading: StoreReading) -> StoreReading:
        found = {
            id: replace(each, look=None, problem=problem) for id, each in reading.topologies.items()
        }
        return replace(reading, topologies=found)

    source.change = change


def _full(source: Fixed) -> None:
    def change(reading: StoreReading) -> StoreReading:
        found = {}
        for id, each in reading.topologies.items():
            assert each.look is not None
            progress = {slot: deepcopy(of) for slot, of in each.look.progress.items()}
            for counts in (c for of in progress.values() for c in of.counts_by_task.values()):
                counts.store_us = 900_000 if counts.component == "lines" else 0
                counts.is_exhausted = False
            beats = tuple(replace(beat, stats={"store_percent": 97}) for beat in each.beats)
            look = replace(each.look, progress=progress)
            problem = (
                "work stands still: Redis is at 97% of its maxmemory, and spouts pause from 60% on"
            )
            found[id] = replace(each, look=look, beats=beats, problems=(problem,))
        return replace(reading, topologies=found)

    source.change = change


def _leader(source: Fixed) -> None:
    source.change = lambda reading: replace(reading, leader=None)


@contextmanager
def _deactivated() -> Iterator[Served]:
    with watched() as run:
        run.feed(20)
        run.cluster.deactivate("words")
        run.pass_seconds(20)
        with _standing(run.sampler) as at:
            topology = Screen("deactivated-topology", {"topology": "words"}, "is deactivated")
            yield at, [Screen("deactivated-cluster", {}, "INACTIVE"), topology]


def _killed(source: Fixed) -> None:
    def change(reading: StoreReading) -> StoreReading:
        found = {
            id: replace(each, base=replace(each.base, status=TopologyStatus.KILLED))
            for id, each in reading.topologies.items()
        }
        return replace(reading, topologies=found)

    source.change = change


# Shares of time by component; the simulation's own are nearly 0.
_BUSY = {"orders": 0.12, "clean": 0.44, "sum": 0.83, "alerts": 0.05, "archive": 0.71}
_HELD = 0.62
_PENDING = 24
# 2026, where a simulation's time begins
_BEGAN_MS = 1_767_225_600_000
_LOOP = {"busy": 0.57, "commit": 0.14, "read": 0.06, "pending": 0.04}
_QUEUED = {"sum": 3_100, "archive": 240}


def _loaded(reading: StoreReading) -> StoreReading:
    """Return a reading in which the spout waits for a busy bolt, with memory and CPU of workers."""
    found = {}
    for id, each in reading.topologies.items():
        if each.look is None:
            continue
        progress = {slot: _busy(of) for slot, of in each.look.progress.items()}
        beats = tuple(
            replace(beat, pid=1000 + at, stats={"memory_mb": 84 + at, "cpu_percent": 61 + at})
            for at, beat in enumerate(each.beats)
        )
        queued = {
            task: replace(beat, queued=_QUEUED.get(beat.component, 0))
            for task, beat in each.beat_by_task.items()
        }
        look = StoreSnapshot(progress, dict.fromkeys(each.look.backlog_by_task, 0))
        found[id] = replace(each, look=look, beats=beats, beat_by_task=queued)
    return replace(reading, topologies=found)


def _busy(of: Any) -> Any:
    made = deepcopy(of)
    passed_ms = made.now_ms - _BEGAN_MS
    made.loop_us = [int(_LOOP.get(state, 0.0) * 1000 * passed_ms) for state in STATES_OF_LOOP]
    for task, counts in made.counts_by_task.items():
        share = _BUSY.get(counts.component, 0.0) - 0.09 * (task % 3)
        counts.busy_us = int(max(0.01, share) * 1000 * passed_ms)
        if counts.component == "orders":
            counts.pending_us = int(_HELD * 1000 * passed_ms)
            counts.pending = _PENDING
    return made


class _Answers:
    """A handle whose answers about running code are fixed: a simulation has no processes."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def stacks(self, slot: str, seconds: float) -> Stacks:
        loop = ("main (worker/__main__.py)", "turn (data_plane/worker/loop.py)")
        code = (*loop, "execute (sums.py:31)")
        stacks = (
            Stack("MainThread", (*code, "add (state/tables.py:88)"), 118, 2_200_000),
            Stack("MainThread", (*code, "update (metrics.py:140)"), 44, 800_000),
            Stack("MainThread", (*loop, "commit (data_plane/worker/commits.py:212)"), 61, 700_000),
            Stack("MainThread", (*loop, "read (data_plane/transport/reader.py:96)"), 27, 90_000),
            Stack("beats", ("run (worker/beats.py:40)", "wait (threading.py:331)"), 250, 0),
        )
        return Stacks(slot, seconds, 250, stacks)

    def traces(self, seconds: float, per_s: float | None) -> list[Trace]:
        found = (("executed", "clean", 6, 4, 30, 900), ("executed", "sum", 9, 1_500, 1_900, 8_000))
        first = TraceEvent("emitted", "orders", 4, "node2:6700", "", 0, 40, 700)
        events = tuple(
            TraceEvent(what, name, task, "node1:6700", "orders/default", began, ended, committed)
            for what, name, task, began, ended, committed in found
        )
        failed = TraceEvent(
            "failed",
            "clean",
            6,
            "node1:6700",
            "orders/default",
            9,
            70,
            900,
            "ValueError: no amount",
        )
        return [
            Trace("9f3a00000000beef", (first, failed)),
            Trace("9f3a0000000000aa", (first, *events)),
        ]

    @property
    def upgrade(self) -> Any:
        return self

    def status(self) -> UpgradeStatus:
        first = ("customer c2: total 81, was 80", "customer c4: total 13, was 12")
        return UpgradeStatus(
            self._handle.topology_id,
            "UPGRADING",
            UpgradeStage.SHADOWING,
            upgraded=(),
            upgrading=(WorkerSlot("node1", 6700),),
            remaining=(WorkerSlot("node2", 6700),),
            batches=1,
            shadow=ShadowFigures("sum", 9, "code-2", 612, 2, 4, first),
            shadow_tuples=1_000,
        )


class _StillClient(SimulatedClient):
    """A client of a simulated cluster, with fixed answers about running code."""

    def topology(self, name: str) -> Any:
        found = super().topology(name)
        return _Answers(found) if name == "orders" else found


@contextmanager
def _orders() -> Iterator[Served]:
    """Serve every screen of a topology that works hard; some of its orders are bad."""
    orders = FeederSpout(["order"])
    with LocalCluster(is_lively=True) as cluster:
        # of the bad orders some wait for their next try, and some are dead letters
        conf = {**CONF, "topology.retry.backoff.ms": 30_000}
        cluster.submit(sums_of(orders), conf, "orders")
        cluster.submit(idle(), {}, "a-topology-with-a-long-name-that-rests")
        source = Fixed(cluster.source())
        source.change = _loaded
        sampler = Sampler(source)
        for second in range(90):
            for at in range(20):
                orders.feed([order(second, at)], f"order-{second}-{at}")
            cluster.advance(seconds=1)
            sampler.step()
        source.is_still = True
        lines = b"".join(
            b"2026-11-24 17:02:%02d.120 %s sum#9 commit %d\n"
            % (n % 60, b"WARNING" if n % 9 == 0 else b"INFO", n)
            for n in range(300)
        )
        slots = sorted(sampler.topology("orders").workers)
        logs = dict.fromkeys(slots, lines)
        with _standing(sampler, partial(_StillClient, cluster, logs)) as at_port:
            yield at_port, _screens_of_orders(slots[0])


def _screens_of_orders(slot: str) -> list[Screen]:
    at = {"topology": "orders"}
    worker = {**at, "tab": "workers", "worker": slot}
    journey = {**at, "tab": "journey"}
    return [
        Screen("orders-cluster", {}, "orders"),
        Screen("orders", at, "does not run well"),
        Screen("orders-skew", at, "executes 60% of its inputs"),
        Screen("orders-3h", {**at, "window": "3h"}, "does not run well"),
        Screen("orders-table", {**at, "as": "table"}, "archive"),
        Screen("orders-component", {**at, "component": "sum"}, "Metrics of its code"),
        Screen("orders-workers", {**at, "tab": "workers"}, slot),
        Screen("orders-log", worker, "commit 299"),
        Screen("orders-flame", worker, "commit 299", ("Stacks, 5 s",), "svg.flame"),
        Screen("orders-errors", {**at, "tab": "errors"}, "ValueError"),
        Screen("orders-letters", {**at, "tab": "letters"}, "tuples parked"),
        Screen(
            "orders-letter",
            {**at, "tab": "letters"},
            "tuples parked",
            ("summary",),
            "details[open]",
        ),
        Screen("orders-journey", journey, "open for"),
        Screen(
            "orders-traces", journey, "open for", ("Follow a sample", "summary"), "details[open]"
        ),
        Screen("orders-upgrade", {**at, "tab": "upgrade"}, "came out differently"),
        Screen("orders-conf", {**at, "tab": "conf"}, "topology.workers"),
        Screen("orders-rebalance", at, "does not run well", ("Rebalance",), "dialog pre"),
        Screen("orders-log-level", at, "does not run well", ("Log level",), "dialog pre"),
        Screen("orders-kill", at, "does not run well", ("Kill",), "dialog pre"),
        Screen("orders-past", {**at, "at": str(_BEGAN_MS + 40_000)}, "Back to now"),
    ]


@contextmanager
def _read_only() -> Iterator[Served]:
    with watched() as run:
        run.feed(20)
        with _standing(run.sampler, is_read_only=True) as at:
            topology = {"topology": "words"}
            yield (
                at,
                [
                    Screen("read-only", topology, "read-only: no actions"),
                    Screen("read-only-letters", {**topology, "tab": "letters"}, "read-only"),
                ],
            )


@contextmanager
def _large() -> Iterator[Served]:
    source = Fixed(LargeSource(100, 10))
    sampler = Sampler(source)
    for _ in range(30):
        sampler.step()
    source.is_still = True
    with _standing(sampler) as at:
        many = {"topology": "large"}
        yield (
            at,
            [
                Screen("large-cluster", {}, "large"),
                Screen("large", many, "c99"),
                Screen("large-overview", {**many, "as": "overview"}, "c99"),
                Screen("large-component", {**many, "component": "c7"}, "c7"),
                Screen("large-workers", {**many, "tab": "workers"}, "node-1:6700"),
                Screen("large-past", {**many, "at": "12000"}, "Back to now"),
            ],
        )


class Odd(BasicBolt):
    """Fails on the text "bad"."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if "bad" in tup["line"]:
            raise ValueError(f"{HOSTILE} is not a line")
        collector.emit([tup["line"]])


@contextmanager
def _hostile() -> Iterator[Served]:
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("img-src-x-onerror-alert", spout)
    builder.set_bolt(
        "a-component-with-a-name-of-eighty-characters-which-nobody-would-call-short", Odd(), 2
    ).shuffle_grouping("img-src-x-onerror-alert")
    with LocalCluster(is_lively=True) as cluster:
        name = "w" * 60
        cluster.submit(builder.build(), {"topology.max.retries": 0, "topology.workers": 2}, name)
        sampler = Sampler(cluster.source())
        spout.feed([f"bad {HOSTILE}"], HOSTILE)
        for _ in range(10):
            spout.feed(["a line"])
            cluster.advance(seconds=1)
            sampler.step()
        view = sampler.topology(name)
        logs = dict.fromkeys(view.workers, f"{HOSTILE} {'x' * 500}\n".encode() * 40)
        with _standing(sampler, lambda: SimulatedClient(cluster, logs)) as at:
            slot = next(iter(view.workers))
            yield (
                at,
                [
                    Screen("hostile-cluster", {}, name),
                    Screen("hostile-topology", {"topology": name}, name),
                    Screen("hostile-errors", {"topology": name, "tab": "errors"}, r"\u202egnp.exe"),
                    Screen("hostile-letters", {"topology": name, "tab": "letters"}, "bad"),
                    Screen(
                        "hostile-log", {"topology": name, "tab": "workers", "worker": slot}, "img"
                    ),
                    Screen("hostile-name", {"topology": HOSTILE}, "is not alive"),
                ],
            )


class Late(WindowedBolt):
    """Takes windows; what comes behind them is late."""

    def execute(self, window: Any, collector: BasicOutputCollector) -> None:
        return


class Refusing(BasicBolt):
    """Refuses every row."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise ValueError(f"no price in {tup['key']}")


class Stuck(TransactionalSink):
    """Writes into a target that is away."""

    def write(self, tup: Tuple) -> None:
        return

    def prepare(self, epoch: int) -> Any:
        raise ConnectionError("10.0.0.9:5432 refuses the connection")

    def commit(self, epoch: int, prepared: Any) -> None:
        return


def _late() -> WindowedBolt:
    return Late().with_tumbling_window(Duration.seconds(1)).with_timestamp_field("at_ms")


_CAUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "failing": (Refusing, "take: 60 inputs became dead letters"),
    "late": (_late, "take: 20 of 60 inputs came too late"),
    "stuck": (Stuck, "waits for its target: ConnectionError: 10.0.0.9:5432 refuses"),
    "killed": (Take, "killed by signal 9"),
}
"""A planted cause by its name: the bolt that has it, and words of the first screen that name it."""


@contextmanager
def _cause(name: str) -> Iterator[Served]:
    """A topology with one planted cause, read from the screen that is seen first."""
    make, words = _CAUSES[name]
    spout, builder = FeederSpout(["key", "at_ms"]), TopologyBuilder()
    builder.set_spout("rows", spout)
    builder.set_bolt("take", make(), 2).fields_grouping("rows", "key")
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2, "topology.max.retries": 0}, name)
        sampler = Sampler(cluster.source())
        for at_ms in (1_000, 100_000, 2_000):
            for _ in range(20):
                spout.feed(["one key", at_ms])
            cluster.advance(seconds=5)
            sampler.step()
        if name == "killed":
            cluster.kill_worker()
        for _ in range(6):
            cluster.advance(seconds=5)
            sampler.step()
        with _standing(sampler) as at:
            yield at, [Screen(f"cause-{name}", {"topology": name}, words)]


STATES: dict[str, Callable[[], Any]] = {
    "orders": _orders,
    "nothing": _nothing,
    "unread": _unread,
    "zookeeper": lambda: _with("zookeeper", _zookeeper, "No news from the cluster"),
    "redis": lambda: _with("redis", _redis, "does not answer"),
    "leader": lambda: _with("leader", _leader, "No Nimbus leads"),
    "full": lambda: _with("full", _full, "at 97% of its maxmemory", "(Redis is full)"),
    "deactivated": _deactivated,
    "killed": lambda: _with("killed", _killed, "KILLED"),
    "read-only": _read_only,
    "large": _large,
    "hostile": _hostile,
    **{f"cause-{name}": partial(_cause, name) for name in _CAUSES},
}
