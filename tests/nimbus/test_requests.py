"""Requests between clients and Nimbus: accepted once, withdrawn or expired, hostile ones refused,
ended ones swept.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import (
    AlreadyAliveError,
    FailedAssignTopologyError,
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NimbusUnavailableError,
    NotAliveError,
    SparkStormError,
    StateConflictError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.records import encode_record
from sparkstorm.common.model.requests import LogLevel, Outcome, OutcomeState, Request, RequestKind
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.upgrade import UpgradeOptions
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.envelope import seal
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.crashing_bench import Keeper
from tests.nimbus.nimbus_bench import CODE, KEY, Bench, submitted, wordcount

FORMS = "0123456789abcdef" * 2


class Absent:
    """No Nimbus."""

    def step(self, now_ms: int) -> int:
        return now_ms + 1000


def without_nimbus(bench: Bench) -> Callable[[], None]:
    """Take Nimbus away; call the result to bring it back."""
    nimbus: Any = bench.nimbus
    bench.nimbus = Absent()  # type: ignore[assignment]

    def bring_back() -> None:
        bench.nimbus = nimbus

    return bring_back


def outcome_of(bench: Bench, request: Request) -> Outcome:
    found = bench.state.read_outcome(request.id)
    assert found
    return found


def serve(bench: Bench, request: Request) -> Outcome:
    """Put a request into the store as some client might, and drive Nimbus."""
    bench.state.store.put(
        paths.request(request.id), seal(paths.request(request.id), encode_record(request), KEY)
    )
    bench.advance(2)
    return outcome_of(bench, request)


# -- nobody serves ---------------------------------------------------------------------------------


def test_a_request_that_nobody_serves_is_withdrawn_and_never_carried_out() -> None:
    bench, topology_id = submitted()
    began_ms = bench.clock.now_ms()
    bring_back = without_nimbus(bench)
    sentence = r"to kill wc within 60 s; it is withdrawn; nimbus leads at .* did not answer"
    with pytest.raises(NimbusUnavailableError, match=sentence):
        bench.service.kill("wc", 0)
    assert bench.clock.now_ms() - began_ms == 60_000
    assert bench.state.request_ids() == bench.state.outcome_ids() == []
    bench.store.expire_session()
    sentence = "no Nimbus leads at this process: start a cluster there"
    with pytest.raises(NimbusUnavailableError, match=sentence):
        bench.service.deactivate("wc")
    bring_back()
    bench.advance(30)
    assert bench.base_of(topology_id).status is TopologyStatus.ACTIVE


def test_a_submission_that_nobody_serves_leaves_nothing() -> None:
    bench, keeper = Bench(nimbus__request__timeout__secs=5), Keeper()
    bench.nimbus.hooks.retirement = keeper
    bring_back = without_nimbus(bench)
    with pytest.raises(NimbusUnavailableError, match="to submit wc within 5 s"):
        bench.service.submit("wc", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed)
    assert bench.state.blob_keys() == bench.state.request_ids() == bench.state.protected_ids() == []
    bring_back()
    bench.advance(12)
    assert bench.state.known_ids() == set() and keeper.data == {}


@pytest.mark.parametrize("is_accepted_first", [True, False])
def test_a_withdrawal_that_races_with_acceptance_has_one_winner(is_accepted_first: bool) -> None:
    bench, topology_id = submitted()
    client = bench.client(LocalStateStore(bench.tree))
    pending = client.begin(client.new_request(RequestKind.DEACTIVATE, "wc"))
    if is_accepted_first:
        bench.state.create_outcome(Outcome(pending.id, OutcomeState.ACCEPTED, 1, topology_id))
    assert pending.withdraw() is not is_accepted_first
    bench.advance(2)
    base = bench.base_of(topology_id)
    assert base.status is (TopologyStatus.INACTIVE if is_accepted_first else TopologyStatus.ACTIVE)


def test_a_request_that_is_withdrawn_and_removed_while_nimbus_accepts_it_is_not_carried_out() -> (
    None
):
    bench, topology_id = submitted()
    client = bench.client(LocalStateStore(bench.tree))
    pending = client.begin(client.new_request(RequestKind.KILL, "wc", wait_ms=0))
    create = bench.state.create_outcome

    def late(outcome: Outcome) -> bool:
        assert pending.withdraw()
        return create(outcome)

    bench.state.create_outcome = late  # type: ignore[method-assign]
    bench.advance(3)
    assert bench.base_of(topology_id).status is TopologyStatus.ACTIVE
    assert bench.state.request_ids() == bench.state.outcome_ids() == []


def test_a_client_that_slept_until_its_request_was_swept_does_not_claim_to_have_withdrawn_it() -> (
    None
):
    bench = Bench()
    bench.submit()
    pending = bench.service.begin(bench.service.new_request(RequestKind.DEACTIVATE, "wc"))
    bench.advance(700)
    assert bench.state.request_ids() == []
    sentence = "deactivate wc was ended and swept before its outcome was read"
    with pytest.raises(StoreInconsistentError, match=sentence):
        pending.withdraw()
    assert bench.state.outcome_ids() == []


def test_a_request_expires_that_no_nimbus_saw_in_time_but_not_before_its_client_may_withdraw_it() -> (
    None
):
    bench, topology_id = submitted()
    bring_back = without_nimbus(bench)
    pending = bench.service.begin(bench.service.new_request(RequestKind.KILL, "wc", wait_ms=0))
    bench.clock.advance(61_000)
    bring_back()
    bench.advance(8)
    assert pending.poll() is None
    bench.advance(10)
    sentence = "the request to kill wc expired: no Nimbus accepted it within 60 s"
    with pytest.raises(NimbusUnavailableError, match=sentence):
        pending.wait()
    assert bench.base_of(topology_id).status is TopologyStatus.ACTIVE


def test_what_clients_that_died_have_left_is_swept_after_ten_minutes() -> None:
    bench = Bench()
    bench.submit()
    bench.service.begin(bench.service.new_request(RequestKind.DEACTIVATE, "wc"))
    bench.state.create_outcome(Outcome(FORMS, OutcomeState.WITHDRAWN, 0))
    bench.advance(590)
    assert len(bench.state.request_ids()) == 1 and FORMS not in bench.state.outcome_ids()
    bench.advance(30)
    assert bench.state.request_ids() == bench.state.outcome_ids() == []


# -- hostile requests ------------------------------------------------------------------------------


def test_a_request_with_a_foreign_signature_is_refused_unread() -> None:
    bench, topology_id = submitted()
    foreign = StormState(LocalStateStore(bench.tree), b"x" * 32)
    request = bench.service.new_request(RequestKind.KILL, "wc", wait_ms=0)
    foreign.create_request(request)
    bench.advance(5)
    assert outcome_of(bench, request).error_kind == "TamperedBlobError"
    assert bench.state.read_base(topology_id) and bench.slots(topology_id)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff" * 100, b"x" * 999_000, b"sparkstorm-2 json 00ff\n{}"]
)
def test_bytes_that_are_no_request_stop_nobody(data: bytes) -> None:
    bench, topology_id = submitted(nodes=3)
    for name in (FORMS, "..%2Fx", "other"):
        bench.store.put(f"{paths.REQUESTS}/{name}", data)
    bench.service.deactivate("wc")
    assert bench.base_of(topology_id).status is TopologyStatus.INACTIVE
    found = bench.state.read_outcome(FORMS)
    assert found and found.state is OutcomeState.REFUSED and paths.request(FORMS) in found.error
    assert bench.state.request_ids() == [FORMS], "names that are no ids are gone"
    bench.advance(620)
    assert bench.state.request_ids() == bench.state.outcome_ids() == []


def no_change(bench: Bench) -> None:
    """Let the Nimbus that leads go on."""


@pytest.mark.parametrize(
    "change_leader", [no_change, Bench.restart_nimbus], ids=["same Nimbus", "new Nimbus"]
)
@pytest.mark.parametrize("is_withdrawn", [False, True], ids=["served", "withdrawn"])
def test_a_recorded_request_is_not_served_again_within_its_time(
    change_leader: Callable[[Bench], None], is_withdrawn: bool
) -> None:
    bench, topology_id = submitted()
    request = bench.service.new_request(RequestKind.DEACTIVATE, "wc")
    if is_withdrawn:  # before any Nimbus has read it
        pending = bench.service.begin(request)
        recorded = bench.state.store.get(paths.request(request.id))
        assert pending.withdraw()
    else:
        assert serve(bench, request).state is OutcomeState.DONE
        recorded = bench.state.store.get(paths.request(request.id))
        bench.state.remove_request(request.id)
        bench.state.remove_outcome(request.id)
        bench.service.activate("wc")
    change_leader(bench)
    assert recorded is not None
    bench.state.store.put(paths.request(request.id), recorded.data)
    bench.advance(5)
    assert bench.base_of(topology_id).status is TopologyStatus.ACTIVE
    assert bench.state.request_ids() == bench.state.outcome_ids() == []


def test_decided_requests_are_forgotten_when_they_have_expired() -> None:
    bench = Bench()
    bench.submit()
    bench.service.deactivate("wc")
    assert len(bench.state.read_served()) == 2
    bench.advance(100)
    assert bench.state.read_served() == {}


def test_a_damaged_record_of_decided_requests_is_written_afresh() -> None:
    bench = Bench()
    bench.submit()
    bench.store.put(paths.SERVED, b"junk")
    bench.service.deactivate("wc")
    assert len(bench.state.read_served()) == 2


def test_of_a_flood_of_decided_requests_those_that_expire_last_are_remembered() -> None:
    state = Bench().state
    state.note_served({f"{number:032x}": number for number in range(6_000)})
    assert sorted(state.read_served().values()) == list(range(1_000, 6_000))


def test_a_recorded_base_does_not_undo_what_was_asked_for_since() -> None:
    bench, topology_id = submitted()
    recorded = bench.store.get(paths.storm(topology_id))
    bench.service.deactivate("wc")
    bench.advance(1)
    assert recorded is not None
    bench.store.put(paths.storm(topology_id), recorded.data)
    bench.advance(15)
    # of a process that has read none before
    base = StormState(bench.store, KEY).read_base(topology_id)
    assert base is not None and base.status is TopologyStatus.INACTIVE


def test_a_request_whose_outcome_could_not_be_written_is_served_when_the_store_is_back() -> None:
    bench = Bench()
    bench.submit()
    request, create = bench.service.new_request(RequestKind.DEACTIVATE, "wc"), bench.store.create

    def fail_once(path: str, data: bytes) -> None:
        bench.store.create = create  # type: ignore[method-assign]
        raise StoreUnavailableError("away for a moment")

    bench.store.put(
        paths.request(request.id), seal(paths.request(request.id), encode_record(request), KEY)
    )
    bench.store.create = fail_once  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        bench.tick()
    bench.advance(2)
    assert outcome_of(bench, request).state is OutcomeState.DONE


def test_a_flood_of_requests_that_cannot_be_read_delays_nobody_and_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.submit()
    for number in range(2_000):
        bench.store.put(paths.request(f"{number:032x}"), b"junk")
    request = bench.service.new_request(RequestKind.DEACTIVATE, "wc")
    bench.store.put(
        paths.request(request.id), seal(paths.request(request.id), encode_record(request), KEY)
    )
    calls, children = list[str](), bench.store.children

    def listed(path: str, hint: Hint | None = None) -> list[str]:
        calls.append(path)
        return children(path, hint)

    monkeypatch.setattr(bench.store, "children", listed)
    bench.nimbus.step(bench.clock.now_ms())
    assert outcome_of(bench, request).state is OutcomeState.DONE
    assert len(calls) < 500  # each lists some thousand names
    bench.advance(30)
    assert bench.state.request_ids() == bench.state.outcome_ids() == [request.id]


def test_a_request_that_no_node_can_hold_is_refused_by_its_client() -> None:
    bench = Bench()
    bench.submit()
    huge = random.Random(1).randbytes(1_500_000).hex()
    with pytest.raises(InvalidConfigError, match="the request for wc is too large"):
        bench.service.rebalance("wc", RebalanceOptions(conf={"app.x": huge}))
    assert bench.state.request_ids() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": RequestKind.UPGRADE}, "UPGRADE with no topology"),
        ({"kind": RequestKind.CONTINUE_UPGRADE}, "Failed to find a related upgrade conf"),
        (
            {"kind": RequestKind.CONTINUE_UPGRADE, "upgrade": UpgradeOptions()},
            "no workers are chosen",
        ),
        (
            {"kind": RequestKind.CONTINUE_UPGRADE, "upgrade": UpgradeOptions(worker_num=-1)},
            "-1 workers",
        ),
        ({"kind": RequestKind.ROLLBACK_UPGRADE}, "no gray upgrade is under way"),
        ({"name": "../wc"}, "not a valid topology name"),
        ({"name": "other"}, "topology other is not alive"),
        ({"topology_id": "wc-99-99"}, "wc-99-99 is not alive; wc-1-1000 has its name now"),
        ({"topology_id": "/etc/passwd"}, "no id of a topology named wc"),
        ({"wait_ms": 10**18}, "longer than a year"),
        ({"kind": RequestKind.SUBMIT}, "SUBMIT with no topology"),
        ({"is_plan": True}, "there is no plan of kill"),
        (
            {"kind": RequestKind.REBALANCE, "rebalance": RebalanceOptions(0)},
            "0 workers; a whole number",
        ),
        (
            {"kind": RequestKind.REBALANCE, "rebalance": RebalanceOptions(None, {"nobody": 1})},
            "no component 'nobody'",
        ),
        (
            {
                "kind": RequestKind.REBALANCE,
                "rebalance": RebalanceOptions(conf={"topology.wrokers": 1}),
            },
            "did you mean",
        ),
        (
            {"kind": RequestKind.RESTART_WORKER, "slot": WorkerSlot("nowhere", 1)},
            "has no worker at nowhere:1; it runs at node-0:6700",
        ),
        ({"kind": RequestKind.SET_LOG_LEVEL}, "none is given"),
        (
            {"kind": RequestKind.SET_LOG_LEVEL, "log_levels": {"a": LogLevel("LOUD")}},
            "use one of DEBUG",
        ),
    ],
)
def test_a_signed_request_that_no_client_of_ours_writes_is_refused_and_changes_nothing(
    change: dict[str, Any], words: str
) -> None:
    bench, topology_id = submitted()
    before = bench.state.read_base(topology_id), bench.state.read_assignment(topology_id)
    request = replace(bench.service.new_request(RequestKind.KILL, "wc", wait_ms=0), **change)
    outcome = serve(bench, request)
    assert outcome.state is OutcomeState.REFUSED and words in outcome.error
    assert (bench.state.read_base(topology_id), bench.state.read_assignment(topology_id)) == before


def hostile_submissions(bench: Bench) -> list[tuple[Request, str]]:
    """Signed submissions that do not fit together, of a name that is free."""
    sound = bench.service.submit_request("new", wordcount(), {"topology.workers": 1}, CODE)
    base = sound.base
    assert base
    running = bench.service.require("wc").topology_id
    other_outline = bench.service.submit_request(
        "new", wordcount(2), {"topology.workers": 1}, CODE
    ).outline_key
    fresh = [replace(sound, id=f"{n:032x}") for n in range(6)]
    return [
        (
            replace(fresh[0], topology_id=running, base=replace(base, topology_id=running)),
            "is no id of a topology named new",
        ),
        (replace(fresh[1], base=replace(base, code_key="0" * 64)), "is gone; submit new again"),
        (replace(fresh[2], outline_key="../../x"), "is gone; submit new again"),
        (replace(fresh[3], outline_key=base.conf_key), "signature of outline"),
        (replace(fresh[4], outline_key=other_outline), "does not fit its base"),
        (
            replace(fresh[5], base=replace(base, executors_by_component={"split": 10**9})),
            "does not fit its base",
        ),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_submission_whose_parts_do_not_fit_is_refused_and_leaves_no_trace(number: int) -> None:
    bench, running = submitted(nodes=3)
    request, words = hostile_submissions(bench)[number]
    outcome = serve(bench, request)
    assert outcome.state is OutcomeState.REFUSED and words in outcome.error
    assert bench.state.known_ids() == {running} and len(bench.slots(running)) == 13


def test_a_submission_under_the_id_of_a_running_topology_does_not_touch_it() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    bench.nimbus.hooks.retirement = keeper
    running = bench.service.submit(
        "wc", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed
    )
    before = bench.state.read_assignment(running)
    request = bench.service.submit_request("wc", wordcount(), {"topology.workers": 1}, CODE)
    assert request.base
    outcome = serve(
        bench,
        replace(request, topology_id=running, base=replace(request.base, topology_id=running)),
    )
    assert outcome.error_kind == "AlreadyAliveError"
    bench.advance(30)
    assert bench.state.read_assignment(running) == before and keeper.data == {running: "seeds"}


def test_a_fault_of_nimbus_itself_refuses_one_request_and_stops_no_duty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.submit()
    monkeypatch.setattr(
        "sparkstorm.control_plane.nimbus.request_verbs.transition", lambda *_: 1 // 0
    )
    sentence = "Nimbus failed at DEACTIVATE 'wc': ZeroDivisionError"
    with pytest.raises(SparkStormError, match=sentence):
        bench.service.deactivate("wc")
    monkeypatch.undo()
    bench.service.deactivate("wc")


def test_a_forged_outcome_is_not_believed_and_its_request_not_carried_out() -> None:
    bench, topology_id = submitted()
    foreign = StormState(LocalStateStore(bench.tree), b"x" * 32)
    bring_back = without_nimbus(bench)
    pending = bench.service.begin(bench.service.new_request(RequestKind.KILL, "wc", wait_ms=0))
    foreign.create_outcome(Outcome(pending.id, OutcomeState.DONE, 1, topology_id))
    with pytest.raises(TamperedBlobError, match=f"{paths.OUTCOMES}/{pending.id}"):
        pending.wait()
    bring_back()
    bench.advance(5)
    assert bench.base_of(topology_id).status is TopologyStatus.ACTIVE
    assert paths.outcome(pending.id) in bench.service.problems()[f"request {pending.id}"]
    bench.advance(620)
    assert bench.state.request_ids() == bench.state.outcome_ids() == []
    assert bench.service.problems() == {}


# -- what requests do ------------------------------------------------------------------------------


def test_requests_are_carried_out_in_the_order_of_their_making() -> None:
    bench, topology_id = submitted()
    kinds = [
        RequestKind.DEACTIVATE,
        RequestKind.ACTIVATE,
        RequestKind.DEACTIVATE,
        RequestKind.ACTIVATE,
        RequestKind.DEACTIVATE,
    ]
    requests = []
    for kind in kinds:
        bench.clock.advance(1)
        requests.append(bench.service.new_request(kind, "wc"))
    heard: list[str] = []

    class Ear:
        def notify(self, topology_name: str, action: str) -> None:
            heard.append(action)

    bench.nimbus.hooks.listeners.append(Ear())
    for request in reversed(requests):
        bench.state.create_request(request)
    bench.advance(1)
    assert bench.base_of(topology_id).status is TopologyStatus.INACTIVE
    assert heard == [kind.lower() for kind in kinds]


def test_a_request_for_a_topology_that_has_given_its_name_to_another_is_refused() -> None:
    bench, old = submitted()
    request = bench.service.rebalance_request("wc", RebalanceOptions(2), 0)
    bench.service.kill("wc", 0)
    bench.advance(10)
    new = bench.submit()
    service = bench.service
    for change in (
        lambda: service.begin(request).wait(),
        lambda: service.kill("wc", 0, old),
        lambda: service.deactivate("wc", old),
        lambda: service.restart_worker("wc", topology_id=old),
        lambda: service.plan_rebalance("wc", RebalanceOptions(2), old),
    ):
        sentence = f"topology {old} is not alive; {new} has its name now"
        with pytest.raises(NotAliveError, match=sentence):
            change()
    assert bench.base_of(new).status is TopologyStatus.ACTIVE


@pytest.mark.parametrize("is_accepted", [True, False])
def test_an_interrupted_wait_withdraws_its_request_or_says_that_nimbus_goes_on(
    is_accepted: bool,
) -> None:
    bench, topology_id = submitted()
    client = bench.client(LocalStateStore(bench.tree))
    pending = client.begin(client.new_request(RequestKind.DEACTIVATE, "wc"))

    def interrupt(_condition: object, _limit_ms: int) -> bool:
        if is_accepted:
            bench.state.create_outcome(Outcome(pending.id, OutcomeState.ACCEPTED, 1, topology_id))
        raise KeyboardInterrupt

    client._client.wait_until = interrupt
    said = "was accepted; Nimbus goes on with it" if is_accepted else "is withdrawn"
    with pytest.raises(KeyboardInterrupt, match=f"the request to deactivate wc {said}"):
        pending.wait()
    bench.advance(2)
    base = bench.base_of(topology_id)
    assert base.status is (TopologyStatus.INACTIVE if is_accepted else TopologyStatus.ACTIVE)


@pytest.mark.parametrize("secs", [-5, float("nan"), float("inf"), 1e30, True, "5"])
def test_a_wait_that_is_no_time_is_refused_by_its_client(secs: Any) -> None:
    bench = Bench()
    bench.submit()
    asks: list[Callable[[], object]] = [
        lambda: bench.service.kill("wc", secs),
        lambda: bench.service.rebalance("wc", RebalanceOptions(2), secs),
    ]
    for ask in asks:
        sentence = "the wait of wc: expected seconds, from 0 to a year, got "
        with pytest.raises(InvalidConfigError, match=sentence):
            ask()
    assert bench.state.request_ids() == []


def test_an_accepted_request_is_not_waited_for_at_stores_that_are_gone() -> None:
    bench = Bench()
    bench.submit()
    bench.advance(3)
    asked_ms = bench.clock.now_ms()

    def lose_stores(_step: str) -> None:
        bench.tree.is_down = True

    with pytest.raises(StoreUnavailableError, match=r"was accepted, .*: look at the topology"):
        bench.service.rebalance("wc", RebalanceOptions(2), 40, lose_stores)
    assert bench.clock.now_ms() - asked_ms < 70_000
    bench.tree.is_down = False


def test_progress_tells_each_step_once() -> None:
    bench, old = submitted(nodes=3)
    said: list[str] = []
    bench.service.rebalance("wc", RebalanceOptions(2), 3, said.append)
    assert said == [f"{old} is rebalanced in 3 s"]
    said.clear()
    new = bench.service.carry_out(
        bench.service.update_request("wc", wordcount(), {"topology.workers": 2}, b"new"),
        said.append,
    )
    assert said == [f"{old} ends; its workers stop"] and bench.state.topology_ids() == [new]


def test_a_worker_is_restarted_where_it_is_with_a_new_fence_and_all_workers_when_none_is_named() -> (
    None
):
    bench, topology_id = submitted()
    before = bench.assignment_of(topology_id)
    slot = min(before.slot_by_executor.values())
    bench.service.restart_worker("wc", slot)
    one = bench.assignment_of(topology_id)
    assert one.slot_by_executor == before.slot_by_executor
    assert one.version == before.version + 1
    again = {
        each for each in one.slot_by_executor if one.placed_version_by_executor[each] == one.version
    }
    assert again == set(one.executors_at(slot))
    bench.service.restart_worker("wc")
    every = bench.assignment_of(topology_id)
    assert set(every.placed_version_by_executor.values()) == {one.version + 1}
    bench.advance(30)
    assert bench.state.read_assignment(topology_id) == every
    sentence = "has no worker at node-9:1; it runs at node-0:6700"
    with pytest.raises(InvalidTopologyError, match=sentence):
        bench.service.restart_worker("wc", WorkerSlot("node-9", 1))


def test_log_levels_are_kept_per_logger_until_their_time_and_end_with_the_topology() -> None:
    bench, topology_id = submitted()
    bench.service.set_log_level("wc", {"": LogLevel("INFO"), "app": LogLevel("DEBUG", 5000)})
    found = bench.state.read_log_config(topology_id)
    assert found and found.levels == {
        "": LogLevel("INFO"),
        "app": LogLevel("DEBUG", 5000, bench.clock.now_ms() + 5000),
    }
    bench.advance(6)
    bench.service.set_log_level("wc", {"": LogLevel(""), "other": LogLevel("ERROR")})
    found = bench.state.read_log_config(topology_id)
    assert found and found.levels == {"other": LogLevel("ERROR")}
    with pytest.raises(InvalidConfigError, match="'app' to 'LOUD'; use one of DEBUG"):
        bench.service.set_log_level("wc", {"app": LogLevel("LOUD")})
    bench.service.kill("wc", 0)
    bench.advance(10)
    assert bench.state.read_log_config(topology_id) is None and bench.state.known_ids() == set()


def test_seeds_whose_trace_was_swept_are_not_begun_with() -> None:
    bench, keeper = Bench(), Keeper()
    bench.nimbus.hooks.retirement = keeper
    client = bench.client(LocalStateStore(bench.tree))
    request = client.submit_request(
        "wc", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed
    )
    client._state.store.close()  # a session that ended while the initial state was written
    bench.advance(12)
    assert keeper.data == {}
    sentence = f"the initial state of {request.topology_id} was swept"
    with pytest.raises(StoreInconsistentError, match=sentence):
        bench.service.begin(request).wait()
    assert bench.state.known_ids() == set()


def test_a_name_that_runs_is_refused_before_any_initial_state_is_written() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    bench.submit()
    with pytest.raises(AlreadyAliveError, match="wc runs already"):
        bench.service.submit("wc", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed)
    assert keeper.data == {} and bench.state.protected_ids() == []


def test_problems_are_shown_to_clients_and_go_when_they_are_mended() -> None:
    bench, topology_id = submitted(nodes=3)
    client = bench.client(LocalStateStore(bench.tree))
    whole = bench.store.get(paths.outline(topology_id))
    assert whole and client.problems() == {}
    bench.store.put(paths.outline(topology_id), b"garbage")
    bench.restart_nimbus()
    bench.advance(12)
    assert paths.outline(topology_id) in client.problems_of(topology_id)[0]
    bench.store.put(paths.outline(topology_id), whole.data)
    bench.advance(12)
    assert client.problems() == {} and client.problems_of(topology_id) == []


def test_an_update_of_a_dying_topology_is_refused() -> None:
    bench = Bench()
    bench.submit()
    bench.service.kill("wc", 100)
    sentence = "topology wc is KILLED: submit it anew when it is gone"
    with pytest.raises(IllegalTransitionError, match=sentence):
        bench.service.carry_out(
            bench.service.update_request("wc", wordcount(), {"topology.workers": 2}, b"new")
        )


def test_the_assignment_is_written_before_the_base_and_accepted_before_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    made: list[str] = []
    create = bench.store.create

    def spy(path: str, data: bytes) -> None:
        made.append(path)
        create(path, data)

    monkeypatch.setattr(bench.store, "create", spy)
    topology_id = bench.submit()
    order = [made.index(f"{part}/{topology_id}") for part in (paths.ASSIGNMENTS, paths.STORMS)]
    accepted = next(at for at, path in enumerate(made) if path.startswith(paths.OUTCOMES))
    assert accepted < order[0] < order[1]


def test_a_submission_whose_base_cannot_be_recorded_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, keeper = Bench(), Keeper()
    bench.nimbus.hooks.retirement = keeper

    def conflict(base: object) -> None:
        raise StateConflictError("another one has that id")

    monkeypatch.setattr(bench.state, "create_base", conflict)
    with pytest.raises(StateConflictError, match="another one has that id"):
        bench.service.submit("wc", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed)
    assert bench.state.known_ids() == set() and keeper.data == {} and bench.state.blob_keys() == []


def test_a_request_that_was_accepted_and_is_not_done_in_five_minutes_is_left_to_nimbus() -> None:
    bench = Bench()
    pending = bench.service.begin(
        bench.service.submit_request("wc", wordcount(), {"topology.workers": 1}, CODE)
    )
    bring_back = without_nimbus(bench)
    bench.state.create_outcome(
        Outcome(pending.id, OutcomeState.ACCEPTED, 1, pending.request.topology_id, "begun")
    )
    began_ms = bench.clock.now_ms()
    sentence = r"submit wc was accepted but not done within 300 s \(begun\)"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        pending.wait()
    assert bench.clock.now_ms() - began_ms == 300_000
    bring_back()
    bench.advance(2)
    assert bench.service.begin(pending.request).wait().topology_id == pending.request.topology_id
    assert len(bench.slots(pending.request.topology_id)) == 10


def test_an_accepted_request_that_zookeeper_lost_is_not_waited_for() -> None:
    bench = Bench()
    pending = bench.service.begin(
        bench.service.submit_request("wc", wordcount(), {"topology.workers": 1}, CODE)
    )
    without_nimbus(bench)
    bench.state.create_outcome(
        Outcome(pending.id, OutcomeState.ACCEPTED, 1, pending.request.topology_id, "begun")
    )
    assert pending.poll() is not None
    bench.state.remove_request(pending.id)
    bench.state.remove_outcome(pending.id)
    began_ms = bench.clock.now_ms()
    sentence = r"submit wc was accepted, but ZooKeeper holds neither it nor its outcome"
    with pytest.raises(StoreInconsistentError, match=sentence):
        pending.wait()
    assert bench.clock.now_ms() - began_ms <= 1_000  # 300 s on the old code


def test_a_refused_client_leaves_bytes_that_another_has_stored_since() -> None:
    bench = Bench(nodes=3)
    bench.submit()
    refused = bench.service.submit_request(
        "wc", wordcount(), {"topology.workers": 1}, b"shared code"
    )
    bench.clock.advance(5)
    other = bench.client(LocalStateStore(bench.tree)).submit_request(
        "other", wordcount(), {"topology.workers": 1}, b"shared code"
    )
    with pytest.raises(AlreadyAliveError):
        bench.service.begin(refused).wait()
    assert refused.base and other.base and refused.base.code_key == other.base.code_key
    assert bench.service.begin(other).wait().topology_id == other.topology_id
    assert not {refused.base.conf_key, refused.outline_key} & set(bench.state.blob_keys())


class Meddling(DefaultScheduler):
    """Does something once, in the middle of Nimbus's turn."""

    deed: Callable[[], object] | None = None

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        super().schedule(topologies, cluster)
        deed, self.deed = self.deed, None
        if deed:
            deed()


def test_a_request_that_comes_between_the_duties_of_a_turn_keeps_its_initial_state_from_the_sweep() -> (
    None
):
    scheduler, keeper = Meddling(), Keeper()
    bench = Bench(nodes=3, scheduler=scheduler)
    bench.nimbus.hooks.retirement = keeper
    running = bench.submit()
    bench.advance(12)
    client = bench.client(LocalStateStore(bench.tree))
    request = client.submit_request(
        "new", wordcount(), {"topology.workers": 1}, CODE, seed=keeper.seed
    )
    # after the requests of this turn were served, before its sweep
    scheduler.deed = lambda: client.begin(request)
    bench.advance(12)
    assert keeper.data == {request.topology_id: "seeds"}
    assert bench.state.topology_ids() == sorted([request.topology_id, running])
