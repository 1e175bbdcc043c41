"""The journey of one message, by what a simulated store keeps of it, and traces of a sample."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api import BasicBolt, Bolt, TopologyBuilder
from sparkstorm.client.looks import traces
from sparkstorm.client.looks.journey import MOST_ENTRIES, Journey, Journeys, Message
from sparkstorm.client.looks.taps import Sample, _read
from sparkstorm.common.errors import NotAliveError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.outline import ComponentOutline, TopologyOutline
from sparkstorm.common.model.roots import PLACES, batch_root, is_sampled, split, tree_root
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.base import START, Cursor
from sparkstorm.data_plane.transport.frames import encode_rows
from sparkstorm.data_plane.transport.keys import TRACE_BITS, trace_name
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.web.served import SimulatedClient


class Keep(Bolt):
    """Acks all but the text "held", fails "bad"."""

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        if tup["line"] == "bad":
            raise ValueError("no \x1b[2J good")
        if tup["line"] != "held":
            self.collector.ack(tup)


class Pass(BasicBolt):
    outputs = ("line",)

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup["line"]])


def cluster_of(**conf: object) -> tuple[LocalCluster, FeederSpout, Any]:
    """Return a cluster with lines -> pass -> keep on two workers, its spout, and a client's
    handle.
    """
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("pass", Pass(), inputs="lines")
    builder.set_bolt("keep", Keep(), inputs="pass")
    cluster = LocalCluster(is_lively=True)
    cluster.submit(builder.build(), {"topology.workers": 2, **conf}, "words")
    return cluster, spout, SimulatedClient(cluster, {}).topology("words")


def test_a_message_is_open_where_it_is_held_and_gone_when_it_is_acked() -> None:
    cluster, spout, handle = cluster_of()
    with cluster:
        spout.feed(["held"], "first")
        spout.feed(["well"], "second")
        cluster.advance(seconds=2)
        [message] = handle.journeys.open()
        assert (message.message_id, message.component) == ("first", "lines")
        for name in ("first", message.root):
            found = handle.journeys.find(name)
            [stay] = found.stays
            assert stay.component == "keep"
            assert stay.state == "held"
            assert stay.rows == 1
            assert stay.values == {"line": "'held'"}
            assert found.message == message and "is held by keep#" in found.sentence
        with pytest.raises(NotAliveError, match=r"no open message of words-1-.* has the id second"):
            handle.journeys.find("second")
        assert "left nothing in the store" in handle.journeys.find("0123456789abcdef").sentence


def test_a_message_that_fails_is_tried_again_and_then_given_up() -> None:
    cluster, spout, handle = cluster_of(
        **{"topology.max.retries": 1, "topology.retry.backoff.ms": 60_000}
    )
    with cluster:
        spout.feed(["bad"], 7)
        cluster.advance(seconds=2)
        found = handle.journeys.find("7")
        [stay] = found.stays
        assert (stay.component, stay.state, stay.attempts) == ("keep", "tried again", 1)
        assert "ValueError: no" in stay.failure and found.message is not None
        cluster.advance(seconds=90)
        cluster.run_until_idle()
        after = handle.journeys.find(found.root)
        assert after.message is None and not after.stays
        [parked] = after.parked
        assert (parked.component, parked.id) == ("keep", next(iter(handle.dead_letters.read())))
        assert "was given up by keep#" in after.sentence and "\x1b" not in after.sentence


def journeys_of(entries: list[bytes], cursor: Cursor = START) -> Journeys:
    """Return journeys over a store in which these entries wait for task 2, the bolt."""
    store = LocalStore()
    store.task(2).stream = list(enumerate(entries, 1))
    store.task(2).cursor = cursor
    components = {
        "lines": ComponentOutline("spout", streams={"default": ("line",)}),
        "keep": ComponentOutline("bolt"),
    }
    outline = TopologyOutline(components, {}, {1: "lines", 2: "keep"})
    tasks = {1: TaskInfo("lines", "spout"), 2: TaskInfo("keep", "bolt")}
    return Journeys(
        "words-1-1", LocalReader(store), tasks, outline, lambda: iter(()), lambda: 10_000
    )


SOURCE = Source("lines", 1, "default", ("line",))


def entry(*roots: int | tuple[int, ...]) -> bytes:
    """Return an entry with a row for each of these roots."""
    return encode_rows(
        Codec(),
        "default",
        5,
        [((f"line {n}",), root, SOURCE) for n, root in enumerate(roots)],
        lambda _: 9,
    )


def test_rows_that_wait_are_found_by_every_root_that_names_the_message() -> None:
    batch = batch_root(12345 << 10)
    member, other, tree = batch + 3, batch + 4, tree_root(77)
    found = journeys_of([entry(other, member), entry(split(member), tree), entry((tree, member))])
    [first, second, third] = found.find(f"{split(member):016x}").stays
    assert [each.rows for each in (first, second, third)] == [1, 1, 1]
    assert first.state == "waits"
    assert first.source == "lines/default"
    assert first.since_ms == 1
    assert first.values == {"line": "'line 1'"}
    assert len(found.find(f"{member:016x}").stays) == 3
    assert len(found.find(f"{tree:016x}").stays) == 2


def test_rows_that_are_consumed_do_not_wait() -> None:
    tree = tree_root(77)
    rows = [entry(tree, tree), entry(tree, tree, tree)]
    result = [each.rows for each in journeys_of(rows, Cursor("1-0", 2)).find(f"{tree:016x}").stays]
    assert result == [1]


def test_bytes_that_are_no_entry_are_passed_over_and_a_long_backlog_is_said() -> None:
    tree = tree_root(77)
    assert journeys_of([b"\x00", b"SF\x03\x01", entry(tree)]).find(f"{tree:016x}").is_whole
    found = journeys_of([entry(tree)] * (MOST_ENTRIES + 5)).find(f"{tree:016x}")
    assert len(found.stays) == MOST_ENTRIES
    assert not found.is_whole
    assert "not everything was looked at" in found.sentence


@given(st.integers(1, (1 << 63) - 1), st.sampled_from(TRACE_BITS))
def test_all_roots_of_a_message_are_sampled_or_none(drawn: int, bits: int) -> None:
    member = batch_root(drawn) + drawn % PLACES
    assert is_sampled(member, bits) == is_sampled(split(member), bits)


def test_a_sample_has_its_share_of_the_members_of_batches() -> None:
    members = [
        batch_root(number << 10) + place for number in range(1, 65) for place in range(PLACES)
    ]
    for bits in (0, 4, 8):
        count = sum(is_sampled(member, bits) for member in members)
        assert 0.8 * len(members) <= count * 2**bits <= 1.2 * len(members), bits


def look(cluster: LocalCluster) -> None:
    """Let every worker look, as the loop of a worker process does once a second."""
    cluster.advance(seconds=1)
    for slot in cluster.topology().workers:
        slot.look(cluster.now_ms)


def traced(
    *texts: str, is_open: bool = True
) -> tuple[list[traces.Trace], dict[str, tuple[int, ...]]]:
    """Feed lines while a tap is open; return the traces, and counts that a tap must not change."""
    cluster, spout, _ = cluster_of(**{"topology.max.retries": 0})
    with cluster:
        reader = LocalReader(cluster.topology().store)
        if is_open:
            reader.open_tap(trace_name(0))
        look(cluster)
        for text in texts:
            spout.feed([text])
        cluster.run_until_idle()
        look(cluster)
        found: dict[str, list[traces.TraceEvent]] = {}
        for _, data in reader.samples(trace_name(0), START.entry):
            traces._add(found, _read(data) or Sample(0, 0, {}))
        counts = {each: cluster.counts(each) for each in ("lines", "pass", "keep")}
        return traces.traces_of(found), {
            name: (c.emitted, c.executed, c.acked, c.failed) for name, c in counts.items()
        }


def test_a_trace_has_every_hop_of_a_message_and_changes_nothing() -> None:
    nothing, plain = traced("well", "bad", "well", is_open=False)
    found, counts = traced("well", "bad", "well")
    assert nothing == [] and counts == plain
    ways = [[(each.what, each.component) for each in trace.events] for trace in found]
    assert sorted(ways[0]) == [
        ("emitted", "lines"),
        ("executed", "pass"),
        ("failed", "keep"),
        ("given up", "lines"),
    ]
    good = [("acked", "lines"), ("emitted", "lines"), ("executed", "keep"), ("executed", "pass")]
    assert [sorted(way) for way in ways[1:]] == [good, good]
    assert found[0].has_failed and "ValueError" in "".join(each.text for each in found[0].events)
    assert all(each.took_us >= 0 and each.is_whole for each in found)
    assert traces.spans(found[1])[0]["began_ms"] == 0.0


class Published:
    """A store of taps under its own clock: events by their time in seconds and their tap."""

    def __init__(self, *events: tuple[float, int, dict[str, Any]], pause_s: float = 0.0) -> None:
        self.now = 0.0
        self.opened: list[int] = []
        self._events, self._pause_s = events, pause_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += self._pause_s or seconds

    def open_tap(self, name: str) -> str:
        self.opened.append(int(name.rpartition(":")[2]))
        return "0"

    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
        found = enumerate(self._events, 1)
        return [
            (str(number), json.dumps({"task": 1, "time_ms": 1, "values": values}).encode())
            for number, (at, bits, values) in found
            if at <= self.now and number > int(after) and name == trace_name(bits)
        ]


def event_of(root: str) -> dict[str, Any]:
    texts = {"what": "emitted", "component": "a", "worker": "n:1", "source": "", "text": ""}
    return {"root": root, **texts, "began_us": 1, "ended_us": 2, "committed_us": 3}


ANSWER = {"what": "looks", "worker": "n:1"}


@pytest.mark.parametrize(
    ("events", "pause_s", "bits", "roots", "ended_s"),
    [
        # the worker was busy when it should have looked
        ([(5.0, 0, ANSWER), (7.0, 0, event_of("a" * 16))], 0.0, 0, ["a" * 16], 9.0),
        # it never answers
        ([(9.0, 0, event_of("a" * 16))], 0.0, 0, ["a" * 16], 14.0),
        ([], 0.0, 0, [], 14.0),
        # the client got no processor until everything was over
        ([(0.0, 0, ANSWER), (1.0, 0, event_of("a" * 16))], 60.0, 0, ["a" * 16], 60.0),
        # the rate has fallen: of one message in 256 none comes, so all are traced
        (
            [(0.0, 8, ANSWER), (3.0, 0, ANSWER), (3.5, 0, event_of("b" * 16))],
            0.0,
            8,
            ["b" * 16],
            5.0,
        ),
        (
            [(0.0, 8, ANSWER), (1.0, 8, event_of("c" * 16)), (3.0, 8, event_of("d" * 16))],
            0.0,
            8,
            ["c" * 16, "d" * 16],
            4.0,
        ),
    ],
)
def test_a_look_begins_with_the_answers_of_the_workers_and_ends_with_a_last_reading(
    events: Any,
    pause_s: float,
    bits: int,
    roots: list[str],
    ended_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Published(*events, pause_s=pause_s)
    for module in ("taps", "traces"):
        monkeypatch.setattr(f"sparkstorm.client.looks.{module}.time", store)
    found = traces.look(store, 4.0, bits, ["n:1"])
    assert [each.root for each in found] == roots
    assert ended_s <= store.now <= ended_s + 0.7
    assert {*store.opened} == ({0, 8} if bits and events[1][1] == 0 else {bits})


def test_a_worker_answers_each_look_while_a_client_traces() -> None:
    cluster, _, _ = cluster_of()
    with cluster:
        reader = LocalReader(cluster.topology().store)
        reader.open_tap(trace_name(4))
        look(cluster)
        look(cluster)
        owners = {str(slot.slot) for slot in cluster.topology().workers}
        found = [_read(data) for _, data in reader.samples(trace_name(4), START.entry)]
        values = [each.values for each in found if each]
        assert {str(each["worker"]) for each in values} == owners
        assert {each["what"] for each in values} == {"looks"} and len(values) == 2 * len(owners)


def test_events_that_no_worker_writes_are_passed_over() -> None:
    fine: dict[str, Any] = {
        "root": "0" * 16,
        "what": "emitted",
        "component": "a",
        "worker": "n:1",
        "source": "",
        "text": "",
    }
    fine |= {"began_us": 1, "ended_us": 2, "committed_us": 3}
    found: dict[str, list[traces.TraceEvent]] = {}
    changes: list[dict[str, Any]] = [
        {"root": "<b>"},
        {"root": 1},
        {"what": None},
        {"began_us": "1"},
        {"ended_us": True},
        {"text": []},
    ]
    for change in changes:
        traces._add(found, Sample(1, 1, {**fine, **change}))
    assert found == {}
    traces._add(found, Sample(1, 1, fine))
    assert [trace.took_us for trace in traces.traces_of(found)] == [2]


@pytest.mark.parametrize(
    ("rate", "bits"), [(None, 0), (0.0, 0), (50.0, 0), (51.0, 4), (800.0, 4), (1e6, 16), (1e9, 16)]
)
def test_the_share_follows_the_rate(rate: float | None, bits: int) -> None:
    assert traces.bits_for(rate) == bits


def test_a_message_whose_rows_were_not_all_looked_at_is_not_called_gone() -> None:
    message = Message("0" * 16, "7", "lines", 1, 1_000)
    found = Journey("t", "0" * 16, 3_000, message, is_whole=False)
    assert "none of its rows is among those that were looked at; not everything" in found.sentence
    assert "none of its rows waits in the store" not in found.sentence


def test_a_journey_is_a_record_of_plain_values() -> None:
    from sparkstorm.control_plane.insight.records import to_json

    tree = tree_root(77)
    found = to_json(journeys_of([entry(tree)]).find(f"{tree:016x}"))
    assert json.loads(json.dumps(found))["stays"][0]["component"] == "keep"
