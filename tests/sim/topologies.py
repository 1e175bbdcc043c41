"""Topologies that are run under fault schedules, each with what must have come out at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Duration,
    FoldingBolt,
    Stateful,
    StatefulBolt,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.streams import AsOfJoinBolt, CalendarBolt, IntervalJoinBolt, LookupBolt, local_day
from sparkstorm.testing import FeederSpout, FlakyBolt, LocalCluster, Subject, TargetSink
from tests.topologies import Count, Split, feed

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "runs",
    "away",
    "from",
    "it",
]


RETRIES = {"topology.max.retries": 50, "topology.retry.backoff.ms": 5}


@dataclass
class Case:
    """A topology, its fed spout, and the state that a component must have in the end."""

    topology: Topology
    spout: FeederSpout
    component: str
    wanted: dict[Any, Any]
    messages: int
    conf: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[list[Any]]:
        """Return what the spout was fed."""
        return [list(values) for values, _, _ in self.spout._feed.value]

    def check(self, cluster: LocalCluster) -> None:
        """Exact results, every tree settled exactly once, nothing left anywhere."""
        state = cluster.state(self.component)
        assert state == self.wanted, {
            k: (state.get(k), self.wanted.get(k))
            for k in {*state, *self.wanted}
            if state.get(k) != self.wanted.get(k)
        }
        assert set(self.spout.acked) == set(range(self.messages))
        assert not self.spout.failed
        counts = cluster.counts("spout")
        assert (counts.acked, counts.failed, counts.pending) == (self.messages, 0, 0)
        topology = cluster.topology()
        assert not cluster.dead_letters
        assert not any(keys.held for keys in topology.store.task_keys.values())
        assert not topology.store.quarantine
        assert all(keys.backlog == 0 for keys in topology.store.task_keys.values())
        ledgers = [
            a.ledger
            for w in topology.workers
            if w.worker
            for a in w.worker.task_set.ackers.values()
        ]
        assert sum(map(len, ledgers)) == 0


def word_count(lines: int = 24) -> Case:
    """spout x2 -> split x2 -> count x2."""
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("spout")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    counts: Counter[str] = Counter()
    for n in range(lines):
        words = [WORDS[(n * 7 + i * 3) % len(WORDS)] for i in range(4)]
        counts.update(words)
        spout.feed([" ".join(words)])
    return Case(builder.build(), spout, "count", dict(counts), lines)


def to_target(lines: int = 16) -> Case:
    """spout x2 -> split x2 -> sink x2 and count: the rows in the sink's target are compared."""
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("spout")
    builder.set_bolt("sink", TargetSink(), 2).shuffle_grouping("split")
    builder.set_bolt("count", Count()).fields_grouping("split", "word")
    counts: Counter[str] = Counter()
    for n in range(lines):
        words = [f"{WORDS[n % len(WORDS)]}-{n}", "and"]
        counts.update(words)
        spout.feed([" ".join(words)])
    return Case(builder.build(), spout, "count", dict(counts), lines)


class Fork(BasicBolt):
    """One tuple to each of two streams, the second twice."""

    outputs = {"left": ("key", "side"), "right": ("key", "side")}  # noqa: RUF012

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup[0], "l"), stream="left")
        collector.emit((tup[0], "r"), stream="right")


class Join(Bolt):
    """Holds the first side of a key until the second comes; what it emits is anchored to both, and
    to the key before.
    """

    outputs = ("key",)

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.waiting: dict[Any, Tuple] = {}

    def execute(self, tup: Tuple) -> None:
        other = self.waiting.pop(tup[0], None)
        if other is None or other["side"] == tup["side"]:
            self.waiting[tup[0]] = tup
            return
        self.collector.emit((tup[0],), anchors=[other, tup])
        self.collector.ack(other)
        self.collector.ack(tup)


def fan_out_fan_in(keys: int = 24) -> Case:
    """spout -> fork -> two streams -> join x2 (multi-anchors, held inputs) -> count."""
    spout, builder = FeederSpout(["key"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fork", Fork(), 2).shuffle_grouping("spout")
    declarer = builder.set_bolt("join", Join(), 2)
    declarer.fields_grouping("fork", "key", stream="left").fields_grouping(
        "fork", "key", stream="right"
    )
    builder.set_bolt("count", Count(), 2).fields_grouping("join", "key")
    for n in range(keys):
        spout.feed([f"k{n}"])
    return Case(builder.build(), spout, "count", {f"k{n}": 1 for n in range(keys)}, keys)


class FlakyCount(StatefulBolt):
    """Counts, then raises by a rule that depends on the count of tries only, so that undo is what
    keeps it right.
    """

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)
        self.tries += 1
        if self.tries % 3 == 1:
            raise RuntimeError("flaky")


def flaky(lines: int = 16) -> Case:
    """Word count whose bolts fail now and then: retries, held inputs, undo."""
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("split", FlakyBolt(Split(), 1), 2).shuffle_grouping("spout")
    builder.set_bolt("count", FlakyCount(), 2).fields_grouping("split", "word")
    counts: Counter[str] = Counter()
    for n in range(lines):
        words = [WORDS[(n * 5 + i) % len(WORDS)] for i in range(3)]
        counts.update(words)
        spout.feed([" ".join(words)])
    return Case(builder.build(), spout, "count", dict(counts), lines, RETRIES)


class FlakyFold(FoldingBolt):
    """Sum per window; raises by a rule that depends on the count of tries only."""

    outputs = ("window", "sum")

    def prepare(self, conf: Any, context: Any) -> None:
        self.name = context.component_id
        self.tries = 0

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        self.tries += 1
        if self.tries % 3 == 1:
            raise RuntimeError("flaky")
        return accumulator + int(tup["number"])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((f"{self.name} to {window.last_ms}", window.value))


class FlakyMerge(FlakyFold):
    """The same, with accumulators that can be put together."""

    def merge(self, one: int, other: int) -> int:
        return one + other


class FlakyRelay(BasicBolt):
    """Passes rows on; raises as `FlakyFold` does."""

    outputs = ("ts", "number")

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.tries += 1
        if self.tries % 3 == 1:
            raise RuntimeError("flaky")
        collector.emit(tup.values)


class FlakyTimers(TimedBolt):
    """Sums per second in its state and emits each sum by a timer; raises as `FlakyFold` does."""

    outputs = ("window", "sum")
    in_order = False

    def prepare(self, conf: Any, context: Any) -> None:
        self.tries = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        last_ms = tup["ts"] - tup["ts"] % 1000 + 999
        self.state.put(last_ms, self.state.get(last_ms, 0) + tup["number"])
        self.timers.set_event_timer(last_ms, last_ms)
        self.tries += 1
        if self.tries % 3 == 1:
            raise RuntimeError("flaky")

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((f"timers to {timer.name}", self.state.get(timer.name)))


class Sums(StatefulBolt):
    """Adds what windows have emitted, so that a window that fires twice, or never, is seen."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup["window"], self.state.get(tup["window"], 0) + tup["sum"])


def flaky_windows(numbers: int = 20) -> Case:
    """spout -> two plain bolts -> tumbling, sliding and session windows and timers -> sums: all
    bolts raise now and then, and an input that waits for its next try is in its windows.
    """
    spout, builder = FeederSpout(["ts", "number"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("relay", FlakyRelay()).global_grouping("spout")
    builder.set_bolt("further", FlakyRelay()).global_grouping("relay")
    second = Duration.seconds(1)
    bolts: dict[str, Any] = {
        "tumbling": FlakyFold().with_tumbling_window(second),
        "sliding": FlakyMerge().with_window(Duration.seconds(2), second),
        "sessions": FlakyMerge().with_session_window(Duration.millis(300)),
        "timers": FlakyTimers(),
    }
    declarer = builder.set_bolt("sums", Sums())
    for name, joined in bolts.items():
        builder.set_bolt(name, joined.with_timestamp_field("ts")).global_grouping("further")
        declarer.global_grouping(name)
    wanted = Counter[str]()
    session = 0
    for n in range(numbers):
        ts = 250 * n + 200 * (n // 4)  # a pause after every fourth
        spout.feed([ts, n])
        last = ts - ts % 1000 + 999
        wanted.update({f"tumbling to {last}": n, f"timers to {last}": n})
        wanted.update({f"sliding to {last}": n, f"sliding to {last + 1000}": n})
        session += n
        if n % 4 == 3 or n == numbers - 1:
            wanted[f"sessions to {ts + 299}"] = session
            session = 0
    spout.finish()
    return Case(builder.build(), spout, "sums", dict(wanted), numbers, RETRIES)


class Sides(BasicBolt):
    """An order of each number, a payment of each but every third, and a rate by every fifth."""

    outputs = {  # noqa: RUF012
        "orders": ("id", "number", "ts"),
        "paid": ("id", "ts"),
        "rates": ("rate", "ts"),
    }

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        ts, number = tup.values
        collector.emit((number, number, ts), stream="orders")
        if number % 3:
            collector.emit((number, ts + 7), stream="paid")
        if number % 5 == 0:
            collector.emit((number, ts), stream="rates")


class Paid(BasicBolt):
    """A row for `Sums` of what a join has emitted; the rate is by a key that all rows share."""

    outputs = ("id", "all", "window", "sum", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        kind = "unpaid" if tup["paid_at"] is None else "paid"
        collector.emit((tup["id"], 0, kind, tup["number"], tup["ts"]))


class Rated(BasicBolt):
    """A row for `Sums` of a joined rate."""

    outputs = ("window", "sum")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((f"rate {tup['rate']}", tup["number"]))


class Rates(BasicBolt):
    """Rates under a key that all rows share."""

    outputs = ("all", "rate", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((0, *tup.values))


def stream_joins(numbers: int = 20) -> Case:
    """spout -> orders and payments -> interval join -> as-of join with rates -> sums."""
    spout, builder = FeederSpout(["ts", "number"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("sides", Sides()).global_grouping("spout")
    paid = IntervalJoinBolt("sides:orders", "id").left_join("sides:paid", upper=Duration.millis(10))
    paid = paid.select("id", "number", "sides:orders:ts", "sides:paid:ts as paid_at")
    lag = Duration.seconds(1)
    builder.set_bolt(
        "paid",
        paid.with_timestamp_field("ts").with_lag(lag),
        2,
        inputs=["sides:orders", "sides:paid"],
    )
    builder.set_bolt("of_kind", Paid()).global_grouping("paid")
    builder.set_bolt("of_all", Rates()).global_grouping("sides", "rates")
    rated = AsOfJoinBolt("of_kind", "all").left_join("of_all")
    rated = rated.select("rate", "sum as number").with_timestamp_field("ts").with_lag(lag)
    builder.set_bolt("rated", rated, inputs=["of_kind", "of_all"])
    builder.set_bolt("of_rate", Rated()).global_grouping("rated")
    builder.set_bolt("sums", Sums()).global_grouping("of_kind").global_grouping("of_rate")
    wanted = Counter[str]()
    for n in range(numbers):
        spout.feed([20 * n, n])
        wanted["paid" if n % 3 else "unpaid"] += n
        wanted[f"rate {n - n % 5}"] += n
    spout.finish()
    return Case(builder.build(), spout, "sums", dict(wanted), numbers)


def squares(keys: Sequence[int]) -> dict[int, int]:
    """A look-up that has no odd key; every third call fails."""
    squares.calls += 1  # type: ignore[attr-defined]
    if squares.calls % 3 == 1:  # type: ignore[attr-defined]
        raise ConnectionError("away")
    return {key: key * key for key in keys if key % 2 == 0}


squares.calls = 0  # type: ignore[attr-defined]


_calls = count()


class Squared(BasicBolt):
    """A row for `Sums` of what was looked up."""

    outputs = ("window", "sum")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        square = tup["square"]
        collector.emit(("missing", 1) if square is None else (f"square {square}", tup["number"]))


def look_ups(numbers: int = 20) -> Case:
    """spout x2 -> look-up x2, on threads and with calls that fail -> sums."""
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    bolt = LookupBolt(squares, "number", keep=["number"], add=["square"], batch=3)
    builder.set_bolt("look_up", bolt, 2).shuffle_grouping("spout")
    builder.set_bolt("squared", Squared(), inputs="look_up")
    builder.set_bolt("sums", Sums()).global_grouping("squared")
    wanted = Counter[str]()
    for n in range(numbers):
        spout.feed([n % 8])
        wanted.update({"missing": 1} if n % 2 else {f"square {(n % 8) ** 2}": n % 8})
    return Case(builder.build(), spout, "sums", dict(wanted), numbers, RETRIES)


@bolt("number", "square", capacity=3, ordered=False)
async def awaited_square(tup: Any) -> Any:
    if next(_calls) % 5 == 0:
        raise ConnectionError("away")
    await asyncio.sleep(0.001 * (tup["number"] % 3))
    yield tup["number"], tup["number"] ** 2 if tup["number"] % 2 == 0 else None


def awaiting(numbers: int = 20) -> Case:
    """spout x2 -> coroutines x2, which end in another order and fail now and then -> sums."""
    case = look_ups(numbers)
    builder = TopologyBuilder()
    builder.set_spout("spout", case.spout, 2)
    builder.set_bolt("look_up", awaited_square, 2).shuffle_grouping("spout")
    builder.set_bolt("squared", Squared(), inputs="look_up")
    builder.set_bolt("sums", Sums()).global_grouping("squared")
    return replace(case, topology=builder.build())


def flaky_days(numbers: int = 20) -> Case:
    """spout -> relay -> days of 23 and 24 hours -> sums, all of which raise now and then."""
    spout, builder = FeederSpout(["ts", "number"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("relay", FlakyRelay()).global_grouping("spout")
    shape = local_day("Europe/Berlin")
    days = CalendarBolt(FlakyFold(), shape).with_timestamp_field("ts")
    builder.set_bolt("days", days).global_grouping("relay")
    builder.set_bolt("sums", Sums()).global_grouping("days")
    wanted = Counter[str]()
    for n in range(numbers):
        ts = 1_774_652_400_000 + 9 * 3_600_000 * n  # the day before a change of clocks
        spout.feed([ts, n])
        wanted[f"days to {shape.span(ts)[1] - 1}"] += n
    spout.finish()
    return Case(builder.build(), spout, "sums", dict(wanted), numbers, RETRIES)


class Batch(Stateful, Bolt):
    """Gathers inputs and sums them at a tick: acks come epochs later, state is put only then."""

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.gathered: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        if not tup.is_tick:
            self.gathered.append(tup)
            return
        for gathered in self.gathered:
            self.state.put(gathered[0] % 5, self.state.get(gathered[0] % 5, 0) + gathered[0])
            self.collector.ack(gathered)
        self.gathered = []


def batching(numbers: int = 40) -> Case:
    """spout -> batch x2, which acks at ticks."""
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt(
        "batch", Batch(), 2, conf={"topology.tick.tuple.freq.secs": 0.03}
    ).fields_grouping("spout", "number")
    builder.set_bolt("sum", Sum()).global_grouping("spout")
    feed(spout, range(numbers))
    return Case(builder.build(), spout, "sum", {"sum": sum(range(numbers))}, numbers)


class Sum(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put("sum", self.state.get("sum", 0) + tup[0])


class Loop(BasicBolt):
    """Sends a number round until it is used up."""

    outputs = {"again": ("number",), "done": ("number",)}  # noqa: RUF012

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = tup[0]
        collector.emit(
            (number - 1,) if number > 1 else (number,), stream="again" if number > 1 else "done"
        )
        collector.emit((1,), stream="done")


def loop(numbers: int = 12) -> Case:
    """A graph with a cycle: every number goes round as often as it says."""
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("loop", Loop(), 2).shuffle_grouping("spout").shuffle_grouping(
        "loop", stream="again"
    )
    builder.set_bolt("sum", Sum()).global_grouping("loop", stream="done")
    for n in range(numbers):
        spout.feed([n % 4 + 1])
    wanted = sum(n % 4 + 2 for n in range(numbers))
    return Case(builder.build(), spout, "sum", {"sum": wanted}, numbers)


class Fan(BasicBolt):
    """A hundred tuples for one: entries of many rows, which no epoch takes as a whole."""

    outputs = ("number", "place")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for index in range(100):
            collector.emit((tup[0], index))


class Sift(BasicBolt):
    """Hands on one tuple in fifty, so that most parts of an entry send nothing on."""

    outputs = ("number",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["place"] % 50 == 0:
            collector.emit((tup["number"],))


def wide(numbers: int = 12) -> Case:
    """spout x2 -> fan -> sift x2 -> sum: large entries, consumed in parts."""
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt("fan", Fan()).shuffle_grouping("spout")
    builder.set_bolt("sift", Sift(), 2).fields_grouping("fan", "number")
    builder.set_bolt("sum", Sum()).global_grouping("sift")
    feed(spout, range(numbers))
    return Case(builder.build(), spout, "sum", {"sum": 2 * sum(range(numbers))}, numbers)


class Refuse(BasicBolt):
    """Raises on every third number, always; hands on the others."""

    outputs = ("number",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] % 3 == 0:
            raise ValueError(f"no {tup[0]}")
        collector.emit((tup[0],))


def refusing(numbers: int = 12) -> Case:
    """spout x2 -> refuse x2 -> sum: one tuple in three is tried again, parked, and fails its
    tree.
    """
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt("refuse", Refuse(), 2).shuffle_grouping("spout")
    builder.set_bolt("sum", Sum()).global_grouping("refuse")
    feed(spout, range(numbers))
    wanted = sum(n for n in range(numbers) if n % 3)
    return Case(
        builder.build(),
        spout,
        "sum",
        {"sum": wanted},
        numbers,
        {"topology.max.retries": 2, "topology.retry.backoff.ms": 300},
    )


CASES: dict[str, Callable[..., Case]] = {
    "word_count": word_count, "fan_out_fan_in": fan_out_fan_in, "flaky": flaky, "batching": batching, "loop": loop,
    "wide": wide, "refusing": refusing, "to_target": to_target, "flaky_windows": flaky_windows,
    "stream_joins": stream_joins, "look_ups": look_ups, "flaky_days": flaky_days,
    "awaiting": awaiting,
}  # fmt: skip


def subject(name: str, *size: int) -> Subject:
    """A case for `simulate`, whose sources are fed while faults strike."""
    case = CASES[name](*size)
    return Subject(lambda: CASES[name](*size).topology, {"spout": case.rows}, case.conf)


# so many lines, keys or numbers
small_word_count = partial(subject, "word_count", 10)
small_to_target = partial(subject, "to_target", 10)
small_fan_out_fan_in = partial(subject, "fan_out_fan_in", 10)
small_flaky = partial(subject, "flaky", 6)
small_flaky_windows = partial(subject, "flaky_windows", 8)
small_loop = partial(subject, "loop", 6)
small_stream_joins = partial(subject, "stream_joins", 8)
small_look_ups = partial(subject, "look_ups", 12)
small_awaiting = partial(subject, "awaiting", 12)
small_flaky_days = partial(subject, "flaky_days", 8)
