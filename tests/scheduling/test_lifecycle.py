"""Every cell of the life cycle's table."""

from dataclasses import replace

import pytest

from sparkstorm.common.errors import IllegalTransitionError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.status import Action, PendingAction, RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.scheduling.lifecycle import (
    ActionRequest,
    Effect,
    due_request,
    transition,
)

S, A = TopologyStatus, Action
OPTIONS = RebalanceOptions(5, {"split": 3})
NOW = 1000


def base(status: TopologyStatus, **fields: object) -> TopologyBase:
    made = TopologyBase("wc-1-1", "wc", 0, status, 2, {"split": 4, "count": 4}, "c", "d")
    return replace(made, **fields)  # type: ignore[arg-type]


ALLOWED = {
    (S.ACTIVE, A.ACTIVATE): S.ACTIVE,
    (S.ACTIVE, A.INACTIVATE): S.INACTIVE,
    (S.ACTIVE, A.REBALANCE): S.REBALANCING,
    (S.ACTIVE, A.KILL): S.KILLED,
    (S.INACTIVE, A.ACTIVATE): S.ACTIVE,
    (S.INACTIVE, A.INACTIVATE): S.INACTIVE,
    (S.INACTIVE, A.REBALANCE): S.REBALANCING,
    (S.INACTIVE, A.KILL): S.KILLED,
    (S.KILLED, A.KILL): S.KILLED,
    (S.KILLED, A.REMOVE): S.KILLED,
    (S.REBALANCING, A.REBALANCE): S.REBALANCING,
    (S.REBALANCING, A.DO_REBALANCE): S.ACTIVE,
    (S.REBALANCING, A.KILL): S.KILLED,
    (S.ACTIVE, A.UPGRADE): S.UPGRADING,
    (S.UPGRADING, A.ROLL_BACK): S.ROLLBACK,
    (S.UPGRADING, A.END_UPGRADE): S.ACTIVE,
    (S.ROLLBACK, A.END_UPGRADE): S.ACTIVE,
    (S.UPGRADING, A.KILL): S.KILLED,
    (S.ROLLBACK, A.KILL): S.KILLED,
}


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("action", list(A))
def test_each_status_knows_its_actions_and_no_others(
    status: TopologyStatus, action: Action
) -> None:
    request = ActionRequest(action, 5, OPTIONS)
    if (status, action) in ALLOWED:
        assert transition(base(status), request, NOW, 30_000).base.status == ALLOWED[status, action]
    else:
        sentence = f"topology wc is {status}: .* does not apply, only .*kill"
        with pytest.raises(IllegalTransitionError, match=sentence):
            transition(base(status), request, NOW, 30_000)


@pytest.mark.parametrize(
    ("status", "action", "words"),
    [
        (
            S.UPGRADING,
            A.REBALANCE,
            "rebalance does not apply, only kill, upgrade complete, upgrade continue, upgrade rollback",
        ),
        (S.REBALANCING, A.INACTIVATE, "deactivate does not apply, only kill, rebalance"),
        (
            S.INACTIVE,
            A.UPGRADE,
            "upgrade start does not apply, only activate, deactivate, kill, rebalance",
        ),
        (S.ROLLBACK, A.REBALANCE, "rebalance does not apply, only kill"),
        (S.KILLED, A.ACTIVATE, "activate does not apply, only kill"),
    ],
)
def test_a_refusal_names_the_verbs_of_users_and_no_inner_actions(
    status: TopologyStatus, action: Action, words: str
) -> None:
    with pytest.raises(IllegalTransitionError) as caught:
        transition(base(status), ActionRequest(action), NOW, 30_000)
    assert str(caught.value) == f"topology wc is {status}: {words}"


@pytest.mark.parametrize(
    ("wait_ms", "due_ms"), [(None, 31_000), (-1, 31_000), (0, 1000), (7000, 8000)]
)
def test_kill_and_rebalance_wait_the_message_timeout_unless_told_otherwise(
    wait_ms: int | None, due_ms: int
) -> None:
    killed = transition(base(S.ACTIVE), ActionRequest(A.KILL, wait_ms), NOW, 30_000)
    assert killed.base.pending == PendingAction(A.REMOVE, due_ms)
    assert killed.effect == Effect.NOTHING
    moved = transition(base(S.ACTIVE), ActionRequest(A.REBALANCE, wait_ms, OPTIONS), NOW, 30_000)
    assert moved.base.pending == PendingAction(A.DO_REBALANCE, due_ms, OPTIONS)


@pytest.mark.parametrize("status", [S.ACTIVE, S.INACTIVE])
def test_a_rebalance_ends_in_the_status_it_began_in_however_often_it_is_asked_for(
    status: TopologyStatus,
) -> None:
    waiting = base(status)
    for _ in range(3):
        waiting = transition(waiting, ActionRequest(A.REBALANCE, 5, OPTIONS), NOW, 0).base
    done = transition(waiting, ActionRequest(A.DO_REBALANCE, 0, OPTIONS), NOW, 0)
    assert done.effect == Effect.REBALANCE and done.rebalance == OPTIONS
    assert done.base == base(status, num_workers=5, executors_by_component={"split": 3, "count": 4})


def test_an_empty_rebalance_changes_no_numbers() -> None:
    waiting = transition(base(S.ACTIVE), ActionRequest(A.REBALANCE), NOW, 0).base
    assert transition(waiting, ActionRequest(A.DO_REBALANCE), NOW, 0).base == base(S.ACTIVE)


def test_killing_drops_a_waiting_rebalance_and_killing_again_sets_a_new_time() -> None:
    waiting = transition(base(S.INACTIVE), ActionRequest(A.REBALANCE, 5, OPTIONS), NOW, 0).base
    killed = transition(waiting, ActionRequest(A.KILL, 50), NOW, 0).base
    assert killed == base(S.KILLED, pending=PendingAction(A.REMOVE, NOW + 50))
    again = transition(killed, ActionRequest(A.KILL, 9), NOW, 0).base
    assert again.pending == PendingAction(A.REMOVE, NOW + 9)


def test_removing_is_an_effect_and_the_base_stays_until_it_is_done() -> None:
    killed = base(S.KILLED, pending=PendingAction(A.REMOVE, 5))
    decision = transition(killed, ActionRequest(A.REMOVE), NOW, 0)
    assert (decision.base, decision.effect) == (killed, Effect.REMOVE)


def test_a_pending_action_falls_due_at_its_time() -> None:
    waiting = base(S.REBALANCING, pending=PendingAction(A.DO_REBALANCE, 500, OPTIONS))
    assert due_request(waiting, 499) is None
    assert due_request(waiting, 500) == ActionRequest(A.DO_REBALANCE, 0, OPTIONS)
    assert due_request(base(S.ACTIVE), 10**15) is None


def test_a_topology_that_was_paused_by_its_failures_may_be_upgraded_and_each_activation_is_counted() -> (
    None
):
    paused = replace(base(S.INACTIVE), paused="bolt 'split' is paused: most of its inputs fail")
    assert transition(paused, ActionRequest(A.UPGRADE), NOW, 0).base.status is S.UPGRADING
    active = transition(paused, ActionRequest(A.ACTIVATE), NOW, 0).base
    assert (active.status, active.paused, active.activations) == (S.ACTIVE, "", 1)
    assert transition(active, ActionRequest(A.ACTIVATE), NOW, 0).base.activations == 2
