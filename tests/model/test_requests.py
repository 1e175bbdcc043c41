"""Requests and outcomes as records: what is written reads back, and a request that no client writes
is refused by its field.
"""

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import SparkStormError, StoreInconsistentError
from sparkstorm.common.model.assignment import ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.requests import (
    LogLevel,
    Outcome,
    OutcomeState,
    RebalancePlan,
    Request,
    RequestKind,
    check_request,
    topology_name,
)
from sparkstorm.common.model.status import Action, PendingAction, RebalanceOptions, TopologyStatus
from sparkstorm.common.model.upgrade import UpgradeOptions

ID = "0123456789abcdef" * 2
BASE = TopologyBase("wc-1-9", "wc", 5, TopologyStatus.ACTIVE, 2, {"split": 4}, "code", "conf")
SUBMIT = Request(ID, RequestKind.SUBMIT, "wc", 5, 65, "wc-1-9", "ann@host:7", BASE, "outline")
KILL = Request(ID, RequestKind.KILL, "wc", 5, 65, wait_ms=100)
LEVELS = Request(
    ID, RequestKind.SET_LOG_LEVEL, "wc", 5, 65, log_levels={"": LogLevel("DEBUG", 1000)}
)
DRAIN = Request(ID, RequestKind.DRAIN_HOST, "", 5, 65, host="w1.example.org", reason="new disks")
PLAN = RebalancePlan(
    "wc-1-9", {ExecutorId(1, 1): WorkerSlot("n", 1)}, {ExecutorId(1, 1): WorkerSlot("n", 2)}
)


@pytest.mark.parametrize(
    "request_",
    [
        SUBMIT,
        KILL,
        LEVELS,
        DRAIN,
        replace(
            KILL,
            kind=RequestKind.REBALANCE,
            rebalance=RebalanceOptions(2, {"split": 1}, {"app.x": [1]}),
            is_plan=True,
        ),
        replace(KILL, kind=RequestKind.RESTART_WORKER, slot=WorkerSlot("n", 6700)),
        replace(
            SUBMIT,
            kind=RequestKind.UPGRADE,
            upgrade=UpgradeOptions((WorkerSlot("n", 1),), "split", 2),
            is_forced=True,
        ),
    ],
)
def test_a_request_reads_back_and_passes_its_check(request_: Request) -> None:
    assert decode_record(Request, encode_record(request_), "p") == request_
    check_request(request_, ID)


def test_an_outcome_reads_back_with_its_plan() -> None:
    outcome = Outcome(ID, OutcomeState.DONE, 7, "wc-1-9", plan=PLAN)
    assert decode_record(Outcome, encode_record(outcome), "p") == outcome
    assert outcome.plan and outcome.plan.movement.moved == (
        (ExecutorId(1, 1), WorkerSlot("n", 1), WorkerSlot("n", 2)),
    )
    result = [state for state in OutcomeState if not Outcome(ID, state, 0).is_final]
    assert result == [OutcomeState.ACCEPTED]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(KILL, kind=RequestKind.UPGRADE), "UPGRADE with no topology"),
        (replace(DRAIN, name="wc"), "DRAIN_HOST of topology 'wc' and host 'w1.example.org'"),
        (replace(DRAIN, host=""), "'' is no host's name"),
        (replace(DRAIN, host="w1\n"), "is no host's name"),
        (replace(DRAIN, reason="x" * 201), "is not one line of at most 200 characters"),
        (replace(KILL, host="w1"), "KILL of topology 'wc' and host 'w1'"),
        (replace(KILL, name=""), "KILL of topology '' and host ''"),
        (replace(KILL, name="a b"), "'a b' is not a valid topology name"),
        (replace(KILL, topology_id="../../wc-1-9"), "is no id of a topology named wc"),
        (replace(KILL, topology_id="other-1-9"), "'other-1-9' is no id of a topology named wc"),
        (replace(KILL, topology_id="wc-other-1-9"), "is no id of a topology named wc"),
        (replace(KILL, topology_id="wc-1-" + "9" * 1000), "is no id of a topology"),
        (replace(KILL, expires_ms=4), "it expires at 4, before it was made at 5"),
        (replace(KILL, created_ms=-1), "before it was made at -1"),
        (replace(KILL, wait_ms=10**15), "longer than a year"),
        (replace(KILL, base=BASE), "KILL with a topology"),
        (replace(SUBMIT, base=None), "SUBMIT with no topology"),
        (replace(SUBMIT, topology_id="wc-2-9"), "is about 'wc-2-9', its base about 'wc-1-9'"),
        (replace(SUBMIT, outline_key=""), "lacks workers, executors or blobs"),
        (replace(LEVELS, log_levels={}), "none is given"),
        (replace(LEVELS, log_levels={"a": LogLevel("LOUD")}), "'a' to 'LOUD'; use one of DEBUG"),
        (replace(LEVELS, log_levels={"a": LogLevel("INFO", -1)}), " for -1 ms; a time from 0"),
    ],
)
def test_a_request_that_no_client_writes_is_refused_by_its_field(
    request_: Request, words: str
) -> None:
    with pytest.raises(SparkStormError, match=words):
        check_request(request_, ID)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "its base about"),
        ({"status": TopologyStatus.KILLED}, "cannot start as KILLED"),
        ({"pending": PendingAction(Action.REMOVE, 1)}, "cannot start as"),
        ({"num_workers": 0}, "lacks workers, executors or blobs"),
        ({"executors_by_component": {"split": 0}}, "lacks workers, executors or blobs"),
    ],
)
def test_a_base_that_no_client_writes_is_refused_by_its_field(change: Any, words: str) -> None:
    with pytest.raises(SparkStormError, match=words):
        check_request(replace(SUBMIT, base=replace(BASE, **change)), ID)


def test_a_request_under_another_id_is_refused() -> None:
    with pytest.raises(SparkStormError, match="its record is that of request '0123"):
        check_request(KILL, "f" * 32)
    with pytest.raises(SparkStormError, match=r"its record is that of request '\.\./x'"):
        check_request(replace(KILL, id="../x"), "../x")
    without_id = replace(SUBMIT, topology_id="", base=replace(BASE, topology_id=""))
    with pytest.raises(SparkStormError, match="it is about ''"):
        check_request(without_id, ID)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(b'"KILL"', b'"EXPLODE"'), "kind: expected one of SUBMIT"),
        (
            lambda text: text.replace(b'"wait_ms":100', b'"wait_ms":"soon"'),
            "wait_ms: expected an integer",
        ),
        (lambda text: text.replace(b'"client":"",', b""), "client: missing"),
        (
            lambda text: text.replace(b'"client":""', b'"client":"","more":1'),
            "unknown field 'more'",
        ),
        (lambda text: text.replace(b"Request", b"Outcome"), "expected Request"),
    ],
)
def test_bytes_that_are_no_request_are_named(change: Any, words: str) -> None:
    with pytest.raises(StoreInconsistentError, match=words):
        decode_record(Request, change(encode_record(KILL)), "/nimbus/requests/x")


def test_a_name_may_have_dashes() -> None:
    assert topology_name("my-word-count-1-9") == "my-word-count"
