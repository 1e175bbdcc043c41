"""Verbs of Nimbus, one per kind of request. Each may be repeated with the same outcome record, to
the same end.

So each verb first looks whether it is done already, and its last write is the outcome. Left out: a
log of steps to go on from, as databases have it. The records that a verb writes show its progress
(decision 14). Source: Storm's Nimbus.java and JStorm's ServiceHandler for what each verb does;
status changes are `control_plane/scheduling/lifecycle.py`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkstorm.common.errors import (
    AlreadyAliveError,
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    OneStoreAwayError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.records import decode_record
from sparkstorm.common.model.requests import (
    HOST_KINDS,
    HostMark,
    LogConfig,
    LogLevel,
    Outcome,
    OutcomeState,
    Request,
    RequestKind,
    SubmittedOutline,
    is_id_of,
)
from sparkstorm.common.model.status import Action, RebalanceOptions, TopologyStatus
from sparkstorm.common.model.tasks import check_cells
from sparkstorm.common.settings import AutoscaleSettings, SubmissionSettings
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.control_plane.cluster.nimbus_state import Deploy
from sparkstorm.control_plane.cluster.request_checks import checked_rebalance
from sparkstorm.control_plane.cluster.store_choice import check_kept, choose_stores
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.deploy import Deploys
from sparkstorm.control_plane.nimbus.extension import NimbusExtension
from sparkstorm.control_plane.nimbus.parts import NimbusParts
from sparkstorm.control_plane.nimbus.rebalance import Rebalancer
from sparkstorm.control_plane.scheduling.lifecycle import ActionRequest, transition
from sparkstorm.control_plane.scheduling.reconcile import restarted

_SIMPLE = {
    RequestKind.KILL: (Action.KILL, "killTopology"),
    RequestKind.ACTIVATE: (Action.ACTIVATE, "activate"),
    RequestKind.DEACTIVATE: (Action.INACTIVATE, "deactivate"),
}


def _runs(deploy: Deploy, reading: Reading) -> bool:
    return any(
        topology_id in reading.bases
        for topology_id in (deploy.old_id, *(base.topology_id for base in deploy.bases()))
    )


def _mark_of(request: Request, now_ms: int) -> HostMark:
    return HostMark(request.kind is RequestKind.DRAIN_HOST, now_ms, request.client, request.reason)


class RequestVerbs:
    """`check` before a request is accepted, `carry_out` at every turn from then on until its
    outcome is final.
    """

    def __init__(
        self,
        parts: NimbusParts,
        rebalancer: Rebalancer,
        deploys: Deploys,
        extensions: Sequence[NimbusExtension],
    ) -> None:
        self._parts = parts
        self._rebalancer = rebalancer
        self._deploys = deploys
        self._extension_by_kind = {
            kind: extension for extension in extensions for kind in extension.kinds
        }
        # Each of them would change the old topology while the deploy ends it. What only asks or
        # restarts may go on.
        self._not_in_deploy = (
            RequestKind.KILL,
            RequestKind.UPDATE,
            RequestKind.REBALANCE,
            *self._extension_by_kind,
        )
        self._carriers = {
            # A mapping and not a chain of conditions: a kind without a verb is a KeyError in the
            # first test that meets it.
            RequestKind.SUBMIT: self._submit,
            RequestKind.UPDATE: self._update,
            RequestKind.KILL: self._kill,
            RequestKind.ACTIVATE: self._act,
            RequestKind.DEACTIVATE: self._act,
            RequestKind.REBALANCE: self._rebalance,
            RequestKind.RESTART_WORKER: self._restart_worker,
            RequestKind.SET_LOG_LEVEL: self._set_log_level,
            **dict.fromkeys(self._extension_by_kind, self._extend),
            **dict.fromkeys(HOST_KINDS, self._mark_host),
        }

    def check(self, request: Request, reading: Reading, now_ms: int) -> str:
        """Return the id of the topology that is meant, "" for a host; raises what the request is
        refused with.
        """
        if request.kind in HOST_KINDS:
            self._check_host(request, reading)
            return ""
        if request.kind is RequestKind.SUBMIT:
            self._check_free(request.name, reading)
            return request.topology_id
        deploy = self._parts.state.read_deploy(request.name)
        # Neither the old nor the new topology runs: killing is the only way out of a deploy that
        # cannot succeed.
        if request.kind is RequestKind.KILL and deploy and not _runs(deploy, reading):
            return deploy.base.topology_id
        # Data without a base can be killed by its id, or it could be deleted only by a client of
        # Redis.
        if (
            request.kind is RequestKind.KILL
            and request.topology_id in self._parts.cleanup.forgotten
        ):
            return request.topology_id
        base = self._meant(request, reading)
        verb = request.kind.verb
        if deploy and deploy.old_id == base.topology_id and request.kind in self._not_in_deploy:
            raise IllegalTransitionError(
                f"a hot deploy of {base.name} is under way; wait for it, then {verb} what runs"
            )
        if request.kind is RequestKind.UPDATE:
            # Two mechanisms would both decide which code a worker gets.
            if base.status in (TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK):
                raise IllegalTransitionError(
                    f"a gray upgrade of {base.name} is under way; end it with upgrade complete or upgrade rollback first"
                )
            if base.status is TopologyStatus.KILLED:
                raise IllegalTransitionError(
                    f"topology {base.name} is KILLED: submit it anew when it is gone"
                )
            return request.topology_id
        if request.kind is RequestKind.REBALANCE:
            options = self._options(request, base)
            self._check_codes(base, options, reading)
            self._check_sizes(base, options)
            if options.conf:
                conf = {**self._conf(base), **options.conf}
                AutoscaleSettings.of(conf)
                self._check_durable(SubmissionSettings.of(conf).durability, base.stores)
        if extension := self._extension_by_kind.get(request.kind):
            outline = self._new_outline(request)
            self._check_kept(request, base)
            extension.check(request, base, outline, reading, now_ms)
        return base.topology_id

    def _check_free(self, name: str, reading: Reading) -> None:
        # An unreadable base may be one of that name that runs: to submit next to it would run it
        # twice.
        if any(base.name == name for base in reading.bases.values()) or self._unreadable(
            name, reading
        ):
            raise AlreadyAliveError(f"topology {name} runs already; kill it first, or hot deploy")
        if name in self._parts.state.deploy_names():
            raise AlreadyAliveError(
                f"a hot deploy of {name} is being finished; wait for it, or kill {name}"
            )

    def _unreadable(self, name: str, reading: Reading) -> str | None:
        """Return what is wrong with the base of a topology of that name, None when nothing is; for
        names of which no base was read.
        """
        return next(
            (
                problem
                for topology_id, problem in reading.problems.items()
                if is_id_of(topology_id, name) and topology_id in self._parts.state.topology_ids()
            ),
            None,
        )

    def _meant(self, request: Request, reading: Reading) -> TopologyBase:
        name = request.name
        wanted = "" if request.kind is RequestKind.UPDATE else request.topology_id
        for base in reading.bases.values():
            # A handle means its own topology, and not another that has the name since.
            if base.name == name and wanted not in ("", base.topology_id):
                raise NotAliveError(
                    f"topology {wanted} is not alive; {base.topology_id} has its name now"
                )
            if base.name == name:
                return base
        if problem := self._unreadable(name, reading):
            raise StoreInconsistentError(
                f"{problem}; delete that node, and Nimbus removes what is left of the topology"
            )
        raise NotAliveError(f"topology {name} is not alive")

    def carry_out(self, request: Request, outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        """Do what can be done now for an accepted request; whether something was changed."""
        return self._carriers[request.kind](request, outcome, reading, now_ms)

    def undo(self, request: Request) -> None:
        """Take back what an accepted request has written that is refused now; a cut here is made
        good by the sweep.
        """
        if request.kind is RequestKind.SUBMIT:
            with contextlib.suppress(OneStoreAwayError):
                self._parts.cleanup.take_back(request.topology_id)

    # -- submit and update -------------------------------------------------------------------------

    def _submit(self, request: Request, _outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        parts = self._parts
        base = request.base
        assert base is not None
        if base.topology_id not in reading.bases:
            # Without the mark the initial state may be a part of one: to begin from it would be a
            # wrong result without an error.
            if request.has_state and not parts.state.has_worker_beats(base.topology_id):
                raise StoreInconsistentError(
                    f"the initial state of {base.topology_id} was swept before its request came; submit {base.name} again"
                )
            outline = self._outline(request)
            stores = self._new_stores(base, outline, reading)
            base = replace(base, store=stores[0], cells=stores if len(stores) > 1 else ())
            parts.assigner.write_records(base, outline)
            parts.assigner.assign_new(base, reading, now_ms)
            parts.hooks.notify(base.name, "startTopology")
            # Reported, not refused: a name may be used again. But a client that expects the old
            # states must know that they are not these.
            for sentence in parts.cleanup.forgotten_of(base.name):
                parts.outcomes.step(
                    request.id, now_ms, f"{base.topology_id} begins anew: {sentence}"
                )
        parts.outcomes.done(request.id, now_ms, base.topology_id)
        parts.hooks.notify(base.name, "submitTopology")
        return True

    def _update(self, request: Request, _outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        if request.topology_id in reading.bases:
            self._parts.outcomes.done(request.id, now_ms, request.topology_id)
            return True
        deploy = self._parts.state.read_deploy(request.name)
        if deploy is not None:
            if deploy.request_id == request.id:
                return False  # the deploys' duty goes on with it
            raise AlreadyAliveError(
                f"another hot deploy of {request.name} is under way; wait for it"
            )
        old = self._meant(request, reading)
        outline = self._outline(request)
        self._check_kept(request, old)
        base = request.base
        assert base is not None
        sizes = base.executors_by_component
        cells = len(old.stores)
        check_cells(base.name, cells, outline.component_by_task, sizes, base.num_workers)
        self._deploys.begin(request, old, outline, now_ms)
        return True

    def _new_stores(
        self, base: TopologyBase, outline: TopologyOutline, reading: Reading
    ) -> tuple[str, ...]:
        """Return the names of the stores that a new topology's data will lie in, one for each cell;
        it is decided here and nowhere else.
        """
        settings = self._settings(base)
        sizes = base.executors_by_component
        check_cells(base.name, settings.cells, outline.component_by_task, sizes, base.num_workers)
        stores = choose_stores(
            base.name,
            settings.cells,
            settings.store,
            self._parts.hooks.store_names,
            reading.bases.values(),
            reading.snapshot.supervisors.values(),
        )
        self._check_durable(settings.durability, stores)
        return stores

    def _check_durable(self, durability: str, stores: Sequence[str]) -> None:
        """Refuse a durability that one of a cut topology's stores cannot keep: its workers would
        never start.
        """
        if len(stores) > 1 and durability != "process":
            self._parts.hooks.check_durable(durability, stores)

    def _settings(self, base: TopologyBase) -> SubmissionSettings:
        return SubmissionSettings.of(self._conf(base))

    def _conf(self, base: TopologyBase) -> dict[str, Any]:
        return {**self._parts.conf, **self._parts.reader.topology_conf(base.conf_key)}

    def _check_kept(self, request: Request, running: TopologyBase) -> None:
        """Refuse new code whose configuration names other stores than those of the topology that
        runs.
        """
        if request.base is not None:
            new = self._settings(request.base)
            home = self._parts.hooks.home
            check_kept(running.name, new.store, running.stores, home, new.cells)
            self._check_durable(new.durability, running.stores)

    def _outline(self, request: Request) -> TopologyOutline:
        """Read the outline that the client stored, and check it against the base; all blobs must be
        there.
        """
        base = request.base
        blobs = self._parts.blobs
        assert base is not None
        # The sweep may have taken them when a request was long under way; a worker would find out,
        # again and again.
        missing = [key for key in request.blob_keys() if not blobs.has(key)]
        if missing:
            raise StoreInconsistentError(
                f"blob {missing[0]} of {base.topology_id} is gone; submit {base.name} again"
            )
        submitted = decode_record(
            SubmittedOutline,
            blobs.get(request.outline_key, BlobKind.OUTLINE),
            f"outline blob {request.outline_key}",
        )
        outline = submitted.outline
        tasks = Counter(submitted.outline.component_by_task.values())
        executors = base.executors_by_component
        # Outline and base come in two pieces from a client. One that fits badly would fail in the
        # scheduler, for all topologies.
        fits = all(executors[component] <= tasks[component] for component in executors)
        if (
            submitted.topology_id != base.topology_id
            or not fits
            or not executors.keys() == tasks.keys() <= outline.components.keys()
        ):
            raise InvalidTopologyError(
                f"the outline of {base.topology_id} does not fit its base; submit {base.name} again"
            )
        return outline

    # -- life cycle --------------------------------------------------------------------------------

    def _act(self, request: Request, outcome: Outcome, _reading: Reading, now_ms: int) -> bool:
        action, word = _SIMPLE[request.kind]
        # With the request's id, which distinguishes a repetition from a second kill: a second one
        # would begin the wait anew.
        order = ActionRequest(action, request.wait_ms, request_id=request.id)
        # one that is gone by now was killed since, or by this request
        self._change(order, outcome.topology_id, now_ms)
        self._parts.outcomes.done(request.id, now_ms, outcome.topology_id)
        self._parts.hooks.notify(request.name, word)
        return True

    def _kill(self, request: Request, outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        if outcome.topology_id not in reading.bases:
            deploy = self._parts.state.read_deploy(request.name)
            if deploy and outcome.topology_id in [base.topology_id for base in deploy.bases()]:
                self._deploys.call_off(request.name, deploy, now_ms)
            else:
                # data without a base; of one that is gone nothing is left
                self._parts.cleanup.forget(outcome.topology_id)
        return self._act(request, outcome, reading, now_ms)

    def _change(self, order: ActionRequest, topology_id: str, now_ms: int) -> TopologyBase | None:
        """Change a base, once per request; None when it is gone."""
        base = self._parts.state.read_base(topology_id)
        default_ms = self._message_timeout_ms(base) if base else 0

        def changed(base: TopologyBase) -> TopologyBase:
            is_done = base.pending is not None and base.pending.request_id == order.request_id
            return base if is_done else transition(base, order, now_ms, default_ms).base

        return self._parts.state.update_base(topology_id, changed)

    def _message_timeout_ms(self, base: TopologyBase) -> int:
        try:
            conf = self._parts.reader.topology_conf(base.conf_key)
            return SubmissionSettings.of({**self._parts.conf, **conf}).message_timeout_ms
        except (StoreInconsistentError, TamperedBlobError, InvalidConfigError):
            # it must still be killed
            return SubmissionSettings.of(self._parts.conf).message_timeout_ms

    # -- rebalance ---------------------------------------------------------------------------------

    def _options(self, request: Request, base: TopologyBase) -> RebalanceOptions:
        outline = self._parts.state.require_outline(base.topology_id)
        return checked_rebalance(
            base.name, request.rebalance or RebalanceOptions(), outline, self._parts.conf
        )

    def _check_codes(self, base: TopologyBase, options: RebalanceOptions, reading: Reading) -> None:
        """Refuse a change of configuration that would reach some workers only."""
        assignment = reading.snapshot.assignments.get(base.topology_id)
        # Some workers read another configuration than the base's; a change of it would not reach
        # them.
        if options.conf and assignment is not None and assignment.code_by_slot:
            raise IllegalTransitionError(
                f"a gray upgrade of {base.name} was completed with {counted(len(assignment.code_by_slot), 'worker')} on "
                f"other code and "
                "configuration: upgrade the others, or update the topology, before its configuration is changed"
            )

    def _check_sizes(self, base: TopologyBase, options: RebalanceOptions) -> None:
        """Refuse numbers of workers or executors with which tasks would have to change their
        cell.
        """
        outline = self._parts.state.read_outline(base.topology_id)
        if base.cells and outline is not None:
            check_cells(
                base.name,
                len(base.cells),
                outline.component_by_task,
                {**base.executors_by_component, **options.executors_by_component},
                base.num_workers if options.num_workers is None else options.num_workers,
            )

    def plan(self, request: Request, topology_id: str, reading: Reading, now_ms: int) -> Outcome:
        """Return the outcome of a dry run, with its plan; nothing is changed."""
        made = Outcome(request.id, OutcomeState.DONE, now_ms, topology_id)
        if request.kind is RequestKind.DRAIN_HOST:
            mark = _mark_of(request, now_ms)
            return replace(
                made, plans=self._parts.assigner.rehearse_drain(request.host, mark, reading, now_ms)
            )
        if request.kind is not RequestKind.REBALANCE:
            raise InvalidTopologyError(
                f"there is no plan of {request.kind.verb}, only of a rebalance and of a drain"
            )
        options = self._options(request, reading.bases[topology_id])
        return replace(made, plan=self._rebalancer.plan(topology_id, options, reading, now_ms))

    def _rebalance(self, request: Request, outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        """Give the base its pending action, once; the timers' duty ends the request when it falls
        due.
        """
        base = reading.bases.get(outcome.topology_id)
        # The step in the outcome is the mark that the base has the action: a Nimbus that follows
        # does not begin the wait anew.
        if not outcome.step:
            if base is not None:
                options = self._options(request, base)
                order = ActionRequest(
                    Action.REBALANCE, request.wait_ms, options, request_id=request.id
                )
                base = self._change(order, outcome.topology_id, now_ms)
            if base is None or base.pending is None:
                raise NotAliveError(f"topology {outcome.topology_id} is not alive")
            wait_ms = max(0, base.pending.due_ms - now_ms)
            self._parts.outcomes.step(
                request.id, now_ms, f"{outcome.topology_id} is rebalanced in {wait_ms / 1000:g} s"
            )
            self._parts.hooks.notify(request.name, "rebalanceRequested")
            return True
        is_pending = (
            base is not None and base.pending is not None and base.pending.request_id == request.id
        )
        # Pending no more and not ended by the timers: another request took its place. An unreadable
        # record proves nothing about that.
        if not is_pending and outcome.topology_id not in reading.problems:
            raise IllegalTransitionError(
                f"the rebalance of {outcome.topology_id} was called off: another request came before it fell due"
            )
        return False

    # -- kinds of extensions -----------------------------------------------------------------------

    def _new_outline(self, request: Request) -> TopologyOutline | None:
        return self._outline(request) if request.base is not None else None

    def _extend(self, request: Request, outcome: Outcome, reading: Reading, now_ms: int) -> bool:
        extension = self._extension_by_kind[request.kind]
        return extension.carry_out(request, outcome, self._new_outline(request), reading, now_ms)

    # -- hosts -------------------------------------------------------------------------------------

    def _check_host(self, request: Request, reading: Reading) -> None:
        host = request.host
        snapshot = reading.snapshot
        if request.kind is RequestKind.INCLUDE_HOST:
            if host not in snapshot.marks:
                marked = ", ".join(sorted(snapshot.marks)) or "no host"
                raise InvalidConfigError(
                    f"host {host} is neither drained nor excluded; {marked} is"
                )
            return
        known_hosts = {info.host for info in snapshot.supervisors.values()} | snapshot.marks.keys()
        # Hosts that are away for a moment can be marked too: the mark also keeps out a host that
        # comes back.
        known_hosts |= {
            node_host
            for assignment in snapshot.assignments.values()
            for node_host in assignment.host_by_node.values()
        }
        if host not in known_hosts:
            raise InvalidConfigError(
                f"host {host} is not one of this cluster's: {', '.join(sorted(known_hosts)) or 'it has none'}"
            )

    def _mark_host(
        self, request: Request, _outcome: Outcome, reading: Reading, now_ms: int
    ) -> bool:
        """Mark a host, or take its mark back; the next round places by it."""
        mark = _mark_of(request, now_ms)

        def changed(marks: Mapping[str, HostMark]) -> Mapping[str, HostMark]:
            others = {host: other for host, other in marks.items() if host != request.host}
            return (
                others
                if request.kind is RequestKind.INCLUDE_HOST
                else {**others, request.host: mark}
            )

        self._parts.state.change_host_marks(changed, reading.snapshot.marks)
        self._parts.outcomes.done(request.id, now_ms, "")
        return True

    # -- workers -----------------------------------------------------------------------------------

    def _restart_worker(
        self, request: Request, outcome: Outcome, reading: Reading, now_ms: int
    ) -> bool:
        """Raise the fences of the workers in an assignment; done twice, they start once more."""
        assignment = reading.snapshot.assignments.get(outcome.topology_id)
        slots = sorted(set(assignment.slot_by_executor.values())) if assignment else []
        wanted = [request.slot] if request.slot else slots
        if assignment is None or not slots or not set(wanted) <= set(slots):
            places = ", ".join(map(str, slots))
            there = f"it runs at {places}" if places else "it has no worker yet"
            raise InvalidTopologyError(
                f"{outcome.topology_id} has no worker at {request.slot or 'any slot'}; {there}"
            )
        # By the fences of the assignment and not by a message: a worker that does not get it is
        # fenced all the same.
        self._parts.assigner.publish(restarted(assignment, wanted, now_ms), request.name)
        self._parts.outcomes.done(request.id, now_ms, outcome.topology_id)
        return True

    def _set_log_level(
        self, request: Request, outcome: Outcome, reading: Reading, now_ms: int
    ) -> bool:
        if outcome.topology_id not in reading.bases:
            raise NotAliveError(f"topology {outcome.topology_id} is not alive")
        try:
            log_config = self._parts.state.read_log_config(outcome.topology_id)
        except (StoreInconsistentError, TamperedBlobError):
            log_config = None  # it is written anew
        levels: dict[str, LogLevel] = dict(log_config.levels) if log_config else {}
        for logger, wanted in request.log_levels.items():
            until_ms = now_ms + wanted.timeout_ms if wanted.timeout_ms else 0
            levels[logger] = replace(wanted, until_ms=until_ms)
        # Ended ones go with the next change; no other step removes them.
        kept_levels = {
            logger: level
            for logger, level in levels.items()
            if level.level and (not level.until_ms or level.until_ms > now_ms)
        }
        self._parts.state.write_log_config(LogConfig(outcome.topology_id, kept_levels))
        self._parts.outcomes.done(request.id, now_ms, outcome.topology_id)
        return True
