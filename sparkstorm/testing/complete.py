"""complete_topology: run a topology on given rows until nothing waits, and return what each
component emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.api.components import Spout
from sparkstorm.common.errors import InvalidTopologyError, WorkerFailedError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import Component, Grouping, Subscription, Topology
from sparkstorm.data_plane.executor.state import merged_states
from sparkstorm.testing.components import CaptureBolt, FeederSpout, fed
from sparkstorm.testing.local_cluster import LocalCluster

Rows = Sequence[Sequence[Any]]
# Rows that fail are the subject of such a test, in any number: none may pause the topology.
_CONF = {"topology.failure.pause.share": "never"}
# A source that connects to a server first; with double, a source without an end is named so late.
_PATIENCE_SECS = 60.0
_CAPTURE = "capture-of-complete-topology"


@dataclass(frozen=True, slots=True)
class Completed:
    """Result of a run: `result["split"]` are the rows of a component's default stream."""

    capture: CaptureBolt
    components: frozenset[str]
    states: Mapping[str, Mapping[int, Mapping[Any, Any]]]
    acked: Mapping[str, list[Any]]
    failed: Mapping[str, list[Any]]
    dead_letters: list[DeadLetter]
    # rows that came too late, by windowed or timed bolt that had any; with a late stream or without
    late: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, component: str) -> list[tuple[Any, ...]]:
        return self.values(component)

    def values(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return the rows of a stream; KeyError if there is no such component."""
        self._require(component)
        return self.capture.values_of(component, stream)

    def _require(self, component: str) -> None:
        if component not in self.components:
            raise KeyError(
                f"there is no component '{component}', only {', '.join(sorted(self.components))}"
            )

    def state(self, component: str) -> Mapping[Any, Any]:
        """Return a stateful bolt's state over all tasks at the end; ValueError as of
        LocalCluster.state.
        """
        return merged_states(component, self.state_by_task(component))

    def state_by_task(self, component: str) -> Mapping[int, Mapping[Any, Any]]:
        """Return the state of each task of a stateful bolt at the end; KeyError as of `values`."""
        self._require(component)
        return self.states[component]


def complete_topology(
    topology: Topology,
    sources: Mapping[str, Rows | Mapping[str, Rows]] | None = None,
    *,
    conf: Mapping[str, Any] | None = None,
    seed: int = 0,
    limit_secs: float = 3600.0,
) -> Completed:
    """Replace spouts by given rows (tracked), run until nothing waits, and return what every
    component emitted and kept (Storm's Testing.completeTopology).

    `sources` has the rows of a spout, or its rows by stream; another spout runs as it is and must
    come to an end, else TimeoutError. InvalidTopologyError or CodecError for a row that its stream
    refuses; WorkerFailedError for any other error of a spout.
    """
    capture = CaptureBolt()
    unknown = [id for id in (sources or {}) if id not in {spout.id for spout in topology.spouts}]
    if unknown:
        raise InvalidTopologyError(
            f"complete_topology: '{unknown[0]}' is no spout; there are {', '.join(sorted(spout.id for spout in topology.spouts))}"
        )
    feeders = {
        id: fed(topology.components[id].streams, rows) for id, rows in (sources or {}).items()
    }
    with LocalCluster(seed=seed, thread_patience_secs=_PATIENCE_SECS) as cluster:
        cluster.submit(_captured(topology, feeders, capture), {**_CONF, **(conf or {})})
        cluster.run_until_idle(limit_secs)
        _raise_spout_errors(topology, cluster.errors)
        states = {component.id: cluster.state_by_task(component.id) for component in topology}
        letters = cluster.dead_letters
        late = {bolt.id: cluster.counts(bolt.id).late for bolt in topology.bolts}
    return Completed(
        capture,
        frozenset(topology.components),
        states,
        {id: list(f.acked) for id, f in feeders.items()},
        {id: list(f.failed) for id, f in feeders.items()},
        letters,
        {id: number for id, number in late.items() if number},
    )


def _raise_spout_errors(topology: Topology, errors: Sequence[Failure]) -> None:
    spouts = {spout.id for spout in topology.spouts}
    for error in errors:
        if error.component in spouts and error.kind is FailureKind.RAISED:
            raise WorkerFailedError(f"spout '{error.component}' (task {error.task}): {error.text}")


def _captured(
    topology: Topology, feeders: Mapping[str, FeederSpout], capture: CaptureBolt
) -> Topology:
    inputs = tuple(
        Subscription(component.id, name, Grouping("global"))
        for component in topology
        for name, stream in component.streams.items()
        if not stream.direct
    )
    components = {
        component.id: _fed_component(component, feeders.get(component.id)) for component in topology
    }
    return Topology({**components, _CAPTURE: Component(_CAPTURE, "bolt", capture, inputs=inputs)})


def _fed_component(component: Component, feeder: Spout | None) -> Component:
    return (
        component
        if feeder is None
        else replace(component, instance=feeder, parallelism=1, num_tasks=1)
    )
