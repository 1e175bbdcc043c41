"""One sampler of a cluster for all who look at it; it reads the stores and keeps what it has read.

`step` reads, and returns when to be called again: by a thread of the web process, a turn of the
command line, a simulation by hand. Readers never wait for a store and cost it nothing: they get the
last records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sparkstorm.insight.records import ClusterView, TopologyView, Window


class ReadModel(Protocol):
    """A sampler as page, REST, metrics, command line and notebooks see it, from any thread."""

    def cluster(self) -> ClusterView:
        """Return the cluster as it was read last; StoreUnavailableError before the first reading."""

    def topology(self, name: str) -> TopologyView:
        """Return a topology by name or id; NotAliveError names those there are."""

    def at(self, time_ms: int) -> tuple[ClusterView, dict[str, TopologyView]]:
        """Return cluster and topologies (by id) as of a moment of the last 24 hours, or just before."""

    def moments(self) -> list[int]:
        """Return the times for which `at` has records of their own, oldest first."""

    def series(self, name: str, component: str | None = None, window: str = "10m") -> dict[str, list[float | None]]:
        """Return time series for charts, None where nothing was read.

        `time_ms`, and of each span that ends then: emitted_per_s, executed_per_s, acked_per_s,
        failed_per_s, busy, p50_ms, p99_ms, pending, backlog_bytes.
        """

    def task_window(self, name: str, task: int, window: str) -> Window:
        """Return one window of one task."""

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each sample, from the sampler's thread; return what ends that.

        With subscribers it samples each second, without any every 10 s.
        """
