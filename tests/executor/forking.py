"""Topologies whose user code forks, each run in turn; a process that goes on behind a run prints
its lines a second time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    Bolt,
    Duration,
    Spout,
    TimedBolt,
    TopologyBuilder,
    bolt,
    fold,
    tumbling,
)
from sparkstorm.replay import replay_locally
from sparkstorm.testing import complete_topology

ROWS = [(0,), (5_000,)]


def fork(ending: str) -> int:
    """Return what a child with that ending exits with; the child itself returns, or raises."""
    if ending == "multiprocessing":
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            return pool.submit(abs, 0).result()
    if (pid := os.fork()) == 0:
        if ending == "raises":
            raise ValueError("in the child")
        if ending == "exits":
            sys.exit(3)
        if ending == "ends":
            os._exit(4)
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Basic(BasicBolt):
    outputs = ("code",)

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([fork(self.ending)])


class Threaded(Basic):
    blocking = True


class Manual(Bolt):
    outputs = ("code",)

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        self.collector.emit([fork(self.ending)], tup)
        self.collector.ack(tup)


class ThreadedManual(Manual):
    blocking = True


class Timed(TimedBolt):
    outputs = ("code",)

    def __init__(self, ending: str) -> None:
        self.ending = ending

    def execute(self, tup: Any, collector: Any) -> None:
        self.timers.set_event_timer(tup["n"], tup["n"])

    def on_timer(self, timer: Any, collector: Any) -> None:
        collector.emit([fork(self.ending)])


class Once(Spout):
    outputs = ("code",)

    def __init__(self, ending: str) -> None:
        self.ending = ending
        self.left = list(ROWS)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        if self.left:
            self.left.pop()
            self.collector.emit([fork(self.ending)], len(self.left))

    def is_exhausted(self) -> bool:
        return not self.left


class ThreadedOnce(Once):
    blocking = True


class Callback(Once):
    def next_tuple(self) -> None:
        if self.left:
            self.left.pop()
            self.collector.emit([0], len(self.left))

    def ack(self, message_id: Any) -> None:
        self.collector.emit([fork(self.ending)])


class Choice:
    def __init__(self, ending: str) -> None:
        self.ending = ending

    def prepare(self, tasks: list[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return self.tasks if fork(self.ending) in (0, 1, 3, 4) else []


def over_rows(component: Any, **grouping: Any) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("rows", Rows())
    declarer = builder.set_bolt("forking", component)
    if grouping:
        declarer.custom_grouping("rows", grouping["custom"])
    else:
        declarer.global_grouping("rows")
    return builder


class Rows(Spout):
    outputs = ("n",)


def generator(ending: str) -> Any:
    @bolt("code")
    def forking(tup: Any) -> Iterator[int]:
        yield fork(ending)

    return forking


def folding(ending: str) -> Any:
    @fold(window=tumbling(seconds=1), time="n", initial=())
    def forking(total: tuple[int, ...], tup: Any) -> tuple[int, ...]:
        return (*total, fork(ending))

    return forking


def plain(ending: str) -> Any:
    class Plain(BasicBolt):
        outputs = ("code",)

        def execute(self, tup: Any, collector: Any) -> None:
            collector.emit([tup["n"]])

    return Plain()


BOLTS: dict[str, Callable[[str], Any]] = {
    "basic": Basic,
    "threaded": Threaded,
    "manual": Manual,
    "threaded manual": ThreadedManual,
    "timer": lambda ending: Timed(ending).with_timestamp_field("n").with_lag(Duration(0)),
    "generator": generator,
    "fold": folding,
}
SPOUTS: dict[str, Callable[[str], Spout]] = {
    "spout": Once,
    "threaded spout": ThreadedOnce,
    "callback": Callback,
}


KINDS = (*BOLTS, *SPOUTS, "grouping")
RUNS = {
    "returns": (*KINDS, *(f"replayed {kind}" for kind in BOLTS)),
    "raises": ("basic", "threaded manual", "timer", "generator", "spout"),
    "exits": ("basic", "threaded manual", "timer", "generator", "spout"),
    "ends": ("basic",),
    "multiprocessing": ("basic", "threaded"),
}


def run(kind: str, ending: str) -> Any:
    if kind in SPOUTS:
        builder = TopologyBuilder()
        builder.set_spout("forking", SPOUTS[kind](ending))
        return complete_topology(builder.build())["forking"]
    if kind == "grouping":
        builder = over_rows(plain(ending), custom=Choice(ending))
    else:
        builder = over_rows(BOLTS[kind.removeprefix("replayed ")](ending))
    if kind.startswith("replayed"):
        return replay_locally(builder.build(), {"rows": ROWS})["forking"]
    return complete_topology(builder.build(), {"rows": ROWS})["forking"]


if __name__ == "__main__":
    for ending, kinds in RUNS.items():
        for kind in kinds:
            print(f"{ending}: {kind}: {sorted(map(str, run(kind, ending)))}", flush=True)
