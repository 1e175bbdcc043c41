"""Outline of a topology: its shape without its code, so that Nimbus schedules without
unpickling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.tasks import executors_by_component, number_tasks, system_topology
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.settings import StateSettings


@dataclass(frozen=True, slots=True)
class InputOutline:
    """One subscription: component, stream and grouping."""

    component: str
    stream: str
    grouping: str
    fields: tuple[str, ...] = ()  # of the grouping


@dataclass(frozen=True, slots=True)
class ComponentOutline:
    """Component without its instance; kind is "spout", "bolt" or "system"."""

    kind: str
    conf: Mapping[str, JsonValue] = field(default_factory=dict)
    inputs: tuple[InputOutline, ...] = ()
    # declared fields by stream
    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_version: int = 0  # form of a stateful bolt's state; 0 without state
    state_backend: str = ""  # of a stateful bolt


@dataclass(frozen=True, slots=True)
class TopologyOutline:
    """Components by id, including the system's, and the component of each task (S0.56-S0.58)."""

    components: Mapping[str, ComponentOutline]
    executors_by_component: Mapping[str, int]
    component_by_task: Mapping[int, str]

    def task_infos(self) -> dict[int, TaskInfo]:
        """Return component and kind by task id; the system's components run as bolts (S0.58)."""
        return {
            task: TaskInfo(
                component, "spout" if self.components[component].kind == "spout" else "bolt"
            )
            for task, component in self.component_by_task.items()
        }


def outline_of(topology: Topology, conf: Mapping[str, JsonValue]) -> TopologyOutline:
    """Return the outline of a user's topology under its normalised conf, with the system's
    components.
    """
    with_system = system_topology(topology, conf)
    components = {
        component.id: ComponentOutline(
            component.kind,
            dict(component.conf),
            tuple(
                InputOutline(
                    source.component, source.stream, source.grouping.kind, source.grouping.fields
                )
                for source in component.inputs
            ),
            {name: stream.fields for name, stream in component.streams.items()},
            getattr(component.instance, "state_version", 0),
            StateSettings.of(conf, component.conf).backend
            if hasattr(component.instance, "state_version")
            else "",
        )
        for component in with_system
    }
    component_by_task = number_tasks(topology, conf)
    if not component_by_task:
        raise InvalidTopologyError("Failed to generate TaskIDs map: the topology has no task")
    return TopologyOutline(components, executors_by_component(topology, conf), component_by_task)
