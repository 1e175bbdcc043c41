"""Chaos in real processes: a standing cluster of five topologies on Spark, whose parts are killed,
paused, cut and filled up.

Last comes its own cluster whose stores lose data (`disasters.py`). A recovery lasts from the
fault (from its end, where it lasts a while) until every task has worked off some more tuples.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.chaos.cluster import ChaosCluster
from tests.chaos.disasters import DISASTERS, DisasterRun
from tests.chaos.faults import (
    CLOCK_FAULTS,
    DISK_FAULTS,
    ENDURED,
    EXECUTOR_FAULTS,
    FAULTS,
    LOCAL_FAULTS,
    STANDALONE_FAULTS,
    Strike,
)
from tests.chaos.report import GUARANTEES, ChaosReport
from tests.chaos.standalone import STANDALONE

LOCAL = "local[9]"
WITH_EXECUTORS = "local-cluster[2,7,1024]"
MASTERS: Mapping[str, str] = {
    "exactly-once": WITH_EXECUTORS,
    "at-least-once": LOCAL,
    "at-most-once": STANDALONE,
}
"""Spark's master for each guarantee, where none is given."""


def schedule(seed: int, names: Sequence[str]) -> Iterator[str]:
    """Yield names of faults without end: all in a drawn order, then all again in another."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(list(names), len(names))


def run_processes(
    seconds: float,
    seed: int,
    report: ChaosReport,
    folder: Path,
    master: str = "",
    names: Sequence[str] = (),
    guarantees: Sequence[str] = GUARANTEES,
    say: Callable[[str], None] = print,
) -> ChaosReport:
    """Strike for so many seconds in all, an equal part for each guarantee and for disasters, each
    on its own cluster.
    """
    disasters = (
        [name for name in DISASTERS if name in names or not names]
        if GUARANTEES[0] in guarantees
        else []
    )
    phases = guarantees if not names or set(names) - DISASTERS.keys() else ()
    share = seconds / (len(phases) + bool(disasters))
    for number, guarantee in enumerate(phases):
        phase = _Phase(
            folder / guarantee, master or MASTERS[guarantee], guarantee, seed + number, say
        )
        phase.run(share, names, report)
    if disasters:
        _lose_stores(folder / "disasters", share, seed, disasters, report, say)
    return report


def _lose_stores(
    folder: Path,
    seconds: float,
    seed: int,
    names: Sequence[str],
    report: ChaosReport,
    say: Callable[[str], None],
) -> None:
    """Strike each kind of disaster once, and more for so many seconds, and compare state and target
    at the end.
    """
    say(f"-- {GUARANTEES[0]} with stores that forget on {LOCAL}, seed {seed}")
    cluster = ChaosCluster(folder, LOCAL, GUARANTEES[0])
    dice = random.Random(seed)
    try:
        cluster.start_driver()
        cluster.connect()
        run = DisasterRun(cluster)
        run.submit()
        until = time.monotonic() + seconds
        for number, name in enumerate(schedule(seed, names)):
            if number >= len(names) and time.monotonic() >= until:
                break
            strike = DISASTERS[name](run, dice)
            began = time.monotonic()
            strike()
            report.add(name, time.monotonic() - began)
            say(f"{name}: recovered after {time.monotonic() - began:.2f} s")
        run.finish(report)
    finally:
        cluster.close()


class _Phase:
    """The faults under one guarantee, and the comparison at their end."""

    def __init__(
        self, folder: Path, master: str, guarantee: str, seed: int, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._master = master
        self._guarantee = guarantee
        self._seed = seed
        self._say = say
        self._dice = random.Random(seed)

    def run(self, seconds: float, names: Sequence[str], report: ChaosReport) -> None:
        """Strike for so many seconds, let all recover each time, and compare the counts at the
        end.
        """
        self._say(f"-- {self._guarantee} on {self._master}, seed {self._seed}")
        cluster = ChaosCluster(self._folder, self._master, self._guarantee)
        try:
            cluster.start_driver()
            cluster.submit_all()
            kinds = self._kinds(cluster, names)
            until = time.monotonic() + seconds
            for name in schedule(self._seed, kinds):
                if time.monotonic() >= until:
                    break
                seconds_taken = self._strike(cluster, name)
                report.add(name, seconds_taken)
                self._say(f"{name}: recovered after {seconds_taken:.2f} s")
            cluster.finish(report)
        finally:
            cluster.close()

    def _kinds(self, cluster: ChaosCluster, names: Sequence[str]) -> list[str]:
        """Return the kinds of faults that can be made here."""
        possible = [*LOCAL_FAULTS, *(DISK_FAULTS if cluster.has_own_disk else ())]
        possible += [] if cluster.is_local else EXECUTOR_FAULTS
        possible += STANDALONE_FAULTS if cluster.pair is not None else []
        possible += CLOCK_FAULTS if cluster.clock.environ else []
        wanted = [name for name in names if name in FAULTS] or list(FAULTS)
        if left_out := [name for name in wanted if name not in possible]:
            self._say(f"left out here: {', '.join(left_out)}")
        return [name for name in wanted if name in possible]

    def _strike(self, cluster: ChaosCluster, name: str) -> float:
        strike: Strike = FAULTS[name]
        began = time.monotonic()
        strike(cluster, self._dice)
        began = time.monotonic() if name in ENDURED else began
        cluster.wait_at_work()
        return time.monotonic() - began
