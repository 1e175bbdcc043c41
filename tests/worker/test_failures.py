"""The record of a failure on its ways: to the spout, the dead letter, the errors, the held input
and the counts by cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Spout, TopologyBuilder, Tuple
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.failure import Cause, Failure, FailureKind
from sparkstorm.control_plane.supervisor import poison_detector
from sparkstorm.data_plane.transport.base import Entry
from sparkstorm.data_plane.transport.local import LocalTransport
from sparkstorm.testing import FeederSpout, LocalCluster, Shared, die
from tests.topologies import feed, ran, running
from tests.worker.building import Collecting, chain

WORKERS = pytest.mark.parametrize("workers", [1, 2])


def deep(value: Any) -> None:
    raise ValueError(f"no {value}")


class Raises(BasicBolt):
    """Raises two calls deep."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        deep(tup[0])


def conf(guarantee: str, workers: int = 1, **more: Any) -> dict[str, Any]:
    return {"topology.delivery.guarantee": guarantee, "topology.workers": workers, **more}


def require_whole(failure: Failure, cluster: LocalCluster) -> None:
    """Every field says where, when, by which code and in which lines it happened."""
    (worker,) = [slot for slot in cluster.topology().workers if failure.task in slot.tasks]
    assert failure.kind == FailureKind.RAISED
    assert failure.component == "bolt"
    assert failure.worker == str(worker.slot)
    assert failure.text.startswith("ValueError: no 7 (test_failures.py, line ")
    assert failure.host == worker.node.host
    frames = failure.traceback.splitlines()
    assert [line.rpartition(" in ")[2] for line in frames[::2]] == ["execute", "deep"]
    assert frames[1::2] == ["  deep(tup[0])", '  raise ValueError(f"no {value}")']
    assert len(failure.code_version) == 64 and failure.time_ms > 0


@WORKERS
def test_at_least_once_the_spout_is_given_the_failure_of_its_tuple(workers: int) -> None:
    spout = FeederSpout()
    with running(chain(spout, Raises()), conf("at-least-once", workers)) as cluster:
        spout.feed([7], message_id="seven")
        cluster.run_until_idle()
        require_whole(spout.tracker.failures["'seven'"], cluster)
        (group,) = cluster.failures()
        assert group.newest == spout.tracker.failures["'seven'"] == cluster.errors[0]


@WORKERS
def test_exactly_once_the_dead_letter_and_the_spout_know_how_long_it_waited_for_its_retries(
    workers: int,
) -> None:
    spout = FeederSpout()
    with LocalCluster() as cluster:
        retries = {"topology.max.retries": 2, "topology.retry.backoff.ms": 1000}
        cluster.submit(chain(spout, Raises()), conf("exactly-once", workers, **retries))
        spout.feed([7], message_id="seven")
        cluster.advance(0.5)
        cluster.kill_worker("bolt")  # the held input keeps its failure
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
        require_whole(letter.failure, cluster)
        assert spout.tracker.failures["'seven'"] == letter.failure and letter.attempts == 3
        assert 2000 <= letter.failure.waited_ms["retries"] <= letter.failure.waited_ms["tree"]
        (group,) = cluster.failures()
        line = letter.reason.rpartition(" (")[2].rstrip(")")
        assert (group.cause, group.count) == (Cause("bolt", "ValueError", f"({line})"), 3)


@pytest.mark.parametrize(("early_ms", "waits"), [(0, True), (60_000, False), (-60_000, False)])
def test_a_failure_knows_how_long_its_input_lay_in_the_stream_unless_the_stores_clock_differs(
    early_ms: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spout = FeederSpout()
    with LocalCluster() as cluster:
        poll = LocalTransport.poll

        def stamped(transport: LocalTransport, after: Mapping[int, str], count: int) -> list[Entry]:
            return [
                entry._replace(sent_ms=cluster.now_ms - early_ms)
                for entry in poll(transport, after, count)
            ]

        monkeypatch.setattr(LocalTransport, "poll", stamped)
        cluster.submit(
            chain(spout, Raises()), conf("exactly-once", 2, **{"topology.max.retries": 0})
        )
        spout.feed([7])
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
        assert ("stream" in letter.failure.waited_ms) is waits
        assert letter.failure.waited_ms.get("stream", 0) <= letter.failure.waited_ms["tree"]


def test_a_reason_of_the_bolt_a_report_and_a_time_out_are_told_apart_and_counted() -> None:
    class Judges(Collecting):
        outputs = ()

        def execute(self, tup: Tuple) -> None:
            if tup[0] == "fail":
                self.collector.fail(tup, "too old")
            elif tup[0] == "report":
                self.collector.report_error("only a remark")
                self.collector.ack(tup)

    spout = FeederSpout()
    with running(chain(spout, Judges()), conf("at-least-once", 2)) as cluster:
        feed(spout, ("fail", "report", "forget", "fail"))
        cluster.advance(60)  # what is never acked stays with the bolt for ever
        found = {
            group.cause.error: (group.count, group.newest.kind)
            for group in cluster.failures()
            if group.newest
        }
        assert found.pop("too old") == (2, FailureKind.FAILED)
        assert found.pop("only a remark") == (1, FailureKind.REPORTED)
        ((late, (count, kind)),) = found.items()
        assert late.startswith("not acked within * s")
        assert count == 1
        assert kind == FailureKind.TIMED_OUT
        assert spout.tracker.failures["2"].waited_ms["tree"] >= 30_000
        assert spout.tracker.failures["2"].component == "spout"


def test_a_row_that_kills_is_parked_though_a_bolt_before_it_has_a_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class First(BasicBolt):
        outputs = ("value",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((tup[0],))

    class Kills(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] % 1000 == 170:
                deaths.value.append(tup[0])
                die()

    deaths: Shared[list[int]] = Shared([])
    monkeypatch.setattr(poison_detector, "FEWEST_INPUTS", 150)
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("numbers", spout)  # by its name in the other worker
    builder.set_bolt("first", First(), inputs="numbers")
    builder.set_bolt("second", Kills(), inputs="first")
    with ran(builder.build(), spout, range(2500), conf("exactly-once", 2)) as cluster:
        result = sorted(letter.values for letter in cluster.dead_letters)
        assert result == [(170,), (1170,), (2170,)]
        assert cluster.counts("second").executed == 2497
    assert set(Counter(deaths.value).values()) <= {3, 4, 5, 6}, (
        "three unannounced deaths at the most"
    )


@pytest.mark.parametrize(
    ("text", "error", "place"),
    [
        ("on a tick: ValueError: no: KeyError: x (b.py, line 3)", "ValueError", "(b.py, line 3)"),
        (
            "Tuple(b#-1/__window: key=['a'], start=0, end=9): DivideError (b.py, line 3)",
            "DivideError",
            "(b.py, line 3)",
        ),
        (
            "no such word 7: it is odd (b.py, line 3)",
            "no such word *: it is odd (b.py, line *)",
            "",
        ),
    ],
)
def test_failures_of_ticks_and_windows_are_grouped_by_error_and_line(
    text: str, error: str, place: str
) -> None:
    assert Failure(FailureKind.RAISED, text, "bolt").cause == Cause("bolt", error, place)


def test_causes_are_counted_in_bounded_room_and_survive_their_worker() -> None:
    class Various(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            raise type(f"Odd{tup[0]}Error", (Exception,), {})("x")

    spout = FeederSpout()
    with ran(chain(spout, Various()), spout, range(100), conf("at-most-once")) as cluster:
        cluster.kill_worker()
        spout.feed([0])
        cluster.run_until_idle()
        counts = cluster.topology().progress().failures
        assert len(counts) == 65 and sum(counts.values()) == 101
        assert counts[Cause("(other components)", "other causes", "")] == 36


class Old(FeederSpout):
    """A spout of the first form of `fail`."""

    def fail(self, message_id: Any) -> None:  # type: ignore[override]
        self.tracker.failed.append(("old", message_id))


class Blocking(FeederSpout):
    """A spout with its own thread."""

    blocking = True


@pytest.mark.parametrize(("spout", "failed"), [(Old(), [("old", 0)]), (Blocking(), [0])])
def test_both_forms_of_fail_are_called_on_the_loop_and_on_a_thread(
    spout: FeederSpout, failed: list[Any]
) -> None:
    with running(chain(spout, Raises()), conf("at-least-once")) as cluster:
        spout.feed([7])
        cluster.run_until(lambda: bool(spout.failed))
        assert spout.failed == failed
        if isinstance(spout, Blocking):
            require_whole(spout.tracker.failures["0"], cluster)


def test_a_fail_that_takes_three_arguments_is_refused_when_it_is_added() -> None:
    class Wrong(Spout):
        outputs = ("n",)

        def fail(self, message_id: Any, failure: Any, more: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(InvalidTopologyError, match=r"Wrong\.fail.* cannot be called"):
        TopologyBuilder().set_spout("spout", Wrong())


def test_a_failure_survives_a_restart_of_the_spout_before_its_callback() -> None:
    class Tells(Collecting):
        """Fails every input, and kills the worker of the spout behind it."""

        outputs = ()

        def execute(self, tup: Tuple) -> None:
            self.collector.fail(tup, "not mine")

    class Dies(FeederSpout):
        """Dies in its first callback: the next owner is called again."""

        died: Shared[bool] = Shared(False)

        def fail(self, message_id: Any, failure: Failure | None = None) -> None:
            if not self.died.value:
                self.died.value = True
                die()
            super().fail(message_id, failure)

    spout = Dies()
    with ran(chain(spout, Tells()), spout, [1], conf("at-least-once")):
        assert spout.died.value and spout.failed == [0]
        assert spout.tracker.failures["0"].text == "not mine"
        assert spout.tracker.failures["0"].component == "bolt"
