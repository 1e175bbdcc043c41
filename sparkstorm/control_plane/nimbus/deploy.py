"""Hot deploys (S0.33): the old topology ends, then the new one starts, and takes over where its
tasks are the same.

All of the new topology, all that brings the old one back and a `Deploy` record are stored before
the old one is killed: from then on any Nimbus finishes the deploy from wherever it is. A new
topology that is refused gives way to the old one, under a new id and with its data. Left out: a
client that kills and then submits (JStorm's update_topology), which leaves no topology when it dies
in between; and both topologies side by side, which would need the states twice: a gray upgrade does
that for code alone (decision 17).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    SparkStormError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.normalise import conf_bytes
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import Request
from sparkstorm.common.model.status import Action, TopologyStatus
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.control_plane.cluster.nimbus_state import Deploy
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.parts import NimbusParts
from sparkstorm.control_plane.scheduling.lifecycle import ActionRequest, transition

_LOG = logging.getLogger(__name__)
# The supervisors of a driver that follows another are up by then.
# Half would bring the old topology back while Spark still starts the slots of a driver that
# follows; double only makes the client of a deploy that cannot succeed wait longer. Not measured.
_PATIENCE_MS = 60_000


class Deploys:
    """Hot deploys: starts them and continues them; one that cannot be finished is tried again at
    every turn.
    """

    def __init__(self, parts: NimbusParts) -> None:
        self._parts = parts
        # names whose deploy this Nimbus began, with its supervisors up
        self._begun: set[str] = set()
        self._refused_ms: dict[str, int] = {}  # since when, by topology id
        self.problems: dict[str, str] = {}

    def begin(
        self, request: Request, old: TopologyBase, outline: TopologyOutline, now_ms: int
    ) -> None:
        """Store everything, the record last; a Nimbus that dies in between is followed by one that
        stores it again.
        """
        base = request.base
        parts = self._parts
        assert base is not None
        # where the data are that it takes over, or that end with the old one
        base = replace(base, store=old.store, cells=old.cells)
        before = parts.state.require_outline(old.topology_id)
        # Before the record: a deploy that names what is not stored could be neither finished nor
        # taken back.
        parts.assigner.write_records(base, outline)
        # Made now and not when it is needed: it needs the old configuration, which ends with the
        # old topology.
        fallback = self._fallback(old, now_ms)
        parts.assigner.write_records(
            fallback, replace(before, executors_by_component=old.executors_by_component)
        )
        # Only the same tasks under the same numbers can go on with the old streams and states.
        inherits = before.component_by_task == outline.component_by_task
        parts.state.write_deploy(
            old.name, Deploy(old.topology_id, base, inherits, fallback, request.id)
        )
        self._begun.add(old.name)

    def _fallback(self, old: TopologyBase, now_ms: int) -> TopologyBase:
        """The old topology as a new one, as it was rebalanced and deactivated."""
        topology_id = f"{old.name}-{self._parts.state.next_submission_number()}-{now_ms // 1000}"
        # Under a new id: the old id gets a tombstone, and no task of it can be claimed again.
        conf = {
            **self._parts.reader.topology_conf(old.conf_key),
            "topology.id": topology_id,
            "storm.id": topology_id,
        }
        was_inactive = (old.previous_status or old.status) is TopologyStatus.INACTIVE
        return replace(
            old,
            topology_id=topology_id,
            launch_ms=now_ms,
            status=TopologyStatus.INACTIVE if was_inactive else TopologyStatus.ACTIVE,
            previous_status=None,
            pending=None,
            paused="",
            conf_key=self._parts.blobs.put(conf_bytes(conf), now_ms, BlobKind.CONF),
        )

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Do what can be done now; whether something was."""
        self.problems = {}
        did = False
        for name in self._parts.state.deploy_names():
            try:
                deploy = self._parts.state.read_deploy(name)
                did = (deploy is not None and self._go_on(name, deploy, reading, now_ms)) or did
            except StoreUnavailableError:
                raise
            except SparkStormError as error:
                _LOG.error("hot deploy of %s: %s", name, error)
                # No end by itself: to give up here would leave no topology at all, or two.
                self.problems[name] = f"hot deploy not finished: {error}"
        return did

    def _go_on(self, name: str, deploy: Deploy, reading: Reading, now_ms: int) -> bool:
        parts = self._parts
        old = reading.bases.get(deploy.old_id)
        new_id = deploy.base.topology_id
        # The old one must be gone first: two topologies of one name would both consume the sources.
        if old is not None:
            return self._end_old(old, deploy, now_ms)
        # It is there and cannot be read; handing its data over now would take them from workers
        # that may run.
        if deploy.old_id in parts.state.topology_ids():
            raise StoreInconsistentError(
                reading.problems.get(deploy.old_id, f"{deploy.old_id} cannot be read")
            )
        if new_id not in reading.bases:
            if deploy.inherits:
                # Before the assignment: a worker that claims first would find nothing, and begin
                # from nothing. Of several stores each hands over by itself: what the old topology's
                # last process still commits in the next one goes over with it.
                for store in deploy.base.stores:
                    parts.hooks.store(new_id, store).hand_over(deploy.old_id, new_id)
                # Before the assignment too: without a mark a worker that finds nothing, in a Redis
                # that was emptied meanwhile, would take it for a first start.
                parts.state.move_store_marks(deploy.old_id, new_id)
            try:
                parts.assigner.assign_new(deploy.base, reading, now_ms)
            except StoreUnavailableError:
                raise
            except SparkStormError as error:
                if not self._may_retreat(name, deploy, error, now_ms):
                    raise
                self._retreat(name, deploy, error)
                return True
            parts.hooks.notify(name, "startTopology")
        self._close(name, deploy, now_ms)
        return True

    def _end_old(self, old: TopologyBase, deploy: Deploy, now_ms: int) -> bool:
        # Killed by another request it has no heir, and its end would delete the data: the kill is
        # repeated with one.
        if old.status is TopologyStatus.KILLED and old.pending is not None and old.pending.has_heir:
            return False
        kill = ActionRequest(Action.KILL, 0, has_heir=True)
        self._parts.outcomes.step(
            deploy.request_id, now_ms, f"{old.topology_id} ends; its workers stop"
        )
        self._parts.state.update_base(
            old.topology_id, lambda base: transition(base, kill, now_ms, 0).base
        )
        self._parts.hooks.notify(old.name, "killTopology")
        return True

    def _may_retreat(self, name: str, deploy: Deploy, error: SparkStormError, now_ms: int) -> bool:
        """Return whether the old one follows instead: not while supervisors may still be joining,
        or when it is refused itself.
        """
        if deploy.fallback is None:
            text = (
                f"hot deploy of {name} refused: {deploy.refusal}; "
                f"the old one cannot start again yet, Nimbus goes on trying: {error}"
            )
            self._parts.outcomes.refuse(deploy.request_id, now_ms, FailedAssignTopologyError(text))
            return False
        refused_ms = self._refused_ms.setdefault(deploy.base.topology_id, now_ms)
        self._parts.outcomes.step(
            deploy.request_id, now_ms, f"{deploy.base.topology_id} cannot be assigned yet: {error}"
        )
        return name in self._begun or now_ms - refused_ms >= _PATIENCE_MS

    def _retreat(self, name: str, deploy: Deploy, error: SparkStormError) -> None:
        _LOG.warning(
            "hot deploy of %s: %s is refused, the old one comes back: %s",
            name,
            deploy.base.topology_id,
            error,
        )
        assert deploy.fallback is not None
        # data is handed on, never back
        holder = deploy.base.topology_id if deploy.inherits else deploy.old_id
        # The record first: from here any Nimbus brings the old one back, also if this one dies now.
        back = Deploy(holder, deploy.fallback, True, None, deploy.request_id, str(error))
        self._parts.state.write_deploy(name, back)
        # The marks go with the data, to the old one.
        self._parts.state.remove_topology(deploy.base.topology_id, keeps_marks=True)

    def _close(self, name: str, deploy: Deploy, now_ms: int) -> None:
        """End the deploy; its record goes last, so that a Nimbus that dies in between ends it
        again.
        """
        parts = self._parts
        topology_id = deploy.base.topology_id
        if not deploy.inherits:
            self._retire(deploy)
        if deploy.refusal:
            text = f"hot deploy of {name} refused, the old one is back as {topology_id}: {deploy.refusal}"
            parts.outcomes.refuse(deploy.request_id, now_ms, FailedAssignTopologyError(text))
        else:
            parts.outcomes.done(deploy.request_id, now_ms, topology_id)
        if deploy.fallback is not None:
            parts.state.remove_topology(deploy.fallback.topology_id)
            parts.blobs.delete(deploy.fallback.conf_key)
        parts.state.remove_deploy(name)
        self._begun.discard(name)
        self._refused_ms.pop(topology_id, None)
        if not deploy.refusal:
            parts.hooks.notify(name, "submitTopology")

    def _retire(self, deploy: Deploy) -> None:
        for store in deploy.base.stores:
            self._parts.hooks.store(deploy.old_id, store).retire(deploy.old_id)
        self._parts.state.remove_store_marks(deploy.old_id)

    def call_off(self, name: str, deploy: Deploy, now_ms: int) -> None:
        """Give up a deploy whose old topology is gone and whose new one cannot start."""
        error = FailedAssignTopologyError(f"the hot deploy of {name} was called off by a kill")
        self._parts.outcomes.refuse(deploy.request_id, now_ms, error)
        self._retire(deploy)
        for base in deploy.bases():
            self._parts.cleanup.forget(base.topology_id)
        self._parts.state.remove_deploy(name)
