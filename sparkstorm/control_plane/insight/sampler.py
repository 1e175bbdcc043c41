"""One sampler of a cluster for all its readers; it reads the stores and keeps what it has read.

`step` reads, and returns when to be called again: by a thread of the web process, a turn of the
command line, a simulation by hand. Readers never wait for a store and cost it nothing: they get the
last records.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sparkstorm.common.errors import (
    InvalidConfigError,
    NotAliveError,
    SparkStormError,
    StoreUnavailableError,
)
from sparkstorm.common.model.failure import Failure
from sparkstorm.control_plane.insight.cluster_views import cluster_view, stale
from sparkstorm.control_plane.insight.history import History
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.control_plane.insight.reading import ReadingSource, StoreReading, TopologyReading
from sparkstorm.control_plane.insight.records import (
    WINDOWS_S,
    ClusterReport,
    CountWindow,
    ErrorView,
    TopologyReport,
)
from sparkstorm.control_plane.insight.ring import COARSE, Ring
from sparkstorm.control_plane.insight.topology_views import error_view, topology_view


class ReadModel(Protocol):
    """A sampler as page, REST, metrics, command line and notebooks see it, from any thread."""

    def cluster(self) -> ClusterReport:
        """Return the cluster as it was read last; StoreUnavailableError before the first
        reading.
        """

    def topology(self, name: str) -> TopologyReport:
        """Return a topology by name or id; NotAliveError names those there are."""

    def at(self, time_ms: int) -> tuple[ClusterReport, dict[str, TopologyReport]]:
        """Return cluster and topologies (by id) as of a moment of the last 24 hours, or just
        before.
        """

    def moments(self) -> list[int]:
        """Return the times for which `at` has records of their own, oldest first."""

    def series(
        self, name: str, component: str | None = None, window: str = "10m", since_ms: int = 0
    ) -> dict[str, list[float | None]]:
        """Return time series for charts, None where nothing was read.

        `time_ms`, and of each span that ends then: emitted_per_s, executed_per_s, acked_per_s,
        failed_per_s, busy, p50_ms, p99_ms, pending, backlog_bytes. Spans that end at `since_ms` or
        before are left out: a chart that is open asks for what is new.
        """

    def task_window(self, name: str, task: int, window: str) -> CountWindow:
        """Return one window of one task."""

    def errors(self, name: str, component: str | None = None) -> tuple[ErrorView, ...]:
        """Return the last ten errors of every component, or of one, oldest first."""

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each sample, from the sampler's thread; return what ends that.

        With subscribers it samples each second, without any every 10 s.
        """


PERIOD_MS = 1_000
IDLE_PERIOD_MS = 10_000
"""Without subscribers; the ring of the last 24 hours goes on, so that charts have no holes."""


class Sampler:
    """`ReadModel` of one source: it reads once for all readers, keeps 24 hours, and goes on while
    stores are away.

    While Redis is away, topologies keep their last counts with the reason (`problem`); while
    ZooKeeper is, the whole cluster is marked stale.
    """

    def __init__(self, source: ReadingSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._histories: dict[str, History] = {}
        self._looks: dict[str, tuple[int, StoreSnapshot]] = {}
        self._views: dict[str, TopologyReport] = {}
        self._errors: dict[str, tuple[Failure, ...]] = {}
        self._cluster: ClusterReport | None = None
        # The records of each second as they are, and those of each tenth second and more in few
        # bytes: to pack each second's was a third of a sample.
        self._recent = Ring[tuple[ClusterReport, dict[str, TopologyReport]]](COARSE[:1])
        self._kept = Ring[bytes](COARSE[1:])
        self._subscribers: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._failure = ""

    # -- sampling ----------------------------------------------------------------------------------

    def step(self) -> int:
        """Read once; return in how many milliseconds to call again."""
        try:
            reading = self._source.read()
        except SparkStormError as error:
            self._note_away(error)
        else:
            self._take(reading)
        for wake in [*self._subscribers.values()]:
            wake()
        return PERIOD_MS if self._subscribers else IDLE_PERIOD_MS

    def _note_away(self, error: SparkStormError) -> None:
        with self._lock:
            self._failure = str(error)
            if self._cluster is not None:
                self._number += 1
                since_ms = self._cluster.stale_since_ms or self._cluster.time_ms
                self._cluster = replace(
                    stale(self._cluster, since_ms, str(error)), number=self._number
                )

    def _take(self, reading: StoreReading) -> None:
        views = {}
        for topology_id, topology in reading.topologies.items():
            history = self._histories.get(topology_id)
            if history is None:
                history = self._histories[topology_id] = History(
                    topology.outline, topology.base.launch_ms
                )
            views[topology_id] = self._view(topology, history, reading.time_ms)
        for gone in self._histories.keys() - views.keys():
            del self._histories[gone]
            self._looks.pop(gone, None)
        with self._lock:
            self._number += 1
            self._views = dict(sorted(views.items()))
            self._errors = {
                topology_id: topology.errors for topology_id, topology in reading.topologies.items()
            }
            self._cluster = cluster_view(reading, self._views, self._number)
            moment = (self._cluster, self._views)
            self._recent.add(reading.time_ms, moment)
        if self._kept.takes(reading.time_ms):
            packed = zlib.compress(pickle.dumps(moment, pickle.HIGHEST_PROTOCOL), 1)
            with self._lock:
                self._kept.add(reading.time_ms, packed)

    def _view(self, reading: TopologyReading, history: History, now_ms: int) -> TopologyReport:
        look = reading.look
        last_look = self._looks.get(reading.base.topology_id)
        if look is not None:
            history.add(now_ms, look.progress, look.merged, look.backlog_by_task)
            last_look = self._looks[reading.base.topology_id] = (now_ms, look)
        last_ms, last = last_look or (now_ms, StoreSnapshot({}, {}))
        view = topology_view(reading, last, history, last_ms)
        if look is not None:
            return view
        age = "of before" if last_look else "not known"
        sentence = f"{view.name} may run on, its counts are {age}: {reading.problem}"
        return replace(view, sentence=sentence, is_well=False, problem=reading.problem)

    # -- looking -----------------------------------------------------------------------------------

    def cluster(self) -> ClusterReport:
        """Return the cluster as it was read last; StoreUnavailableError before the first
        reading.
        """
        with self._lock:
            if self._cluster is None:
                raise StoreUnavailableError(
                    self._failure or "the cluster has not been read yet: try again in a second"
                )
            return self._cluster

    def topology(self, name: str) -> TopologyReport:
        """Return a topology by name or id; NotAliveError names those there are."""
        views = self._views
        report = views.get(name) or next(
            (view for view in views.values() if view.name == name), None
        )
        if report is None:
            names = ", ".join(view.name for view in views.values())
            raise NotAliveError(
                f"topology {name:.80} is not alive; {f'there are {names}' if names else 'no topology runs here'}"
            )
        return report

    def at(self, time_ms: int) -> tuple[ClusterReport, dict[str, TopologyReport]]:
        """Return cluster and topologies (by id) as of a moment of the last 24 hours, or just
        before.
        """
        with self._lock:
            recent = self._recent.before(time_ms)
            sample = None if recent else self._kept.before(time_ms) or self._kept.oldest()
        if recent is not None:
            cluster, views = recent[1]
            return cluster, dict(views)
        if sample is None:
            return self.cluster(), dict(self._views)
        # our own bytes, never left this process
        cluster, views = pickle.loads(zlib.decompress(sample[1]))
        return cluster, views

    def moments(self) -> list[int]:
        """Return the times for which `at` has records of their own, oldest first."""
        with self._lock:
            return sorted({*self._recent.times(), *self._kept.times()})

    def series(
        self, name: str, component: str | None = None, window: str = "10m", since_ms: int = 0
    ) -> dict[str, list[float | None]]:
        """Return time series for charts; see `ReadModel`."""
        view = self.topology(name)
        check_window(window)
        if component is not None:
            check_component(view, component)
        return self._histories[view.id].series(component, window, since_ms)

    def task_window(self, name: str, task: int, window: str) -> CountWindow:
        """Return one window of one task."""
        view = self.topology(name)
        check_window(window)
        return self._histories[view.id].grown(window).task(task)

    def errors(self, name: str, component: str | None = None) -> tuple[ErrorView, ...]:
        """Return the last ten errors of every component, or of one, oldest first."""
        view = self.topology(name)
        if component is not None:
            check_component(view, component)
        failures = self._errors.get(view.id, ())
        return tuple(
            error_view(failure)
            for failure in reversed(failures)
            if component in (None, failure.component)
        )

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each sample, from the sampler's thread; return what ends that."""
        key = next(_KEYS)
        self._subscribers[key] = wake

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    @property
    def has_subscribers(self) -> bool:
        """Return whether a subscriber waits for samples."""
        return bool(self._subscribers)


_KEYS = itertools.count()


def check_window(window: str) -> None:
    """Raise InvalidConfigError when there is no such window."""
    if window not in WINDOWS_S:
        raise InvalidConfigError(
            f"window: expected one of {', '.join(WINDOWS_S)}, got {window!r:.40}"
        )


def check_component(view: TopologyReport, component: str) -> None:
    """Raise NotAliveError when a topology has no such component."""
    if component not in view.components:
        names = ", ".join(name for name in view.components if not name.startswith("__"))
        raise NotAliveError(
            f"topology {view.name} has no component {component!r:.80}, only {names}"
        )
