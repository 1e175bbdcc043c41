"""Output edges of one partition's tasks: routes and row buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.topology import Grouping
from sparkstorm.data_plane.executor.emitter import Route
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.task_kit.task_parts import Outputs, TaskParts
from sparkstorm.replay.job import Job, result_names
from sparkstorm.replay.plan import Feed
from sparkstorm.replay.tasks.batches import OutEdge
from sparkstorm.replay.tasks.chunks import KEPT
from sparkstorm.replay.tasks.combiner import Combiner, may_combine


class OutEdges:
    """Output edges of the tasks of one partition: to each other (`inputs`, by receiving task) and
    elsewhere (`by_ends`).
    """

    def __init__(
        self, job: Job, parts: TaskParts, local: frozenset[int], make_instance: Callable[[str], Any]
    ) -> None:
        self.inputs: dict[int, list[OutEdge]] = {}
        self.by_ends: dict[tuple[int, int], list[OutEdge]] = {}  # by sending and receiving task
        self.timed_outputs: dict[int, tuple[OutputClock, ...]] = {}
        self._job = job
        self._parts = parts
        self._local = local
        self._make_instance = make_instance
        spouts = {c.id for c in parts.topology.spouts}
        self._asked = {
            feed
            for name, feed in result_names(job.plan).items()
            if name in job.wanted and feed.spout not in spouts
        }

    def outputs(self, component: str, task: int, emits_batches: bool) -> Outputs:
        """Create and return a task's outputs."""
        plan = self._job.plan
        seed = self._parts.seed(task)
        outputs = self._parts.outputs(task, self._local)
        self.timed_outputs[task] = outputs.timed_outputs
        for stream, route in outputs.routes.items():
            # One more subscriber for what is a result and reaches no later stage whole.
            if Feed(component, stream) in self._job.kept:
                route.subscribe(Grouping("global"), [Target(KEPT, [], False)], task, seed)
            if direct := plan.direct_targets_not_run.get(Feed(component, stream)):
                route.subscribe(
                    Grouping("direct"), [Target(t, [], False) for t in direct], task, seed
                )
            # One edge for each receiving task, for any number of subscriptions to it: they share
            # the list.
            is_shared = self._is_shared(Feed(component, stream))
            edges = {
                t.task: OutEdge(route.source, t, emits_batches, is_shared) for t in route.targets
            }
            self._add_edges(edges.values())
            self._set_combiner(route, edges)
        return outputs

    def _is_shared(self, feed: Feed) -> bool:
        """Return whether a row of a stream goes to more than one receiver or result."""
        subscribers = self._parts.topology.subscribers(feed.spout, feed.stream)
        is_kept = feed in self._job.kept or feed in self._asked
        return (
            len(subscribers) + is_kept > 1
            or any(grouping.kind == "all" for _, grouping in subscribers)
            or bool(self._job.plan.direct_targets_not_run.get(feed))
        )

    def _set_combiner(self, route: Route, edges: Mapping[int, OutEdge]) -> None:
        """Set combiners on edges to CombiningBolts, unless the rows themselves are a result."""
        source = route.source
        settings = self._job.settings
        if (
            source.is_late
            or settings.is_timed
            or not settings.shortcuts
            or Feed(source.component, source.stream) in self._asked
        ):
            return
        for subscriber, grouping in self._parts.topology.subscribers(
            source.component, source.stream
        ):
            bolt = self._make_instance(subscriber)
            if may_combine(bolt, grouping):
                for task in self._parts.tasks[subscriber]:
                    edges[task].combiner = Combiner(bolt, source)

    def _add_edges(self, edges: Iterable[OutEdge]) -> None:
        for edge in edges:
            if edge.is_local:
                self.inputs.setdefault(edge.target, []).append(edge)
            else:
                self.by_ends.setdefault((edge.source.task, edge.target), []).append(edge)


def kept_outputs(parts: TaskParts, task: int) -> tuple[Outputs, dict[str, list[Any]]]:
    """Return outputs of a task that keep each of its rows once, and these rows by stream."""
    component = parts.topology.components[parts.component_by_task[task]]
    kept_rows: dict[str, list[Any]] = {name: [] for name in component.streams}
    routes = {}
    for name, stream in component.streams.items():
        types = stream.types if component.kind == "bolt" else {}
        route = routes[name] = Route(parts.source(task, name), parts.codec, stream.direct, types)
        # User code may name any task: the subscribers of a stream do not matter where its rows
        # stay.
        tasks = sorted(parts.component_by_task) if stream.direct else [KEPT]
        grouping = Grouping("direct" if stream.direct else "global")
        route.subscribe(
            grouping, [Target(other_task, kept_rows[name], False) for other_task in tasks], task, 0
        )
    return Outputs(task, component.id, routes), kept_rows
