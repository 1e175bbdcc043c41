"""Many runs of a topology on a simulated cluster, each under faults of its seed: nothing may be
lost, doubled or left open.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.testing.faults import (
    KINDS,
    STORE_KINDS,
    Fault,
    Kind,
    Scale,
    Trigger,
    draw_faults,
    kinds_named,
)
from sparkstorm.testing.trial import DURATION_MS, Reference, Rows, Subject, Trial


class SimulationError(AssertionError):
    """A run under faults lost, doubled or left something; the text ends with the line that runs it
    again.
    """


@dataclass(frozen=True)
class Report:
    """Counts of one `simulate`; `uncompared` names bolts whose states differ between runs without
    faults.
    """

    runs: int
    faults: int
    seconds: float
    uncompared: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.runs} seeds, {self.faults} faults, nothing lost, doubled or left open; {self.seconds:.1f} s"
        names = ", ".join(self.uncompared)
        return (
            f"{said}; not compared, as it differs between two runs without faults: the state of {names}"
            if names
            else said
        )


def simulate(
    topology: Topology | Callable[[], Topology] | Subject,
    seeds: Iterable[int] = range(1000),
    *,
    sources: Mapping[str, Rows] | None = None,
    conf: Mapping[str, Any] | None = None,
    kinds: Iterable[str] | None = None,
    most_faults: int = 8,
    only: Sequence[int] | None = None,
    processes: int = 1,
    name: str = "",
) -> Report:
    """Run a topology once per seed under that seed's faults and check that nothing was lost or
    doubled.

    Spouts in `sources` are fed these rows. The first seed that fails is shrunk to the fewest
    faults; SimulationError ends with one line that runs it again (`only`: numbers of the faults to
    keep). `kinds` names the kinds of faults; all when left out. ValueError names an argument that
    cannot be used.
    """
    subject = (
        topology
        if isinstance(topology, Subject)
        else Subject(_maker(topology), sources or {}, conf or {})
    )
    began = time.monotonic()
    listed = list(seeds)
    _check(subject, listed)
    with quietly():
        every = KINDS if len(subject.stores) == 1 else (*KINDS, *STORE_KINDS)
        named = kinds if kinds is not None else subject.kinds
        chosen = kinds_named(named) if named or kinds is not None else every
        trials = Trials(subject, chosen, most_faults, only)
        failed = _first_failure(trials, listed, processes)
        if failed is not None:
            raise SimulationError(trials.explain(failed, name))
    faults = sum(len(trials.faults(seed)) for seed in listed)
    return Report(len(listed), faults, time.monotonic() - began, trials.reference.uncompared)


def _check(subject: Subject, seeds: Sequence[int]) -> None:
    if strange := [seed for seed in seeds if not isinstance(seed, int)]:
        raise ValueError(f"seeds: expected whole numbers, got {strange[0]!r:.60}")
    made: object = subject.make()
    if not isinstance(made, Topology):
        raise ValueError(
            f"topology: expected a function that returns a Topology, it returned a {type(made).__name__}"
        )
    spouts = {spout.id: spout for spout in made.spouts}
    for spout, rows in subject.sources.items():
        if spout not in spouts:
            raise ValueError(
                f"sources: '{spout}' is no spout; there are {', '.join(sorted(spouts))}"
            )
        declared = spouts[spout].streams.get(DEFAULT_STREAM)
        if (
            declared
            and (bad := next((row for row in rows if len(row) != len(declared.fields)), None))
            is not None
        ):
            raise ValueError(
                f"sources: a row of '{spout}' has {len(declared.fields)} fields, not {len(bad)} as in {bad!r:.60}"
            )


def _maker(topology: Topology | Callable[[], Topology]) -> Callable[[], Topology]:
    return (lambda: topology) if isinstance(topology, Topology) else topology


class Trials:
    """The runs of one subject."""

    def __init__(
        self,
        subject: Subject,
        kinds: Sequence[Kind] = KINDS,
        most_faults: int = 8,
        only: Sequence[int] | None = None,
    ) -> None:
        self.subject = subject
        self._kinds = kinds
        self._most = most_faults
        self._only = only
        self.reference = _reference(subject)

    def faults(self, seed: int) -> tuple[Fault, ...]:
        """The faults of a seed, those that `only` names."""
        drawn = draw_faults(seed, self.reference.scale, self._kinds, self._most)
        if self._only is None:
            return drawn
        if strange := [number for number in self._only if not 0 <= number < len(drawn)]:
            raise ValueError(
                f"only: seed {seed} has no fault {strange[0]}, its {len(drawn)} faults are numbered from 0"
            )
        return tuple(drawn[number] for number in self._only)

    def problem(self, seed: int, faults: Sequence[Fault] | None = None) -> str:
        """Run a seed; return what went wrong, or nothing."""
        trial = Trial(
            self.subject, seed, self.faults(seed) if faults is None else faults, self.reference
        )
        try:
            trial.run()
        except Exception as error:  # any error of a run is a finding
            return "\n".join([f"{type(error).__name__}: {error}", *trial.cluster.log])
        finally:
            trial.cluster.end_threads()
        return ""

    def shrink(self, seed: int) -> list[int]:
        """Numbers of the fewest faults of a failing seed that still fail: leave out halves, then
        quarters, then single ones.
        """
        drawn = self.faults(seed)
        numbers = list(range(len(drawn)))
        size = max(1, len(numbers) // 2)
        while numbers:
            for first in range(0, len(numbers), size):
                fewer = numbers[:first] + numbers[first + size :]
                if self.problem(seed, [drawn[number] for number in fewer]):
                    numbers = fewer
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
            size = min(size, max(1, len(numbers)))
        return numbers if self._only is None else [self._only[number] for number in numbers]

    def explain(self, seed: int, name: str) -> str:
        """Return the finding of a failing seed, shrunk, and the line that runs it again."""
        numbers = self.shrink(seed)
        drawn = draw_faults(seed, self.reference.scale, self._kinds, self._most)
        problem = self.problem(seed, [drawn[number] for number in numbers])
        only = ",".join(map(str, numbers))
        again = f"simulate(topology, seeds=[{seed}], only=[{only}])"
        if name:
            again = f'python -m sparkstorm.testing {name} --seed {seed} --only "{only}"'
        return (
            f"seed {seed}, {len(numbers)} of {len(drawn)} faults: {problem}\nrun it again: {again}"
        )


def _reference(subject: Subject) -> Reference:
    """Run without faults under two seeds; states that differ depend on the order of rows, and are
    not compared.
    """
    trials = [Trial(subject, seed, ()) for seed in (0, 1)]
    for trial in trials:
        try:
            trial.run()
        except Exception as error:  # any error of a run is a finding
            said = "\n".join(
                [f"a run without faults fails: {type(error).__name__}: {error}", *trial.cluster.log]
            )
            raise SimulationError(said) from error
        finally:
            trial.cluster.end_threads()
    count = trials[0].cluster.count
    scale = Scale(
        DURATION_MS, count[Trigger.COMMIT], count[Trigger.NIMBUS_WRITE], count[Trigger.SLOT_WRITE]
    )
    one, other = (trial.final_states for trial in trials)
    same = {component: state for component, state in one.items() if state == other[component]}
    uncompared = tuple(sorted(one.keys() - same.keys()))
    first = trials[0]
    return Reference(same, first.num_dead_letters, scale, first.targets(), uncompared, first.failed)


# -- many processes --------------------------------------------------------------------------------

_shared: dict[str, Trials] = {}


def _fails(seed: int) -> int | None:
    """The seed if it fails; run by a process of the pool, which has the trials from its parent."""
    return seed if _shared["trials"].problem(seed) else None


def _first_failure(trials: Trials, seeds: Sequence[int], processes: int) -> int | None:
    """The first seed that fails."""
    if processes <= 1:
        return next((seed for seed in seeds if trials.problem(seed)), None)
    _shared["trials"] = trials
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        results = pool.imap(_fails, seeds, chunksize=max(1, min(50, len(seeds) // (4 * processes))))
        return next((seed for seed in results if seed is not None), None)


@contextmanager
def quietly() -> Iterator[None]:
    """Log nothing, because faults are what runs are made of; collect garbage in larger lots, since
    each run is one cycle.
    """
    thresholds = gc.get_threshold()
    level = logging.root.manager.disable
    gc.freeze()
    gc.set_threshold(200_000, 5, 5)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
