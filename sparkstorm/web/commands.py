"""Changes that a web client asks for: requests to Nimbus, as the command line makes them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import ReadOnlyConnectionError
from sparkstorm.model.assignment import WorkerSlot
from sparkstorm.model.requests import LogLevel, RebalancePlan, RequestKind
from sparkstorm.model.status import RebalanceOptions
from sparkstorm.nimbus.service import NimbusService


class Commands:
    """Commands over Nimbus's service; each raises ReadOnlyConnectionError with a connection that may only read.

    Topologies are named by name and id, so that a command never meets a later run of the same name.
    """

    def __init__(self, service: NimbusService, state: StormState, is_read_only: bool = False) -> None:
        self._service, self._state, self.is_read_only = service, state, is_read_only

    def _writer(self) -> NimbusService:
        if self.is_read_only:
            raise ReadOnlyConnectionError(
                "this server may only read: start it with the cluster's connection.json to change something"
            )
        return self._service

    def activate(self, name: str, topology_id: str) -> None:
        """Let spouts emit."""
        self._writer().activate(name, topology_id)

    def deactivate(self, name: str, topology_id: str) -> None:
        """Let spouts rest."""
        self._writer().deactivate(name, topology_id)

    def kill(self, name: str, topology_id: str, wait_secs: float | None) -> None:
        """Begin to end it; returns when Nimbus has taken the request, its wait goes on."""
        self._writer().kill(name, wait_secs, topology_id)

    def rebalance(self, name: str, topology_id: str, options: RebalanceOptions, wait_secs: float | None) -> None:
        """Ask for a rebalance; its options are checked here, and its wait and change go on without the caller."""
        service = self._writer()
        service.begin(service.rebalance_request(name, options, wait_secs, topology_id=topology_id))

    def plan_rebalance(self, name: str, topology_id: str, options: RebalanceOptions) -> RebalancePlan:
        """Return what a rebalance would do."""
        return self._writer().plan_rebalance(name, options, topology_id)

    def restart(self, name: str, topology_id: str, slot: WorkerSlot | None) -> None:
        """Restart one worker, or all."""
        self._writer().restart_worker(name, slot, topology_id)

    def set_log_levels(self, name: str, topology_id: str, levels: Mapping[str, LogLevel]) -> None:
        """Set levels by logger ("" is the root logger); a level "" resets its logger."""
        self._writer().set_log_level(name, levels, topology_id)

    def log_levels(self, topology_id: str) -> Mapping[str, LogLevel]:
        """Return the levels that were set."""
        found = self._state.read_log_config(topology_id)
        return {} if found is None else found.levels

    def mark_host(self, kind: RequestKind, host: str, reason: str = "") -> None:
        """Drain, exclude or include a host."""
        self._writer().mark_host(kind, host, reason)
