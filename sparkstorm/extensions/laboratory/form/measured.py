"""Measurements in cluster files: the JSON form of `control_plane.scheduling.measured.measurements`, both
ways.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from sparkstorm.common.errors import show
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.strict import UnfitValueError, expected, near_name
from sparkstorm.control_plane.scheduling.measured.measurements import (
    VERSION,
    Flow,
    HostLoad,
    Measurements,
    TaskLoad,
)
from sparkstorm.extensions.laboratory.form.fields import Number, Text


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise expected("a number from 0 to 1", value)
    return float(value)


def _version(value: object) -> int:
    if value != VERSION or isinstance(value, bool):
        raise expected(f"version {VERSION} of the form of measurements", value)
    return VERSION


Share = Annotated[float, _share]


@dataclass(frozen=True, slots=True)
class HostForm:
    """Measured capacity of a supervisor's host."""

    cores: Number
    steal: Share = 0.0

    def load(self) -> HostLoad:
        """Return it as schedulers see it."""
        return HostLoad(self.cores, self.steal)


@dataclass(frozen=True, slots=True)
class _FlowForm:
    component: Text = field(metadata={"key": "from"})
    receiver: Text = field(metadata={"key": "to"})
    stream: Text = "default"
    rows_per_s: Number = 0.0
    bytes_per_s: Number = 0.0


@dataclass(frozen=True, slots=True)
class _TaskForm:
    emitted_per_s: Number = 0.0
    executed_per_s: Number = 0.0
    busy: Share = 0.0
    cpu: Number = 0.0
    memory_mb: Number | None = None


@dataclass(frozen=True, slots=True)
class MeasuredForm:
    """Measurements of a topology."""

    version: Annotated[int, _version]
    flows: tuple[_FlowForm, ...] = ()
    tasks: Mapping[int, _TaskForm] = field(default_factory=dict)
    window_secs: Number = 0.0
    settled_secs: Number = 0.0
    written_per_s: Number = 0.0

    def check(
        self,
        components: Collection[str],
        executors: Iterable[ExecutorId],
        streams: Collection[tuple[str, str, str]],
    ) -> None:
        """Refuse a component, task or stream (sender, name, receiver) that the topology does not
        have, and a flow given twice.
        """
        seen = set()
        for index, flow in enumerate(self.flows):
            ends = (flow.component, flow.stream, flow.receiver)
            if ends in seen:
                words = (
                    f"{show(flow.component)} to {show(flow.receiver)} on stream {show(flow.stream)}"
                )
                raise UnfitValueError(f"{words} occurs twice", "measured", "flows", index)
            seen.add(ends)
            for key, name in (("from", flow.component), ("to", flow.receiver)):
                if name not in components:
                    words = f"no component is called {show(name)}{near_name(name, components)}"
                    raise UnfitValueError(words, "measured", "flows", index, key)
        for index, flow in enumerate(self.flows):
            ends = (flow.component, flow.stream, flow.receiver)
            if ends not in streams:
                # It would count as no traffic of the stream that is meant.
                read = sorted({name for a, name, b in streams if (a, b) == (ends[0], ends[2])})
                words = (
                    f"{show(flow.receiver)} reads no stream {show(flow.stream)} of "
                    f"{show(flow.component)}, only {', '.join(read) or 'none'}"
                    f"{near_name(flow.stream, read)}"
                )
                raise UnfitValueError(words, "measured", "flows", index, "stream")
        # by search and not by a set of all tasks: an executor may claim two thousand million
        ordered = sorted(executors)
        for task in sorted(self.tasks):
            position = bisect_right(ordered, task, key=lambda executor: executor.first_task) - 1
            if position < 0 or task > ordered[position].last_task:
                raise UnfitValueError(f"task {task} is in no executor", "measured", "tasks")

    def measurements(self) -> Measurements:
        """Return them as schedulers see them."""
        flows = tuple(
            Flow(flow.component, flow.stream, flow.receiver, flow.rows_per_s, flow.bytes_per_s)
            for flow in self.flows
        )
        tasks = {
            task: TaskLoad(
                load.emitted_per_s, load.executed_per_s, load.busy, load.cpu, load.memory_mb
            )
            for task, load in self.tasks.items()
        }
        return Measurements(
            flows,
            tasks,
            round(1000 * self.window_secs),
            round(1000 * self.settled_secs),
            self.written_per_s,
        )


def host_row(load: HostLoad) -> dict[str, Any]:
    """Return a host's capacity as JSON."""
    return {"cores": load.cores, "steal": load.steal}


def measured_row(measured: Measurements) -> dict[str, Any]:
    """Return measurements as JSON."""
    tasks = {}
    for task, load in sorted(measured.tasks.items()):
        row: dict[str, Any] = {
            "emitted_per_s": load.emitted_per_s,
            "executed_per_s": load.executed_per_s,
            "busy": load.busy,
            "cpu": load.cpu,
        }
        if load.memory_mb is not None:
            row["memory_mb"] = load.memory_mb
        tasks[str(task)] = row
    return {
        "version": measured.version,
        "window_secs": measured.window_ms / 1000,
        "settled_secs": measured.settled_ms / 1000,
        "written_per_s": measured.written_per_s,
        "flows": [
            {
                "from": flow.component,
                "stream": flow.stream,
                "to": flow.receiver,
                "rows_per_s": flow.rows_per_s,
                "bytes_per_s": flow.bytes_per_s,
            }
            for flow in measured.flows
        ],
        "tasks": tasks,
    }
