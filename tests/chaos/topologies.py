"""Five topologies under the faults of chaos runs, over numbers without an end, and the counts that
each must have in the end.

A source of numbers emits one number after the other until the file `gate` exists, then a row with
their number: the expected states follow from it, independently of the engine.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Conf,
    Duration,
    FoldingBolt,
    OutputCollector,
    ReplayableSpout,
    SpoutOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    Window,
)
from sparkstorm.common.model.topology import Topology

END = -1  # in place of a number: the row has how many numbers there were
_LOOKS_EVERY = 64
_MS_PER_NUMBER = 10
_BURST_MS = 100  # what a source that was kept waiting may catch up with


class Numbers(ReplayableSpout):
    """Spout that emits 0, 1, 2, ... until the gate is open, then how many there were; a number's
    event time follows from it.

    `per_second` bounds the numbers of a second, 0 does not: recoveries are measured on a machine
    that has processor time left.
    """

    outputs = ("n", "at_ms", "total")

    def __init__(self, gate: str, per_second: int = 0) -> None:
        self._gate = gate
        self._per_second = per_second
        self._next = 0
        self._is_over = False
        self._again: list[int] = []  # numbers whose trees failed (at-least-once)
        self._due_ms = 0.0

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Keep the collector and the clock."""
        self._collector = collector
        self._context = context

    def next_tuple(self) -> None:
        """Emit a number that failed once more, the next number, or the last row."""
        if self._again:
            self._emit(self._again.pop())
            return
        if self._is_over or not self._is_due():
            return
        n = self._next
        if self._is_end(n):
            self._is_over = True
            self._collector.emit((END, n * _MS_PER_NUMBER, n), END)
            return
        self._next += 1
        self._emit(n)

    def fail(self, message_id: Any) -> None:
        """Keep a number whose tree failed; the last row depends on no call that fails."""
        self._again.append(message_id)

    def _emit(self, n: int) -> None:
        self._collector.emit((n, n * _MS_PER_NUMBER, 0), n)

    def _is_end(self, n: int) -> bool:
        return n % _LOOKS_EVERY == 0 and n > 0 and Path(self._gate).exists()

    def _is_due(self) -> bool:
        if self._per_second:
            now_ms = self._context.now_ms()
            if now_ms < self._due_ms:
                return False
            self._due_ms = max(self._due_ms, now_ms - _BURST_MS) + 1000 / self._per_second
        return True

    def is_exhausted(self) -> bool:
        """Return whether the last row was emitted, and no number has to be emitted again."""
        return self._is_over and not self._again

    def has_ended(self) -> bool:
        """Return the same: nothing follows the last row."""
        return self.is_exhausted()

    def snapshot(self) -> Any:
        """Return the next number, whether the last row was emitted, and the numbers that failed."""
        return [self._next, self._is_over, self._again.copy()]

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._next, self._is_over, self._again = position[0], position[1], [*position[2]]


class Words(BasicBolt):
    """Bolt that makes two words of a number."""

    outputs = ("word", "amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit them; of the last row the total."""
        if tup["n"] == END:
            collector.emit(("total", tup["total"]))
            return
        for word in words_of(tup["n"]):
            collector.emit((word, 1))


class Sum(StatefulBolt):
    """Bolt that adds amounts by word."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Add one."""
        self.state.add(tup[0], tup[1])


class Side(BasicBolt):
    """Bolt that passes a number on to the join, from one side."""

    outputs = ("n", "total", "side")

    def __init__(self, side: str) -> None:
        self._side = side

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit it."""
        collector.emit((tup["n"], tup["total"], self._side))


class Pair(Bolt):
    """Bolt that joins the two sides of a number: what it emits is anchored to both."""

    outputs = ("word", "amount")

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Begin without any; inputs that were held come again after a crash."""
        self._collector, self._waiting = collector, dict[int, Tuple]()

    def execute(self, tup: Tuple) -> None:
        """Keep the first side, emit at the second."""
        first = self._waiting.pop(tup["n"], None)
        if first is None or first["side"] == tup["side"]:
            self._waiting[tup["n"]] = tup
            return
        row = ("total", tup["total"]) if tup["n"] == END else (f"pair {tup['n'] % 50}", 1)
        self._collector.emit(row, anchors=(first, tup))
        self._collector.ack(first)
        self._collector.ack(tup)


class Both(FoldingBolt):
    """Join of two streams of numbers by key within windows of a second: how many of each side."""

    outputs = ("word", "amount")
    key_fields = ("key",)

    def initial(self) -> Any:
        """Return none of either side."""
        return [0, 0, 0]

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Count one side, or keep the total."""
        if tup["total"]:
            accumulator[2] = tup["total"]
        else:
            accumulator[tup["side"] == "right"] += 1
        return accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Emit what the window joined."""
        left, right, total = window.value
        for word, amount in ((f"left {window.key[0]}", left), (f"right {window.key[0]}", right)):
            if amount:
                collector.emit((word, amount))
        if total:
            collector.emit(("total", total))


class Keyed(BasicBolt):
    """Bolt that gives numbers their key, for one side of the windowed join; the last row goes to
    the left alone.
    """

    outputs = ("key", "at_ms", "side", "total")

    def __init__(self, side: str) -> None:
        self._side = side

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit it."""
        if tup["n"] != END or self._side == "left":
            collector.emit((tup["n"] % 20, tup["at_ms"], self._side, tup["total"]))


class Sink(StatefulBolt):
    """Bolt that blocks for a millisecond, as a call of another system does, and refuses each
    fiftieth number at the first try.
    """

    blocking = True
    order_insensitive = True

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Begin without any refusals."""
        self._refused: set[int] = set()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Store one number."""
        n = tup["n"]
        time.sleep(0.001)
        if n % 50 == 7 and n not in self._refused:
            self._refused.add(n)
            raise ConnectionError(f"the other system refused {n} once")
        word, amount = ("total", tup["total"]) if n == END else (f"stored {n % 50}", 1)
        self.state.add(word, amount)


class Forks(BasicBolt):
    """Bolt that makes processes: forks that go on as its worker would, and children that end as
    they should.
    """

    outputs = ("word", "amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit a number; a fork of some numbers emits it too, and raises or exits or returns."""
        n = tup["n"]
        kind = n % 300  # some milliseconds each
        is_child = False
        if kind in (10, 30, 50):
            is_child = not (child := os.fork())
            if is_child:  # what it says of its end would fill the report
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            else:
                os.waitpid(child, 0)
        elif kind == 70:
            process = multiprocessing.Process(target=divmod, args=(n, 7))
            process.start()
            process.join()
            assert process.exitcode == 0
        elif kind == 90:
            with ProcessPoolExecutor(1, initializer=_end_with_parent) as pool:
                assert pool.submit(divmod, n, 7).result() == divmod(n, 7)
        elif kind == 110:
            said = subprocess.run(["echo", str(n)], capture_output=True, check=True).stdout
            assert said == f"{n}\n".encode()
        collector.emit(("total", tup["total"]) if n == END else (f"forked {n % 50}", 1))
        if is_child and kind == 30:
            raise ValueError("in a fork")
        if is_child and kind == 50:
            sys.exit(0)


def _end_with_parent() -> None:
    """Have a child of a pool, which waits for work without an end, end with a killed worker."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass(frozen=True)
class ChaosTopology:
    """A topology of chaos runs: its maker, the bolts whose states hold the result, and what they
    must hold for so many numbers.
    """

    name: str
    build: Callable[..., Topology]
    component: str
    expected: Callable[[int], Mapping[str, int]]
    workers: int = 1  # in real processes


def words_of(n: int) -> tuple[str, str]:
    """Return the words of a number."""
    return f"word {n % 97}", f"word {n % 7}"


def word_count(gate: str, per_second: int = 0) -> Topology:
    """Build the word count with state."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    builder.set_bolt("words", Words(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("count", Sum(), parallelism=2).fields_grouping("words", "word")
    return builder.build()


def windowed_join(gate: str, per_second: int = 0) -> Topology:
    """Build the join of two streams by key in windows of event time."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    for side in ("left", "right"):
        builder.set_bolt(side, Keyed(side)).shuffle_grouping("numbers")
    both = Both().with_tumbling_window(Duration(1000)).with_timestamp_field("at_ms")
    join = builder.set_bolt("join", both, parallelism=2)
    join.fields_grouping("left", "key").fields_grouping("right", "key")
    builder.set_bolt("count", Sum(), parallelism=2).fields_grouping("join", "word")
    return builder.build()


def diamond(gate: str, per_second: int = 0) -> Topology:
    """Build the diamond: one number on two ways, joined to a tuple with two anchors."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    for side in ("left", "right"):
        builder.set_bolt(side, Side(side), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("pair", Pair(), parallelism=2).fields_grouping("left", "n").fields_grouping(
        "right", "n"
    )
    builder.set_bolt("count", Sum(), parallelism=2).fields_grouping("pair", "word")
    return builder.build()


def blocking_sink(gate: str, per_second: int = 0) -> Topology:
    """Build the sink that blocks and refuses."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    builder.set_bolt("count", Sink(), parallelism=2).fields_grouping("numbers", "n")
    return builder.build()


def forks(gate: str, per_second: int = 0) -> Topology:
    """Build the bolt that makes processes."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    builder.set_bolt("forks", Forks(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("count", Sum(), parallelism=2).fields_grouping("forks", "word")
    return builder.build()


def _counted(kinds: Callable[[int], tuple[str, ...]]) -> Callable[[int], Mapping[str, int]]:
    def expected(total: int) -> Mapping[str, int]:
        return Counter({"total": total}) + Counter(word for n in range(total) for word in kinds(n))

    return expected


counted_words = _counted(words_of)

TOPOLOGIES = (
    ChaosTopology("word-count", word_count, "count", counted_words, 2),
    ChaosTopology(
        "windowed-join",
        windowed_join,
        "count",
        _counted(lambda n: (f"left {n % 20}", f"right {n % 20}")),
    ),
    ChaosTopology("diamond", diamond, "count", _counted(lambda n: (f"pair {n % 50}",)), 2),
    ChaosTopology(
        "blocking-sink", blocking_sink, "count", _counted(lambda n: (f"stored {n % 50}",))
    ),
    ChaosTopology("forks", forks, "count", _counted(lambda n: (f"forked {n % 50}",))),
)
