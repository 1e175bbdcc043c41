"""Enumerates where Nimbus or its driver may die in the middle of a gray upgrade: at every write,
before and after it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.upgrade import UpgradeOptions
from sparkstorm.extensions.upgrade.state import GrayUpgradeState
from tests.nimbus.crash_points import CrashPoint, each_point
from tests.nimbus.crashing_bench import CrashingBench
from tests.nimbus.nimbus_bench import CODE, wordcount

NEW_CODE = b"new code"


def upgrade(bench: CrashingBench, number: int) -> None:
    bench.service.carry_out(
        bench.service.upgrade_request(
            "wc",
            wordcount(),
            {"topology.workers": 4, "topology.upgrade.worker.num": number},
            NEW_CODE,
        )
    )


def settle(bench: CrashingBench, is_reached: Callable[[CrashingBench], bool]) -> None:
    """Let time pass until something holds, 40 s at most."""
    for _ in range(40):
        if is_reached(bench):
            return
        bench.tick(1000)


def begun(bench: CrashingBench, number: int) -> None:
    upgrade(bench, number)
    settle(bench, rests_with(number))


def new_slots(bench: CrashingBench) -> set[WorkerSlot]:
    now = bench.assignment()
    return {
        slot
        for slot in now.slot_by_executor.values()
        if bench.blobs.get(now.code_at(slot).code_key) == NEW_CODE
    }


def status(bench: CrashingBench) -> TopologyStatus:
    base = bench.base_of(bench.old)
    return base.status


def rests_with(number: int) -> Callable[[CrashingBench], bool]:
    def holds(bench: CrashingBench) -> bool:
        state = GrayUpgradeState(bench.state).upgrade_state(bench.old)
        upgraded = new_slots(bench)
        return (
            status(bench) is TopologyStatus.UPGRADING
            and state.upgrade is not None
            and not state.upgrading
            and len(upgraded) == number
            and upgraded == state.upgraded.keys()
            and state.upgrade.continue_upgrading is False
        )

    return holds


def is_over(number: int) -> Callable[[CrashingBench], bool]:
    def holds(bench: CrashingBench) -> bool:
        state = GrayUpgradeState(bench.state).upgrade_state(bench.old)
        base = bench.state.read_base(bench.old)
        now = bench.assignment()
        assert base
        whole = (base.code_key, base.conf_key) == (now.code_key, now.conf_key)
        is_empty = (state.upgrade, state.upgrading, state.upgraded) == (None, frozenset(), {})
        code = NEW_CODE if number == 4 else CODE
        has_code = bench.blobs.get(base.code_key) == code and len(new_slots(bench)) == number
        return status(bench) is TopologyStatus.ACTIVE and whole and is_empty and has_code

    return holds


@dataclass(frozen=True)
class Ask:
    """A request, what comes before it, and what it comes to."""

    before: Callable[[CrashingBench], None]
    ask: Callable[[CrashingBench], None]
    after: Callable[[CrashingBench], bool]


ASKS = {
    "start": Ask(lambda bench: None, lambda bench: upgrade(bench, 2), rests_with(2)),
    "start with all": Ask(lambda bench: None, lambda bench: upgrade(bench, 4), is_over(4)),
    "continue": Ask(
        lambda bench: begun(bench, 1),
        lambda bench: bench.service.continue_upgrade("wc", UpgradeOptions(worker_num=2)),
        rests_with(3),
    ),
    "continue to the end": Ask(
        lambda bench: begun(bench, 1),
        lambda bench: bench.service.continue_upgrade("wc", UpgradeOptions(worker_num=9)),
        is_over(4),
    ),
    "complete": Ask(
        lambda bench: begun(bench, 3),
        lambda bench: bench.service.complete_upgrade("wc"),
        is_over(3),
    ),
    "roll back": Ask(
        lambda bench: begun(bench, 3),
        lambda bench: bench.service.roll_back_upgrade("wc"),
        is_over(0),
    ),
}


def assert_tidy(bench: CrashingBench, at: int) -> None:
    base, upgrade = bench.state.read_base(bench.old), bench.state.read_upgrade(bench.old)
    assert base
    used = (
        {base.code_key, base.conf_key}
        | bench.assignment().blob_keys()
        | (upgrade.blob_keys() if upgrade else set())
    )
    assert set(bench.state.blob_keys()) == used, at
    assert bench.state.open_requests() == ([], {}), at
    assert not bench.nimbus.problems, at
    assert bench.slots(bench.old).keys() == bench.before.slot_by_executor.keys(), at


def found(bench: CrashingBench) -> tuple[object, ...]:
    upgrade = GrayUpgradeState(bench.state).upgrade_state(bench.old)
    return status(bench), new_slots(bench), upgrade


def crashed(asked: Ask, crash: CrashPoint) -> CrashingBench:
    """Return a bench whose Nimbus crashed under a request, which has come to its end."""
    bench = CrashingBench()
    asked.before(bench)
    bench.crash_nimbus(crash)
    asked.ask(bench)
    settle(bench, asked.after)
    assert asked.after(bench), (crash.at, found(bench))
    return bench


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("name", ASKS)
def test_wherever_nimbus_dies_the_next_one_brings_an_upgrade_to_its_end(name: str) -> None:
    for crash in each_point():
        bench = crashed(ASKS[name], crash)
        bench.rest(16)  # blobs are swept
        assert_tidy(bench, crash.at)
    assert crash.at > 5


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("name", ["start with all", "roll back"])
def test_stores_that_fail_nimbus_for_a_moment_at_any_write_change_no_end(
    name: str, is_written: bool
) -> None:
    for crash in each_point(is_written, is_final=False):
        crashed(ASKS[name], crash)


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("name", ["start", "complete", "roll back"])
def test_wherever_the_driver_dies_an_upgrade_was_never_asked_for_or_comes_to_its_end(
    name: str,
) -> None:
    asked, ends = ASKS[name], set()
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        asked.before(bench)
        before = found(bench)
        bench.crash_driver(crash)
        try:
            asked.ask(bench)
            bench.advance(20)
        except StoreUnavailableError:
            assert crash.is_dead
        bench.follow_driver()
        settle(bench, asked.after)
        is_done = asked.after(bench)
        assert is_done or found(bench) == before, at
        ends.add(is_done)
    assert ends == {True, False}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_batch_is_never_followed_by_another_whatever_dies() -> None:
    """S0.23: the record with the batch is written before any worker is listed, so no crash can have
    two batches.
    """
    for crash in each_point():
        bench, at = CrashingBench(), crash.at
        bench.crash_nimbus(crash)
        upgrade(bench, 1)
        for _ in range(12):
            bench.tick(1000)
            state = GrayUpgradeState(bench.state).upgrade_state(bench.old)
            assert (
                len(new_slots(bench)) <= 1 and len(state.upgrading | state.upgraded.keys()) <= 1
            ), at
