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
    assert [state for state in OutcomeState if not Outcome(ID, state, 0).is_final] == [
        OutcomeState.ACCEPTED
    ]


@pytest.mark.parametrize(
    ("request_", "request_id", "words"),
    [
        (KILL, "f" * 32, "its record is that of request '0123"),
        (replace(KILL, id="../x"), "../x", r"its record is that of request '\.\./x'"),
        (replace(KILL, kind=RequestKind.UPGRADE), ID, "UPGRADE with no topology"),
        (replace(DRAIN, name="wc"), ID, "DRAIN_HOST of topology 'wc' and host 'w1.example.org'"),
        (replace(DRAIN, host=""), ID, "'' is no host's name"),
        (replace(DRAIN, host="w1\n"), ID, "is no host's name"),
        (replace(DRAIN, reason="x" * 201), ID, "is not one line of at most 200 characters"),
        (replace(KILL, host="w1"), ID, "KILL of topology 'wc' and host 'w1'"),
        (replace(KILL, name=""), ID, "KILL of topology '' and host ''"),
        (replace(KILL, name="a b"), ID, "'a b' is not a valid topology name"),
        (
            replace(KILL, topology_id="../../wc-1-9"),
            ID,
            r"'\.\./\.\./wc-1-9' is no id of a topology named wc",
        ),
        (replace(KILL, topology_id="other-1-9"), ID, "'other-1-9' is no id of a topology named wc"),
        (
            replace(KILL, topology_id="wc-other-1-9"),
            ID,
            "'wc-other-1-9' is no id of a topology named wc",
        ),
        (replace(KILL, topology_id="wc-1-" + "9" * 1000), ID, "is no id of a topology"),
        (replace(KILL, expires_ms=4), ID, "it expires at 4, before it was made at 5"),
        (replace(KILL, created_ms=-1), ID, "before it was made at -1"),
        (replace(KILL, wait_ms=10**15), ID, "longer than a year"),
        (replace(KILL, base=BASE), ID, "KILL with a topology"),
        (replace(SUBMIT, base=None), ID, "SUBMIT with no topology"),
        (
            replace(SUBMIT, topology_id="wc-2-9"),
            ID,
            "it is about 'wc-2-9', its base about 'wc-1-9'",
        ),
        (replace(SUBMIT, topology_id="", base=replace(BASE, topology_id="")), ID, "it is about ''"),
        (replace(SUBMIT, base=replace(BASE, name="other")), ID, "its base about"),
        (
            replace(SUBMIT, base=replace(BASE, status=TopologyStatus.KILLED)),
            ID,
            "cannot start as KILLED",
        ),
        (
            replace(SUBMIT, base=replace(BASE, pending=PendingAction(Action.REMOVE, 1))),
            ID,
            "cannot start as",
        ),
        (
            replace(SUBMIT, base=replace(BASE, num_workers=0)),
            ID,
            "lacks workers, executors or blobs",
        ),
        (
            replace(SUBMIT, base=replace(BASE, executors_by_component={"split": 0})),
            ID,
            "lacks workers, executors or blobs",
        ),
        (replace(SUBMIT, outline_key=""), ID, "lacks workers, executors or blobs"),
        (replace(LEVELS, log_levels={}), ID, "none is given"),
        (
            replace(LEVELS, log_levels={"a": LogLevel("LOUD")}),
            ID,
            "'a' to 'LOUD'; use one of DEBUG",
        ),
        (replace(LEVELS, log_levels={"a": LogLevel("INFO", -1)}), ID, " for -1 ms; a time from 0"),
    ],
)
def test_a_request_that_no_client_writes_is_refused_by_its_field(
    request_: Request, request_id: str, words: str
) -> None:
    with pytest.raises(SparkStormError, match=words):
        check_request(request_, request_id)


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
