"""Taps: samples of committed rows while a client looks, with equal counts and results; nothing when
nobody does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, TopologyBuilder
from sparkstorm.client.looks.taps import Sample, _read, samples
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.transport.base import START
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster


class Split(BasicBolt):
    """Emits n to its readers, and its square to a stream that none reads; fails the first time for
    7.
    """

    outputs: Any = {"default": ["n"], "squares": ["n", "square"]}  # noqa: RUF012

    def prepare(self, conf: Any, context: Any) -> None:
        self.has_failed = False

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup["n"],))
        collector.emit((tup["n"], tup["n"] ** 2), stream="squares")
        if tup["n"] == 7 and not self.has_failed:
            self.has_failed = True
            raise ValueError("once")


def build(feed: FeederSpout, capture: CaptureBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("feed", feed)
    builder.set_bolt("split", Split(), inputs="feed")
    builder.set_bolt("one", capture, inputs="split")
    builder.set_bolt("two", CaptureBolt(), inputs="split")
    return builder.build()


def look(cluster: LocalCluster) -> None:
    """Let every worker look, as the loop of a worker process does once a second."""
    cluster.advance(1)
    for slot in cluster.topology().workers:
        slot.look(cluster.now_ms)


def run(*taps: str) -> tuple[dict[str, list[Sample]], Any]:
    """Feed 20 numbers once the taps are known; their samples, and everything that a tap must not
    change.
    """
    feed, capture = FeederSpout(["n"]), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(build(feed, capture), {"topology.retry.backoff.ms": 1})
        cluster.run_until_idle()
        reader = LocalReader(cluster.topology().store)
        for tap in taps:
            assert reader.open_tap(tap) == START.entry
        look(cluster)
        for n in range(20):
            feed.feed([n])
        cluster.run_until_idle()
        look(cluster)
        counts = {each: cluster.counts(each) for each in ("feed", "split", "one", "two")}
        shown = {
            tap: [s for _, data in reader.samples(tap, START.entry) if (s := _read(data))]
            for tap in taps
        }
        untimed = {
            c: (n.emitted, n.transferred, n.executed, n.acked, n.failed) for c, n in counts.items()
        }
        return shown, (untimed, sorted(t.values for t in capture.tuples))


def test_committed_rows_are_shown_once_each_and_counts_stay_the_same() -> None:
    nothing, plain = run()
    shown, tapped = run("split:default", "split:squares", "feed:default")
    assert nothing == {} and tapped == plain and plain[0]["split"] == (40, 40, 21, 20, 0)
    for tap in ("split:default", "split:squares", "feed:default"):
        assert sorted(s.values["n"] for s in shown[tap]) == list(range(20)), tap
    assert all(s.values["square"] == s.values["n"] ** 2 for s in shown["split:squares"])


def test_bytes_that_no_worker_wrote_are_passed_over() -> None:
    class Store:
        def open_tap(self, name: str) -> str:
            return "0-0"

        def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
            lines = [
                b"\xff",
                b"[]",
                b"{}",
                b'{"task":"x","time_ms":1}',
                b'{"task":1,"time_ms":2,"values":{"a":3}}',
            ]
            return [] if after != "0-0" else [(f"{n}-0", line) for n, line in enumerate(lines, 1)]

    found = samples(Store(), "a:default")
    assert next(found) == Sample(1, 2, {"a": 3}) and next(found) is None


@pytest.mark.parametrize("rows", [1, 500])
def test_a_batch_of_rows_is_cut_to_the_newest(rows: int) -> None:
    import pyarrow as pa

    from sparkstorm.common.model.tuples import Source
    from sparkstorm.common.model.values.codec import Codec
    from sparkstorm.data_plane.executor.emitter import Emitter, Route
    from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
    from sparkstorm.extensions.tracing.taps import MOST_ROWS, Taps

    source = Source("c", 1, "default", ("n",))
    emitter = Emitter("c", {"default": Route(source, Codec(), False)}, False)
    store = LocalStore()
    transport, reader = LocalTransport(store), LocalReader(store)
    reader.open_tap("c:default")
    taps = Taps([SimpleNamespace(emitter=emitter, observers=[])], transport, lambda: 1_000)
    taps.look(0)
    pieces: list[Any] = [(pa.record_batch({"n": list(range(rows))}), 0, source)]
    emitter.log.append(pieces)
    taps.emitted(emitter)
    taps.publish(1_000)
    assert not reader.samples("c:default", START.entry)  # not committed yet
    taps.committed()
    found = [_read(data) for _, data in reader.samples("c:default", START.entry)]
    assert [s.values["n"] for s in found if s] == list(range(rows))[-MOST_ROWS:]
