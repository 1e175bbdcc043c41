"""Chaos in real processes: a standing cluster of four topologies on Spark, whose parts are killed, paused, cut and filled up.

A recovery lasts from the fault (from its end, where it lasts a while) until every task has worked off some more tuples.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sparkstorm.testing.chaos.cluster import ChaosCluster
from sparkstorm.testing.chaos.faults import (
    CLOCK_FAULTS,
    DISK_FAULTS,
    ENDURED,
    EXECUTOR_FAULTS,
    FAULTS,
    LOCAL_FAULTS,
    STANDALONE_FAULTS,
    Strike,
)
from sparkstorm.testing.chaos.report import GUARANTEES, ChaosReport
from sparkstorm.testing.chaos.standalone import STANDALONE

LOCAL, WITH_EXECUTORS = "local[9]", "local-cluster[2,6,1024]"
MASTERS: Mapping[str, str] = {"exactly-once": WITH_EXECUTORS, "at-least-once": LOCAL, "at-most-once": STANDALONE}
"""Spark's master for each guarantee, where none is asked for."""


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
    """Strike for so many seconds in all, an equal part under each guarantee, each on a cluster of its own."""
    for number, guarantee in enumerate(guarantees):
        phase = _Phase(folder / guarantee, master or MASTERS[guarantee], guarantee, seed + number, say)
        phase.run(seconds / len(guarantees), names, report)
    return report


class _Phase:
    """The faults under one guarantee, and the comparison at their end."""

    def __init__(self, folder: Path, master: str, guarantee: str, seed: int, say: Callable[[str], None]) -> None:
        self._folder, self._master, self._guarantee, self._seed, self._say = folder, master, guarantee, seed, say
        self._dice = random.Random(seed)

    def run(self, seconds: float, names: Sequence[str], report: ChaosReport) -> None:
        """Strike for so many seconds, let all recover each time, and compare the counts at the end."""
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
        wanted = list(names) or list(FAULTS)
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
