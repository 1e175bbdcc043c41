"""Trials of a topology's code on every host, as Nimbus waits for them before it accepts the
code.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.common.errors import AlreadyAliveError, InvalidTopologyError
from sparkstorm.common.model.requests import OutcomeState, Request, RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.blobs.store import blob_key
from tests.nimbus.nimbus_bench import CODE, Bench, wordcount

NEW = b"new code"
LACKS = "the code does not open in a fresh process: module 'x' is neither installed on host host-1 nor sent along"


def trying(verdict: str | None, **conf: Any) -> Bench:
    """A cluster of two hosts that try code: host-0 opens all, host-1 has that verdict."""
    bench = Bench(**conf)
    bench.supervisors["node-0"].opens = lambda _key: ""
    bench.supervisors["node-1"].opens = lambda _key: verdict
    bench.advance(1)
    return bench


def begin(bench: Bench, name: str = "wc") -> Request:
    """Make the request of a submission without waiting for its outcome."""
    request = bench.service.submit_request(name, wordcount(), {"topology.workers": 1}, CODE)
    bench.service.begin(request)
    return request


def state_of(bench: Bench, request: Request) -> OutcomeState | None:
    found = bench.state.read_outcome(request.id)
    return found.state if found else None


def test_code_that_every_host_opens_is_accepted_at_once() -> None:
    bench = trying("")
    began_ms = bench.clock.now_ms()
    topology_id = bench.submit()
    assert bench.clock.now_ms() == began_ms and bench.slots(topology_id)


@pytest.mark.parametrize("kind", ["submit", "update", "upgrade"])
def test_code_that_one_host_cannot_open_is_refused_before_anything_changes(kind: str) -> None:
    bench = trying("")
    before = None if kind == "submit" else bench.submit()
    bench.supervisors["node-1"].opens = lambda key: LACKS if key == blob_key(NEW) else ""
    request_of = getattr(bench.service, f"{kind}_request")
    request = request_of(
        "wc", wordcount(), {"topology.workers": 4, "topology.upgrade.worker.num": 1}, NEW
    )
    sentence = f"^the topology cannot run on host host-1: {LACKS}$"
    with pytest.raises(InvalidTopologyError, match=sentence):
        bench.service.carry_out(request)
    bench.advance(5)
    assert bench.state.topology_ids() == ([before] if before else [])
    base = bench.state.read_base(before) if before else None
    assert base is None or (base.status, bench.blobs.get(base.code_key)) == (
        TopologyStatus.ACTIVE,
        CODE,
    )
    assert bench.state.request_ids() == [] and blob_key(NEW) not in bench.state.blob_keys()


def test_nimbus_waits_for_a_verdict_for_a_time_then_goes_on_and_says_so() -> None:
    bench = trying(None)
    request = begin(bench)
    bench.advance(19)
    assert state_of(bench, request) is None and bench.state.topology_ids() == []
    bench.advance(2)
    found = bench.state.read_outcome(request.id)
    assert found and found.state is OutcomeState.DONE and bench.slots(request.topology_id)
    assert found.step == "accepted although host host-1 did not open the code within 20 s"


def test_of_many_hosts_without_a_verdict_three_are_named() -> None:
    bench = trying(None, nodes=6)
    for supervisor in bench.supervisors.values():
        supervisor.opens = lambda _key: None
    request = begin(bench)
    bench.advance(22)
    found = bench.state.read_outcome(request.id)
    assert found
    assert (
        found.step
        == "accepted although host host-0, host host-1, host host-2 and 3 more did not open the code within 20 s"
    )


def test_a_wait_ends_before_the_client_withdraws() -> None:
    bench = trying(None, nimbus__request__timeout__secs=10)
    assert bench.slots(bench.submit())


def test_a_verdict_ends_the_wait_without_a_round_of_the_scheduler() -> None:
    bench = trying(None, nimbus__monitor__freq__secs=1000)
    request = begin(bench)
    bench.advance(3)
    assert state_of(bench, request) is None
    bench.supervisors["node-1"].opens = lambda _key: ""
    bench.tick()
    assert state_of(bench, request) is OutcomeState.DONE


def test_a_host_that_is_gone_is_not_waited_for() -> None:
    bench = trying(None)
    request = begin(bench)
    bench.advance(3)
    assert state_of(bench, request) is None
    bench.supervisors["node-1"].die()
    bench.advance(1)
    assert state_of(bench, request) is OutcomeState.DONE


def test_requests_of_one_topology_keep_their_order_and_others_are_served_meanwhile() -> None:
    bench = trying("")
    other = bench.submit("other")
    bench.supervisors["node-1"].opens = lambda _key: None
    first = begin(bench)
    bench.clock.advance(1)
    second = begin(bench)
    bench.clock.advance(1)
    kill = bench.service.new_request(RequestKind.KILL, "wc", wait_ms=0)
    bench.service.begin(kill)
    bench.service.deactivate("other")
    assert bench.base_of(other).status is TopologyStatus.INACTIVE
    assert [state_of(bench, each) for each in (first, second, kill)] == [None, None, None]
    bench.advance(25)
    found = bench.state.read_outcome(second.id)
    assert found
    assert found.state == OutcomeState.REFUSED
    assert found.error_kind == AlreadyAliveError.__name__
    assert [state_of(bench, each) for each in (first, kill)] == [OutcomeState.DONE] * 2
    assert bench.state.topology_ids() == [other]


def test_a_nimbus_that_follows_decides_by_the_same_verdicts() -> None:
    bench = trying(None)
    request = begin(bench)
    bench.advance(3)
    bench.restart_nimbus()
    bench.supervisors["node-1"].opens = lambda _key: LACKS
    bench.advance(3)
    found = bench.state.read_outcome(request.id)
    assert found
    assert found.state == OutcomeState.REFUSED
    assert found.error_kind == InvalidTopologyError.__name__
    assert found.error == f"the topology cannot run on host host-1: {LACKS}"
    assert bench.state.topology_ids() == []
