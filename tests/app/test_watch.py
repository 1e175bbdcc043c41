"""The watch over a run, with a handle made of plain records: drained, stopped, failing, or cut off
from its stores.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client.handle import TopologyProgress
from sparkstorm.common.errors import (
    NotAliveError,
    SlotsUnavailableError,
    StoreUnavailableError,
    TopologyPausedError,
    WorkerFailedError,
)
from sparkstorm.common.model.assignment import Assignment, ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.driver.console import RunConsole, progress_text
from sparkstorm.driver.run import placed_text
from sparkstorm.driver.watch import MAX_DEATHS_WITHOUT_PROGRESS, Deaths, FileLogs, RunOutcome, Watch

AT_WORK = TopologyProgress(
    1000, 500, 90, 80, 7, 70, 1, 0, 4.0, 25.0, is_settled=False, is_drained=False
)
SETTLED = replace(AT_WORK, pending=0, is_settled=True)
DRAINED = replace(SETTLED, done=1000, is_drained=True)


class Handle:
    """A topology whose progress is told in advance; the last word is repeated."""

    topology_id = "words-1-1"

    def __init__(self, *told: Any, beats: list[WorkerBeat] | None = None) -> None:
        self._told = list(told)
        self._beats = beats or []
        self.is_deactivated = False

    def progress(self) -> TopologyProgress:
        word = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        if isinstance(word, Exception):
            raise word
        assert isinstance(word, TopologyProgress)
        return word

    def beats(self) -> list[WorkerBeat]:
        return self._beats

    def deactivate(self) -> None:
        self.is_deactivated = True

    def status(self) -> TopologyStatus:
        return TopologyStatus.ACTIVE

    def paused(self) -> str:
        return ""

    def slots(self) -> frozenset[WorkerSlot]:
        return frozenset()

    def problems(self) -> list[str]:
        return []

    def losses(self) -> tuple[str, ...]:
        return ()


def watch(handle: Handle, patience_s: float = 120.0) -> Watch:
    return Watch(handle, RunConsole(), FileLogs(Path("/none"), "words-1-1"), 0.0, patience_s)  # type: ignore[arg-type]


def a_beat(
    pid: int, state: str = "RUNNING", message: str = "", deaths: int = 0, **stats: Any
) -> WorkerBeat:
    return WorkerBeat(
        "words-1-1",
        "node-1",
        6700,
        0,
        0,
        pid,
        pid,
        state,
        1,
        stats={"deaths": deaths, **stats},
        message=message,
    )


def test_a_run_ends_when_it_is_seen_drained_twice() -> None:
    handle = Handle(AT_WORK, DRAINED, AT_WORK, DRAINED, DRAINED)
    assert watch(handle).run(lambda: False) == (RunOutcome.DRAINED, DRAINED)
    assert not handle.is_deactivated


def test_a_stopped_run_lets_the_sources_rest_and_waits_until_nothing_is_under_way() -> None:
    handle = Handle(AT_WORK, AT_WORK, AT_WORK, SETTLED)
    assert watch(handle).run(lambda: True) == (RunOutcome.STOPPED, SETTLED)
    assert handle.is_deactivated


def test_a_store_that_comes_back_is_waited_for_and_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = StoreUnavailableError("Redis at 127.0.0.1:1 cannot be reached")
    assert watch(Handle(AT_WORK, away, away, DRAINED)).run(lambda: False)[0] is RunOutcome.DRAINED
    said = capsys.readouterr().out
    assert said.count("waiting for the stores (at most 120 s): Redis at 127.0.0.1:1") == 1
    assert said.count("the stores answer again after 0.") == 1


def test_a_redis_that_stays_away_ends_the_watch() -> None:
    with pytest.raises(StoreUnavailableError):
        watch(Handle(StoreUnavailableError("gone")), patience_s=0.05).run(lambda: False)


def test_a_zookeeper_that_is_away_is_said_once_while_the_data_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Half(Handle):
        def beats(self) -> list[WorkerBeat]:
            raise StoreUnavailableError("ZooKeeper at 127.0.0.1:2 does not answer")

    half = Half(*[replace(AT_WORK, executed=n) for n in range(5)], DRAINED)
    assert watch(half, patience_s=0.0).run(lambda: False)[0] is RunOutcome.DRAINED
    assert capsys.readouterr().out.count("ZooKeeper at 127.0.0.1:2") == 1


def test_a_run_that_is_stopped_while_a_store_is_away_stops_once_it_is_back() -> None:
    class Away(Handle):
        tries = 0

        def deactivate(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise StoreUnavailableError("Redis did not read blob chunk")
            super().deactivate()

    away = Away(AT_WORK, AT_WORK, AT_WORK, SETTLED)
    assert watch(away).run(lambda: True)[0] is RunOutcome.STOPPED
    assert away.is_deactivated


def test_a_topology_that_is_killed_by_another_ends_the_watch() -> None:
    handle = Handle(AT_WORK)
    handle.status = lambda: None  # type: ignore[method-assign,assignment,return-value]
    sentence = "words-1-1 is gone: it was killed or replaced while it was followed"
    with pytest.raises(NotAliveError, match=sentence):
        watch(handle).run(lambda: False)


def test_what_the_check_raises_ends_the_watch() -> None:
    def check() -> None:
        raise SlotsUnavailableError("Spark is gone")

    with pytest.raises(SlotsUnavailableError):
        watch(Handle(AT_WORK)).run(lambda: False, check)


def test_a_worker_that_cannot_run_ends_the_watch_with_its_last_words() -> None:
    beats = [a_beat(0, "FAILED", "ValueError: no such table\nlast line of the log")]
    sentence = r"(?s)node-1:6700 of words-1-1 cannot run: .*no such table.*last line"
    with pytest.raises(WorkerFailedError, match=sentence):
        watch(Handle(AT_WORK, beats=beats)).run(lambda: False)


def test_a_replaced_worker_is_said_with_its_log() -> None:
    said: list[str] = []
    deaths = Deaths("words-1-1", FileLogs(Path("/logs"), "words-1-1"), said.append)
    for pid in (10, 0, 11):
        deaths.look([a_beat(pid)], AT_WORK)
    assert said == [
        "worker node-1:6700 was replaced (process 10 by 11): its slot was started again; its log is /logs/words-1-1-node-1-6700.log"
    ]


def test_a_worker_that_hung_is_said_to_have_hung_and_where() -> None:
    said: list[str] = []
    deaths = Deaths("words-1-1", FileLogs(Path("/logs"), "words-1-1"), said.append)
    hung = "hung: no progress for 30 s in 'count'#4 (count.py, line 9: time.sleep(1000))"
    for beat in (a_beat(10), a_beat(11, deaths=1, last_end=hung)):
        deaths.look([beat], AT_WORK)
    assert f"was replaced (process 10 by 11): {hung}; its log" in said[0]


def test_workers_that_die_for_ever_without_progress_end_the_run_with_the_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "words-1-1-node-1-6700.log").write_text("I was here\nMemoryError\n")
    deaths = Deaths("words-1-1", FileLogs(tmp_path, "words-1-1"), lambda _: None)
    for died in range(1, MAX_DEATHS_WITHOUT_PROGRESS + 1):
        deaths.look([a_beat(died, deaths=died)], AT_WORK)
    sentence = r"(?s)died 6 times without getting anything done.*MemoryError"
    with pytest.raises(WorkerFailedError, match=sentence):
        deaths.look([a_beat(99, deaths=MAX_DEATHS_WITHOUT_PROGRESS + 1)], AT_WORK)


def test_input_that_is_read_again_after_each_death_is_no_progress(tmp_path: Path) -> None:
    deaths = Deaths("words-1-1", FileLogs(tmp_path, "words-1-1"), lambda _: None)
    for died in range(MAX_DEATHS_WITHOUT_PROGRESS):
        for read in (0, 20):
            deaths.look([a_beat(died, deaths=died)], replace(AT_WORK, done=read))
    last = a_beat(99, deaths=MAX_DEATHS_WITHOUT_PROGRESS)
    with pytest.raises(WorkerFailedError, match="died 6 times without getting anything done"):
        deaths.look([last], replace(AT_WORK, done=0))


def test_held_inputs_that_are_executed_again_after_each_death_are_no_progress(
    tmp_path: Path,
) -> None:
    deaths, held = Deaths("words-1-1", FileLogs(tmp_path, "words-1-1"), lambda _: None), {"a": 20}
    executed = 0
    for died in range(MAX_DEATHS_WITHOUT_PROGRESS):
        for more in (0, 13, 7):
            executed += more
            progress = replace(AT_WORK, executed=executed, held=held)
            deaths.look([a_beat(died + 1, deaths=died)], progress)
    last = a_beat(99, deaths=MAX_DEATHS_WITHOUT_PROGRESS)
    deaths.look([last], replace(AT_WORK, executed=executed + 21, held=held))
    last = a_beat(100, deaths=2 * MAX_DEATHS_WITHOUT_PROGRESS)
    with pytest.raises(WorkerFailedError, match="died 6 times without getting anything done"):
        deaths.look([last], replace(AT_WORK, executed=executed + 41, held=held))


def test_a_slot_that_was_restarted_counts_deaths_anew(tmp_path: Path) -> None:
    deaths = Deaths("words-1-1", FileLogs(tmp_path, "words-1-1"), lambda _: None)
    for died in (5, 0, 5):
        deaths.look([a_beat(died, deaths=died)], AT_WORK)


def test_workers_that_die_but_get_on_are_borne() -> None:
    deaths = Deaths("words-1-1", FileLogs(Path("/logs"), "words-1-1"), lambda _: None)
    for pid in range(1, 5 * MAX_DEATHS_WITHOUT_PROGRESS):
        deaths.look([a_beat(pid, deaths=pid)], replace(AT_WORK, parked=pid // 4))


def test_the_progress_line_shows_what_the_readme_promises() -> None:
    assert progress_text(AT_WORK, 1234.5) == (
        " 50.0 % of 1.0 k      1,234 tuples/s  pending 7  acked 70  failed 1  p50 4 ms  p99 25 ms"
    )
    result = progress_text(AT_WORK, 1234.5, 79, 125.0)
    assert result == " 50.0 % of 1.0 k  2:05 left  1,234 tuples/s  failed 1  p50 4 ms  p99 25 ms"
    assert progress_text(AT_WORK, 1234.5, 34, 125.0) == " 50.0 % of 1.0 k  1,234 tuples/s"
    assert progress_text(AT_WORK, 1234.5, 20, 3_725.0) == " 50.0 % of 1.0 k"
    assert progress_text(AT_WORK, 1234.5, 119, 3_725.0).startswith(
        "[#####.....]   50.0 % of 1.0 k  1:02:05 left  "
    )
    full = progress_text(replace(AT_WORK, done=AT_WORK.total), 1234.5, 119)
    assert full.startswith("[##########]  100.0 % of 1.0 k")
    assert progress_text(replace(AT_WORK, total=0, p50_ms=None, parked=2), 0.0).endswith(
        "failed 1  parked 2"
    )


def test_a_topology_without_slots_says_who_may_hold_them_instead_of_being_called_assigned() -> None:
    state = StormState(LocalStateStore(), b"k" * 32)
    for name in ("late", "early"):
        state.create_base(
            TopologyBase(
                f"{name}-1-9", name, 7, TopologyStatus.ACTIVE, 2, {"split": 4}, "c0de", "c0nf"
            )
        )
    slot = WorkerSlot("node-1", 6700)
    state.write_assignment(
        Assignment("early-1-9", 1, "c0de", "c0nf", {slot.node: "a"}, {ExecutorId(1, 1): slot})
    )
    is_assigned = "early-1-9 is assigned 1.2 s after the start"
    assert placed_text(state, "early-1-9", 1.25, is_shared=False) == is_assigned
    waits = "late-1-9 waits for free slots; they may be held by "
    own = placed_text(state, "late-1-9", 1.0, is_shared=False)
    assert own.startswith(f"{waits}early-1-9: finish or drop that run")
    shared = placed_text(state, "late-1-9", 1.0, is_shared=True)
    assert shared.startswith(f"{waits}early: ") and "or `sparkstorm kill NAME` frees some" in shared


def test_a_topology_that_nimbus_paused_ends_the_watch_with_the_cause() -> None:
    class Paused(Handle):
        def paused(self) -> str:
            return "bolt 'split' is paused: most of its inputs fail"

    with pytest.raises(TopologyPausedError, match="bolt 'split' is paused"):
        watch(Paused(replace(AT_WORK, executed=1))).run(lambda: False)
