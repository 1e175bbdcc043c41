"""Routes of watermarks through a topology.

A watermark is a row of stream `__watermark` from the sending task to the receiving one, (stream,
time in ms). It is committed after the rows that it follows and read in their order, whether they
come as frames, from memory or after a restart. Bolts without windows or timers receive only holds and
end-of-stream watermarks, and forward them when a downstream bolt uses event time.

Left out: Flink's way, in which each channel carries its watermark in band between operators'
threads: here a mark must survive as a row does, so it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkstorm.common.grouping.routes import MakeTarget, Target
from sparkstorm.common.model.topology import (
    AGAIN_PREFIX,
    HOLD_STREAM,
    LATE_PREFIX,
    WATERMARK_STREAM,
    Topology,
)
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.settings import settings_of
from sparkstorm.common.windowing.watermarks import Channel
from sparkstorm.data_plane.executor.emitter import Route
from sparkstorm.data_plane.executor.output_clock import OutputClock

MARK_FIELDS = ("stream", "time_ms")


class TimePlan:
    """Components that use event time, and edges that carry watermarks; the same in every worker of
    a topology.
    """

    def __init__(self, topology: Topology, conf: Mapping[str, Any]) -> None:
        self._topology = topology
        settings_by_id = {component.id: settings_of(component, conf) for component in topology}
        self.settings = {
            id: settings for id, settings in settings_by_id.items() if settings is not None
        }
        self._cycle = topology.cycles() if self.settings else {}
        self._told = self._upstream_of(self.settings)

    def inputs(self, component: str, tasks_of: Mapping[str, Sequence[int]]) -> list[Channel]:
        """Return every task and stream that sends watermarks to a component; edges inside a cycle
        never do.
        """
        if component not in self._told:
            return []
        return [
            (task, source.stream)
            for source in self._topology.components[component].inputs
            if self._tells(source.component, component)
            for task in tasks_of.get(source.component, ())
        ]

    def is_in_cycle(self, component: str) -> bool:
        """Return whether what a component emits can come back to it."""
        return any(
            self._cycle[source.component] == self._cycle[component]
            for source in self._topology.components[component].inputs
        )

    def is_told(self, component: str) -> bool:
        """Return whether a component, or one downstream of it, uses event time."""
        return component in self._told

    def listeners(self, component: str, stream: str) -> list[str]:
        """Return subscribers of a stream that receive watermarks."""
        return [
            id
            for id, _ in self._topology.subscribers(component, stream)
            if self._tells(component, id)
        ]

    def _tells(self, sender: str, receiver: str) -> bool:
        return receiver in self._told and self._cycle[sender] != self._cycle[receiver]

    def _upstream_of(self, components: Iterable[str]) -> set[str]:
        reached: set[str] = set()
        waiting = list(components)
        while waiting:
            id = waiting.pop()
            if id not in reached:
                reached.add(id)
                waiting += [source.component for source in self._topology.components[id].inputs]
        return reached


def add_timed_outputs(
    plan: TimePlan,
    topology: Topology,
    component: str,
    task: int,
    tasks_of: Mapping[str, Sequence[int]],
    make_target: MakeTarget,
) -> dict[tuple[str, str], OutputClock]:
    """The timed outputs of a task by stream and subscriber, before its routes are built."""
    timed_outputs: dict[tuple[str, str], OutputClock] = {}
    marks: dict[int, Target] = {}
    mark_source = Source(component, task, WATERMARK_STREAM, MARK_FIELDS)
    for stream in topology.components[component].streams:
        for subscriber in plan.listeners(component, stream):
            targets = [make_target(stream, t) for t in tasks_of.get(subscriber, ())]
            for target in targets:
                marks.setdefault(target.task, make_target(WATERMARK_STREAM, target.task))
            output = timed_outputs[stream, subscriber] = OutputClock(
                stream, subscriber, targets, marks, mark_source
            )
            settings = plan.settings.get(subscriber)
            if settings is not None and settings.is_event_time:
                source = Source(
                    component, task, stream, topology.components[component].streams[stream].fields
                )
                output.watch(
                    settings,
                    source,
                    [make_target(LATE_PREFIX + stream, target.task) for target in targets],
                )
            else:
                output.pass_holds(
                    [make_target(HOLD_STREAM, target.task) for target in targets],
                    [make_target(AGAIN_PREFIX + stream, target.task) for target in targets],
                )
    return timed_outputs


def add_routes(
    routes: dict[str, Route],
    timed_outputs: Mapping[tuple[str, str], OutputClock],
    component: str,
    task: int,
    codec: Codec,
) -> None:
    """Ways for late rows, then for marks, behind those for rows: in this order they leave."""
    for (stream, subscriber), output in timed_outputs.items():
        if output.late:
            source = Source(component, task, stream, routes[stream].source.fields, is_late=True)
            route = routes[f"{source.channel}/{subscriber}"] = Route(source, codec, is_direct=True)
            route.targets = output.late
    if timed_outputs:
        output = next(iter(timed_outputs.values()))
        route = routes[WATERMARK_STREAM] = Route(output.mark_source, codec, is_direct=True)
        route.targets = list(output.marks.values())
