"""Bad input by user code and bad bytes from outside: one table, one sentence each, and everything
else goes on.
"""

from __future__ import annotations

import re
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, ReplayableSpout, StatefulBolt, Tuple
from sparkstorm.client.savepoints import SavepointSource
from sparkstorm.client.task_records import StoredTask
from sparkstorm.common.errors import SparkStormError, WorkerFailedError
from sparkstorm.common.model.assignment import TaskInfo, WorkerSlot
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_messages import decode_report
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.data_plane.checkpoint.files import read_checkpoint
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.data_plane.transport.progress import Progress
from sparkstorm.extensions.recording.capsule_files import read_capsule
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import ran, running
from tests.worker.building import Collecting, chain

Do = Callable[[Any, Tuple], object]


class Basic(BasicBolt):
    """Does something on "bad", and passes everything else on."""

    outputs = ("value",)

    def __init__(self, do: Do) -> None:
        self.do = do

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] == "bad":
            self.do(collector, tup)
        else:
            collector.emit((tup[0],))


class Blocking(Basic):
    blocking = True


class Keeping(StatefulBolt):
    """The same with a state."""

    outputs = ("value",)

    def __init__(self, do: Do) -> None:
        self.do = do

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] == "bad":
            self.do(self.state, tup)
        else:
            collector.emit((tup[0],))


class KeepingBlocking(Keeping):
    blocking = True


class Manual(Collecting):
    """The same with acks by hand."""

    def __init__(self, do: Do) -> None:
        self.do = do

    def execute(self, tup: Tuple) -> None:
        if tup[0] == "bad":
            self.do(self.collector, tup)
        else:
            self.collector.emit((tup[0],), anchors=tup)
            self.collector.ack(tup)


def twice(collector: Any, tup: Tuple) -> None:
    collector.ack(tup)
    collector.ack(tup)


def foreign(collector: Any, tup: Tuple) -> None:
    collector.ack(Tuple(("not", "mine"), 77, tup.source))
    collector.ack(tup)


def ack_after_fail(collector: Any, tup: Tuple) -> None:
    collector.fail(tup, "no")
    collector.ack(tup)


FAILS = [  # (bolt, the sentence of its dead letter)
    (
        Basic(lambda c, t: c.emit(("a",), stream="nowhere")),
        r"emitted to undeclared stream 'nowhere'; it declares default",
    ),
    (
        Basic(lambda c, t: c.emit(("a", "b"))),
        r"component 'bolt', stream 'default': emitted 2 values for 1 field \(value\)",
    ),
    (Blocking(lambda c, t: c.emit(("a", "b"))), r"emitted 2 values for 1 field"),
    (Basic(lambda c, t: c.emit(())), r"emitted 0 values for 1 field"),
    (Basic(lambda c, t: c.emit("text")), r"emit needs a list of values, not 'text'"),
    (Basic(lambda c, t: c.emit(7)), r"emit needs a list of values, not 7"),
    (
        Basic(lambda c, t: c.emit((object(),))),
        r"component 'bolt', stream 'default', field 'value': a value of type object",
    ),
    (Blocking(lambda c, t: c.emit((object(),))), r"field 'value': a value of type object"),
    (Basic(lambda c, t: c.emit((2**9000,))), r"field 'value': a whole number of 9001 bits"),
    (Basic(lambda c, t: c.emit(("\ud800",))), r"field 'value': text that is not valid UTF-8"),
    (Basic(lambda c, t: c.emit(({(1, 2): 1},))), r"field 'value': a mapping key of type tuple"),
    (Basic(lambda c, t: c.emit_direct(4711, ("a",))), r"stream 'default' is not direct: use emit"),
    (
        Basic(lambda c, t: t["nothing"]),
        r"stream 'default' of component 'spout' has no field 'nothing'; it declares value",
    ),
    (Keeping(lambda s, t: s.put("key", object())), r"a value of type object, which is not one of"),
    (
        Keeping(lambda s, t: s.add("key", 2**9000)),
        r"a whole number of 9001 bits; the most are 8192 \(test_bad_input\.py, line",
    ),
    (
        KeepingBlocking(lambda s, t: s.add("key", 2**9000)),
        r"a whole number of 9001 bits; the most are 8192",
    ),
    (
        Keeping(lambda s, t: (s.put("key", "x"), s.add("key", 1))),
        r"state key 'key': 1 cannot be added to 'x'",
    ),
    (
        Keeping(lambda s, t: s.put(["key"], 1)),
        r"unhashable type: 'list'; a key is text, a number or a tuple of them \(test_bad_input\.py, line \d+\)",
    ),
    (Keeping(lambda s, t: s.add(t[0], "one")), r"state key 'bad': 'one' is no number"),
    (
        Manual(lambda c, t: c.emit(("a",), anchors="t")),
        r"anchors are tuples that execute was given, not 't'; write emit\(values, anchors=\[tup\]\) \(test_bad_input",
    ),
    (
        Manual(lambda c, t: c.emit(("a",), anchors=[t, 5])),
        r"anchors are tuples that execute was given, not \[",
    ),
    *(
        (kind(do), sentence)
        for kind in (Basic, Blocking)
        for do, sentence in (
            (lambda c, t: cancelled(c), r"CancelledError: by a library \(test_bad_input"),
            (
                lambda c, t: c.emit(("a",), None),
                r"emitted to undeclared stream 'None'; it declares",
            ),
            (lambda c, t: c.emit(("a",), 5), r"emitted to undeclared stream '5'"),
            (lambda c, t: c.ack(t), r"object has no attribute 'ack'"),
            (lambda c, t: sys.exit(3), r"SystemExit: 3 \(test_bad_input\.py, line"),
        )
    ),
    (Manual(lambda c, t: c.fail(t, "")), r"failed by the bolt"),
    (Manual(lambda c, t: c.fail(t, "line\nline")), r"line\nline"),
]


@pytest.mark.parametrize(("bolt", "sentence"), FAILS, ids=[sentence[:40] for _, sentence in FAILS])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_of_a_bolt_fails_its_tuple_with_a_sentence_and_no_other(
    bolt: Any, sentence: str, workers: int
) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, bolt, capture),
        spout,
        ("one", "bad", "two"),
        {"topology.workers": workers, "topology.max.retries": 1},
    ) as cluster:
        (letter,) = cluster.dead_letters
        assert letter.values == ("bad",) and re.search(sentence, letter.reason), letter.reason
        assert "Traceback" not in letter.reason and len(letter.reason) < 600
        assert sorted(capture.values) == [("one",), ("two",)]
        assert sorted(spout.acked) == [0, 2]
        assert spout.failed == [1]


def ack_of_nothing(collector: Any, tup: Tuple) -> None:
    collector.ack(None)
    collector.ack(tup)


@pytest.mark.parametrize("do", [twice, foreign, ack_after_fail, ack_of_nothing])
def test_an_ack_that_nobody_waits_for_is_named_and_changes_no_other_tree(do: Do) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, Manual(do), capture),
        spout,
        ("one", "bad", "two"),
        {"topology.delivery.guarantee": "at-least-once"},
    ) as cluster:
        said = [error.text for error in cluster.errors if "not outstanding" in error.text]
        assert len(said) == (0 if do is ack_after_fail else 1)
        assert sorted(capture.values) == [("one",), ("two",)] and {0, 2} <= set(spout.acked)
        assert len(spout.acked) + len(spout.failed) == 3


class Escapes(Collecting):
    """Gives its collector to a thread that outlives it."""

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        super().prepare(conf, context, collector)
        HANDED.append(collector)

    def execute(self, tup: Tuple) -> None:
        self.collector.ack(tup)


HANDED: list[Any] = []


def test_a_thread_that_emits_after_the_worker_has_stopped_is_told_so() -> None:
    HANDED.clear()
    spout = FeederSpout()
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, Escapes()))
        spout.feed([1])
        cluster.run_until_idle()
    raised: list[BaseException] = []

    def emit(call: Callable[[], None]) -> None:
        try:
            call()
        except WorkerFailedError as error:
            raised.append(error)

    for collector in HANDED:
        for call in (
            lambda c=collector: c.emit(("late",)),
            lambda c=collector: c.report_error("late"),
        ):
            thread = threading.Thread(target=emit, args=(call,))
            thread.start()
            thread.join()
    assert len(raised) == len(HANDED), "a report needs no loop"
    assert "a thread used its collector after cleanup; end threads in cleanup()" in str(raised[0])


def flood(collector: Any, tup: Tuple) -> None:
    for number in range(3000):
        collector.report_error(f"report {number}")


def test_a_flood_of_reports_leaves_the_newest_ten_and_every_count() -> None:
    spout = FeederSpout()
    with ran(chain(spout, Basic(flood)), spout, ["bad"]) as cluster:
        kept = cluster.storm_state.read_errors(cluster.topology().id, "bolt")
        assert len(kept) <= 10
        assert [group.count for group in cluster.failures()] == [3000]


def beat(data: bytes) -> object:
    store, slot = LocalStateStore(LocalStateTree()), WorkerSlot("node-1", 6700)
    store.put(paths.workerbeat("words-1", slot), data or b"\n")
    return StormState(store, b"key").read_worker_beat("words-1", slot)


def savepoint_of(data: bytes) -> object:
    """A journal of a running topology that a savepoint reads."""
    store = LocalStore()
    store.task(1).journal = [data]
    return SavepointSource({1: TaskInfo("count", "bolt")}, LocalReader(store)).write(
        Path("nowhere"), "words"
    )


def local_state(data: bytes, folder: Path) -> object:
    node = NodeDir(folder, "node-1")
    state = node.worker_state(6700)
    state.path.parent.mkdir(parents=True, exist_ok=True)
    state.path.write_bytes(data)
    if state.get("launches", WorkerBeat) is None:  # a map without that record
        raise SparkStormError(f"{state.path}: no launches")
    return state


def checkpoint(data: bytes, folder: Path) -> object:
    (folder / "manifest.json").write_bytes(data)
    return read_checkpoint(folder)


def capsule(data: bytes, folder: Path) -> object:
    (folder / "one.capsule.json").write_bytes(data)
    return read_capsule(folder / "one.capsule.json")


def znode(data: bytes) -> object:
    store = LocalStateStore(LocalStateTree())
    store.put(paths.assignment("words-1"), data or b"\n")  # nothing at all is no assignment
    return StormState(store, b"key").read_assignment("words-1")


def blob(data: bytes) -> object:
    """Other bytes under the name of a blob."""
    chunks = LocalBytesStore()
    blobs = BlobStore(StormState(LocalStateStore(), b"key"), chunks, b"key")
    key = blobs.put(b"code", 0)
    chunks.put(f"{key}:0", data)
    return blobs.get(key)


READERS: dict[str, Callable[..., object]] = {
    "heartbeat": beat,
    "spec": WorkerSpec.from_json,
    "report": decode_report,
    "progress": Progress.decode,
    "dead letter": lambda data: DeadLetter.decode(Codec(), data),
    "savepoint": savepoint_of,
    "znode": znode,
    "blob": blob,
    "local state": local_state,
    "checkpoint": checkpoint,
    "capsule": capsule,
}
BYTES = [
    b"",
    b"\x00" * 40,
    b"{",
    b"[" * 5000,
    b"{}",
    b"null",
    b"\xff\xfe",
    b'{"kind": 7}',
    b'"text"',
    Codec().pack([1, "a"]),
]


@pytest.mark.parametrize("data", BYTES, ids=lambda data: repr(data[:12]))
@pytest.mark.parametrize("reader", READERS)
def test_bytes_that_are_none_of_ours_are_refused_in_one_sentence(
    reader: str, data: bytes, tmp_path: Path
) -> None:
    read = READERS[reader]
    with pytest.raises(SparkStormError) as refused:
        read(data, tmp_path) if reader in ("local state", "checkpoint", "capsule") else read(data)
    assert "\n" not in str(refused.value).strip() and len(str(refused.value)) < 700


def test_an_empty_journal_is_an_empty_state() -> None:
    kept = StoredTask.of([])
    assert (len(kept.state), len(kept.time), kept.version, kept.handed) == (0, 0, 1, None)


class Moody(ReplayableSpout):
    """Counts to five; one of its methods misbehaves from the third number on."""

    outputs = ("value",)

    def __init__(self, method: str, do: Callable[[Any], Any], is_blocking: bool) -> None:
        self.method, self.do = method, do
        self.blocking = is_blocking  # type: ignore[misc]

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.count = collector, 0

    def next_tuple(self) -> None:
        if self.count < 5:
            self.count += 1
            self._meet("next_tuple", lambda: self.collector.emit((self.count,), self.count))

    def is_exhausted(self) -> Any:
        return self._meet("is_exhausted", lambda: self.count == 5)

    def snapshot(self) -> Any:
        return self._meet("snapshot", lambda: self.count)

    def restore(self, position: Any) -> None:
        self.count = position

    def close(self) -> None:
        self._meet("close", lambda: None)

    def _meet(self, method: str, usual: Callable[[], Any]) -> Any:
        return self.do(self.collector) if method == self.method and self.count >= 3 else usual()


def cancelled(_: Any) -> Any:
    raise CancelledError("by a library")


@pytest.mark.parametrize("is_blocking", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize("method", ["is_exhausted", "snapshot"])
def test_a_source_that_cannot_answer_ends_the_run_with_its_name_and_line(
    method: str, is_blocking: bool
) -> None:
    """A blocking source that raised there had no thread any more, and was waited for without
    end.
    """

    def run() -> None:
        with running(
            chain(Moody(method, cancelled, is_blocking), Basic(lambda c, t: None))
        ) as cluster:
            cluster.run_until(lambda: False)

    what = "its thread ended:" if is_blocking else rf"{method}\(\) raised"
    sentence = rf"spout 'spout'.*: {what} CancelledError: by a library \(test_bad_input"
    with pytest.raises(WorkerFailedError, match=sentence):
        run()


@pytest.mark.parametrize("is_blocking", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        (cancelled, "CancelledError: by a library"),
        (
            lambda c: c.emit_batch([1, 2]),
            r"emit_batch needs a pyarrow.RecordBatch, not \[1, 2\] \(test_bad_input",
        ),
        (
            lambda c: c.emit_batch(pa.table({"value": [1]})),
            r"not a Table, whose to_batches\(\) gives batches",
        ),
        (
            lambda c: c.emit((1,), stream=""),
            "component 'spout' emitted to undeclared stream ''; it declares default",
        ),
    ],
)
def test_a_mistake_of_a_source_is_named_and_what_it_emitted_before_arrives(
    do: Any, sentence: str, is_blocking: bool
) -> None:
    capture = CaptureBolt()
    with running(
        chain(Moody("next_tuple", do, is_blocking), Basic(lambda c, t: None), capture)
    ) as cluster:
        cluster.run_until(lambda: len(cluster.errors) == 3)
        assert all(re.search(sentence, error.text) for error in cluster.errors), cluster.errors
        assert capture.values == [(1,), (2,)]


class Clumsy(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass

    def cleanup(self) -> None:
        raise ValueError("no hands")


def test_a_component_that_cannot_end_is_reported_and_the_others_end_too() -> None:
    with running(chain(Moody("close", cancelled, is_blocking=False), Clumsy())) as cluster:
        cluster.run_until_idle()
        cluster.rebalance(workers=2)
        cluster.advance(30)
        said = [error.text for error in cluster.errors]
        assert any("by a library" in text for text in said) and any(
            "no hands" in text for text in said
        ), said
