"""Chaos in the simulation: the five topologies under drawn faults and simulated time; all kinds of
faults, clock leaps too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import SparkStormError
from sparkstorm.testing.faults import Fault, Trigger
from sparkstorm.testing.trial import Subject, Trial
from sparkstorm.testing.trial_requests import MAIN
from sparkstorm.testing.trials import Trials, quietly
from tests.chaos.report import GUARANTEES, ChaosReport
from tests.chaos.topologies import TOPOLOGIES, ChaosTopology

_NUMBERS = 120


def run_simulated(
    seconds: float,
    seed: int,
    report: ChaosReport,
    least_runs: int = 0,
    guarantees: Sequence[str] = GUARANTEES,
) -> ChaosReport:
    """Run seeds of all topologies under each guarantee in turn for so many seconds of real time,
    and at least so many runs.
    """
    until = time.monotonic() + seconds
    number = 0
    with tempfile.TemporaryDirectory() as folder, quietly():
        pairs = [(chaos, each) for each in guarantees for chaos in TOPOLOGIES]
        trials = [
            (chaos, each, Trials(_subject(chaos, each, str(Path(folder, "gate")))))
            for chaos, each in pairs
        ]
        while number < (least_runs or len(trials)) or time.monotonic() < until:
            chaos, guarantee, drawn = trials[number % len(trials)]
            _run(chaos, guarantee, drawn, seed + number, report)
            number += 1
    return report


def _subject(chaos: ChaosTopology, guarantee: str, gate: str) -> Subject:
    rows: list[list[Any]] = [[n, n * 10, 0] for n in range(_NUMBERS)]
    return Subject(
        lambda: chaos.build(gate), {"numbers": rows}, {"topology.delivery.guarantee": guarantee}
    )


def _run(
    chaos: ChaosTopology, guarantee: str, trials: Trials, seed: int, report: ChaosReport
) -> None:
    trial = Trial(trials.subject, seed, trials.faults(seed), trials.reference)
    watch = _Recoveries(trial)
    trial.cluster.simulation.watchers.append(watch)
    problem = ""
    try:
        trial.run()
    except AssertionError as error:
        problem = str(error)
    for fault, ms in watch.recovered:
        report.add(fault.kind.name.replace("_", " ").lower(), ms / 1000)
    expected = {
        key: sum(map(int, values))
        for key, values in trials.reference.states.get(chaos.component, {}).items()
    }
    states = trial.final_states or {chaos.component: _states(trial, chaos.component)}
    found = {key: sum(map(int, values)) for key, values in states[chaos.component].items()}
    exactness = report.of(chaos.name, guarantee)
    exactness.compare(expected, found)
    if problem:
        # an invariant broke, with equal states
        exactness.lost += not (set(expected.items()) ^ set(found.items()))
        print(f"{chaos.name}, {guarantee}, seed {seed}: {problem[:400]}", flush=True)


def _states(trial: Trial, component: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for state in trial.cluster.topology(MAIN).states(component).values():
        for key, value in state.items():
            found.setdefault(repr(key), []).append(repr(value))
    return found


class _Recoveries:
    """Watcher of a simulated cluster: from each fault to the first moment at which all is placed
    again and a worker commits.
    """

    def __init__(self, trial: Trial) -> None:
        self._cluster = trial.cluster
        self.recovered: list[tuple[Fault, int]] = []
        self._open: list[tuple[Fault, int, int]] = []  # since when, commits until then
        self._seen = 0

    def __call__(self) -> None:
        """Look after a step."""
        cluster = self._cluster
        struck = cluster.struck[self._seen :]
        if not struck and not self._open:
            return
        commits = cluster.count[Trigger.COMMIT]
        self._seen += len(struck)
        self._open += [(fault, cluster.now_ms, commits) for fault in struck]
        if (
            any(commits > before for _, _, before in self._open)
            and (found := self._topologies())
            and found[0].is_placed()
        ):
            now_ms = cluster.now_ms
            self.recovered += [
                (fault, now_ms - since) for fault, since, before in self._open if commits > before
            ]
            self._open = [each for each in self._open if commits <= each[2]]

    def _topologies(self) -> list[Any]:
        try:
            return [self._cluster.topology(MAIN)]
        except SparkStormError:  # not submitted yet, or between two of a hot deploy
            return []
