"""Checks the chaos kit: its topologies are exact, its report tells what was lost, its schedule
strikes every kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from subprocess import PIPE

import pytest

from sparkstorm.common.model.worker_spec import StoreMark
from sparkstorm.testing import LocalCluster
from tests.chaos import disasters, faults, processes
from tests.chaos.clock import HostClock
from tests.chaos.report import GUARANTEES, ChaosReport, Exactness
from tests.chaos.simulated import run_simulated
from tests.chaos.topologies import (
    END,
    TOPOLOGIES,
    ChaosTopology,
    Numbers,
    counted_words,
)


@pytest.mark.sampled
@pytest.mark.parametrize("chaos", TOPOLOGIES, ids=lambda each: each.name)
def test_a_topology_counts_what_its_source_says_that_it_emitted(
    chaos: ChaosTopology, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with LocalCluster(seed=3) as cluster:
        cluster.submit(
            chaos.build(str(gate)), {"topology.workers": 2, "topology.max.spout.pending": 50}
        )
        cluster.advance(ms=300)
        gate.touch()
        cluster.run_until_idle(limit_secs=600)
        found: dict[str, int] = {}
        for state in cluster.state_by_task(chaos.component).values():
            for key, value in state.items():
                found[key] = found.get(key, 0) + value
    assert found["total"] > 50
    assert found == chaos.expected(found["total"])


def test_the_report_tells_lost_from_doubled() -> None:
    exactness = Exactness()
    exactness.compare({"a": 5, "b": 1}, {"a": 4, "b": 3, "c": 1})
    assert (exactness.expected, exactness.lost, exactness.doubled) == (6, 1, 3)


def test_the_report_tells_doubled_from_what_was_said() -> None:
    exactness = Exactness()
    exactness.compare({1: 1, 2: 1, 3: 1}, {1: 1, 2: 2, 3: 4, 9: 1}, most_said=1)
    assert exactness.lost == 0
    assert exactness.said == 2
    assert exactness.doubled == 3
    assert not exactness.is_kept


def test_a_log_is_read_again_from_its_beginning_and_ends_where_its_gate_says(
    tmp_path: Path,
) -> None:
    gate, target = tmp_path / "gate", tmp_path / "target"
    with LocalCluster(seed=3) as cluster:
        cluster.submit(
            disasters.log_to_files(str(gate), cluster.now_ms, str(target)), {"topology.workers": 2}
        )
        cluster.advance(ms=2_000)
        gate.write_text("600")
        cluster.run_until_idle(limit_secs=600)
        found: dict[str, int] = {}
        for state in cluster.state_by_task("count").values():
            for key, value in state.items():
                found[key] = found.get(key, 0) + value
    assert found == counted_words(640)
    assert disasters.numbers_of(target) == Counter((END, *range(640)))


@pytest.mark.nightly
@pytest.mark.slow
def test_simulated_chaos_is_exact_over_all_topologies() -> None:
    report = run_simulated(0, 0, ChaosReport("simulation"), least_runs=15)
    assert report.is_kept and set(report.exactness) == {
        (each.name, kept) for each in TOPOLOGIES for kept in GUARANTEES
    }
    assert len(report.seconds_by_kind) >= 8
    assert "| word-count |" in str(report)


def test_the_schedule_strikes_every_kind_before_any_a_second_time() -> None:
    names = [*faults.FAULTS]
    drawn = list(islice(processes.schedule(5, names), 2 * len(names)))
    assert sorted(drawn[: len(names)]) == sorted(drawn[len(names) :]) == sorted(names)
    assert drawn == list(islice(processes.schedule(5, names), 2 * len(names)))
    assert len(names) >= 12


def test_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    spout = Numbers(str(tmp_path / "gate"))
    spout.restore([7, False, [3]])
    assert spout.snapshot() == [7, False, [3]] and not spout.is_exhausted()


def test_a_clock_that_jumps_is_seen_by_a_process_that_runs_and_its_monotonic_clock_stays(
    tmp_path: Path,
) -> None:
    clock = HostClock(tmp_path)
    if not clock.environ:
        pytest.skip("needs a C compiler")
    say = "import time, sys\nfor _ in sys.stdin: print(time.time_ns(), time.monotonic_ns(), int(time.time()), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", say],
        env={**os.environ, **clock.environ},
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        for offset_s in (0, 86_400, -3_600):
            clock.set(offset_s)
            before = time.time(), time.monotonic_ns()
            print("now", file=child.stdin, flush=True)
            wall_ns, monotonic_ns, wall_s = map(int, child.stdout.readline().split())
            after = time.time(), time.monotonic_ns()
            assert before[0] - 1 <= wall_ns / 1e9 - offset_s <= after[0] + 1
            assert abs(wall_s - wall_ns / 1e9) <= 1
            assert before[1] <= monotonic_ns <= after[1]
        child.stdin.close()


@pytest.mark.parametrize(("time_ms", "found"), [(999, None), (1000, 5), (1001, 5)])
def test_the_mark_of_a_store_that_is_older_than_a_copy_does_not_date_it(
    time_ms: int, found: int | None
) -> None:
    assert disasters.step_since(StoreMark("a", 1, 5, time_ms), 1000) == found
    assert disasters.step_since(None, 1000) is None
