"""Output edges of one partition's tasks: routes, row buffers, bulk partitioning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

from sparkstorm.executor.emitter import Route, build_routes
from sparkstorm.executor.output_clock import OutputClock
from sparkstorm.executor.watermark_routes import TimePlan, add_lanes, add_routes
from sparkstorm.grouping.routes import Target, own_targets
from sparkstorm.model.topology import Grouping, Topology
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.job import Job, result_names
from sparkstorm.replay.plan import Feed
from sparkstorm.replay.tasks.batches import BatchPartitioner, OutEdge
from sparkstorm.replay.tasks.chunks import KEPT
from sparkstorm.replay.tasks.combiner import Combiner, may_combine
from sparkstorm.replay.tasks.untimed_task import RowPartitioner, may_partition_in_bulk

BulkT = TypeVar("BulkT", BatchPartitioner, RowPartitioner)


class OutEdges:
    """Output edges of the tasks of one partition: to each other (`inputs`, by receiving task) and elsewhere (`by_ends`)."""

    def __init__(
        self,
        job: Job,
        topology: Topology,
        tasks: Mapping[str, Sequence[int]],
        local: frozenset[int],
        codec: Codec,
        make_instance: Callable[[str], Any],
    ) -> None:
        self.inputs: dict[int, list[OutEdge]] = {}
        self.by_ends: dict[tuple[int, int], list[OutEdge]] = {}  # by sending and receiving task
        self.batch_partitioners: dict[tuple[int, str], BatchPartitioner] = {}
        self.partitioners: dict[int, RowPartitioner] = {}
        self.lanes: dict[int, tuple[OutputClock, ...]] = {}
        self.time_plan = TimePlan(topology, job.plan.conf)
        self._job, self._topology, self._tasks, self._local, self._codec = job, topology, tasks, local, codec
        self._make_instance = make_instance
        spouts = {c.id for c in topology.spouts}
        self._asked = {feed for name, feed in result_names(job.plan).items() if name in job.wanted and feed.spout not in spouts}

    def routes(self, component: str, task: int, is_untimed: bool = False) -> dict[str, Route]:
        """Create and return a task's routes by stream; an untimed task passes bare rows to a row partitioner."""
        plan = self._job.plan
        seed = crc32(f"{plan.name}/{task}".encode())
        lanes = add_lanes(self.time_plan, self._topology, component, task, self._tasks, own_targets(self._local))
        self.lanes[task] = tuple(lanes.values())
        routes = build_routes(self._topology, component, task, self._tasks, self._local, self._codec, seed, lanes)
        watched = {stream for (stream, _), lane in lanes.items() if lane.clock is not None}
        add_routes(routes, lanes, component, task, self._codec)
        for stream, route in routes.items():
            if Feed(component, stream) in self._job.kept:
                route.subscribe(Grouping("global"), [Target(KEPT, [], False)], task, seed)
            direct_targets_not_run = plan.direct_targets_not_run.get(Feed(component, stream), ())
            route.subscribe(Grouping("direct"), [Target(t, [], False) for t in direct_targets_not_run], task, seed)
            edges = {target.task: OutEdge(route.source, target.task, target.is_local, target.rows) for target in route.targets}
            self._add_edges(edges.values())
            self._set_combiner(route, edges)
            groupings = [grouping for _, grouping in self._topology.subscribers(component, stream)]
            if stream in watched or route.is_direct:  # lateness is decided row by row
                continue
            if is_untimed and may_partition_in_bulk(route, groupings):
                self.partitioners[task] = self._subscribed(RowPartitioner(route, seed), route, edges)
            else:
                self.batch_partitioners[task, stream] = self._subscribed(BatchPartitioner(task, seed), route, edges)
        return routes

    def _set_combiner(self, route: Route, edges: Mapping[int, OutEdge]) -> None:
        """Set combiners on edges to CombiningBolts, unless the rows themselves are a result."""
        source = route.source
        if source.is_late or self._job.is_timed or not self._job.shortcuts or Feed(source.component, source.stream) in self._asked:
            return
        for subscriber, grouping in self._topology.subscribers(source.component, source.stream):
            bolt = self._make_instance(subscriber)
            for edge in (edges[task] for task in self._tasks[subscriber] if may_combine(bolt, grouping)):
                edge.combiner = Combiner(bolt, source)

    def _subscribed(self, made: BulkT, route: Route, edges: Mapping[int, OutEdge]) -> BulkT:
        """Subscribe a bulk partitioner to the same groupings as a route."""
        source = route.source
        for subscriber, grouping in self._topology.subscribers(source.component, source.stream):
            positions = [source.position(f) for f in grouping.fields]
            made.subscribe(grouping, positions, [edges[task] for task in self._tasks[subscriber]])
        if KEPT in edges:
            made.subscribe(Grouping("global"), (), [edges[KEPT]])
        return made

    def _add_edges(self, edges: Iterable[OutEdge]) -> None:
        for edge in edges:
            if edge.is_local:
                self.inputs.setdefault(edge.target, []).append(edge)
            else:
                self.by_ends.setdefault((edge.source.task, edge.target), []).append(edge)

    def of(self, task: int) -> list[OutEdge]:
        """Return all edges of a sending task."""
        return [edge for edges in (*self.by_ends.values(), *self.inputs.values()) for edge in edges if edge.source.task == task]
