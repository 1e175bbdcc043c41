"""Gray upgrades (S0.4-S0.31): requests that begin, continue, complete and take one back, and the
duty that carries it on.

The handler (`extensions/upgrade/gray_upgrade.py`) picks workers and adds them under
upgrading_workers; it is run by the topology master's slot, for a topology without a master by
Nimbus. Nimbus gives them the new code in the assignment; their slots restart them and add them
under upgraded_workers. All that is decided is in one record, so a Nimbus that dies at any write is
followed by one that goes on. Left out: JStorm's way, where workers list themselves and each fetches
the new code: a crash between the two gives a worker the wrong code (decision 18). Source: JStorm's
ServiceHandler.grayUpgrade and GrayUpgradeHandler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    IllegalTransitionError,
    NotAliveError,
)
from sparkstorm.common.model.assignment import Assignment, TopologyBase, WorkerCode, WorkerSlot
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import master_task
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import Outcome, Request, RequestKind
from sparkstorm.common.model.status import Action, TopologyStatus
from sparkstorm.common.model.topology import MASTER
from sparkstorm.common.model.upgrade import (
    GrayUpgrade,
    RollbackBounds,
    ShadowBar,
    UpgradeOptions,
    UpgradeStage,
    UpgradeState,
)
from sparkstorm.common.settings import UpgradeSettings
from sparkstorm.control_plane.cluster.request_checks import check_upgraded_outline
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.extension import NimbusExtension
from sparkstorm.control_plane.nimbus.parts import NimbusParts
from sparkstorm.control_plane.scheduling.lifecycle import ActionRequest, transition
from sparkstorm.control_plane.scheduling.reconcile import with_codes
from sparkstorm.extensions.upgrade.gray_upgrade import (
    Workers,
    advance,
    classify,
    codes_wanted,
    confirmed,
    final_code,
    has_single_master,
    taken_back,
    upgradable,
)
from sparkstorm.extensions.upgrade.master_duties import UpgradeHandler
from sparkstorm.extensions.upgrade.state import GrayUpgradeState

_LOG = logging.getLogger(__name__)
_UPGRADES = (TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK)
_UNDER_WAY = (UpgradeStage.SHADOWING, UpgradeStage.IN_PROGRESS, UpgradeStage.ROLLING_BACK)
_BY_HAND = "asked for by a request"


class GrayUpgrades(NimbusExtension):
    """Verbs that begin, continue and end gray upgrades, and the handler of topologies without a
    topology master.
    """

    kinds = (
        RequestKind.UPGRADE,
        RequestKind.CONTINUE_UPGRADE,
        RequestKind.COMPLETE_UPGRADE,
        RequestKind.ROLLBACK_UPGRADE,
    )

    def __init__(self, parts: NimbusParts, ask: Callable[[], None]) -> None:
        super().__init__(parts, ask)
        self._records = GrayUpgradeState(parts.state)
        self._handlers: dict[str, UpgradeHandler] = {}

    # -- requests ----------------------------------------------------------------------------------

    def check(
        self,
        request: Request,
        base: TopologyBase,
        outline: TopologyOutline | None,
        reading: Reading,
        now_ms: int,
    ) -> None:
        """Refuse a request that does not fit what runs; `outline` is that of an UPGRADE's new
        code.
        """
        upgrade = self.parts.state.read_upgrade(base.topology_id)
        # This very request, which a Nimbus that died has carried out in part: what it has made of
        # the upgrade is no reason to refuse it.
        if upgrade is not None and upgrade.request_id == request.id:
            return
        if request.kind is RequestKind.UPGRADE:
            self._check_new(request, base, outline, upgrade, reading, now_ms)
            return
        if upgrade is None or base.status not in _UPGRADES:
            raise IllegalTransitionError(
                f"Failed to find a related upgrade conf of {base.name}: no gray upgrade is under way; start one with new code"
            )
        stage = classify(upgrade, now_ms)
        verb = request.kind.verb
        # A rollback that turned into an upgrade again would leave workers whose former code is
        # unknown.
        if stage in (UpgradeStage.ROLLING_BACK, UpgradeStage.COMPLETED):
            raise IllegalTransitionError(
                f"the gray upgrade of {base.name} is {stage}: {verb} does not apply any more"
            )
        if request.kind is RequestKind.CONTINUE_UPGRADE:
            self._check_batch(base, request.upgrade or UpgradeOptions(), upgrade, reading, now_ms)

    def _check_new(
        self,
        request: Request,
        base: TopologyBase,
        outline: TopologyOutline | None,
        upgrade: GrayUpgrade | None,
        reading: Reading,
        now_ms: int,
    ) -> None:
        topology = reading.snapshot.topologies.get(base.topology_id)
        assignment = reading.snapshot.assignments.get(base.topology_id)
        if topology is None or assignment is None or outline is None:
            raise NotAliveError(f"Failed to get topology info of {base.topology_id}")
        if base.status in _UPGRADES and classify(upgrade, now_ms) in _UNDER_WAY:
            raise IllegalTransitionError(
                f"a gray upgrade of {base.name} is in progress: "
                "upgrade continue, upgrade complete or upgrade rollback comes before another one"
            )
        # For its refusals: JStorm too upgrades only what is active (S0.4).
        transition(base, ActionRequest(Action.UPGRADE), now_ms, 0)
        # JStorm's rule: its master runs the handler, and would restart itself in the middle of a
        # batch.
        if not has_single_master(assignment, topology.outline.component_by_task):
            raise IllegalTransitionError(
                "Gray upgrade requires that topology master to be a single worker, cannot perform the upgrade!"
            )
        check_upgraded_outline(base.name, topology.outline, outline, request.is_forced)
        _check_options(
            base,
            request.upgrade or UpgradeOptions(),
            upgradable(assignment, topology.outline.component_by_task),
        )

    def _check_batch(
        self,
        base: TopologyBase,
        options: UpgradeOptions,
        upgrade: GrayUpgrade,
        reading: Reading,
        now_ms: int,
    ) -> None:
        if classify(upgrade, now_ms) is UpgradeStage.EXPIRED:
            raise IllegalTransitionError(
                f"The upgrade of {base.name} has expired: it is completed as it is"
            )
        if bar := upgrade.unpassed_bar:
            raise IllegalTransitionError(
                f"the new code of {base.name} still runs as a shadow of '{bar.component}': its first batch follows by itself"
            )
        assignment = reading.snapshot.assignments.get(base.topology_id)
        state = self._records.upgrade_state(base.topology_id)
        state = confirmed(state, assignment) if assignment else state
        workers = self._workers(base, reading)
        # One batch at a time, so that a batch can be judged before the next one begins.
        if (
            upgrade.continue_upgrading
            or not advance(upgrade, state, workers, now_ms).is_idle
            or state.upgrading
        ):
            raise IllegalTransitionError(
                "There're still workers under upgrade, please continue after they're done."
            )
        _check_options(base, options, workers)

    def carry_out(
        self,
        request: Request,
        outcome: Outcome,
        outline: TopologyOutline | None,
        reading: Reading,
        now_ms: int,
    ) -> bool:
        """Write the change of the record, then the status; both may be repeated."""
        base = reading.bases.get(outcome.topology_id)
        if base is None:
            raise NotAliveError(f"topology {outcome.topology_id} is not alive")
        self.check(request, base, outline, reading, now_ms)
        if request.kind is RequestKind.UPGRADE:
            self._begin(request, base, outline, reading, now_ms)
        else:
            self._change(request, base, reading, now_ms)
        self.parts.outcomes.done(request.id, now_ms, base.topology_id)
        self.parts.hooks.notify(
            base.name,
            "grayUpgrade" if request.kind is RequestKind.UPGRADE else request.kind.lower(),
        )
        return True

    def _begin(
        self,
        request: Request,
        base: TopologyBase,
        outline: TopologyOutline | None,
        reading: Reading,
        now_ms: int,
    ) -> None:
        parts = self.parts
        new = request.base
        assignment = reading.snapshot.assignments.get(base.topology_id)
        assert new is not None and outline is not None and assignment is not None
        settings = UpgradeSettings.of({**parts.conf, **parts.reader.topology_conf(new.conf_key)})
        upgrade = GrayUpgrade(
            topology_id=base.topology_id,
            # Both codes are in the record: a worker that dies at any time is given one of these
            # two, and nothing that was looked up at its start (decision 18).
            code=WorkerCode(new.code_key, new.conf_key),
            former=WorkerCode(assignment.code_key, assignment.conf_key),
            outline=outline,
            started_ms=now_ms,
            expires_ms=now_ms + settings.ttl_ms,
            # An earlier upgrade may have been completed with some workers only; a rollback leads
            # back to that.
            former_by_slot=assignment.code_by_slot,
            options=request.upgrade or UpgradeOptions(),
            request_id=request.id,
            bounds=RollbackBounds(
                settings.takes_back,
                settings.least_executed,
                settings.failed_share,
                settings.deaths,
                settings.latency_factor,
            ),
            shadow=ShadowBar(settings.shadow_component, settings.shadow_tuples)
            if settings.shadow_component
            else None,
        )
        stored = parts.state.read_upgrade(base.topology_id)
        # Cleared first: children of an earlier upgrade would count workers as upgraded that are
        # not.
        if stored is None or stored.request_id != request.id:
            self._records.clear_upgrade(base.topology_id)
            parts.state.change_upgrade(base.topology_id, lambda _: upgrade)
        self._set_status(base, Action.UPGRADE, TopologyStatus.ACTIVE, now_ms)

    def _change(self, request: Request, base: TopologyBase, reading: Reading, now_ms: int) -> None:
        state = self._records.upgrade_state(base.topology_id)
        # Gone or done meanwhile: the request asks for nothing more.
        if state.upgrade is None or state.upgrade.request_id == request.id:
            return
        upgrade = replace(state.upgrade, request_id=request.id)
        if request.kind is RequestKind.CONTINUE_UPGRADE:
            changed = replace(
                upgrade, options=request.upgrade or UpgradeOptions(), continue_upgrading=True
            )
        elif request.kind is RequestKind.COMPLETE_UPGRADE:
            changed = replace(upgrade, completed_ms=now_ms, continue_upgrading=False)
        else:
            changed = self._taken_back(upgrade, state, base, reading, _BY_HAND)
        self.parts.state.change_upgrade(base.topology_id, lambda _: changed)

    def _taken_back(
        self,
        upgrade: GrayUpgrade,
        state: UpgradeState,
        base: TopologyBase,
        reading: Reading,
        why: str,
    ) -> GrayUpgrade:
        assignment = reading.snapshot.assignments[base.topology_id]
        return taken_back(upgrade, state, assignment, self._workers(base, reading), why)

    def _workers(self, base: TopologyBase, reading: Reading) -> Workers:
        topology = reading.snapshot.topologies.get(base.topology_id)
        assignment = reading.snapshot.assignments.get(base.topology_id)
        if topology is None or assignment is None:
            raise NotAliveError(f"Failed to get topology info of {base.topology_id}")
        return upgradable(assignment, topology.outline.component_by_task)

    # -- the duty ----------------------------------------------------------------------------------

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Carry every upgrade on; whether something was written."""
        self.problems = problems = dict[str, str]()
        did = False
        upgrading = [base for base in reading.bases.values() if base.status in _UPGRADES]
        handlers = self._handlers
        # A handler remembers counts of workers, by which it judges. Kept beyond its upgrade, these
        # took the fourth upgrade of a worker back.
        self._handlers = {
            upgrade.topology_id: handlers.get(upgrade.topology_id)
            or UpgradeHandler(self.parts.state)
            for upgrade in upgrading
        }
        for base in upgrading:
            try:
                did |= self._go_on(base, reading, now_ms)
            except NotAliveError as error:
                # Without an assignment there is nothing to upgrade; it comes back when the topology
                # is placed again.
                problems[base.topology_id] = f"gray upgrade waits: {error}"
        return did

    def _go_on(self, base: TopologyBase, reading: Reading, now_ms: int) -> bool:
        topology_id = base.topology_id
        state = self._records.upgrade_state(topology_id, self.ask)
        upgrade = state.upgrade
        if upgrade is None:
            # a Nimbus that died may have removed the record only
            self._records.clear_upgrade(topology_id)
            self._set_status(base, Action.END_UPGRADE, base.status, now_ms)
            return True
        workers = self._workers(base, reading)
        assignment = reading.snapshot.assignments[topology_id]
        # The status first and alone in this turn: workers must not go back under the status of a
        # forward upgrade.
        if upgrade.rollback and base.status is TopologyStatus.UPGRADING:
            self._set_status(base, Action.ROLL_BACK, base.status, now_ms)
            self._report(base, upgrade, now_ms)
            return True
        if upgrade.completed_ms:
            self._finish(base, upgrade, assignment, workers, now_ms)
            return True
        components = reading.snapshot.topologies[topology_id].outline.component_by_task
        # With a topology master its slot does this, close to the heartbeats; both would list two
        # batches.
        if master_task(components) is None:
            beats = [beat for beat in reading.beats if beat.topology_id == topology_id]
            if self._handlers[topology_id].step(state, assignment, components, beats, now_ms):
                return True
        if advance(upgrade, confirmed(state, assignment), workers, now_ms).is_rolled_back:
            return self._end_rollback(base, upgrade, assignment, now_ms)
        return self._publish(
            base, assignment, codes_wanted(upgrade, state, assignment), upgrade.former, now_ms
        )

    def _publish(
        self,
        base: TopologyBase,
        assignment: Assignment,
        codes: Mapping[WorkerSlot, WorkerCode],
        former: WorkerCode,
        now_ms: int,
    ) -> bool:
        after = with_codes(assignment, former, codes, now_ms)
        if after is not None:
            self.parts.assigner.publish(after, base.name)
        return after is not None

    def _finish(
        self,
        base: TopologyBase,
        upgrade: GrayUpgrade,
        assignment: Assignment,
        workers: Workers,
        now_ms: int,
    ) -> None:
        """End a completed upgrade: outline, base, assignment, record, status, in this order; all
        may be repeated.
        """
        parts = self.parts
        topology_id = base.topology_id
        code = final_code(upgrade, assignment, workers)
        if code == upgrade.code and (base.code_key, base.conf_key) != (
            code.code_key,
            code.conf_key,
        ):
            # The outline before the base's keys, as in a submission: a base never names what is not
            # there.
            parts.state.write_outline(topology_id, upgrade.outline)
            parts.reader.forget(topology_id)
            parts.state.update_base(
                topology_id,
                lambda stored: replace(stored, code_key=code.code_key, conf_key=code.conf_key),
            )
        # Workers that were not upgraded keep their code under their own name, so that a restart
        # does not change it.
        codes = {slot: own for slot, own in assignment.code_by_slot.items() if own != code}
        self._publish(base, assignment, codes, code, now_ms)
        self._records.clear_upgrade(topology_id)
        self._set_status(base, Action.END_UPGRADE, base.status, now_ms)
        parts.hooks.notify(base.name, "completeUpgrade")

    def _end_rollback(
        self, base: TopologyBase, upgrade: GrayUpgrade, assignment: Assignment, now_ms: int
    ) -> bool:
        state = UpgradeState(upgrade)
        # The record goes in the turn after: until the assignment is written, it alone has the
        # former codes.
        if self._publish(
            base, assignment, codes_wanted(upgrade, state, assignment), upgrade.former, now_ms
        ):
            return True
        self._records.clear_upgrade(base.topology_id)
        self._set_status(base, Action.END_UPGRADE, base.status, now_ms)
        self.parts.hooks.notify(base.name, "rollbackUpgrade")
        return True

    def _set_status(
        self, base: TopologyBase, action: Action, expected: TopologyStatus, now_ms: int
    ) -> None:
        """Change the status unless it is another one by now: a kill goes before everything."""

        def changed(stored: TopologyBase) -> TopologyBase:
            return (
                transition(stored, ActionRequest(action), now_ms, 0).base
                if stored.status is expected
                else stored
            )

        self.parts.state.update_base(base.topology_id, changed)

    def _report(self, base: TopologyBase, upgrade: GrayUpgrade, now_ms: int) -> None:
        """Keep the reason of a rollback with the code that is taken back: its dead letters are
        found by it.
        """
        sentence, _, more = f"gray upgrade is rolled back: {upgrade.rollback}".partition("\n")
        code = upgrade.code.code_key
        failure = Failure(
            FailureKind.SYSTEM,
            sentence,
            MASTER,
            0,
            "nimbus",
            time_ms=now_ms,
            traceback=more,
            code_version=code,
        )
        self.parts.state.report_error(base.topology_id, failure)


def _check_options(base: TopologyBase, options: UpgradeOptions, workers: Workers) -> None:
    """Refuse workers and components that the topology does not have."""
    if unknown := set(options.workers) - workers.keys():
        places = ", ".join(map(str, workers))
        there = f"it runs at {places}" if places else "it has no worker yet"
        raise FailedAssignTopologyError(
            f"upgrade of {base.name}: there is no worker {min(unknown)} to upgrade; {there}"
        )
    components = sorted(set().union(*workers.values())) if workers else []
    if options.component and options.component not in components:
        raise FailedAssignTopologyError(
            f"upgrade of {base.name}: no worker runs component {options.component!r:.80}; there are {', '.join(components)}"
        )
