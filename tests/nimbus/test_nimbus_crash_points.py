"""Enumerates where Nimbus, or its whole driver, may die in the middle of a request: every write,
before and after it.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    InvalidTopologyError,
    StoreUnavailableError,
)
from sparkstorm.common.model.assignment import AssignmentKind
from sparkstorm.common.model.requests import LogLevel
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.blobs.store import BlobKind
from tests.nimbus.crash_points import CrashPoint, each_point
from tests.nimbus.crashing_bench import CrashingBench
from tests.nimbus.nimbus_bench import CODE, wordcount

NEW_CODE = b"new code"
REBALANCE = RebalanceOptions(2, {"split": 2}, {"app.colour": "red"}, {"split": {"cpu": 55.0}})
# What died before a write has the same effect as what died after the one before it; only those who
# live on see a difference.
BOTH = pytest.mark.parametrize(
    "is_written", [False, True], ids=["before the write", "after the write"]
)


def is_untouched(bench: CrashingBench, status: TopologyStatus = TopologyStatus.ACTIVE) -> bool:
    """Return whether the request was never made."""
    if bench.state.topology_ids() != [bench.old] or bench.keeper.data != {bench.old: "counts"}:
        return False
    base, now = bench.state.read_base(bench.old), bench.assignment()
    assert base
    return (base.status, base.pending, base.num_workers) == (
        status,
        None,
        4,
    ) and now == bench.before


def is_killed(bench: CrashingBench) -> bool:
    return (
        not bench.state.known_ids()
        and bench.keeper.data == {}
        and not bench.bytes_store.list_keys()
    )


def is_rebalanced(bench: CrashingBench, status: TopologyStatus = TopologyStatus.ACTIVE) -> bool:
    base, outline = bench.state.read_base(bench.old), bench.state.read_outline(bench.old)
    now = bench.assignment()
    assert base and outline and bench.keeper.data == {bench.old: "counts"}
    own = bench.blobs.get(base.conf_key, BlobKind.CONF)
    resources = outline.components["split"].conf.get("topology.component.resources.map")
    return (
        (base.status, base.pending, base.previous_status, base.num_workers)
        == (status, None, None, 2)
        and base.executors_by_component["split"] == 2
        and (len(now.slot_by_executor), len(set(now.slot_by_executor.values()))) == (11, 2)
        and (now.conf_key, now.kind) == (base.conf_key, AssignmentKind.REBALANCE)
        and b'"app.colour":"red"' in own
        and b'"topology.workers":2' in own
        and resources == {"cpu.pcore.percent": 55.0}
    )


def runs_anew(bench: CrashingBench, code: bytes) -> bool:
    """Return whether another topology has the name, with a code."""
    (now,) = bench.state.topology_ids()
    base = bench.base_of(now)
    has_all = bench.keeper.data == {now: "counts"} and len(bench.slots(now)) == 13
    is_new = now != bench.old and bench.blobs.get(base.code_key) == code
    return is_new and has_all and base.status == TopologyStatus.ACTIVE


def is_deployed(bench: CrashingBench) -> bool:
    return runs_anew(bench, NEW_CODE)


def is_back(bench: CrashingBench) -> bool:
    return runs_anew(bench, CODE)


def deploy_in_vain(bench: CrashingBench, split: int) -> None:
    with pytest.raises(FailedAssignTopologyError, match="no enough worker"):
        bench.submit(
            topology=wordcount(split),
            code=NEW_CODE,
            topology__hot__deploy__enable=True,
            app__refuse=True,
        )


def has_status(status: TopologyStatus) -> Callable[[CrashingBench], bool]:
    def holds(bench: CrashingBench) -> bool:
        base = bench.base_of(bench.old)
        return (base.status, base.pending) == (status, None) and bench.assignment() == bench.before

    return holds


@dataclass(frozen=True)
class Ask:
    """A request, what was before it, and what it comes to."""

    ask: Callable[[CrashingBench], object]
    after: Callable[[CrashingBench], bool]
    is_inactive: bool = False
    secs: int = 60  # until the driver that follows has brought it to its end

    @property
    def status(self) -> TopologyStatus:
        return TopologyStatus.INACTIVE if self.is_inactive else TopologyStatus.ACTIVE


def is_restarted(bench: CrashingBench) -> bool:
    """Return whether one worker has new fences, and nothing has moved."""
    now, before = bench.assignment(), bench.before
    again = {
        each for each, placed in now.placed_version_by_executor.items() if placed > before.version
    }
    slot = min(before.slot_by_executor.values())
    return (
        again == set(before.executors_at(slot)) and now.slot_by_executor == before.slot_by_executor
    )


def is_logging(bench: CrashingBench) -> bool:
    found = bench.state.read_log_config(bench.old)
    return found is not None and {each: one.level for each, one in found.levels.items()} == {
        "": "DEBUG"
    }


ASKS = {
    "restart a worker": Ask(
        lambda bench: bench.service.restart_worker(
            "wc", min(bench.before.slot_by_executor.values())
        ),
        is_restarted,
    ),
    "set a log level": Ask(
        lambda bench: bench.service.set_log_level("wc", {"": LogLevel("DEBUG")}), is_logging
    ),
    "deactivate": Ask(
        lambda bench: bench.service.deactivate("wc"), has_status(TopologyStatus.INACTIVE)
    ),
    "activate": Ask(
        lambda bench: bench.service.activate("wc"), has_status(TopologyStatus.ACTIVE), True
    ),
    "kill": Ask(lambda bench: bench.service.kill("wc", 2), is_killed),
    "rebalance": Ask(lambda bench: bench.service.rebalance("wc", REBALANCE, 2), is_rebalanced),
    "rebalance while inactive": Ask(
        lambda bench: bench.service.rebalance("wc", REBALANCE, 2),
        lambda bench: is_rebalanced(bench, TopologyStatus.INACTIVE),
        True,
    ),
    "hot deploy": Ask(
        lambda bench: bench.submit(code=NEW_CODE, topology__hot__deploy__enable=True), is_deployed
    ),
    "refused hot deploy": Ask(lambda bench: deploy_in_vain(bench, 4), is_back, secs=100),
    "refused hot deploy of other tasks": Ask(
        lambda bench: deploy_in_vain(bench, 5), is_back, secs=100
    ),
}


def assert_tidy(bench: CrashingBench, at: int) -> None:
    """Nothing is left but what the topologies that run need, and ended requests whose client has
    died.
    """
    running = [bench.state.read_base(each) for each in bench.state.topology_ids()]
    used = {key for base in running if base for key in (base.code_key, base.conf_key)}
    assert bench.state.known_ids() == {base.topology_id for base in running if base}, at
    assert (
        bench.state.open_requests() == ([], {})
        and not bench.state.protected_ids()
        and not bench.state.deploy_names()
    ), at
    assert set(bench.state.outcome_ids()) <= set(bench.state.request_ids()), at
    assert set(bench.state.blob_keys()) == used, at
    assert {key.partition(":")[0] for key in bench.bytes_store.list_keys()} == used, at
    assert not bench.nimbus.problems, at


def rest_and_restart(bench: CrashingBench, secs: int) -> None:
    """Let time pass and start another Nimbus, which finds chunks of blobs that were cut sooner than
    the hourly scan.
    """
    bench.rest(secs)
    bench.nimbus._state.store.close()
    bench.follow_driver()
    bench.rest(24)


@pytest.mark.sampled(16)
@pytest.mark.slow
@pytest.mark.parametrize("name", ASKS)
def test_wherever_nimbus_dies_the_next_one_brings_every_request_to_its_end(name: str) -> None:
    asked = ASKS[name]
    for crash in each_point():
        bench, at = CrashingBench(asked.is_inactive), crash.at
        bench.crash_nimbus(crash)
        asked.ask(bench)
        bench.rest(asked.secs)
        assert asked.after(bench), at
        assert_tidy(bench, at)
        assert bench.state.request_ids() == bench.state.outcome_ids() == [], at
    assert at > 3


@pytest.mark.sampled(16)
@pytest.mark.slow
@pytest.mark.parametrize("name", ASKS)
def test_wherever_the_driver_dies_a_request_was_never_made_or_comes_to_its_end(name: str) -> None:
    asked, ends = ASKS[name], set()
    for crash in each_point():
        bench, at = CrashingBench(asked.is_inactive), crash.at
        bench.crash_driver(crash)
        try:
            asked.ask(bench)
            bench.advance(20)
        except StoreUnavailableError:
            assert crash.is_dead
        bench.follow_driver()
        bench.rest(asked.secs)
        is_done = asked.after(bench)
        assert is_done or is_untouched(bench, asked.status), at
        assert_tidy(bench, at)
        ends.add(is_done)
    assert ends == {True, False}


@pytest.mark.sampled(16)
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("name", ASKS)
def test_wherever_the_client_dies_its_request_was_never_made_or_comes_to_its_end(
    name: str, is_written: bool
) -> None:
    asked, ends = ASKS[name], set()
    for crash in each_point(is_written):
        bench, at = CrashingBench(asked.is_inactive), crash.at
        bench.crash_client(crash)
        with contextlib.suppress(StoreUnavailableError):
            asked.ask(bench)
        rest_and_restart(bench, asked.secs)
        is_done = asked.after(bench)
        assert is_done or is_untouched(bench, asked.status), at
        assert_tidy(bench, at)
        ends.add(is_done)
    assert ends == {True, False} or (is_written and ends == {True}), (
        "most requests are a client's first write"
    )


def test_wherever_nimbus_dies_workers_that_do_not_stop_have_their_whole_grace() -> None:
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        for supervisor in bench.supervisors.values():
            supervisor.is_up = False  # its beats stay
        bench.crash_nimbus(crash)
        bench.service.kill("wc", 1)
        seconds: dict[str, int] = {}
        for second in range(12):
            bench.tick()
            seconds.setdefault("runs" if bench.state.assignment_ids() else "stopped", second)
            seconds.setdefault("there" if bench.state.topology_ids() else "gone", second)
        assert 2 <= seconds["gone"] - seconds["stopped"] <= 3, at


def submit(bench: CrashingBench, crash: CrashPoint, split: int) -> None:
    conf, seed = {"topology.workers": 1}, crash.around(bench.keeper).seed
    bench.service.submit("other", wordcount(split), conf, b"other code", seed=seed)


def submitted(bench: CrashingBench, at: int) -> list[str]:
    """Return what else runs now, each with its data."""
    others = [each for each in bench.state.topology_ids() if each != bench.old]
    assert bench.keeper.data == {bench.old: "counts", **dict.fromkeys(others, "seeds")}, at
    return others


def test_wherever_the_driver_dies_in_a_submission_it_runs_or_nothing_is_left() -> None:
    ends = set()
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        bench.crash_driver(crash)
        try:
            submit(bench, crash, 2)
        except StoreUnavailableError:
            assert crash.is_dead
        bench.follow_driver()
        bench.advance(30)
        others = submitted(bench, at)
        assert all(len(bench.slots(each)) == 8 for each in others), at
        assert bench.state.read_assignment(bench.old) == bench.before, at
        assert_tidy(bench, at)
        ends.add(len(others))
        if crash.has_crashed and not others:
            assert bench.submit("other", wordcount(2), b"other code", topology__workers=1)
    assert ends == {0, 1}


def test_wherever_nimbus_dies_in_a_submission_the_next_one_serves_it() -> None:
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        bench.crash_nimbus(crash)
        other = bench.submit("other", wordcount(2), b"other code", topology__workers=1)
        bench.advance(10)
        base = bench.state.read_base(other)
        assert base and base.status == TopologyStatus.ACTIVE and len(bench.slots(other)) == 8, at
        assert_tidy(bench, at)


def test_wherever_nimbus_dies_code_that_a_host_cannot_open_is_refused() -> None:
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        bench.supervisors["node-1"].opens = lambda _key: "no module 'x'"
        bench.crash_nimbus(crash)
        sentence = "the topology cannot run on host host-1: no module 'x'"
        with pytest.raises(InvalidTopologyError, match=sentence):
            bench.submit("other", wordcount(2), b"other code", topology__workers=1)
        rest_and_restart(bench, 12)
        assert is_untouched(bench), at
        assert_tidy(bench, at)


@BOTH
def test_a_submission_whose_stores_fail_for_a_moment_at_any_write_runs_or_leaves_nothing(
    is_written: bool,
) -> None:
    ends = set()
    for crash in each_point(is_written, is_final=False):
        bench, at = CrashingBench(), crash.at
        bench.crash_client(crash)
        with contextlib.suppress(StoreUnavailableError):
            submit(bench, crash, 1)
        bench.service._state.store.close()  # the client ends
        rest_and_restart(bench, 40)
        others = submitted(bench, at)
        assert_tidy(bench, at)
        ends.add(len(others))
    assert ends == {0, 1}


@pytest.mark.sampled(16)
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("name", [each for each in ASKS if "deploy" in each or "rebalance" in each])
def test_stores_that_fail_nimbus_for_a_moment_at_any_write_change_no_end(
    name: str, is_written: bool
) -> None:
    asked = ASKS[name]
    for crash in each_point(is_written, is_final=False):
        bench, at = CrashingBench(asked.is_inactive), crash.at
        bench.crash_nimbus(crash)
        asked.ask(bench)
        rest_and_restart(bench, asked.secs)
        assert asked.after(bench), at
        assert_tidy(bench, at)
