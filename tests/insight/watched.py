"""A word count on a simulated cluster with a sampler that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.testing import FeederSpout, LocalCluster


class Split(BasicBolt):
    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in str(tup["line"]).split():
            collector.emit([word])


class Count(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["word"] == "bad":
            raise ValueError("a bad word")


@dataclass
class Watched:
    """The parts of `watched`."""

    cluster: LocalCluster
    spout: FeederSpout
    sampler: Sampler

    def feed(self, lines: int, text: str = "two words") -> None:
        """Emit so many lines, wait until all are done and another second has passed, then
        sample.
        """
        for _ in range(lines):
            self.spout.feed([text])
        self.cluster.run_until_idle()
        self.pass_seconds(1)

    def pass_seconds(self, seconds: int) -> None:
        """Let time pass with a sample each second."""
        for _ in range(seconds):
            self.cluster.advance(seconds=1)
            self.sampler.step()


@contextmanager
def watched(**conf: object) -> Iterator[Watched]:
    """Run lines -> split (2 tasks) -> count (2 tasks) on two workers, and sample it once."""
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2, **conf}, "words")
        sampler = Sampler(cluster.source())
        sampler.step()
        yield Watched(cluster, spout, sampler)
