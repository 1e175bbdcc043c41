"""Every cause for which "live equals replay" is not promised warns by its name; what is promised
does not warn.
"""

from __future__ import annotations

import functools
import random
import time
import time as clock
from collections.abc import Iterator
from random import choice
from time import time_ns as nanoseconds
from typing import Any

import pytest

from sparkstorm.api import (
    AsyncBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.api import bolt as as_bolt
from sparkstorm.api.windows import Count as Number
from sparkstorm.api.windows import Duration, FoldingBolt, TimedBolt, Window, WindowedBolt
from sparkstorm.common.model.topology import Grouping, Topology
from sparkstorm.common.windowing.settings import IDLE_MS
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.replay.bolt_code import only_adds
from sparkstorm.replay.equality_warnings import depends_on_order
from sparkstorm.streams import stream
from sparkstorm.streams.lookup import LookupBolt
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Count, Source
from tests.replay.random_topologies import ByKey
from tests.topologies import building

ROWS = [("a", 1), ("b", 9), ("a", 3)]  # out of order by 6 ms


class Quick(Count):
    order_insensitive = True


class Last(StatefulBolt):
    """Keeps what came last: of several senders, anyone who was slower."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put("last", tup.values[0])


class Again(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


class Awaits(AsyncBolt):
    outputs = ("key", "ts")

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


class AwaitsInAnyOrder(Awaits):
    ordered = False


class Sizes(WindowedBolt):
    outputs = ("size",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((len(window),))


class ByWallClock(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], time.time_ns()))


class ByChance(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], random.random()))


class KnowsItsTask(Again):
    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], self.context.task_index))


class Walks(StatefulBolt):
    """Emits the first key of its state."""

    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup["key"])
        collector.emit((next(iter(self.state.items()))[0], 0))


class AtTheEnd(Bolt):
    """Emits in `cleanup`."""

    outputs = ("key", "ts")

    def prepare(self, conf: Any, context: TopologyContext, collector: OutputCollector) -> None:
        self._collector = collector

    def execute(self, tup: Tuple) -> None:
        self._collector.ack(tup)

    def cleanup(self) -> None:
        self._collector.emit(("end", 1))


class SumsAtTheEnd(StatefulBolt):
    """Changes its state in `cleanup`."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add("n")

    def cleanup(self) -> None:
        self.state.put("n", -1)


def stamp() -> int:
    return nanoseconds()


def by_helper(tup: Tuple) -> Any:
    return stamp()


def by_alias(tup: Tuple) -> Any:
    return nanoseconds()


def by_module(tup: Tuple) -> Any:
    return clock.perf_counter_ns()


def by_chosen(tup: Tuple) -> Any:
    return choice("ab")


class ByContext(Again):
    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.now = context.now_ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], self.now()))


class Halves(StatefulBolt):
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup.values[0], tup.values[1] / 2)


class OrderedHalves(Halves):
    order_insensitive = False


def topology(
    bolt: Any,
    grouping: Grouping,
    tasks: int = 2,
    between: Any = None,
    conf: dict[str, Any] | None = None,
) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "ts"), 2)
    if between is not None:
        builder.set_bolt("between", between, 2).shuffle_grouping("source")
    builder.set_bolt("bolt", bolt, tasks, conf=conf).grouping(
        "source" if between is None else "between", grouping
    )
    return builder.build()


FIELDS = Grouping("fields", ("key",))


def window(bolt: Any, lag_ms: int = 0) -> Any:
    return (
        bolt.with_tumbling_window(Duration.millis(10))
        .with_timestamp_field("ts")
        .with_lag(Duration.millis(lag_ms))
    )


class Forgetful(Bolt):
    """Acks all but every third input."""

    outputs = ("key", "ts")

    def prepare(self, conf: Any, context: TopologyContext, collector: OutputCollector) -> None:
        self._collector = collector

    def execute(self, tup: Tuple) -> None:
        self._collector.emit(tup.values, anchors=tup)
        if tup["ts"] % 3:
            self._collector.ack(tup)


class Scans(StatefulBolt):
    """Reads its whole state for each tuple."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(f"{tup['key']}{tup['ts']}", list(self.state.scan(prefix="never")))


class Fails(Again):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise ValueError("never")


class ByEventTime(TimedBolt):
    """Depends on the order of its tuples, which is that of their times."""

    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put("last", tup["ts"])


class ByWallTimer(TimedBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.timers.set_processing_timer(tup["key"], 100)


class Latest(FoldingBolt):
    """The last value in the order of arrival."""

    outputs = ("value",)

    def initial(self) -> Any:
        return None

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return tup["ts"]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.value,))


class Greatest(Latest):
    """The greatest value, whatever the order."""

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return max(tup["ts"], -1 if accumulator is None else accumulator)


class Total(Latest):
    """A sum of floating-point numbers."""

    def initial(self) -> Any:
        return 0.0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return accumulator + tup["ts"]


class Seen(Latest):
    """Keeps what it folds in an attribute as well."""

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.times: set[int] = set()

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.times.add(tup["ts"])
        return len(self.times)


class SeenAtFiring(Seen):
    """Emits how many it has folded before the window fires: of later windows too."""

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((len(self.times),))


class Orderless(Sizes):
    order_insensitive = True


SHUFFLE, GLOBAL = Grouping("shuffle"), Grouping("global")
UPDATING = window(Sizes()).with_allowed_lateness(Duration.millis(5))
CAUSES: dict[str, Topology] = {
    "state behind shuffle grouping": topology(Quick(), SHUFFLE),
    "state behind partial_key grouping": topology(Quick(), Grouping("partial_key", ("key",))),
    "state behind custom grouping": topology(Quick(), Grouping("custom", custom=ByKey())),
    "state behind local_or_shuffle grouping": topology(Quick(), Grouping("local_or_shuffle")),
    "order of senders": topology(Last(), FIELDS),
    "ticks": topology(Quick(), FIELDS, conf={"topology.tick.tuple.freq.secs": 1}),
    "processing time": topology(Sizes().with_tumbling_window(Duration.millis(10)), GLOBAL),
    "late data": topology(window(Sizes()), GLOBAL, between=Again()),
    "updates": topology(UPDATING, GLOBAL),
    "idle senders": topology(window(Sizes()), GLOBAL, conf={IDLE_MS: 5}),
    "guarantee": topology(Quick(), FIELDS),
    "wall clock": topology(ByWallClock(), FIELDS),
    "chance": topology(ByChance(), FIELDS),
    "own task": topology(KnowsItsTask(), SHUFFLE),
    "order of keys": topology(Walks(), FIELDS),
    "cleanup": topology(AtTheEnd(), FIELDS),
    "float sums": topology(Halves(), FIELDS),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "ticks": {"event_time": EventTime("ts")},
    "guarantee": {"conf": {"topology.delivery.guarantee": "at-least-once"}},
}


@pytest.mark.parametrize(("bolt", "is_told"), [(Seen(), False), (SeenAtFiring(), True)])
def test_what_fold_and_firing_windows_share_is_warned_of_even_behind_one_sender(
    bolt: Any, is_told: bool
) -> None:
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("bolt", window(bolt, lag_ms=6)).global_grouping("source")
    found = replay_locally(builder.build(), {"source": ROWS}).warnings
    assert [w.cause for w in found] == ["firings"] * is_told


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_of_difference_warns_by_its_name_and_component(cause: str) -> None:
    results = replay_locally(CAUSES[cause], {"source": ROWS}, **OPTIONS.get(cause, {}))
    found = [w for w in results.warnings if w.cause == cause]
    assert [w.component for w in found] == ["bolt"]
    assert "component 'bolt'" in str(found[0])


def test_rows_that_reach_no_result_are_accounted_for() -> None:
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("forgetful", Forgetful()).shuffle_grouping("source")
    builder.set_bolt("sizes", window(Sizes(), lag_ms=2)).global_grouping("forgetful")
    rows = [("a", 10 * n) for n in range(1, 20)] + [("a", 4), ("a", 5)]
    results = replay_locally(builder.build(), {"source": rows})
    told = {(w.component, w.cause): w.text for w in results.warnings}
    assert told["forgetful", "open inputs"].startswith(
        "holds 6 of 21 inputs that it has neither acked nor failed"
    )
    assert "dropped 2 of 21 tuples as late" in told["sizes", "late rows"]
    assert (
        "'forgetful' came up to 186 ms behind newer ones, 2 ms are allowed"
        in told["sizes", "late rows"]
    )
    kept = topology(window(Sizes()).with_late_tuple_stream("late"), Grouping("global"))
    assert "late rows" not in {w.cause for w in replay_locally(kept, {"source": ROWS}).warnings}


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_dead_letters_that_a_live_run_has_not_are_warned_about(guarantee: str) -> None:
    built, conf = topology(Fails(), FIELDS), {"topology.delivery.guarantee": guarantee}
    results = replay_locally(built, {"source": ROWS}, conf=conf, skip_bad=True)
    assert len(results.dead_letters) == 3
    assert [w.cause for w in results.warnings] == ["dead letters"]
    assert replay_locally(built, {"source": ROWS}, skip_bad=True).warnings == ()


def test_scans_of_a_whole_state_for_each_tuple_are_named() -> None:
    results = replay_locally(
        topology(Scans(), Grouping("global")), {"source": [("a", n) for n in range(1500)]}
    )
    (text,) = [w.text for w in results.warnings if w.cause == "state scans"]
    assert text.startswith("read 1,124,250 keys with state.scan for 1,500 inputs")


@pytest.mark.parametrize(
    ("bolt", "depends"),
    [
        (Count(), True),
        (Quick(), False),
        (Last(), True),
        (Again(), False),
        (Forgetful(), True),
        (window(Orderless()), True),
        (Orderless().with_tumbling_window(Number(2)), True),
        (Halves(), False),
    ],
)
def test_what_may_depend_on_the_order_of_history_is_known_before_the_run(
    bolt: Any, depends: bool
) -> None:
    assert depends_on_order(topology(bolt, FIELDS), {}) is depends


def test_windows_by_count_depend_on_the_order_of_senders() -> None:
    counted = topology(Sizes().with_tumbling_window(Number(2)), Grouping("global"))
    assert "order of senders" in {
        w.cause for w in replay_locally(counted, {"source": ROWS}).warnings
    }


@pytest.mark.parametrize(
    "promised",
    [
        topology(Quick(), FIELDS),
        topology(Quick(), Grouping("global")),
        topology(Quick(), Grouping("all")),
        topology(Again(), Grouping("shuffle")),
        topology(window(Orderless(), lag_ms=6), Grouping("global")),
        topology(
            window(Sizes(), lag_ms=6).with_allowed_lateness(Duration.millis(5)), Grouping("global")
        ),
        topology(window(Orderless(), lag_ms=8), Grouping("global"), between=Again()),
        topology(window(Greatest(), lag_ms=8), Grouping("global"), between=Again()),
        topology(ByEventTime().with_timestamp_field("ts").with_lag(Duration.millis(6)), FIELDS),
    ],
)
def test_what_is_promised_does_not_warn(promised: Topology) -> None:
    assert replay_locally(promised, {"source": ROWS}).warnings == ()


@pytest.mark.parametrize(
    ("built", "causes"),
    [
        (
            topology(window(Orderless(), lag_ms=7), Grouping("global"), between=Again()),
            ["late data"],
        ),
        (topology(window(Sizes(), lag_ms=8), Grouping("global"), between=Again()), []),
        (
            topology(window(Latest(), lag_ms=8), Grouping("global"), between=Again()),
            ["order of senders"],
        ),
        (topology(window(Total(), lag_ms=8), Grouping("global"), between=Again()), ["float sums"]),
        (
            topology(ByWallTimer().with_timestamp_field("ts").with_lag(Duration.millis(8)), FIELDS),
            ["processing time"],
        ),
    ],
)
def test_warnings_of_windows_follow_from_the_times_that_were_seen(
    built: Topology, causes: list[str]
) -> None:
    """Rows from 1 to 9 ms pass two tasks in any order: they can be 8 ms behind."""
    assert [w.cause for w in replay_locally(built, {"source": ROWS}).warnings] == causes


def test_tuples_of_the_same_time_in_one_window_are_warned_about() -> None:
    built = topology(window(Sizes(), lag_ms=8), Grouping("global"), between=Again())
    result = [w.cause for w in replay_locally(built, {"source": [*ROWS, ("c", 3)]}).warnings]
    assert result == ["order of senders"]


@pytest.mark.parametrize(("tasks", "causes"), [(1, []), (3, ["late data"])])
def test_rows_divided_among_tasks_keep_the_order_of_one_sender(
    tasks: int, causes: list[str]
) -> None:
    """Two bolts of two tasks behind each other mix the rows of a long history; one bolt only
    divides them.
    """
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("one", Again(), 1 if tasks == 1 else 2).shuffle_grouping("source")
    builder.set_bolt("two", Again(), 2).shuffle_grouping("one")
    builder.set_bolt("last", window(Orderless(), lag_ms=6)).global_grouping("two")
    rows = [("a", 10 * n - 6 * (n % 2)) for n in range(1, 300)]
    for partitions in (1, 4):
        results = replay_locally(builder.build(), {"source": rows}, partitions=partitions)
        assert [w.cause for w in results.warnings] == causes


class Late(WindowedBolt):
    """Results with a time long past."""

    outputs = ("size", "ts")
    order_insensitive = True

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((len(window), max(0, window.last_ms - 50)))


class Punctual(Late):
    """Results with the time of the window's end."""

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((len(window), window.last_ms))


@pytest.mark.parametrize(
    ("first", "lag_ms", "causes"),
    [(Punctual(), 0, []), (Late(), 50, []), (Late(), 49, ["late data"])],
)
def test_windows_behind_windows_warn_when_results_are_older_than_what_was_announced(
    first: Any, lag_ms: int, causes: list[str]
) -> None:
    """Windows fire in the order of time, whatever the order of their tuples; announced is the end
    of the one that fires.
    """
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("mix", Again(), 2).shuffle_grouping("source")
    builder.set_bolt("first", window(first, lag_ms=1000), 1).global_grouping("mix")
    builder.set_bolt("second", window(Orderless(), lag_ms=lag_ms)).global_grouping("first")
    results = replay_locally(builder.build(), {"source": [("a", 7 * n) for n in range(100)]})
    result = [(w.component, w.cause) for w in results.warnings]
    assert result == [("second", cause) for cause in causes]


def test_the_order_of_one_sender_is_no_chance() -> None:
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("last", Last(), 2).fields_grouping("source", "key")
    assert replay_locally(builder.build(), {"source": ROWS}).warnings == ()


@pytest.mark.parametrize("snapshot", [{"a": 1}, "now"], ids=["mapping", "now"])
def test_what_is_looked_up_depends_on_the_moment_and_not_on_a_field_or_the_order(
    snapshot: Any,
) -> None:
    builder = TopologyBuilder()
    for name in ("source", "other"):
        builder.set_spout(name, Source("key", "ts"))
    bolt = LookupBolt(lambda keys: {}, "key", keep=("key",), add=("n",), snapshot=snapshot)
    builder.set_bolt("look_up", bolt, inputs=["source", "other"])
    (warning,) = replay_locally(builder.build(), {"source": ROWS, "other": ROWS}).warnings
    assert warning.cause == "wall clock" and "here those of the snapshot" in str(warning)


@pytest.mark.parametrize(
    ("bolt", "causes"), [(Awaits(), []), (AwaitsInAnyOrder(), ["order of senders"])]
)
def test_coroutines_that_pass_each_other_make_the_order_of_one_sender_chance(
    bolt: Bolt, causes: list[str]
) -> None:
    builder = building(source=Source("key", "ts"))
    builder.set_bolt("awaits", bolt).global_grouping("source")
    builder.set_bolt("last", Last()).global_grouping("awaits")
    found = replay_locally(builder.build(), {"source": ROWS}).warnings
    assert [(w.component, w.cause) for w in found] == [("last", cause) for cause in causes]


def test_the_order_of_senders_does_change_a_result() -> None:
    """The warning is earned: a live run ends with another tuple than the replay."""
    builder = building(left=Source("key", "ts"), right=Source("key", "ts"))
    builder.set_bolt("slow", Again(), 3).shuffle_grouping("left")
    builder.set_bolt("last", Last()).global_grouping("slow").global_grouping("right")
    rows = {"left": [(f"l{n}", n) for n in range(40)], "right": [(f"r{n}", n) for n in range(40)]}
    replayed = replay_locally(builder.build(), rows)
    assert replayed.states["last"] != complete_topology(builder.build(), rows).state("last")
    assert [w.cause for w in replayed.warnings] == ["order of senders"]


def test_floats_of_a_bolt_without_order_are_told_even_behind_one_sender() -> None:
    """Spark may bring its data in another order than the live one."""
    for bolt, is_told in ((OrderedHalves(), False), (Halves(), True)):
        builder = building(source=Source("key", "ts"))
        builder.set_bolt("bolt", bolt, 2).fields_grouping("source", "key")
        found = replay_locally(builder.build(), {"source": ROWS}).warnings
        assert ("float sums" in {w.cause for w in found}) is is_told


class Helped(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        _help(self, tup)


def _help(bolt: Any, tup: Tuple) -> None:
    bolt.state.put(tup["key"], tup["ts"])


class Aliased(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        state = self.state
        state.put(tup["key"], tup["ts"])


class Reflected(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        getattr(self, "sta" + "te").put(tup["key"], tup["ts"])


class Kept(StatefulBolt):
    def init_state(self, state: Any) -> None:
        self.mine = state

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.mine.put(tup["key"], tup["ts"])


class Summed(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.state.add(tup["key"]) > 1:
            self.state.add("often")


class Adding(StatefulBolt):
    outputs = ("key",)

    def prepare(self, conf: Any, context: Any) -> None:
        self.step = int(conf.get("step", 2))

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for key in self._keys(tup):
            self.state.add(key, self.step)
        collector.emit((tup["key"],))

    def _keys(self, tup: Tuple) -> list[Any]:
        return [tup["key"], (tup["key"], tup["ts"] % 2)]


class Patched(Adding):
    execute = Helped.execute


class Wrapped(Adding):
    @staticmethod
    def look(bolt: Any) -> Any:
        return bolt.state


@pytest.mark.parametrize(
    ("bolt", "is_free"),
    [
        (Adding, True), (Helped, False), (Aliased, False), (Reflected, False), (Kept, False), (Summed, False), (Patched, False),
        (Wrapped, False), (type("Made", (Adding,), {"execute": lambda self, tup, collector: None}), False),
    ],
)  # fmt: skip
def test_only_a_bolt_that_adds_and_does_no_more_is_free_of_order(bolt: Any, is_free: bool) -> None:
    assert only_adds(bolt()) is is_free
    rows = [("a", n, n) for n in range(20)]
    builder = TopologyBuilder()
    for name in ("one", "other"):
        builder.set_spout(name, Source("key", "ts", "value"))
    builder.set_bolt("bolt", bolt()).global_grouping("one").global_grouping("other")
    found = replay_locally(builder.build(), {"one": rows, "other": rows})
    assert [w.cause for w in found.warnings] == ([] if is_free else ["order of senders"])


@as_bolt(key="key")
def adding(tup: Tuple, state: Any) -> None:
    for part in (tup["key"], ("all", tup["ts"] % 2)):
        state.add(part, 2)


@as_bolt(key="key")
def last(tup: Tuple, state: Any) -> None:
    state.put(tup["key"], tup["ts"])


@as_bolt(key="key")
def handed_on(tup: Tuple, state: Any) -> None:
    state.add(tup["key"])
    _put(state, tup)


def _put(state: Any, tup: Tuple) -> None:
    state.put("last", tup["ts"])


@as_bolt("n", key="key")
def counted(tup: Tuple, state: Any) -> Iterator[Any]:
    yield (state.add(tup["key"]),)


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(tup: Tuple, state: Any) -> None:
        state.put("last", tup["ts"])
        function(tup, state)

    return wrapper


@as_bolt(key="key")
@_wrapped
def wrapped(tup: Tuple, state: Any) -> None:
    state.add(tup["key"])


UNREAD: dict[str, Any] = {}
exec("def unwritten(tup, state):\n    state.put('last', tup['ts'])", UNREAD)


@pytest.mark.parametrize(
    ("function", "is_free"),
    [
        (adding, True), (last, False), (handed_on, False), (counted, False), (wrapped, False),
        (as_bolt(key="key")(UNREAD["unwritten"]), False),
    ],
)  # fmt: skip
def test_a_function_with_state_is_free_of_order_if_it_only_adds(
    function: Any, is_free: bool
) -> None:
    rows = [("a", n, n) for n in range(20)]
    builder = TopologyBuilder()
    for name in ("one", "other"):
        builder.set_spout(name, Source("key", "ts", "value"))
    builder.set_bolt("bolt", function).global_grouping("one").global_grouping("other")
    made = builder.build()
    assert depends_on_order(made, {}) is not is_free
    found = replay_locally(made, {"one": rows, "other": rows})
    assert [w.cause for w in found.warnings] == ([] if is_free else ["order of senders"])


@as_bolt("key")
def by_chance(tup: Tuple) -> Iterator[Any]:
    yield (random.choice((tup["key"], "x")),)


@as_bolt("key")
def by_wall_clock(tup: Tuple) -> Iterator[Any]:
    yield (time.time_ns(),)


def _random_value(tup: Tuple) -> Any:
    return random.random()


def test_functions_that_use_chance_or_the_clock_are_named() -> None:
    for function, cause in ((by_chance, "chance"), (by_wall_clock, "wall clock")):
        builder = building(source=Source("key", "ts"))
        builder.set_bolt("bolt", function).shuffle_grouping("source")
        found = replay_locally(builder.build(), {"source": ROWS})
        assert [w.cause for w in found.warnings] == [cause]
    for kind, cause in (
        (ByChance, "chance"),
        (ByWallClock, "wall clock"),
        (ByContext, "wall clock"),
    ):
        made = topology(type("Inheriting", (kind,), {})(), Grouping("shuffle"))
        assert cause in [w.cause for w in replay_locally(made, {"source": ROWS}).warnings]
    for function, cause in (
        (_random_value, "chance"),
        (by_chosen, "chance"),
        (by_helper, "wall clock"),
        (by_alias, "wall clock"),
        (by_module, "wall clock"),
    ):
        mapped = stream(Source("key", "ts"), name="source").map(function, "key")
        found = replay_locally(mapped.build(), {"source": ROWS})
        assert [w.cause for w in found.warnings] == [cause]


@pytest.mark.parametrize("bolt", [AtTheEnd(), SumsAtTheEnd()])
def test_what_cleanup_emits_or_puts_reaches_nothing_live_and_replayed(bolt: Any) -> None:
    made = topology(bolt, Grouping("global"))
    live = complete_topology(made, {"source": [list(row) for row in ROWS]})
    replayed = replay_locally(made, {"source": ROWS})
    assert "cleanup" in {warning.cause for warning in replayed.warnings}
    if isinstance(bolt, SumsAtTheEnd):
        assert live.state("bolt") == replayed.states["bolt"] == {"n": 3}
    else:
        assert live["bolt"] == replayed["bolt"] == []


class Chooser(BasicBolt):
    outputs = {"default": ("key",), "to": Stream(("key",), direct=True)}  # noqa: RUF012

    def prepare(self, conf: Any, context: Any) -> None:
        self.tasks = context.component_tasks("last")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit_direct(self.tasks[tup["ts"] % len(self.tasks)], (tup["key"],), "to")


class Knowing(Chooser):
    def prepare(self, conf: Any, context: Any) -> None:
        super().prepare(conf, context)
        self.tasks = self.tasks[context.task_index :]


class Turning(Chooser):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.tasks = [*self.tasks[1:], self.tasks[0]]
        super().execute(tup, collector)


@pytest.mark.parametrize(
    ("chooser", "grouping", "is_sure"),
    [
        (Chooser(), "local_or_shuffle", True),
        (Knowing(), "local_or_shuffle", False),
        (Knowing(), "fields", True),
        (Turning(), "fields", False),
    ],
)
def test_a_direct_tuple_goes_where_its_values_say_if_its_sender_knows_nothing_else(
    chooser: Any, grouping: str, is_sure: bool
) -> None:
    builder = building(source=Source("key", "ts", "value"))
    getattr(builder.set_bolt("chooser", chooser, 2), f"{grouping}_grouping")(
        "source", *(["key"] if grouping == "fields" else [])
    )
    builder.set_bolt("last", Quick(), 2).direct_grouping("chooser", stream="to")
    found = replay_locally(builder.build(), {"source": [("ab"[n % 2], n, n) for n in range(20)]})
    assert ("state behind direct grouping" in {w.cause for w in found.warnings}) is not is_sure
