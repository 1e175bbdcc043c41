"""Owns Nimbus's service: what people ask for by a topology's name (Storm's Nimbus.Iface, JStorm's ServiceHandler).

Requests become records in the store (a pending action with its due time); Nimbus's next turn carries them out, so a
request outlives the Nimbus that took it. Waiting happens here, in the caller's thread, never in Nimbus.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.blobs.store import BlobStore
from sparkstorm.clock import Clock
from sparkstorm.cluster.nimbus_state import Submission as SubmissionMark
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import (
    AlreadyAliveError,
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.model.assignment import TopologyBase, TopologySummary
from sparkstorm.model.normalise import check_own_conf
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.requests import RebalancePlan
from sparkstorm.model.status import Action, RebalanceOptions, TopologyStatus
from sparkstorm.model.topology import Topology, validate_name
from sparkstorm.nimbus.cluster_reader import conf_from_bytes
from sparkstorm.nimbus.deploy_finisher import call_off
from sparkstorm.nimbus.hot_deploy import HotDeploy
from sparkstorm.nimbus.leader_election import own_name
from sparkstorm.nimbus.nimbus import Nimbus
from sparkstorm.nimbus.rebalance_rules import checked_rebalance
from sparkstorm.nimbus.submission import Prepared, Seed, Submission, SubmitOptions, prepare
from sparkstorm.nimbus.waiting import WaitUntil, wait_in_real_time
from sparkstorm.scheduling.lifecycle import Request, transition

_UNMARK_MS = 30_000  # a store that is away for longer ends our session, and with it the mark


class NimbusService:
    """Submit, kill, activate, deactivate, rebalance, list."""

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        nimbus: Nimbus,
        conf: Mapping[str, Any],
        clock: Clock,
        wait_until: WaitUntil = wait_in_real_time,
    ) -> None:
        self._state = state
        self._blobs = blobs
        self._nimbus = nimbus
        self._conf = dict(conf)
        self._clock = clock
        self._wait_until = wait_until
        self._names_lock = threading.Lock()
        self._claimed: set[str] = set()
        self._marked: dict[str, str] = {}  # topology id by name

    def attach(self, nimbus: Nimbus) -> None:
        """Go on with another Nimbus in place of one that was stopped; submissions under way wait for it."""
        former, self._nimbus = self._nimbus, nimbus
        nimbus.take_over(former)

    # -- submission ----------------------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        code: bytes,
        options: SubmitOptions | None = None,
        seed: Seed | None = None,
        progress: object = None,
    ) -> str:
        """Submit a new topology, or hot deploy one (topology.hot.deploy.enable); its id once it is assigned (S0.2)."""
        validate_name(name)  # first of all, whatever is asked for (S0.3)
        check_own_conf(conf, self._conf, name)
        options = options or SubmitOptions()
        if conf.get("topology.upgrade"):
            raise InvalidConfigError("topology.upgrade: gray upgrades are not in this release; use a hot deploy")
        if conf.get("topology.hot.deploy.enable"):
            if conf.get("topology.from.checkpoint"):
                raise InvalidConfigError("topology.from.checkpoint: a hot deploy goes on from what runs, not from a checkpoint")
            return self._hot_deploy(name, topology, conf, code, options)
        submission = self.begin_submit(name, topology, conf, code, options, seed)
        try:
            return submission.wait_done(self._wait_until)
        finally:
            self.end_submit(submission)

    def begin_submit(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        code: bytes,
        options: SubmitOptions | None = None,
        seed: Seed | None = None,
    ) -> Submission:
        """Everything up to the assignment event; `poll_done` and `end_submit` are then the caller's."""
        validate_name(name)
        self._claim(name)
        try:
            if conf.get("topology.from.checkpoint") and seed is None:
                raise InvalidConfigError("topology.from.checkpoint: nobody has read it; use Cluster.submit or run_topology.py")
            prepared = replace(self._prepare(name, topology, conf, code, options or SubmitOptions()), seed=seed)
            self._mark(prepared)
            if self.find(name):
                raise AlreadyAliveError(f"topology {name} runs already; kill it first, or hot deploy")
            if self._state.read_deploy(name):
                raise AlreadyAliveError(f"a hot deploy of {name} is being finished; wait for it, or kill {name}")
            submission = self._submission(prepared)
            submission.begin()
            return submission
        except BaseException:
            self._release(name)
            raise

    def end_submit(self, submission: Submission) -> None:
        """Give the name free again, and tell the listeners when it went well (S0.51)."""
        self._release(submission.prepared.name)
        if submission.is_assigned:
            self._nimbus.notify(submission.prepared.name, "submitTopology")

    def _prepare(self, name: str, topology: Topology, conf: Mapping[str, Any], code: bytes, options: SubmitOptions) -> Prepared:
        if options.status not in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE):
            raise InvalidTopologyError(f"topology {name} cannot start as {options.status}, only ACTIVE or INACTIVE")
        if not isinstance(options.owner, str):
            raise InvalidTopologyError(f"topology {name}: its owner must be a user's name, not {options.owner!r:.60}")
        topology_id = self._new_id(name)
        own_conf, outline = prepare(topology_id, name, topology, conf, self._conf)
        return Prepared(topology_id, name, own_conf, outline, code, options)

    def _new_id(self, name: str) -> str:
        return f"{name}-{self._state.next_submission_number()}-{self._clock.now_ms() // 1000}"

    def _submission(self, prepared: Prepared) -> Submission:
        return Submission(prepared, self._state, self._blobs, lambda: self._nimbus, self._clock.now_ms())

    def _claim(self, name: str) -> None:
        with self._names_lock:
            if name in self._claimed:
                raise AlreadyAliveError(f"topology {name} is being submitted already")
            self._claimed.add(name)

    def _mark(self, prepared: Prepared) -> None:
        """Keep other drivers from the name, and the sweep from what the submission writes."""
        # Noted first: a store that goes away now may have taken the mark all the same.
        self._marked[prepared.name] = prepared.topology_id
        mark = SubmissionMark(prepared.topology_id, self._clock.now_ms(), own_name())
        if not self._state.begin_submission(prepared.name, mark):
            del self._marked[prepared.name]
            raise AlreadyAliveError(f"topology {prepared.name} is being submitted by another driver")

    def _release(self, name: str) -> None:
        """Give a name free; while its mark stands, nobody else could have it and nothing would be swept."""
        try:
            topology_id = self._marked.pop(name, None)
            if topology_id and not self._unmark(name, topology_id):
                self._wait_until(lambda: self._unmark(name, topology_id), _UNMARK_MS)
        finally:
            with self._names_lock:
                self._claimed.discard(name)

    def _unmark(self, name: str, topology_id: str) -> bool:
        try:
            self._state.end_submission(name, topology_id)
        except StoreUnavailableError:
            return False
        return True

    # -- hot deploy ----------------------------------------------------------------------------------------------

    def _hot_deploy(self, name: str, topology: Topology, conf: Mapping[str, Any], code: bytes, options: SubmitOptions) -> str:
        """Kill, wait until the old one is gone, submit the new one (S0.33); the old one comes back when that fails."""
        self._claim(name)
        try:
            old = self.require(name)
            prepared = self._prepare(name, topology, conf, code, options)
            self._mark(prepared)
            fallback = self._remember(old)
            if fallback.outline.component_by_task == prepared.outline.component_by_task:
                # Only the same tasks under the same numbers can go on with the old streams and states.
                prepared = replace(prepared, heir_of=old.topology_id)
            topology_id = self._deploy_of(old).run(prepared, fallback, self._end_grace_ms())
        finally:
            self._release(name)
        self._nimbus.notify(name, "submitTopology")
        return topology_id

    def _deploy_of(self, old: TopologyBase) -> HotDeploy:
        kill = Request(Action.KILL, 0, has_heir=True)
        return HotDeploy(
            old,
            self._state,
            self._nimbus.cleanup,
            self._submission,
            lambda: self._request(old.name, kill, "killTopology"),
            self._wait_until,
        )

    def _end_grace_ms(self) -> int:
        return 2 * round(1000 * float(self._conf.get("task.cleanup.timeout.sec") or 10)) + 30_000

    def _remember(self, old: TopologyBase) -> Prepared:
        """The old topology as a submission of its own, read while it is still there."""
        outline = self._outline(old)
        topology_id = self._new_id(old.name)
        conf = {**conf_from_bytes(self._blobs.get(old.conf_key), old.conf_key)}
        conf.update({"topology.id": topology_id, "storm.id": topology_id})
        status = TopologyStatus.INACTIVE if old.status == TopologyStatus.INACTIVE else TopologyStatus.ACTIVE
        outline = replace(outline, executors_by_component=old.executors_by_component)
        options = SubmitOptions(status, old.owner)
        code = self._blobs.get(old.code_key)
        return Prepared(topology_id, old.name, conf, outline, code, options, heir_of=old.topology_id)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def kill(self, name: str, wait_secs: float | None = None) -> None:
        """End a topology after a wait (its message timeout unless given), in which its spouts are silent.

        A hot deploy whose driver is gone and whose new topology cannot start is called off.
        """
        wait_ms = _millis(name, wait_secs)
        base, deploy = self.find(name), self._state.read_deploy(name)
        if base and deploy and base.topology_id == deploy.old_id:
            raise IllegalTransitionError(f"a hot deploy of {name} is under way; wait for it, then kill what runs")
        if base is None and call_off(name, self._state, self._nimbus.cleanup):
            self._nimbus.wake()
            return
        self._request(name, Request(Action.KILL, wait_ms), "killTopology")

    def activate(self, name: str) -> None:
        """Let the spouts emit again."""
        self._request(name, Request(Action.ACTIVATE), "activate")

    def deactivate(self, name: str) -> None:
        """Let the spouts be silent."""
        self._request(name, Request(Action.INACTIVATE), "deactivate")

    def rebalance(self, name: str, options: RebalanceOptions, wait_secs: float | None = None) -> None:
        """Change workers, executors, configuration or resources of a running topology after a wait."""
        checked = self._checked(self.require(name), options)
        self._request(name, Request(Action.REBALANCE, _millis(name, wait_secs), checked), "rebalanceRequested")

    def plan_rebalance(self, name: str, options: RebalanceOptions) -> RebalancePlan:
        """What that rebalance would do now; nothing is changed."""
        base = self.require(name)
        return self._nimbus.plan_rebalance(base.topology_id, self._checked(base, options), self._clock.now_ms())

    def _request(self, name: str, request: Request, action: str) -> None:
        base = self.require(name)
        default_wait_ms = self._message_timeout_ms(base)
        now_ms = self._clock.now_ms()
        changed = self._state.update_base(base.topology_id, lambda found: transition(found, request, now_ms, default_wait_ms).base)
        if changed is None:
            raise NotAliveError(f"topology {name} is not alive")
        self._nimbus.wake()
        self._nimbus.notify(name, action)

    def _message_timeout_ms(self, base: TopologyBase) -> int:
        try:
            conf = conf_from_bytes(self._blobs.get(base.conf_key), base.conf_key)
        except (StoreInconsistentError, TamperedBlobError):
            conf = {}  # a topology with a broken conf must still be killed
        value = {**self._conf, **conf}.get("topology.message.timeout.secs")
        return round(1000 * value) if isinstance(value, (int, float)) and value >= 0 else 30_000

    def _checked(self, base: TopologyBase, options: RebalanceOptions) -> RebalanceOptions:
        return checked_rebalance(base.name, options, self._outline(base), self._conf)

    def _outline(self, base: TopologyBase) -> TopologyOutline:
        outline = self._state.read_outline(base.topology_id)
        if outline is None:
            raise StoreInconsistentError(f"topology {base.topology_id}: its outline is missing; kill it and submit again")
        return outline

    # -- looking -------------------------------------------------------------------------------------------------

    def wait_deployed(self, name: str, timeout_ms: int = 120_000) -> bool:
        """Wait until no hot deploy of that name is under way: one that another driver left is finished by Nimbus."""
        return self._wait_until(lambda: self._state.read_deploy(name) is None, timeout_ms)

    def find(self, name: str) -> TopologyBase | None:
        """The topology of that name, dying ones included; StoreInconsistentError when its record cannot be read."""
        for topology_id in self._state.topology_ids():
            if topology_id.rsplit("-", 2)[0] == name and (base := self._read_base(topology_id)):
                return base
        return None

    def _read_base(self, topology_id: str) -> TopologyBase | None:
        try:
            return self._state.read_base(topology_id)
        except (StoreInconsistentError, TamperedBlobError) as error:
            advice = "delete that node, and Nimbus removes what is left of the topology"
            raise StoreInconsistentError(f"{error}; {advice}") from error

    def require(self, name: str) -> TopologyBase:
        """The topology of that name; NotAliveError when there is none."""
        base = self.find(name)
        if base is None:
            raise NotAliveError(f"topology {name} is not alive")
        return base

    def discard_blobs(self, keys: Iterable[str]) -> None:
        """Delete blobs of a topology that has ended, at once and not with the next sweep; those somebody may need stay."""
        if self._state.submission_names() or self._state.deploy_names():
            return
        named: set[str] = set()
        try:
            for topology_id in self._state.topology_ids():
                records = (self._state.read_base(topology_id), self._state.read_assignment(topology_id))
                named |= {key for record in records if record for key in (record.code_key, record.conf_key)}
        except (StoreInconsistentError, TamperedBlobError):
            return  # whatever that record names stays
        for key in set(keys) - named:
            self._blobs.delete(key)

    def problems_of(self, topology_id: str) -> list[str]:
        """Return Nimbus's problems with this topology, then its own."""
        problems = dict(self._nimbus.problems)
        return [problems[about] for about in ("turn", "leader", "scheduler", topology_id) if about in problems]

    def summaries(self) -> list[TopologySummary]:
        """One line per topology, by id; those whose record cannot be read are among Nimbus's problems instead."""
        found = []
        for topology_id in self._state.topology_ids():
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError):
                base = self._state.read_base(topology_id)
                if base:
                    found.append(self._summary(base))
        return found

    def _summary(self, base: TopologyBase) -> TopologySummary:
        assignment = self._state.read_assignment(base.topology_id)
        slots = assignment.slot_by_executor if assignment else {}
        table = self._state.read_tasks(base.topology_id)
        return TopologySummary(
            base.topology_id,
            base.name,
            base.status,
            base.launch_ms,
            len(set(slots.values())),
            len(slots),
            len(table.info_by_task) if table else 0,
            base.owner,
        )


def _millis(name: str, secs: float | None) -> int | None:
    if secs is None:
        return None
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or not math.isfinite(secs):
        raise InvalidConfigError(f"the wait of {name}: expected seconds, got {secs!r:.60}")
    return round(secs * 1000)
