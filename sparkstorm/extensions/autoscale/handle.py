"""Scaling of one topology, seen and asked for from a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkstorm.client.access import ClusterAccess
from sparkstorm.client.request_client import Progress as Steps
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import IllegalTransitionError, NotAliveError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import AutoscaleSettings
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.extensions.autoscale.model import Bounds, Plan
from sparkstorm.extensions.autoscale.planning import plan
from sparkstorm.extensions.autoscale.reading import load_of


class Scaling:
    """Plan of a topology's executors and workers, and the request that carries it out."""

    def __init__(self, topology_id: str, name: str, cluster: ClusterAccess) -> None:
        self.topology_id = topology_id
        self._name = name
        self._cluster = cluster

    def settings(self) -> AutoscaleSettings:
        """Return its settings; the cluster's where this connection may not read the topology's."""
        conf: Mapping[str, Any] = Conf.as_dict(merge(self._cluster.conf))
        if not self._cluster.is_read_only:
            conf = {**conf, **self._cluster.service.conf_of(self.topology_id)}
        return AutoscaleSettings.of(conf)

    def plan(self, now_ms: int | None = None) -> Plan:
        """Return the plan for what was measured in the last minutes.

        IllegalTransitionError where it cannot be measured: it is not active, or its workers have
        begun or were moved less than three minutes ago.
        """
        state = self._cluster.state
        base = state.read_base(self.topology_id)
        outline = state.read_outline(self.topology_id)
        if base is None or outline is None:
            raise NotAliveError(f"topology {self.topology_id} is not alive")
        assignment = state.read_assignment(self.topology_id)
        if base.status is not TopologyStatus.ACTIVE or assignment is None:
            word = base.status if assignment else "not placed"
            raise IllegalTransitionError(
                f"{self._name} is {word}: only what an active topology does can be measured"
            )
        stores = self._counts()
        beats = [
            beat
            for slot in set(assignment.slot_by_executor.values())
            if (beat := state.read_worker_beat(self.topology_id, slot)) is not None
        ]
        now_ms = SystemClock().now_ms() if now_ms is None else now_ms
        load = load_of(base, outline, assignment, stores, beats, self._slots(), now_ms)
        if isinstance(load, str):
            raise IllegalTransitionError(f"{self._name} cannot be scaled yet: {load}")
        return plan(load, Bounds.of(self.settings()))

    def _counts(self) -> list[CountRecords]:
        """Return the counts in each of its stores: with several, an owner has a record "owner@name"
        in each of them.
        """
        reader = self._cluster.reader(self.topology_id)
        earlier = reader.earlier()
        by_store: dict[str, dict[str, bytes]] = {}
        for owner, record in reader.progress().items():
            slot, _, store = owner.partition("@")
            by_store.setdefault(store, {})[slot] = record
        return [CountRecords.decoded(newest, earlier) for newest in by_store.values()]

    def _slots(self) -> int:
        """Return how many slots it can have: its own, and free ones of hosts that are not
        excluded.
        """
        state = self._cluster.state
        marks = state.read_host_marks()
        infos = [state.read_supervisor(name) for name in state.supervisor_ids()]
        offered = {
            WorkerSlot(info.supervisor_id, port)
            for info in infos
            if info is not None and info.host not in marks
            for port in info.ports
        }
        for topology_id in state.assignment_ids():
            assignment = state.read_assignment(topology_id)
            slots = set(assignment.slot_by_executor.values()) if assignment else set()
            offered = offered | slots if topology_id == self.topology_id else offered - slots
        return len(offered)

    def apply(self, plan: Plan, progress: Steps | None = None) -> None:
        """Carry a plan out: a rebalance without a wait, since what is under way is committed."""
        self._cluster.requests.rebalance(self._name, plan.options(), 0, progress, self.topology_id)
