"""Parts of tasks, the same in every host: sources of rows, configurations, contexts and routes.

A host (worker, partition of a replay, stepper) has one TaskParts. What differs between hosts is a
value that it gives: the streams that it may receive next to the declared ones, the clock, and where
rows are kept.

Law: the same topology, settings and task give the same routes in every host and every run, so a row
of a replay reaches the task that it reached live. Left out: subclasses for hosts, which would be
another place where two hosts could differ unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple
from zlib import crc32

from sparkstorm.api.combining import COMBINED_FIELDS, COMBINED_STREAM
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.metrics import TaskMetrics
from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.grouping.routes import MakeTarget, own_targets
from sparkstorm.common.model.dead_letter import REPLAYED_FIELDS
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.topology import HOLD_STREAM, WATERMARK_STREAM, Topology, stream_of
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.emitter import Route, build_routes
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.watermark_routes import (
    MARK_FIELDS,
    TimePlan,
    add_routes,
    add_timed_outputs,
)

LIVE_STREAMS = {
    WATERMARK_STREAM: MARK_FIELDS,
    HOLD_STREAM: MARK_FIELDS,
    **REPLAYED_FIELDS,
}
"""Streams without a declaration that a live task may receive, with their fields."""
REPLAY_STREAMS = {WATERMARK_STREAM: MARK_FIELDS, COMBINED_STREAM: COMBINED_FIELDS}


class Outputs(NamedTuple):
    """Output of one task: routes by stream, and the clocks of those whose receivers use event
    time.
    """

    task: int
    component: str
    routes: dict[str, Route]
    timed_outputs: tuple[OutputClock, ...] = ()


class TaskParts:
    """Parts of the tasks of one host."""

    def __init__(
        self,
        topology_id: str,
        topology: Topology,
        conf: Mapping[str, Any],
        component_by_task: Mapping[int, str],
        codec: Codec,
        streams: Mapping[str, tuple[str, ...]],
    ) -> None:
        """`streams`: the fields of streams without a declaration that come to tasks of this
        host.
        """
        self.topology_id = topology_id
        self.topology = topology
        self.component_by_task = component_by_task
        self.codec = codec
        self.tasks = tasks_by_component(component_by_task)
        self.time_plan = TimePlan(topology, conf)
        self.resources: dict[str, Any] = {}
        # A component's own settings win over those of its topology, as in Storm. Once per
        # component, not per task.
        self.conf: Callable[[str], Mapping[str, Any]] = cache(
            lambda component: {**conf, **topology.components[component].conf}
        )
        self._streams = streams
        self._sources: dict[tuple[int, str], Source] = {}

    def source(self, task: int, stream: str) -> Source:
        """Return the producer of rows, one object per task and stream; MalformedFrameError when
        there is no such task or stream.
        """
        # One object per task and stream: runners compare sources by identity, which costs nothing
        # per row.
        source = self._sources.get((task, stream))
        if source is None:
            component = self.topology.components.get(self.component_by_task.get(task, ""))
            name = stream_of(stream)
            fields = self._streams.get(name)
            # The number may come out of a frame of unknown origin: it is no key of ours until it is
            # found.
            if component is None or (fields is None and name not in component.streams):
                raise MalformedFrameError(f"task {task} has no stream '{stream}' in this topology")
            # Undeclared streams first: no component may declare a name that begins with two
            # underscores.
            fields = component.streams[name].fields if fields is None else fields
            source = self._sources[task, stream] = Source(component.id, task, stream, fields)
        return source

    def context(
        self,
        task: int,
        worker_tasks: Collection[int],
        now_ms: Callable[[], int],
        column_streams: frozenset[str] = frozenset(),
        incarnation: str = "",
        effect_key: Callable[[], str] | None = None,
        metrics: TaskMetrics | None = None,
    ) -> TopologyContext:
        """Return a task's view of its topology; all tasks of the host share its resources."""
        component = self.component_by_task[task]
        return TopologyContext(
            self.topology_id,
            task,
            component,
            self.component_by_task,
            tuple(sorted(worker_tasks)),
            self.conf(component),
            now_ms,
            self.resources,
            column_streams,
            incarnation,
            effect_key,
            TaskMetrics(component, thread=get_ident) if metrics is None else metrics,
        )

    def seed(self, task: int) -> int:
        """Return the seed of a task's groupings: the same for every run of a topology of this
        name.
        """
        # Of the name and not the id, which differs with each submission: else shuffles of a replay
        # would begin elsewhere than live ones. Not Python's hash, which differs between processes.
        return crc32(f"{self.topology_id.rsplit('-', 2)[0]}/{task}".encode())

    def outputs(
        self, task: int, local_tasks: frozenset[int], make_target: MakeTarget | None = None
    ) -> Outputs:
        """Return the ways of a task's rows, late rows and watermarks to their receivers.

        `make_target` returns the target of a channel and a task; without it each route has lists of
        its own.
        """
        component = self.component_by_task[task]
        make = make_target or own_targets(local_tasks)
        # Before the routes: a subscriber that uses event time has its rows picked through the
        # sender's clock (decision 11).
        timed_outputs = add_timed_outputs(
            self.time_plan, self.topology, component, task, self.tasks, make
        )
        routes = build_routes(
            self.topology,
            component,
            task,
            self.tasks,
            self.codec,
            self.seed(task),
            timed_outputs,
            make,
        )
        # Last: routes leave in this order, and no late row or mark may come before the rows that it
        # follows.
        add_routes(routes, timed_outputs, component, task, self.codec)
        return Outputs(task, component, routes, tuple(timed_outputs.values()))
