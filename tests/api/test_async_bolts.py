"""AsyncBolt and `@bolt` on an `async def`: order, capacity, time-outs, failures, crashes and replays."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sparkstorm.api import (
    AsyncBolt,
    BasicOutputCollector,
    Conf,
    Duration,
    InvalidTopologyError,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    bolt,
    tumbling,
    windowed,
)
from sparkstorm.replay import replay_locally
from sparkstorm.testing import (
    CaptureBolt,
    FeederSpout,
    LocalCluster,
    Shared,
    complete_topology,
)
from tests.topologies import feed, ran, running

ONCE = {"topology.delivery.guarantee": "exactly-once"}


def topology(made: Any, spout: Any = None, capture: CaptureBolt | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout or FeederSpout({"n": "bigint"}))
    builder.set_bolt("async", made, inputs="numbers")
    if capture is not None:
        builder.set_bolt("capture", capture, inputs="async")
    return builder.build()


def rows_of(made: Any, numbers: Any, conf: Conf | None = None) -> list[Any]:
    """Return what the bolt emits for these numbers, as it emits it."""
    spout, capture = FeederSpout({"n": "bigint"}), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(topology(made, spout, capture), conf or ONCE)
        feed(spout, numbers)
        cluster.run_until_idle()
    return [row[0] for row in capture.values]


class Meeting(AsyncBolt):
    """Coroutines that end in the order 4, 3, 2, 1, 0: each waits for the one after it."""

    outputs = ("n",)

    async def start(self, conf: Conf, context: TopologyContext) -> None:
        self.done = [asyncio.Event() for _ in range(6)]
        self.done[5].set()

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        await self.done[tup["n"] + 1].wait()
        collector.emit((tup["n"],))
        self.done[tup["n"]].set()


class Unordered(Meeting):
    ordered = False


def test_coroutines_of_a_task_run_at_once_and_rows_keep_the_order_of_inputs() -> None:
    assert rows_of(Meeting(), range(5)) == [0, 1, 2, 3, 4]


def test_without_order_rows_leave_as_their_coroutines_end() -> None:
    assert rows_of(Unordered(), range(5)) == [4, 3, 2, 1, 0]


def test_no_more_coroutines_are_open_than_the_capacity() -> None:
    counts: Shared[list[int]] = Shared([0, 0])

    class Counting(AsyncBolt):
        outputs = ("n",)
        capacity = 3

        async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            counts.value[0] += 1
            counts.value[1] = max(counts.value)
            await asyncio.sleep(0.001)
            counts.value[0] -= 1
            collector.emit((tup["n"],))

    assert rows_of(Counting(), range(40)) == list(range(40))
    assert counts.value == [0, 3]


@bolt("n", capacity=4, timeout=Duration.millis(20), ordered=False)
async def third_one_hangs(tup: Any) -> Any:
    if tup["n"] == 3:
        await asyncio.sleep(60)
    yield tup["n"]


def test_a_coroutine_that_takes_too_long_fails_its_input_alone() -> None:
    numbers = complete_topology(
        topology(third_one_hangs), {"numbers": [[n] for n in range(6)]}, conf=ONCE
    )
    assert sorted(row[0] for row in numbers["async"]) == [0, 1, 2, 4, 5]
    (letter,) = numbers.dead_letters
    assert letter.values == (3,)
    assert "TimeoutError: no answer within" in letter.failure.text


@bolt("n", "half")
async def half(tup: Any) -> Any:
    await asyncio.sleep(0)
    yield tup["n"], 12 // tup["n"]


def test_a_coroutine_that_raises_fails_its_input_alone_with_the_line_of_user_code() -> None:
    rows = complete_topology(topology(half), {"numbers": [[1], [0], [3]]}, conf=ONCE)
    assert rows["async"] == [(1, 12), (3, 4)]
    (letter,) = rows.dead_letters
    assert "ZeroDivisionError" in letter.failure.text
    assert 'yield tup["n"], 12 // tup["n"]' in letter.failure.traceback


@bolt("n")
async def two_values(tup: Any) -> Any:
    row = (1, 2)
    yield row


def test_a_row_that_comes_after_the_coroutine_has_ended_is_an_error() -> None:
    errors: Shared[list[str]] = Shared([])

    class Forgets(AsyncBolt):
        outputs = ("n",)

        async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.open = asyncio.create_task(self.later(collector))

        async def later(self, collector: BasicOutputCollector) -> None:
            await asyncio.sleep(0)
            try:
                collector.emit((1,))
            except RuntimeError as error:
                errors.value.append(str(error))

        async def stop(self) -> None:
            await self.open

    done = complete_topology(topology(Forgets()), {"numbers": [[1]]})
    assert done["async"] == [] and "await what emits" in errors.value[0]


def test_a_row_of_another_width_fails_its_input() -> None:
    rows = complete_topology(topology(two_values), {"numbers": [[1]]}, conf=ONCE)
    (letter,) = rows.dead_letters
    assert "'async'" in letter.failure.text


@bolt
async def swallow(tup: Any) -> None:
    await asyncio.sleep(0)


def test_a_coroutine_without_outputs_is_acked_when_it_ends() -> None:
    spout = FeederSpout({"n": "bigint"})
    with ran(topology(swallow, spout), spout, [1]):
        assert spout.acked == [0]


def test_a_crash_gives_open_inputs_again_and_nothing_is_lost_or_doubled() -> None:
    gate: Shared[threading.Event] = Shared(threading.Event())

    class Waits(AsyncBolt):
        outputs = ("n",)
        ordered = False

        async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            while tup["n"] % 2 and not gate.value.is_set():
                await asyncio.sleep(0.001)
            collector.emit((tup["n"],))

    spout, capture = FeederSpout({"n": "bigint"}), CaptureBolt()
    with running(topology(Waits(), spout, capture), ONCE, thread_patience_secs=0.2) as cluster:
        feed(spout, range(20))
        cluster.run_until(lambda: len(capture.values) == 10)
        cluster.kill_worker("async")
        gate.value.set()
        cluster.run_until(lambda: len(capture.values) >= 20)
        cluster.run_until_idle()
    assert sorted(row[0] for row in capture.values) == list(range(20))


def test_start_and_stop_are_awaited_on_the_event_loop() -> None:
    seen: Shared[list[str]] = Shared([])

    class Client(AsyncBolt):
        async def start(self, conf: Conf, context: TopologyContext) -> None:
            seen.value.append(f"start {asyncio.get_running_loop() is not None}")

        async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            seen.value.append("process")

        async def stop(self) -> None:
            await asyncio.sleep(0)
            seen.value.append("stop")

    complete_topology(topology(Client()), {"numbers": [[1]]})
    assert seen.value == ["start True", "process", "stop"]


def test_live_equals_a_replay() -> None:
    made = topology(half)
    numbers = [[n] for n in range(1, 12)]
    live = complete_topology(made, {"numbers": numbers}, conf=ONCE)["async"]
    assert (
        replay_locally(made, {"numbers": numbers})["async"]
        == live
        == [(n, 12 // n) for (n,) in numbers]
    )


@windowed("n", window=tumbling(seconds=1))
async def of_windows(window: Any) -> Any:
    yield 1


@bolt("n", batch=2)
async def of_batches(tup: Any) -> Any:
    yield 1


class Plain(AsyncBolt):
    def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:  # type: ignore[override]
        pass


class Yields(AsyncBolt):
    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> Any:
        yield tup


class Empty(AsyncBolt):
    pass


class Prepares(AsyncBolt):
    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.client = None

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


@bolt("n", key="n")
async def stateful(tup: Any, state: Any) -> Any:
    yield tup["n"]


@bolt("n", capacity=0)
async def without_room(tup: Any) -> Any:
    yield tup["n"]


@bolt("n", timeout=5)  # type: ignore[call-overload, untyped-decorator]
async def without_unit(tup: Any) -> Any:
    yield tup["n"]


@bolt("n", ordered=False)
def plain(tup: Any) -> Any:
    yield tup["n"]


@bolt("n", ordered="no")  # type: ignore[call-overload, untyped-decorator]
async def in_no_order(tup: Any) -> Any:
    yield tup["n"]


@bolt("n", blocking="no")  # type: ignore[call-overload, untyped-decorator]
def of_no_thread(tup: Any) -> Any:
    yield tup["n"]


@bolt("n")
async def returns(tup: Any) -> Any:
    return [tup["n"]]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (stateful, "is async, which has no state"),
        (without_room, "capacity is 0; write a whole number of at least 1"),
        (without_unit, "timeout is 5; write a Duration, as Duration.seconds(5), or None"),
        (in_no_order, "ordered is 'no'; write ordered=True or ordered=False"),
        (of_no_thread, "blocking is 'no'; write blocking=True or blocking=False"),
        (plain, "is not async, so 'ordered' has no meaning; write async def, or drop it"),
        (of_windows, "is async, and the runtime does not await it; write a plain def"),
        (of_batches, "is async, which has no batches"),
        (
            Plain(),
            "Plain.process is no coroutine function, and the runtime awaits it; write process(self, ",
        ),
        (
            Yields(),
            "Yields.process is an async generator (it has a yield), which is not awaited; use collector.emit",
        ),
        (
            Prepares(),
            "Prepares.prepare is never called, since Prepares is an AsyncBolt; write async def start",
        ),
        (Empty(), "Empty has no method process; define process(self, tup, collector)"),
        (returns, "declares the fields n, but has no yield"),
    ],
)
def test_what_cannot_run_is_refused_with_its_remedy(made: Any, words: str) -> None:
    with pytest.raises(InvalidTopologyError) as raised:
        topology(made)
    assert words in str(raised.value)
