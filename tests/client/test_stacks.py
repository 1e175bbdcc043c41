"""Stacks of a worker: how they are counted, what a client makes of them, and their picture."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.cli.logs import stacks_text
from sparkstorm.client.looks.stacks import Stack, Stacks, look, merged
from sparkstorm.client.looks.taps import Sample, _read
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.data_plane.transport.base import START
from sparkstorm.data_plane.transport.keys import stacks_name
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.extensions.tracing.stacks import OTHER, StackTap, calls_of
from sparkstorm.notebook.flame_graph import boxes, flame_graph
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.insight.watched import watched

HOSTILE = "</title><script>alert(1)</script>\x1b\ud800"
TAPS: list[StackTap] = []
FOUND = Stacks(
    "node1:6700",
    2.0,
    100,
    (
        Stack("MainThread", ("main (a.py)", "work (a.py:7)"), 60, 1_000_000),
        Stack("MainThread", ("main (a.py)", f"{HOSTILE[:-1]} (b.py:9)"), 40, 0),
        Stack("alive", ("wait (c.py:1)",), 100, 0),
    ),
)


def test_every_thread_is_counted_and_the_line_is_that_of_the_innermost_call() -> None:
    tap = StackTap("node1:6700", lambda: 5)
    assert not tap.take()
    for _ in range(3):
        tap.follow([stacks_name("node1:6700")])
    [(name, [data])] = tap.take().items()
    found = merged("node1:6700", 1, [_read(data) or Sample(0, 0, {})])
    assert name == stacks_name("node1:6700") and found.samples == 3 and not tap.take()
    mine = next(each for each in found.stacks if each.thread == threading.current_thread().name)
    assert mine.samples == 3 and any("test_every_thread_is_counted" in call for call in mine.calls)
    assert mine.calls[-1].startswith("StackTap.sample (tracing/stacks.py:")
    tap.follow([])
    assert not tap.take()


def test_a_thread_that_works_is_told_from_one_that_waits() -> None:
    ended, started = threading.Event(), list[threading.Thread]()

    def beside(run: Callable[[], None]) -> None:
        started.append(threading.Thread(target=run))
        started[0].start()

    def work() -> None:
        while not ended.is_set():
            sum(range(1000))

    threads = [
        threading.Thread(target=work, name="works"),
        threading.Thread(target=ended.wait, name="waits"),
    ]
    for thread in threads:
        thread.start()
    tap = StackTap("node1:6700", lambda: 5, beside)
    tap.follow(tap.names)
    tap.follow(tap.names)  # one thread, however often it looks
    until = time.monotonic() + 30
    found = Stacks("", 0, 0, ())
    while (
        sum(each.cpu_us for each in found.stacks if each.thread == "works") < 20_000
        and time.monotonic() < until
    ):
        time.sleep(0.05)
        samples = [s for rows in tap.take().values() for row in rows if (s := _read(row))]
        more = merged("", 0, samples)
        found = Stacks("", 0, found.samples + more.samples, (*found.stacks, *more.stacks))
    tap.follow([])
    ended.set()
    for thread in (*threads, *started):
        thread.join()
    assert len(started) == 1 and "stacks" not in {each.thread for each in found.stacks}
    if sys.platform == "linux":
        assert sum(each.cpu_us for each in found.stacks if each.thread == "works") >= 20_000
    waits = [each for each in found.stacks if each.thread == "waits"]
    assert waits and sum(each.cpu_us for each in waits) < 20_000


def test_a_worker_of_a_simulation_shows_its_stack_while_somebody_looks() -> None:
    with watched() as run:
        slot = next(iter(run.cluster.topology().workers))
        assert slot.worker is not None
        name = stacks_name(slot.worker.parts.plan.owner)
        reader = LocalReader(run.cluster.topology().store)
        slot.look(run.cluster.now_ms)
        assert reader.samples(name, START.entry) == []
        reader.open_tap(name)
        for _ in range(3):
            run.cluster.advance(seconds=1)
            slot.look(run.cluster.now_ms)
        found = merged(
            "", 1, [s for _, data in reader.samples(name, START.entry) if (s := _read(data))]
        )
        assert found.samples >= 2 and found.stacks


class Looks(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        json.loads("1", parse_int=lambda text: TAPS[0].sample())


def test_the_task_and_line_of_user_code_are_named_under_calls_of_libraries() -> None:
    TAPS.append(tap := StackTap("n:1", lambda: 5))
    spout, builder = FeederSpout(["n"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("looks", Looks()).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        spout.feed([1])
        cluster.run_until_idle()
    TAPS.clear()
    [[data]] = tap.take().values()
    found = merged("n:1", 1, [_read(data) or Sample(0, 0, {})])
    [mine] = [each for each in found.stacks if each.user]
    assert mine.user.startswith("looks#2 (test_stacks.py, line ")
    assert mine.user.endswith(': json.loads("1", parse_int=lambda text: TAPS[0].sample()))')
    assert any("(json/decoder.py" in call for call in mine.calls)
    assert mine.user in stacks_text(found)


def test_the_rarest_stacks_become_one_and_none_is_lost() -> None:
    tap = StackTap("n:1", lambda: 5, frames=dict)
    tap.follow(tap.names)
    tap._found = {("t", (f"call {n}",), ""): [n + 1, 0] for n in range(1_000)}
    [[data]] = tap.take().values()
    found = merged("n:1", 1, [_read(data) or Sample(0, 0, {})])
    assert sum(each.samples for each in found.stacks) == sum(range(1, 1_001))
    assert len(found.stacks) == 401
    assert OTHER in {each.thread for each in found.stacks}


def test_what_no_worker_writes_is_passed_over() -> None:
    rows = [
        None,
        [],
        ["t", ["a"], 1, 1],
        ["t", "a", 1, 1, ""],
        ["t", [1], 1, 1, ""],
        ["t", ["a"], True, 1, ""],
        ["t", ["a"], -1, 1, ""],
        ["t", ["a"], 1, -1, ""],
        ["t", ["a"], 1, 1, 5],
    ]
    samples = [
        Sample(0, 0, {"count": 1, "stacks": rows}),
        Sample(0, 0, {"count": "1", "stacks": []}),
        Sample(0, 0, {"stacks": 7}),
    ]
    samples.append(Sample(0, 0, {"count": 0, "stacks": [["\ud800" * 999, ["\ud800"], 0, 0, ""]]}))
    found = merged("n:1", 1, samples)
    assert found.samples == 1 and found.stacks == (Stack("\\ud800" * 300, ("\\ud800",), 0, 0),)


def test_a_worker_that_does_not_answer_is_said() -> None:
    with pytest.raises(StoreUnavailableError, match="worker n:1 has not answered for 0 s"):
        look(LocalReader(LocalStore()), "n:1", -0.5, patience_s=0.0)


def test_deep_stacks_are_cut_and_names_can_be_kept() -> None:
    def deeper(left: int) -> tuple[str, ...]:
        return deeper(left - 1) if left else calls_of(sys._getframe())

    assert len(deeper(150)) == 100
    code = compile(
        "import sys\ndef f():\n return sys._getframe()\nframe = f()", HOSTILE[:-1] * 20, "exec"
    )
    held: dict[str, object] = {}
    exec(code, held)
    [*_, last] = calls_of(held["frame"])  # type: ignore[arg-type]
    assert len(last) <= 200 and last.encode()


def test_boxes_lie_within_their_callers_and_waiting_threads_are_named() -> None:
    found, idle = boxes(FOUND.stacks, FOUND.samples, FOUND.seconds)
    assert idle == ["alive"]
    by_name = {box.name: box for box in found}
    thread, work = by_name["MainThread"], by_name["work (a.py:7)"]
    assert (thread.x, thread.width, thread.depth, thread.samples) == (0.0, 1.0, 0, 100)
    assert (work.depth, work.load, round(work.width, 9)) == (2, 3, 0.6)  # 1.0 of 1.2 s on a core
    assert boxes([], 0, 1) == ([], [])


def test_a_loop_that_waits_in_user_code_is_drawn_beside_a_thread_that_works() -> None:
    sleeps = Stack("MainThread", ("next_tuple (orders.py:12)",), 90, 0)
    works = Stack("alive", ("wait (threading.py:331)",), 90, 1)
    idles = Stack("clock", ("wait (threading.py:331)",), 90, 0)
    found, idle = boxes([sleeps, works, idles], 90, 5)
    assert {box.name for box in found if not box.depth} == {"MainThread", "alive"}
    assert idle == ["clock"]


def test_the_picture_is_well_formed_whatever_the_names_are_and_has_no_script() -> None:
    picture = flame_graph(FOUND.stacks, FOUND.samples, FOUND.seconds, HOSTILE[:-2])
    result = picture.text
    assert result == flame_graph(FOUND.stacks, FOUND.samples, FOUND.seconds, HOSTILE[:-2]).text
    root = ElementTree.fromstring(picture.text)
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert tags == {"svg", "rect", "text", "g", "title"}
    assert not any(
        name.startswith("on") or "href" in name for each in root.iter() for name in each.attrib
    )
    assert flame_graph([], 0, 1, "nothing").text.count("<rect") == 1


def test_folded_stacks_are_a_line_each() -> None:
    assert FOUND.folded().splitlines()[0] == "MainThread;main (a.py);work (a.py:7) 60"
    assert Stacks("", 1, 1, (Stack("a;b", ("c;d",), 1, 0),)).folded() == "a,b;c,d 1"
