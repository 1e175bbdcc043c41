"""Nimbus's service as its clients see it (Storm's Nimbus.Iface): every verb is a request that the
leading Nimbus carries out.

The same object serves drivers, notebooks and the command line. It needs a session with the stores
and nothing else. Waiting happens here, in the caller's thread, never in Nimbus.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkstorm.client.request_client import (
    PendingRequest,
    Progress,
    RequestClient,
    Seed,
    SubmitOptions,
    WaitUntil,
    client_name,
    wait_in_real_time,
)
from sparkstorm.client.worker_problems import problems_about
from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import (
    AlreadyAliveError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    SparkStormError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import TopologyBase, TopologySummary, WorkerSlot
from sparkstorm.common.model.normalise import conf_bytes, conf_from_bytes
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.records import encode_record
from sparkstorm.common.model.requests import (
    MAX_WAIT_MS,
    LogLevel,
    RebalancePlan,
    Request,
    RequestKind,
    SubmittedOutline,
    check_host,
    check_log_levels,
    check_upgrade,
    topology_name,
)
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Topology, validate_name
from sparkstorm.common.model.upgrade import UpgradeOptions
from sparkstorm.common.settings import SubmissionSettings, UpgradeSettings
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState

if TYPE_CHECKING:
    from sparkstorm.control_plane.blobs.named_store import NamedBlobStore

_LOG = logging.getLogger(__name__)


def wait_copies(blobs: BlobStore, topology_id: str, conf: Mapping[str, Any]) -> None:
    """Wait for the copies of the blobs that the topology asks for; too few are no reason to
    stop.
    """
    settings = SubmissionSettings.of(conf)
    reached = blobs.wait_copies(settings.copies, max(settings.copies_wait_ms, 0))
    if reached < settings.copies:
        _LOG.warning(
            "%s: code is in %d of %d copies; going on", topology_id, reached, settings.copies
        )


class NimbusService:
    """Submit, update, kill, activate, deactivate, rebalance, restart workers, set log levels,
    list.
    """

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        conf: Mapping[str, Any],
        clock: Clock,
        wait_until: WaitUntil = wait_in_real_time,
    ) -> None:
        self._state = state
        self._blobs = blobs
        self._conf = dict(conf)
        self._clock = clock
        self._wait_until = wait_until
        self._client = RequestClient(state, blobs, conf, clock, wait_until)

    # -- requests that wait ------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        code: bytes,
        options: SubmitOptions | None = None,
        seed: Seed | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Submit a new topology, or hot deploy or upgrade one (see `submit_request`); its id once
        it is assigned (S0.2).
        """
        return self.carry_out(
            self.submit_request(name, topology, conf, code, options, seed), progress
        )

    def kill(self, name: str, wait_secs: float | None = None, topology_id: str = "") -> None:
        """End a topology after a wait (its message timeout unless given), in which its spouts are
        silent.

        A hot deploy of that name whose old topology is gone and whose new one cannot start is
        called off.
        """
        self.ask(RequestKind.KILL, name, topology_id, wait_ms=_millis(name, wait_secs))

    def activate(self, name: str, topology_id: str = "") -> None:
        """Let the spouts emit again."""
        self.ask(RequestKind.ACTIVATE, name, topology_id)

    def deactivate(self, name: str, topology_id: str = "") -> None:
        """Let the spouts be silent."""
        self.ask(RequestKind.DEACTIVATE, name, topology_id)

    def rebalance(
        self,
        name: str,
        options: RebalanceOptions,
        wait_secs: float | None = None,
        progress: Progress | None = None,
        topology_id: str = "",
    ) -> None:
        """Change workers, executors, configuration or resources after a wait; returns when the new
        assignment is out.
        """
        self.carry_out(
            self.rebalance_request(name, options, wait_secs, topology_id=topology_id), progress
        )

    def plan_rebalance(
        self, name: str, options: RebalanceOptions, topology_id: str = ""
    ) -> RebalancePlan:
        """Plan what that rebalance would do now; nothing is changed."""
        outcome = self.begin(
            self.rebalance_request(name, options, is_plan=True, topology_id=topology_id)
        ).wait()
        if outcome.plan is None:
            raise StoreInconsistentError(
                f"Nimbus answered the plan of a rebalance of {name} without a plan"
            )
        return outcome.plan

    def restart_worker(
        self, name: str, slot: WorkerSlot | None = None, topology_id: str = ""
    ) -> None:
        """Restart the worker in a slot, or all workers, with new fences; nothing is moved."""
        self.ask(RequestKind.RESTART_WORKER, name, topology_id, slot=slot)

    def set_log_level(
        self, name: str, levels: Mapping[str, LogLevel], topology_id: str = ""
    ) -> None:
        """Set levels by logger ("" is the root logger) in all workers of a topology; a level ""
        resets its logger.
        """
        check_log_levels(name, levels)
        self.ask(RequestKind.SET_LOG_LEVEL, name, topology_id, log_levels=dict(levels))

    def mark_host(self, kind: RequestKind, host: str, reason: str = "") -> None:
        """Drain, exclude or include a host (one of `HOST_KINDS`); InvalidConfigError when it is
        none of the cluster's.
        """
        check_host(host, reason)
        self.ask(kind, "", host=host, reason=reason)

    def plan_drain(self, host: str) -> tuple[RebalancePlan, ...]:
        """Plan what draining a host would move now, a plan for each topology that changes; nothing
        is changed.
        """
        check_host(host)
        return (
            self.begin(self.new_request(RequestKind.DRAIN_HOST, "", host=host, is_plan=True))
            .wait()
            .plans
        )

    def ask(self, kind: RequestKind, name: str, topology_id: str = "", **details: Any) -> None:
        """Make a request and wait for its end; with an id, for that topology only and not for
        another of its name.
        """
        self.carry_out(self.new_request(kind, name, topology_id=topology_id, **details))

    # -- requests for callers that poll ------------------------------------------------------------

    def carry_out(self, request: Request, progress: Progress | None = None) -> str:
        """Begin a request and wait for its end; the id of the topology that it was about."""
        return self.begin(request).wait(progress).topology_id

    def begin(self, request: Request) -> PendingRequest:
        """Write a request; it is then carried out even if no client waits for it."""
        return self._client.begin(request)

    def new_request(self, kind: RequestKind, name: str, **details: Any) -> Request:
        """Make a request of this process that expires when no Nimbus accepts it in time."""
        if not isinstance(name, str):
            raise NotAliveError(f"topology {name!r:.60} is not alive")
        now_ms = self._clock.now_ms()
        expires_ms = now_ms + self._client.accept_ms
        return Request(
            uuid.uuid4().hex, kind, name, now_ms, expires_ms, client=client_name(), **details
        )

    def rebalance_request(
        self,
        name: str,
        options: RebalanceOptions,
        wait_secs: float | None = None,
        is_plan: bool = False,
        topology_id: str = "",
    ) -> Request:
        """Make a request to rebalance, its options checked against what runs under that name
        now.
        """
        from sparkstorm.control_plane.cluster.request_checks import checked_rebalance

        base = self.require(name, topology_id)
        checked = checked_rebalance(
            name, options, self._state.require_outline(base.topology_id), self._conf
        )
        wait_ms = _millis(name, wait_secs)
        return self.new_request(
            RequestKind.REBALANCE,
            name,
            topology_id=base.topology_id,
            rebalance=checked,
            wait_ms=wait_ms,
            is_plan=is_plan,
        )

    def submit_request(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        code: bytes,
        options: SubmitOptions | None = None,
        seed: Seed | None = None,
    ) -> Request:
        """Check a new topology and store its blobs and initial state; make an UPDATE when
        topology.hot.deploy.enable is set.
        """
        if isinstance(conf, Mapping) and conf.get("topology.upgrade"):
            return self.upgrade_request(name, topology, conf, code)
        topology_id, own_conf, outline = self._prepare(name, topology, conf)
        settings = SubmissionSettings.of(own_conf)
        if settings.is_hot_deploy:
            return self._store(RequestKind.UPDATE, topology_id, own_conf, outline, code, options)
        if settings.from_checkpoint and seed is None:
            raise InvalidConfigError(
                "topology.from.checkpoint: nobody has read it; use Cluster.submit or run_topology.py"
            )
        if seed is not None:
            self._check_options(name, options)
            self._sow(name, topology_id, outline, seed)
        return self._store(
            RequestKind.SUBMIT,
            topology_id,
            own_conf,
            outline,
            code,
            options,
            has_state=seed is not None,
        )

    def update_request(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        code: bytes,
        options: SubmitOptions | None = None,
    ) -> Request:
        """Check the topology that replaces a running one (hot deploy, S0.33) and store its blobs.

        It goes on with streams and states when its tasks are the same. A new topology that is
        refused gives way to the old one.
        """
        topology_id, own_conf, outline = self._prepare(name, topology, conf)
        return self._store(RequestKind.UPDATE, topology_id, own_conf, outline, code, options)

    def named_blobs(self) -> NamedBlobStore:
        """Return the blobs with names of this cluster."""
        from sparkstorm.control_plane.blobs.named_store import NamedBlobStore  # needs the API

        return NamedBlobStore(self._state, self._blobs, self._clock, client_name())

    def _prepare(
        self, name: str, topology: Topology, conf: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any], TopologyOutline]:
        """Check name, configuration and topology, once; a new id, the topology's own configuration
        and its outline.
        """
        topology_id = (
            f"{name}-{self._state.next_submission_number()}-{self._clock.now_ms() // 1000}"
        )
        return topology_id, *self._checked(topology_id, name, topology, conf)

    def _checked(
        self, topology_id: str, name: str, topology: Topology, conf: Mapping[str, Any]
    ) -> tuple[dict[str, Any], TopologyOutline]:
        from sparkstorm.client.submission import prepare  # needs the API and all schedulers

        own_conf, outline = prepare(topology_id, name, topology, conf, self._conf)
        self.named_blobs().check(own_conf)
        return own_conf, outline

    def upgrade_request(
        self, name: str, topology: Topology, conf: Mapping[str, Any], code: bytes
    ) -> Request:
        """Check the new code of a running topology and store its blobs: the request begins a gray
        upgrade (S0.20).

        Its first batch of workers, chosen by topology.upgrade.* (S0.6), restarts with the new code.
        """
        from sparkstorm.control_plane.cluster.request_checks import (
            check_shadowed,
            check_upgraded_outline,
            upgrade_options,
        )

        validate_name(name)
        running = self.require(name)
        own_conf, outline = self._checked(running.topology_id, name, topology, conf)
        settings = UpgradeSettings.of(own_conf)
        options = upgrade_options(
            settings.workers or (), settings.component or "", settings.worker_num
        )
        check_upgrade(name, options)
        check_upgraded_outline(
            name, self._state.require_outline(running.topology_id), outline, settings.is_forced
        )
        if settings.shadow_component:
            check_shadowed(name, topology, settings.shadow_component)
        base = replace(
            running, status=TopologyStatus.ACTIVE, previous_status=None, pending=None, paused=""
        )
        details = {"upgrade": options, "is_forced": settings.is_forced}
        return self._with_blobs(RequestKind.UPGRADE, base, own_conf, outline, code, **details)

    def continue_upgrade(self, name: str, options: UpgradeOptions, topology_id: str = "") -> None:
        """Upgrade the next batch."""
        check_upgrade(name, options)
        self.ask(RequestKind.CONTINUE_UPGRADE, name, topology_id, upgrade=options)

    def complete_upgrade(self, name: str, topology_id: str = "") -> None:
        """End a gray upgrade as it is: upgraded workers keep the new code, the others theirs
        (S0.30).
        """
        self.ask(RequestKind.COMPLETE_UPGRADE, name, topology_id)

    def roll_back_upgrade(self, name: str, topology_id: str = "") -> None:
        """Take a gray upgrade back: every upgraded worker restarts with the code that it had."""
        self.ask(RequestKind.ROLLBACK_UPGRADE, name, topology_id)

    def _check_options(self, name: str, options: SubmitOptions | None) -> SubmitOptions:
        options = options or SubmitOptions()
        if options.status not in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE):
            raise InvalidTopologyError(
                f"topology {name} cannot start as {options.status}, only ACTIVE or INACTIVE"
            )
        if not isinstance(options.owner, str):
            raise InvalidTopologyError(
                f"topology {name}: its owner must be a user's name, not {options.owner!r:.60}"
            )
        return options

    def _sow(self, name: str, topology_id: str, outline: TopologyOutline, seed: Seed) -> None:
        """Write the initial state under the new id, before the request; the sweep finds its traces
        if this process dies.
        """
        if self.find(name):
            raise AlreadyAliveError(f"topology {name} runs already; kill it first, or hot deploy")
        self._state.protect(topology_id)
        try:
            self._state.prepare_errors(topology_id)
            # Nimbus refuses the request when the sweep has taken this
            self._state.prepare_worker_beats(topology_id)
            seed(topology_id, outline.component_by_task)
        except SparkStormError:
            self._state.unprotect(topology_id)
            raise

    def _store(
        self,
        kind: RequestKind,
        topology_id: str,
        own_conf: dict[str, Any],
        outline: TopologyOutline,
        code: bytes,
        options: SubmitOptions | None,
        **details: Any,
    ) -> Request:
        name = topology_name(topology_id)
        now_ms = self._clock.now_ms()
        options = self._check_options(name, options)
        if kind is RequestKind.UPDATE and SubmissionSettings.of(own_conf).from_checkpoint:
            raise InvalidConfigError(
                "topology.from.checkpoint: a hot deploy goes on from what runs, not from a checkpoint"
            )
        base = TopologyBase(
            topology_id=topology_id,
            name=name,
            launch_ms=now_ms,
            status=options.status,
            num_workers=SubmissionSettings.of(own_conf).workers,
            executors_by_component=dict(outline.executors_by_component),
            code_key="",
            conf_key="",
            owner=options.owner,
        )
        return self._with_blobs(kind, base, own_conf, outline, code, **details)

    def _with_blobs(
        self,
        kind: RequestKind,
        base: TopologyBase,
        own_conf: dict[str, Any],
        outline: TopologyOutline,
        code: bytes,
        **details: Any,
    ) -> Request:
        """Store code, configuration and outline; make the request that names them."""
        topology_id = base.topology_id
        now_ms = self._clock.now_ms()
        code_key = self._blobs.put(code, now_ms)
        conf_key = self._blobs.put(conf_bytes(own_conf), now_ms, BlobKind.CONF)
        base = replace(base, launch_ms=now_ms, code_key=code_key, conf_key=conf_key)
        outline_key = self._blobs.put(
            encode_record(SubmittedOutline(topology_id, outline)), now_ms, BlobKind.OUTLINE
        )
        wait_copies(self._blobs, topology_id, own_conf)
        return self.new_request(
            kind, base.name, topology_id=topology_id, base=base, outline_key=outline_key, **details
        )

    # -- looking -----------------------------------------------------------------------------------

    def wait_deployed(self, name: str, timeout_ms: int = 120_000) -> bool:
        """Wait until no submission or hot deploy of that name is under way, a former process's
        included; one that Nimbus cannot finish is not waited for.
        """
        return self._wait_until(
            lambda: not self._is_deploying(name) or name in self.problems(), timeout_ms
        )

    def _is_deploying(self, name: str) -> bool:
        opened, _ = self._state.open_requests()
        named = any(request.base is not None and request.name == name for request, _ in opened)
        return named or self._state.read_deploy(name) is not None

    def find(self, name: str) -> TopologyBase | None:
        """The topology of that name, dying ones included; StoreInconsistentError when its record
        cannot be read.
        """
        for topology_id in self._state.topology_ids():
            if topology_name(topology_id) == name and (base := self._read_base(topology_id)):
                return base
        return None

    def _read_base(self, topology_id: str) -> TopologyBase | None:
        try:
            return self._state.read_base(topology_id)
        except (StoreInconsistentError, TamperedBlobError) as error:
            advice = "delete that node, and Nimbus removes what is left of the topology"
            raise StoreInconsistentError(f"{error}; {advice}") from error

    def require(self, name: str, topology_id: str = "") -> TopologyBase:
        """The topology of that name; NotAliveError when there is none, or when the name belongs to
        another topology than the one meant.
        """
        base = self.find(name)
        if base is None:
            raise NotAliveError(f"topology {topology_id or name} is not alive")
        if topology_id not in ("", base.topology_id):
            raise NotAliveError(
                f"topology {topology_id} is not alive; {base.topology_id} has its name now"
            )
        return base

    def code_of(self, topology_id: str) -> tuple[bytes, dict[str, Any]]:
        """Return the code and the configuration of a topology; NotAliveError when it is gone."""
        return self._blobs.get(self._base_of(topology_id).code_key), self.conf_of(topology_id)

    def conf_of(self, topology_id: str) -> dict[str, Any]:
        """Return the configuration of a topology; NotAliveError when it is gone."""
        base = self._base_of(topology_id)
        return conf_from_bytes(self._blobs.get(base.conf_key, BlobKind.CONF), base.conf_key)

    def _base_of(self, topology_id: str) -> TopologyBase:
        base = self._read_base(topology_id)
        if base is None:
            raise NotAliveError(f"topology {topology_id} is not alive")
        return base

    def discard_blobs(self, keys: Iterable[str]) -> None:
        """Delete the blobs of an ended topology at once, not with the next sweep; blobs that a
        record names are kept.
        """
        self._client.discard_blobs(keys)

    def problems(self) -> dict[str, str]:
        """Nimbus's problems, a sentence by topology id or name, "scheduler", "blacklist" or
        "turn".
        """
        record = self._state.read_problems()
        return dict(record.by_subject) if record else {}

    def problems_of(self, topology_id: str) -> list[str]:
        """Return what Nimbus has said is wrong with a topology, its scheduling, its hosts or its
        stores, in their order of importance.
        """
        problems = self.problems()
        assignment = None
        stores: tuple[str, ...] = ()
        if problems:
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError):
                base = self._read_base(topology_id)
                stores = base.stores if base else ()
                assignment = self._state.read_assignment(topology_id)
        return problems_about(problems, topology_id, stores, assignment)

    def summaries(self) -> list[TopologySummary]:
        """One line per topology, by id; those whose record cannot be read are among Nimbus's
        problems instead.
        """
        summaries = []
        for topology_id in self._state.topology_ids():
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError):
                if base := self._state.read_base(topology_id):
                    summaries.append(self._summary(base))
        return summaries

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
    is_number = isinstance(secs, (int, float)) and not isinstance(secs, bool)
    # false for NaN as well; -1 is Storm's word for the default
    if not is_number or not -1 <= secs <= MAX_WAIT_MS / 1000:
        raise InvalidConfigError(
            f"the wait of {name}: expected seconds, from 0 to a year, got {secs!r:.60}"
        )
    return round(secs * 1000)
