"""Rebalances: what one makes of a topology, its dry run, and carrying it out when it falls due.

Law: a rebalance without room changes nothing and reports that; carried out twice it ends the same.
Tasks stay as they are, and with them states and streams: only their division among executors, slots
and settings changes (S3.12). Left out: new numbers of tasks, which JStorm's DoRebalance allows:
keys would have to move to other tasks, with their states.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.common.errors import FailedAssignTopologyError, NotAliveError, SparkStormError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.normalise import conf_bytes
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import RebalancePlan
from sparkstorm.common.model.status import Action, JsonValue, RebalanceOptions, TopologyStatus
from sparkstorm.common.settings import RequestSettings
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.parts import NimbusParts
from sparkstorm.control_plane.scheduling.lifecycle import ActionRequest, Decision, transition
from sparkstorm.control_plane.scheduling.resource.resources import normalised
from sparkstorm.control_plane.scheduling.round import slots_for
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology

_LOG = logging.getLogger(__name__)
_RESOURCES_MAP = "topology.component.resources.map"
# Storm's resource keys by the short words that rebalance options use.
_RESOURCE_KEYS = {
    "cpu": "topology.component.cpu.pcore.percent",
    "memory": "topology.component.resources.onheap.memory.mb",
    "onheap": "topology.component.resources.onheap.memory.mb",
    "offheap": "topology.component.resources.offheap.memory.mb",
}


def rebalanced_conf(
    conf: Mapping[str, JsonValue], options: RebalanceOptions
) -> dict[str, JsonValue]:
    """The topology's own configuration after a rebalance."""
    workers: dict[str, JsonValue] = {}
    if options.num_workers is not None:
        workers["topology.workers"] = options.num_workers
    return {**conf, **options.conf, **workers}


def rebalanced_outline(outline: TopologyOutline, options: RebalanceOptions) -> TopologyOutline:
    """The outline after a rebalance: components' resources changed, tasks as they are (S3.12)."""
    components = dict(outline.components)
    for component_id, resources in options.resources_by_component.items():
        part = components[component_id]
        asked = {_RESOURCE_KEYS.get(name, name): amount for name, amount in resources.items()}
        # The map goes before single keys and holds resources of any name (Storm's rebalance writes
        # it too).
        amounts: dict[str, JsonValue] = {
            **normalised(RequestSettings.of_partial(part.conf).others),
            **normalised(asked),
        }
        components[component_id] = replace(part, conf={**part.conf, _RESOURCES_MAP: amounts})
    return replace(outline, components=components)


def rebalanced_topology(
    topology: KnownTopology, decision: Decision, conf: Mapping[str, Any], conf_key: str
) -> KnownTopology:
    """The topology as it will be; `conf` is the whole configuration, `conf_key` the blob of the
    topology's own.
    """
    options = decision.rebalance or RebalanceOptions()
    base = replace(decision.base, conf_key=conf_key)
    return KnownTopology(base, rebalanced_outline(topology.outline, options), conf)


class Rebalancer:
    """Planner of rebalances; carries out those that are due."""

    def __init__(self, parts: NimbusParts) -> None:
        self._parts = parts

    def plan(
        self, topology_id: str, options: RebalanceOptions, reading: Reading, now_ms: int
    ) -> RebalancePlan:
        """Plan what a rebalance would do now (a dry run); writes nothing."""
        topology = reading.snapshot.topologies.get(topology_id)
        if topology is None:
            raise NotAliveError(f"topology {topology_id} is not running")
        # Both transitions of a real one, so that a dry run refuses what a real one would refuse.
        asked = transition(topology.base, ActionRequest(Action.REBALANCE, 0, options), now_ms, 0)
        decision = transition(asked.base, ActionRequest(Action.DO_REBALANCE, 0, options), now_ms, 0)
        after = rebalanced_topology(
            topology, decision, self._conf(topology.base, options), topology.base.conf_key
        )
        # On a copy of the scheduler: some count rounds or remember evictions, and a question must
        # leave no trace in them.
        placed = self._parts.assigner.rehearse_rebalance(after, options, reading, now_ms).placed[
            topology_id
        ]
        before = reading.snapshot.assignments.get(topology_id)
        unplaced = tuple(executor for executor in after.executors() if executor not in placed)
        wanted = after.base.num_workers
        slots = slots_for(reading.snapshot, topology_id)
        return RebalancePlan(
            topology_id, before.slot_by_executor if before else {}, placed, unplaced, wanted, slots
        )

    def _own_conf(self, base: TopologyBase, options: RebalanceOptions) -> dict[str, JsonValue]:
        return rebalanced_conf(self._parts.reader.topology_conf(base.conf_key), options)

    def _conf(self, base: TopologyBase, options: RebalanceOptions) -> dict[str, Any]:
        return {**self._parts.conf, **self._own_conf(base, options)}

    def carry_out(
        self, topology: KnownTopology, decision: Decision, reading: Reading, now_ms: int
    ) -> None:
        """Outline, assignment and outcome first, base last: a Nimbus that dies in between
        rebalances again, to the same end.
        """
        parts = self._parts
        base = topology.base
        options = decision.rebalance or RebalanceOptions()
        request_id = base.pending.request_id if base.pending else ""
        # A new blob under the hash of its bytes: workers that still run have the old one, which
        # nothing changes.
        conf_key = parts.blobs.put(conf_bytes(self._own_conf(base, options)), now_ms, BlobKind.CONF)
        after = rebalanced_topology(topology, decision, self._conf(base, options), conf_key)
        try:
            # Planned again now, not when it was asked for: the wait is as long as a message
            # time-out, and slots come and go meanwhile.
            plan = parts.assigner.plan_rebalance(after, options, reading, now_ms)
        except FailedAssignTopologyError as error:
            parts.outcomes.refuse(request_id, now_ms, error)
            # The topology goes on as it is, which is better than not at all; the error names the
            # request that failed.
            self._give_up(topology, error, now_ms)
            return
        parts.state.write_outline(base.topology_id, after.outline)
        # The cache goes by the configuration's key, which stays when a rebalance changes only
        # resources.
        parts.reader.forget(base.topology_id)
        for assignment in plan.assignments:
            parts.assigner.publish(assignment, reading.bases[assignment.topology_id].name)
        parts.outcomes.done(request_id, now_ms, base.topology_id)
        self._settle(base, after.base)
        parts.hooks.notify(base.name, "rebalance")

    def _give_up(self, topology: KnownTopology, error: SparkStormError, now_ms: int) -> None:
        base = topology.base
        _LOG.error("the rebalance of %s is given up: %s", base.topology_id, error)
        # Errors are kept by component; one of the whole topology is put under the first, where
        # status shows it.
        component = next(iter(sorted(topology.outline.components)))
        text = f"rebalance given up: {error}"
        self._parts.state.report_error(
            base.topology_id,
            Failure(FailureKind.SYSTEM, text, component, 0, "nimbus", time_ms=now_ms),
        )
        status = base.previous_status or TopologyStatus.ACTIVE
        self._settle(base, replace(base, status=status, previous_status=None, pending=None))

    def _settle(self, before: TopologyBase, after: TopologyBase) -> None:
        # A kill or another rebalance that came meanwhile is not overwritten.
        self._parts.state.update_base(
            before.topology_id, lambda stored: after if stored.pending == before.pending else stored
        )
