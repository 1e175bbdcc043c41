"""Many runs of a topology on a simulated cluster, each under faults drawn from its seed: nothing may be lost, doubled or left open.

`python -m sparkstorm.testing.simulate MODULE:FUNCTION --seeds 10000` runs what the function returns: a Topology, or a Subject.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.api.builder import TopologyBuilder
from sparkstorm.blobs.topology_code import pack_topology
from sparkstorm.errors import SparkStormError
from sparkstorm.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.model.topology import Topology
from sparkstorm.testing.components import FeederSpout, Nothing
from sparkstorm.testing.faults import KINDS, Fault, Kind, Scale, Trigger, draw_faults, kinds_named
from sparkstorm.testing.harmed_cluster import HarmedCluster
from sparkstorm.testing.invariants import Invariants

Rows = Sequence[Sequence[Any]]
_MAIN, _OTHER = "main", "other"
_FEED_MS = 5_000  # rows come spread over so long
_DURATION_MS = 8_000  # within which faults begin
_SETTLE_MS = 240_000  # within which everything must settle once the last fault is over
_LOOK_MS = 250
_MOST_STEPS = 60_000


class SimulationError(AssertionError):
    """A run under faults lost, doubled or left something; the message ends with the line that runs it again."""


@dataclass(frozen=True)
class Subject:
    """What is simulated: `make` returns a fresh topology, whose spouts named in `sources` are fed those rows.

    `check` is called at the end of each run with the cluster and the name of the topology.
    """

    make: Callable[[], Topology]
    sources: Mapping[str, Rows] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[HarmedCluster, str], None] | None = None


@dataclass(frozen=True)
class Reference:
    """What unharmed runs gave: states of the bolts that depend on no order, dead letters, and how far the triggers counted."""

    states: Mapping[str, Mapping[str, list[str]]]
    num_dead_letters: int
    scale: Scale


@dataclass(frozen=True)
class Report:
    """What `simulate` did."""

    runs: int
    faults: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.runs} seeds, {self.faults} faults, nothing lost, doubled or left open; {self.seconds:.1f} s"


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
    """Run a topology once per seed, each time under the faults of that seed, and check that nothing was lost or doubled.

    Spouts in `sources` are fed these rows. The first seed that fails is shrunk to the fewest faults that still fail, and
    SimulationError ends with one line that runs it again (`only`: numbers of the faults to keep). `kinds` names the kinds of
    faults; all when left out.
    """
    subject = topology if isinstance(topology, Subject) else Subject(_maker(topology), sources or {}, conf or {})
    trials = Trials(subject, tuple(KINDS) if kinds is None else kinds_named(kinds), most_faults, only)
    began, listed = time.monotonic(), list(seeds)
    failed = _first_failure(trials, listed, processes)
    if failed is not None:
        raise SimulationError(trials.explain(failed, name))
    return Report(len(listed), sum(len(trials.faults(seed)) for seed in listed), time.monotonic() - began)


def _maker(topology: Topology | Callable[[], Topology]) -> Callable[[], Topology]:
    return (lambda: topology) if isinstance(topology, Topology) else topology


class Trials:
    """The runs of one subject."""

    def __init__(
        self, subject: Subject, kinds: Sequence[Kind] = KINDS, most_faults: int = 8, only: Sequence[int] | None = None
    ) -> None:
        self.subject, self._kinds, self._most, self._only = subject, kinds, most_faults, only
        self.reference = _reference(subject)

    def faults(self, seed: int) -> tuple[Fault, ...]:
        """The faults of a seed, those that `only` names."""
        drawn = draw_faults(seed, self.reference.scale, self._kinds, self._most)
        return drawn if self._only is None else tuple(drawn[number] for number in self._only)

    def problem(self, seed: int, faults: Sequence[Fault] | None = None) -> str:
        """Run a seed; what went wrong, or nothing."""
        trial = Trial(self.subject, seed, self.faults(seed) if faults is None else faults, self.reference)
        try:
            trial.run()
        except Exception as error:  # whatever a run raises is what it has found
            return "\n".join([f"{type(error).__name__}: {error}", *trial.cluster.log])
        return ""

    def shrink(self, seed: int) -> list[int]:
        """Numbers of the fewest faults of a failing seed that still fail: leave out halves, then quarters, then single ones."""
        drawn = self.faults(seed)
        kept = list(range(len(drawn)))
        size = max(1, len(kept) // 2)
        while kept:
            for first in range(0, len(kept), size):
                fewer = kept[:first] + kept[first + size :]
                if self.problem(seed, [drawn[number] for number in fewer]):
                    kept = fewer
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
            size = min(size, max(1, len(kept)))
        return kept if self._only is None else [self._only[number] for number in kept]

    def explain(self, seed: int, name: str) -> str:
        """What a failing seed shows, shrunk, and the line that runs it again."""
        kept = self.shrink(seed)
        drawn = draw_faults(seed, self.reference.scale, self._kinds, self._most)
        problem = self.problem(seed, [drawn[number] for number in kept])
        only = ",".join(map(str, kept))
        again = f"simulate(topology, seeds=[{seed}], only=[{only}])"
        if name:
            again = f'python -m sparkstorm.testing.simulate {name} --seed {seed} --only "{only}"'
        return f"seed {seed}, {len(kept)} of {len(drawn)} faults: {problem}\nrun it again: {again}"


class Trial:
    """One run of a subject under the faults of one seed."""

    def __init__(self, subject: Subject, seed: int, faults: Sequence[Fault], reference: Reference | None = None) -> None:
        self._subject, self._reference = subject, reference
        self._chance = random.Random(seed)
        conf = {"topology.message.timeout.secs": 3600, "topology.workers": 3, **subject.conf}
        self.cluster = HarmedCluster(seed, faults, {})
        self._conf, self._topology = conf, subject.make()
        self.feeders = {spout: FeederSpout(self._topology.components[spout].streams) for spout in subject.sources}
        self._main = _fed(self._topology, self.feeders)
        self._other = _other_topology()
        self._requests = [fault for fault in faults if fault.kind.name in _REQUESTS]

    def run(self) -> None:
        """Submit, feed, suffer, recover, check."""
        cluster = self.cluster
        cluster.simulation.watchers.append(Invariants(cluster))
        cluster.simulation.most_steps = _MOST_STEPS
        started_ms = cluster.now_ms
        self._feed()
        self._ask(lambda: cluster.submit(self._main, self._conf, _MAIN), "submit")
        if _MAIN not in self._names():
            self._ask(lambda: cluster.submit(self._main, self._conf, _MAIN), "submit again")
        for at_ms, ask, what in sorted(self._timed_requests(started_ms), key=lambda each: each[0]):
            self._run_to(at_ms)
            self._ask(ask, what)
        self._run_to(started_ms + _DURATION_MS)
        self._recover()
        self._check()
        cluster.close()

    def _feed(self) -> None:
        for spout, rows in self._subject.sources.items():
            moments = sorted(self._chance.randint(0, _FEED_MS) for _ in rows)
            for moment, row in zip(moments, rows, strict=True):
                self.cluster.after(moment, self._feeding(self.feeders[spout], row))

    def _feeding(self, feeder: FeederSpout, row: Sequence[Any]) -> Callable[[], None]:
        def feed() -> None:
            feeder.feed(row)
            self.cluster._wake_workers()

        return feed

    def _run_to(self, moment_ms: int) -> None:
        self.cluster.simulation.advance(max(0, moment_ms - self.cluster.now_ms))

    def _names(self) -> list[str]:
        return [each.rsplit("-", 2)[0] for each in self.cluster.storm_state.topology_ids()]

    # -- requests --------------------------------------------------------------------------------------------------

    def _timed_requests(self, started_ms: int) -> Iterator[tuple[int, Callable[[], object], str]]:
        service = self.cluster.service
        for fault in self._requests:
            at_ms, name = started_ms + fault.at, fault.kind.name
            if name == "DEACTIVATE":
                yield at_ms, lambda: self.cluster.service.deactivate(_MAIN), str(fault)
                yield at_ms + fault.size, lambda: self.cluster.service.activate(_MAIN), f"the end of {fault}"
            elif name == "REBALANCE":
                options = RebalanceOptions(1 + fault.pick % 4, {}, reassign=fault.pick % 3 == 0)
                yield at_ms, lambda options=options: self.cluster.service.rebalance(_MAIN, options, 0), str(fault)  # type: ignore[misc]
            elif name == "UPDATE":
                yield at_ms, self._update, str(fault)
            elif name == "SUBMIT_OTHER":
                yield at_ms, lambda: self._submit(_OTHER, self._other, {"topology.workers": 1}), str(fault)
            elif name == "KILL_OTHER":
                yield at_ms, lambda: self.cluster.service.kill(_OTHER, 0), str(fault)
        del service

    def _submit(self, name: str, topology: Topology, conf: Mapping[str, Any]) -> None:
        self.cluster.service.submit(name, topology, conf, pack_topology(topology))

    def _update(self) -> None:
        self._submit(_MAIN, self._main, {**self._conf, "topology.hot.deploy.enable": True})

    def _ask(self, ask: Callable[[], object], what: str) -> None:
        try:
            ask()
        except SparkStormError as refusal:
            self.cluster.say(f"{what}: refused: {type(refusal).__name__}: {refusal}")
        else:
            self.cluster.say(f"{what}: done")

    # -- the end ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Let all faults end, activate what rests, and wait until nothing waits."""
        cluster = self.cluster
        while cluster.has_more:
            cluster.simulation.advance(_LOOK_MS)
        cluster.is_over = True
        cluster.say("no more faults")
        until_ms = cluster.now_ms + _SETTLE_MS
        for feeder in self.feeders.values():
            feeder.finish()
        cluster._wake_workers()
        while waiting := self._waiting():
            assert cluster.now_ms < until_ms, f"not settled {_SETTLE_MS // 1000} s after the last fault: {'; '.join(waiting[:6])}"
            if any(phrase.endswith("is INACTIVE") for phrase in waiting):
                self._ask(lambda: cluster.service.activate(_MAIN), "activate")
            cluster.simulation.advance(_LOOK_MS)

    def _waiting(self) -> list[str]:
        """What is not settled, a phrase each; the cheap looks first."""
        cluster, state = self.cluster, self.cluster.storm_state
        ids = state.topology_ids()
        if _MAIN not in self._names():
            return [f"topology {_MAIN} is gone"]
        found = [f"{each} has left traces" for each in sorted(state.known_ids() - set(ids))]
        found += [f"data of {each} are left" for each in cluster.data_plane.all() if each not in ids]
        found += [f"a hot deploy of {each} is not finished" for each in state.deploy_names()]
        for each in ids:
            base = state.read_base(each)
            if base is None or base.pending or base.status is not TopologyStatus.ACTIVE:
                found.append(f"{each} is {base.status if base else 'gone'}")
        found = found or [f"{feeder.outputs}: not all acked" for feeder in self.feeders.values() if self._unsettled(feeder)]
        return found or cluster._waiting()

    def _unsettled(self, feeder: FeederSpout) -> bool:
        return len(set(feeder.acked)) + len(set(feeder.failed)) < len(feeder._feed.value)

    def _check(self) -> None:
        """Compare with what unharmed runs gave."""
        cluster, reference = self.cluster, self._reference
        topology = cluster.topology(_MAIN)
        if self._subject.check is not None:
            self._subject.check(cluster, _MAIN)
        if reference is None or self._conf.get("topology.delivery.guarantee", "exactly-once") != "exactly-once":
            return
        for spout, feeder in self.feeders.items():
            fed = set(range(len(feeder._feed.value)))
            assert set(feeder.acked) == fed, f"spout {spout}: messages {sorted(fed - set(feeder.acked))[:10]} were not acked"
            assert not feeder.failed, f"spout {spout}: messages {feeder.failed[:10]} failed"
        for component, wanted in reference.states.items():
            found = _state(topology.states(component))
            assert found == wanted, f"state of '{component}': {_difference(found, wanted)}"
        letters = len(topology.dead_letters())
        assert letters == reference.num_dead_letters, f"{letters} dead letters, {reference.num_dead_letters} in an unharmed run"
        assert not topology.store.quarantine, "frames were put into quarantine"


_REQUESTS = {"DEACTIVATE", "REBALANCE", "UPDATE", "SUBMIT_OTHER", "KILL_OTHER"}


def _fed(topology: Topology, feeders: Mapping[str, FeederSpout]) -> Topology:
    return Topology(
        {each.id: replace(each, instance=feeders[each.id]) if each.id in feeders else each for each in topology.components.values()}
    )


def _other_topology() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout())
    builder.set_bolt("nothing", Nothing()).shuffle_grouping("spout")
    return builder.build()


def _state(by_task: Mapping[int, Mapping[Any, Any]]) -> dict[str, list[str]]:
    """A component's state without its tasks: values by key."""
    found: dict[str, list[str]] = {}
    for state in by_task.values():
        for key, value in state.items():
            found.setdefault(repr(key), []).append(repr(value))
    return {key: sorted(values) for key, values in found.items()}


def _difference(found: Mapping[str, list[str]], wanted: Mapping[str, list[str]]) -> str:
    keys = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    shown = "; ".join(f"{key} is {found.get(key)}, not {wanted.get(key)}" for key in keys[:4])
    return f"{len(keys)} keys differ: {shown}"


def _reference(subject: Subject) -> Reference:
    """Run without faults under two seeds; states that differ depend on the order of rows, and are not compared."""
    runs = []
    for seed in (0, 1):
        trial = Trial(subject, seed, ())
        trial.run_unharmed = None  # type: ignore[attr-defined]
        runs.append(_unharmed(trial))
    (states, letters, scale), (others, _, _) = runs
    same = {component: state for component, state in states.items() if state == others[component]}
    return Reference(same, letters, scale)


def _unharmed(trial: Trial) -> tuple[dict[str, dict[str, list[str]]], int, Scale]:
    kept: list[tuple[dict[str, dict[str, list[str]]], int]] = []

    def look() -> None:
        topology = trial.cluster.topology(_MAIN)
        kept.append(({each.id: _state(topology.states(each.id)) for each in trial._main.bolts}, len(topology.dead_letters())))

    trial._check = look  # type: ignore[method-assign]
    trial.run()
    count = trial.cluster.count
    scale = Scale(_DURATION_MS, count[Trigger.COMMIT], count[Trigger.NIMBUS_WRITE], count[Trigger.SLOT_WRITE])
    return (*kept[0], scale)


# -- many processes ------------------------------------------------------------------------------------------------

_shared: dict[str, Trials] = {}


def _fails(seed: int) -> int | None:
    """The seed if it fails; run by a process of the pool, which has the trials from its parent."""
    return seed if _shared["trials"].problem(seed) else None


def _first_failure(trials: Trials, seeds: Sequence[int], processes: int) -> int | None:
    """The first seed that fails."""
    with _collecting_seldom():
        if processes <= 1:
            return next((seed for seed in seeds if trials.problem(seed)), None)
        _shared["trials"] = trials
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            found = pool.imap(_fails, seeds, chunksize=max(1, min(50, len(seeds) // (4 * processes))))
            return next((seed for seed in found if seed is not None), None)


class _collecting_seldom:
    """While inside, the garbage of runs is collected in larger lots: each run leaves one large cycle."""

    def __enter__(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(200_000, 5, 5)

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()


def main(arguments: Sequence[str]) -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m sparkstorm.testing.simulate", description=str(__doc__).partition("\n")[0])
    parser.add_argument("topology", help="MODULE:FUNCTION that returns a Topology or a sparkstorm.testing.Subject")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--only", help="numbers of that seed's faults, with commas; all when left out")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    module, _, function = options.topology.partition(":")
    made = getattr(importlib.import_module(module), function)
    subject = made() if isinstance(made(), Subject) else made
    only = None if options.only is None else [int(number) for number in options.only.split(",") if number]
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    try:
        print(simulate(subject, seeds, only=only, processes=options.processes, name=options.topology))
    except SimulationError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
