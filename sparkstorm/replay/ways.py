"""Owns the ways between the tasks of one partition and all others: routes, rows on their way, how many are divided at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

from sparkstorm.executor.emitter import Route, build_routes
from sparkstorm.executor.output_clock import OutputClock
from sparkstorm.executor.watermark_routes import TimePlan, add_lanes, add_routes
from sparkstorm.grouping.routes import Target
from sparkstorm.model.codec import Codec
from sparkstorm.model.topology import Grouping, Topology
from sparkstorm.replay.batches import BatchRoute, Way
from sparkstorm.replay.chunks import KEPT
from sparkstorm.replay.combine import Combining, may_combine
from sparkstorm.replay.job import Job, result_names
from sparkstorm.replay.plan import Feed
from sparkstorm.replay.quick import Divider, may_gather

BulkT = TypeVar("BulkT", BatchRoute, Divider)


class Ways:
    """What the tasks of one partition send: to each other (`inputs`, by receiving task) and elsewhere (`by_ends`)."""

    def __init__(
        self,
        job: Job,
        topology: Topology,
        tasks: Mapping[str, Sequence[int]],
        local: frozenset[int],
        codec: Codec,
        make_instance: Callable[[str], Any],
    ) -> None:
        self.inputs: dict[int, list[Way]] = {}
        self.by_ends: dict[tuple[int, int], list[Way]] = {}  # by sending and receiving task
        self.batch_routes: dict[tuple[int, str], BatchRoute] = {}
        self.dividers: dict[int, Divider] = {}
        self.lanes: dict[int, tuple[OutputClock, ...]] = {}
        self.time_plan = TimePlan(topology, job.plan.conf)
        self._job, self._topology, self._tasks, self._local, self._codec = job, topology, tasks, local, codec
        self._make_instance = make_instance
        spouts = {c.id for c in topology.spouts}
        self._asked = {feed for name, feed in result_names(job.plan).items() if name in job.wanted and feed.spout not in spouts}

    def routes(self, component: str, task: int, is_quick: bool = False) -> dict[str, Route]:
        """A task's routes by stream; quick ones hand bare rows to a divider."""
        plan = self._job.plan
        seed = crc32(f"{plan.name}/{task}".encode())
        lanes = add_lanes(self.time_plan, self._topology, component, task, self._tasks, self._local)
        self.lanes[task] = tuple(lanes.values())
        routes = build_routes(self._topology, component, task, self._tasks, self._local, self._codec, seed, lanes)
        watched = {stream for (stream, _), lane in lanes.items() if lane.clock is not None}
        add_routes(routes, lanes, component, task, self._codec)
        for stream, route in routes.items():
            if Feed(component, stream) in self._job.kept:
                route.subscribe(Grouping("global"), [Target(KEPT, [], False)], task, seed)
            deaf = plan.deaf.get(Feed(component, stream), ())
            route.subscribe(Grouping("direct"), [Target(t, [], False) for t in deaf], task, seed)
            ways = {target.task: Way(route.source, target.task, target.is_local, target.rows) for target in route.targets}
            self._add_ways(ways.values())
            self._set_combining(route, ways)
            groupings = [grouping for _, grouping in self._topology.subscribers(component, stream)]
            if stream in watched or route.is_direct:  # which rows are late is seen row by row
                continue
            if is_quick and may_gather(route, groupings):
                self.dividers[task] = self._subscribed(Divider(route, seed), route, ways)
            else:
                self.batch_routes[task, stream] = self._subscribed(BatchRoute(task, seed), route, ways)
        return routes

    def _set_combining(self, route: Route, ways: Mapping[int, Way]) -> None:
        """Rows for bolts that sum up by key are combined here, unless they themselves are a result."""
        source = route.source
        if source.is_late or self._job.is_timed or not self._job.quick or Feed(source.component, source.stream) in self._asked:
            return
        for subscriber, grouping in self._topology.subscribers(source.component, source.stream):
            bolt = self._make_instance(subscriber)
            for way in (ways[task] for task in self._tasks[subscriber] if may_combine(bolt, grouping)):
                way.combining = Combining(bolt, source)

    def _subscribed(self, made: BulkT, route: Route, ways: Mapping[int, Way]) -> BulkT:
        """The same subscribers for many rows at once."""
        source = route.source
        for subscriber, grouping in self._topology.subscribers(source.component, source.stream):
            positions = [source.position(f) for f in grouping.fields]
            made.subscribe(grouping, positions, [ways[task] for task in self._tasks[subscriber]])
        if KEPT in ways:
            made.subscribe(Grouping("global"), (), [ways[KEPT]])
        return made

    def _add_ways(self, ways: Iterable[Way]) -> None:
        for way in ways:
            if way.is_local:
                self.inputs.setdefault(way.target, []).append(way)
            else:
                self.by_ends.setdefault((way.source.task, way.target), []).append(way)

    def of(self, task: int) -> list[Way]:
        """Everything that a task sends."""
        return [way for ways in (*self.by_ends.values(), *self.inputs.values()) for way in ways if way.source.task == task]
