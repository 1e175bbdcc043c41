"""Duty of Nimbus that scales topologies with `topology.autoscale: on`.

It changes nothing itself: it writes the request that `sparkstorm rebalance` would write, so the same
checks, record and crash safety hold. Nothing is remembered that a new leader needs: records of
workers say what was read in the last ten minutes, the assignment for how long it has stood.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.requests import Request, RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import AutoscaleMode, AutoscaleSettings, NimbusSettings
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.extension import NimbusExtension
from sparkstorm.control_plane.nimbus.parts import NimbusParts
from sparkstorm.control_plane.scheduling.round import slots_for
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology
from sparkstorm.extensions.autoscale.model import Bounds, Plan
from sparkstorm.extensions.autoscale.planning import due
from sparkstorm.extensions.autoscale.reading import load_of

_LOG = logging.getLogger(__name__)
# How often a topology is looked at: workers keep a record for each minute.
_LOOK_MS = 60_000
CLIENT = "topology.autoscale"


class Autoscaler(NimbusExtension):
    """Requests of rebalances that follow plans."""

    def __init__(self, parts: NimbusParts, ask: Callable[[], None]) -> None:
        super().__init__(parts, ask)
        self._not_before_ms: dict[str, int] = {}
        self._accept_ms = NimbusSettings.of(parts.conf).request_timeout_ms

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Look at each topology once a minute; whether a request was written."""
        scaled = {
            topology_id: topology
            for topology_id, topology in reading.snapshot.topologies.items()
            if AutoscaleMode.of(topology.conf).mode is True
            and topology.base.status is TopologyStatus.ACTIVE
        }
        self._not_before_ms = {
            topology_id: due_ms
            for topology_id, due_ms in self._not_before_ms.items()
            if topology_id in reading.snapshot.topologies
        }
        did = False
        for topology_id, topology in scaled.items():
            if now_ms >= self._not_before_ms.get(topology_id, 0):
                self._not_before_ms[topology_id] = now_ms + _LOOK_MS
                did |= self._look(topology, reading, now_ms)
        return did

    def _look(self, topology: KnownTopology, reading: Reading, now_ms: int) -> bool:
        topology_id = topology.base.topology_id
        try:
            settings = AutoscaleSettings.of(topology.conf)
            plan = self._plan(topology, settings, reading, now_ms)
        except SparkStormError as error:
            _LOG.warning("%s is not scaled: %s", topology_id, error)
            return False
        if plan is None:
            return False
        _LOG.info("%s: %s", topology_id, plan.sentence())
        # A request that is refused is not made again at once either.
        self._not_before_ms[topology_id] = now_ms + settings.grace_ms
        self.parts.state.create_request(self._request(topology, plan, now_ms))
        return True

    def _plan(
        self, topology: KnownTopology, settings: AutoscaleSettings, reading: Reading, now_ms: int
    ) -> Plan | None:
        base = topology.base
        assignment = reading.snapshot.assignments.get(base.topology_id)
        if assignment is None:
            return None
        beats = [beat for beat in reading.beats if beat.topology_id == base.topology_id]
        stores = self.parts.reader.read_counts(base)
        slots = slots_for(reading.snapshot, base.topology_id)
        load = load_of(base, topology.outline, assignment, stores, beats, slots, now_ms)
        if isinstance(load, str):
            return None
        return due(load, Bounds.of(settings), settings.grace_ms)

    def _request(self, topology: KnownTopology, plan: Plan, now_ms: int) -> Request:
        topology_id = topology.base.topology_id
        # Not drawn: a turn that is repeated writes the same request.
        number = hashlib.sha256(f"{topology_id} {now_ms}".encode()).hexdigest()[:32]
        return Request(
            number,
            RequestKind.REBALANCE,
            topology.base.name,
            now_ms,
            now_ms + self._accept_ms,
            topology_id,
            CLIENT,
            # Streams and states are committed: nothing has to run dry before tasks move.
            wait_ms=0,
            rebalance=plan.options(),
        )
