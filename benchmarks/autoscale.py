"""Simulates autoscaled topologies under loads drawn from seeds: steps, turns, and backlogs in time.

    python -m benchmarks.autoscale [--seeds 10000] [--first 0] [--processes 2]

A topology of one source and two to five bolts with queues and backpressure is scaled by the planner
and the rule of Nimbus's duty, once a minute, from what the last minutes measured with an error of
2 %. A change stops all rows for 20 s; in one of three runs a worker is lost for 30 s, once an hour. A
run is 4 hours, that of the wave 26; nothing is measured in its first 5 minutes. `turns` is the
greatest number of changes of direction within an hour, `steps` that of plans after the change of a
load that then stays, `late` how many runs had a backlog after 1.2 times the catch-up time, from the
first measurement or the plan that grew last on; `named` how many runs named a bottleneck.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from sparkstorm.extensions.autoscale.model import (
    Bounds,
    ComponentLoad,
    Plan,
    Source,
    TaskWork,
    TopologyLoad,
)
from sparkstorm.extensions.autoscale.planning import due, plan

KINDS = ("step", "ramp", "wave", "spike", "hot key", "slow sink", "end", "no lag")
STAYS = ("step", "spike", "hot key", "slow sink", "end")
STEP_S = 20
GRACE_S = 300
PAUSE_S = 20
CHANGE_S = 3600  # when the load changes first
OVERHEAD = 1.1  # CPU of a row's commit, as a multiple of its time in code
ERROR = 0.02
TASKS = 24
SLOTS = 500


@dataclass(slots=True)
class Part:
    """A component: seconds of a core for a row, rows out by rows in, and its queue."""

    id: str
    cost: float
    inputs: dict[str, float] = field(default_factory=dict)  # rows by a sender's row
    is_keyed: bool = False
    hot: float = 0.0  # share of one task
    most_per_s: float = math.inf  # of what it writes to
    executors: int = 1
    queue: float = 0.0


@dataclass(slots=True)
class Moment:
    """Result of a step."""

    arrived: float
    rows: float  # that the source has read
    held: float


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run."""

    kind: str
    seed: int
    plans: int
    turns: int
    steps: int
    is_late: bool
    named: tuple[str, ...]
    is_wrongly_down: bool  # shrank while an executor was above the band


def executor_of(task: int, executors: int) -> int:
    """Return the executor of a task; the first ones have one task more where they do not divide."""
    base, larger = divmod(TASKS, executors)
    in_larger = larger * (base + 1)
    return task // (base + 1) if task < in_larger else larger + (task - in_larger) // base


class World:
    """One topology under one load."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.kind = KINDS[seed % len(KINDS)]
        self.base_per_s = 10 ** random.uniform(1.5, 4)
        self.factor = random.uniform(2, 6)
        self.knows_backlog = self.kind != "no lag"
        self.has_faults = random.random() < 1 / 3
        self.spike_s = random.uniform(300, 900)
        self.rates: dict[str, float] = {"source": 1.0}  # rows by a row of the source
        self.parts = self._drawn()
        self.workers = 1
        self.now_s = 0
        self.placed_s = 0
        self.stops_s = 0
        self.backlog = self.base_per_s * 3600 * random.uniform(2, 4) if self.kind == "end" else 0.0
        self.history: deque[Moment] = deque(maxlen=600 // STEP_S)
        self.bounds = Bounds()
        start = plan(self._load_at(self.base_per_s), self.bounds)
        self._apply(start)

    def _drawn(self) -> list[Part]:
        random = self.random
        # at most some dozens of cores, so that tasks are enough
        cores = 10 ** random.uniform(-1, 0.2)
        source = Part("source", 0.1 * cores / self.base_per_s)
        parts = [source]
        rates = self.rates
        count = random.randint(2, 5)
        for index in range(count):
            name = f"bolt{index}"
            senders = {random.choice(parts).id, parts[-1].id}
            inputs = {sender: random.uniform(0.3, 2.0) for sender in sorted(senders)}
            rates[name] = sum(rates[sender] * ratio for sender, ratio in inputs.items())
            cost = cores * random.uniform(0.2, 1.0) / count / (rates[name] * self.base_per_s)
            parts.append(Part(name, cost, inputs, is_keyed=random.random() < 0.5))
        if self.kind == "hot key":
            hot = random.choice(parts[1:])
            hot.is_keyed, hot.hot = True, random.uniform(0.5, 0.9)
            rate = rates[hot.id] * self.base_per_s
            # At the base rate its hot task keeps up, after the step it does not.
            hot.cost = random.uniform(0.5, 0.7) / (rate * hot.hot * OVERHEAD)
        if self.kind == "slow sink":
            sink = parts[-1]
            sink.most_per_s = rates[sink.id] * self.base_per_s * random.uniform(1.1, 1.5)
            sink.cost /= 20
        return parts

    # -- load --------------------------------------------------------------------------------------

    def arrives(self, time_s: float) -> float:
        """Return the rows per second that arrive."""
        base, factor, since_s = self.base_per_s, self.factor, time_s - CHANGE_S
        match self.kind:
            case "ramp":
                return base * (1 + (factor - 1) * min(1.0, max(0.0, since_s / 3600)))
            case "wave":
                return base * (1 + (factor - 1) * (1 - math.cos(2 * math.pi * time_s / 86_400)) / 2)
            case "spike":
                return base * (factor if 0 <= since_s < self.spike_s else 1.0)
            case "end":
                return 0.0
            case _:
                return base * (factor if since_s >= 0 else 1.0)

    @property
    def length_s(self) -> int:
        """Return how long it runs."""
        return 26 * 3600 if self.kind == "wave" else 4 * 3600

    # -- queues ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let twenty seconds pass. Queues within hold seconds, by backpressure, so the rows of all
        components go with those of the source.
        """
        arrived = self.arrives(self.now_s) * STEP_S
        self.backlog += arrived
        self.now_s += STEP_S
        share = 0.0 if self.now_s <= self.stops_s else 1.0
        rows = min(self.backlog, self.most_per_s * STEP_S) * share
        could = min(self.backlog, self.source_per_s * STEP_S) * share
        self.backlog -= rows
        is_full = rows < could
        self.limit.queue = 2.5 * self.most_per_s * self.rates[self.limit.id] if is_full else 0.0
        self.history.append(Moment(arrived, rows, 1.0 - rows / could if is_full else 0.0))

    def _place(self) -> None:
        """Deal the executors to the workers, and find what limits the rate of the source."""
        used = [0.0] * self.workers  # of each core, by a row per second of the source
        largest: dict[int, tuple[float, Part]] = {}
        limits: list[tuple[float, int, Part]] = []
        first = 0
        for number, part in enumerate(self.parts):
            part.queue = 0.0
            of_all = self.rates[part.id] * part.cost * OVERHEAD
            counts = Counter(executor_of(task, part.executors) for task in range(TASKS))
            limits.append((TASKS / (of_all * counts[0]), number, part))
            if part.hot:
                limits.append((1 / (of_all * part.hot), number, part))
            if part.most_per_s < math.inf:
                limits.append((part.most_per_s / self.rates[part.id], number, part))
            for index in range(first, first + part.executors):
                worker = index % self.workers
                load = of_all * counts[index - first] / TASKS
                used[worker] += load
                largest[worker] = max(
                    largest.get(worker, (0.0, part)), (load, part), key=lambda pair: pair[0]
                )
            first += part.executors
        for worker, of_core in enumerate(used):
            if of_core:
                limits.append((1 / of_core, -1, largest[worker][1]))
        self.most_per_s, _, self.limit = min(limits, key=lambda limit: limit[:2])
        source = self.parts[0]
        self.source_per_s = source.executors / (source.cost * OVERHEAD)

    # -- scaling -----------------------------------------------------------------------------------

    def load(self) -> TopologyLoad | None:
        """Return what the last minutes measured; None within the grace time."""
        settled_s = self.now_s - self.placed_s
        if settled_s < GRACE_S:
            return None
        recent = list(self.history)[-120 // STEP_S :]
        read = sum(each.rows for each in recent) / (len(recent) * STEP_S)
        slow_read = sum(each.rows for each in self.history) / (len(self.history) * STEP_S)
        held = sum(each.held for each in recent) / len(recent)
        if self.knows_backlog:
            fast = sum(each.arrived for each in recent) / (len(recent) * STEP_S)
            slow = sum(each.arrived for each in self.history) / (len(self.history) * STEP_S)
            source = Source(max(fast, slow), self.backlog, held, is_exhausted=self.is_at_end)
        else:
            fast = read / (1 - min(0.9, held))
            source = Source(max(fast, slow_read), 0.0, held, knows_backlog=False)
        rows = {part.id: self._measured(read * self.rates[part.id]) for part in self.parts}
        sent = {
            (sender, part.id): read * self.rates[sender] * ratio
            for part in self.parts
            for sender, ratio in part.inputs.items()
        }
        return self._made(rows, sent, source, settled_s)

    @property
    def is_at_end(self) -> bool:
        """Return whether a source with an end has reached it."""
        return self.kind == "end" and self.backlog < 1

    def _measured(self, value: float) -> float:
        return value * self.random.uniform(1 - ERROR, 1 + ERROR)

    def _load_at(self, rate: float) -> TopologyLoad:
        """Return the load at a rate, with which a run begins well placed."""
        rows = {part.id: rate * self.rates[part.id] for part in self.parts}
        sent = {
            (sender, part.id): rows[sender] * ratio
            for part in self.parts
            for sender, ratio in part.inputs.items()
        }
        return self._made(rows, sent, Source(rate), 10**6)

    def _made(
        self,
        rows: dict[str, float],
        sent: dict[tuple[str, str], float],
        source: Source,
        settled_s: int,
    ) -> TopologyLoad:
        components = []
        first = 0
        for part in self.parts:
            rest = (1 - part.hot) / (TASKS - 1) if part.hot else 1 / TASKS
            shares = [part.hot or rest, *[rest] * (TASKS - 1)]
            busy = self._measured(part.cost)
            tasks = tuple(
                TaskWork(
                    number,
                    executor_of(number, part.executors),
                    f"worker{(first + executor_of(number, part.executors)) % self.workers}",
                    rows[part.id] * share,
                    rows[part.id] * share * busy,
                    rows[part.id] * share * busy * OVERHEAD,
                    rows[part.id] * share * busy * OVERHEAD,
                )
                for number, share in enumerate(shares)
            )
            first += part.executors
            components.append(
                ComponentLoad(
                    part.id,
                    tasks,
                    {sender: sent[sender, part.id] for sender in part.inputs},
                    part.queue,
                    part.is_keyed,
                    source if part.id == "source" else None,
                )
            )
        return TopologyLoad(tuple(components), self.workers, SLOTS, 0.0, settled_s * 1000)

    def _apply(self, found: Plan) -> None:
        for part, planned in zip(self.parts, found.components, strict=True):
            part.executors = planned.wanted
        self.workers = found.wanted_workers
        self._place()
        self.placed_s = self.now_s
        self.stops_s = self.now_s + PAUSE_S

    def run(self) -> Result:
        """Run to the end."""
        plans: list[tuple[int, int]] = []  # time and direction
        named: set[str] = set()
        is_wrongly_down = False
        clear_s = 0  # since when there has been no backlog
        grown_s = 0
        is_late = False
        while self.now_s < self.length_s and not self.is_at_end:
            if self.has_faults and self.now_s % 3600 == 1800:
                self.stops_s = self.now_s + 30
            self.step()
            arrived = max(self.arrives(self.now_s), self.base_per_s)
            if self.backlog <= 10 * arrived:
                clear_s = self.now_s
            elif (
                self.now_s - max(grown_s, clear_s, GRACE_S) > 1.2 * self.bounds.catch_up_s + PAUSE_S
            ):
                is_late = True
            if self.now_s % 60 or (load := self.load()) is None:
                continue
            if self.now_s % 600 == 0:
                lines = plan(load, self.bounds).components
                named |= {part.bottleneck for part in lines if part.bottleneck}
            if (now := due(load, self.bounds, GRACE_S * 1000)) is None:
                continue
            before = self.workers, sum(part.executors for part in self.parts)
            busiest = max(max(each.executors.values()) for each in load.components)
            self._apply(now)
            after = self.workers, sum(part.executors for part in self.parts)
            direction = 1 if after > before else -1
            is_wrongly_down |= direction < 0 and busiest > self.bounds.high
            grown_s = self.now_s if direction > 0 else grown_s
            plans.append((self.now_s, direction))
        changes = [time_s for (_, one), (time_s, other) in pairwise(plans) if one != other]
        turns = max((sum(0 <= b - a < 3600 for b in changes) for a in changes), default=0)
        ups = sum(direction > 0 for _, direction in plans)
        downs = len(plans) - ups
        return Result(
            self.kind,
            self.seed,
            len(plans),
            turns,
            max(ups, downs) if self.kind in STAYS else 0,
            is_late,
            tuple(sorted(named)),
            is_wrongly_down,
        )


def run(seed: int) -> Result:
    """Run one seed."""
    return World(seed).run()


def table(results: Sequence[Result]) -> str:
    """Return a line for each kind of load."""
    by_kind: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_kind[result.kind].append(result)
    lines = [
        "| load | runs | plans, mean | turns | steps | late | named | down while busy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        if not (of := by_kind[kind]):
            continue
        cells = (
            kind,
            len(of),
            f"{sum(each.plans for each in of) / len(of):.1f}",
            max(each.turns for each in of),
            max(each.steps for each in of) if kind in STAYS else "-",
            sum(each.is_late for each in of),
            sum(bool(each.named) for each in of),
            sum(each.is_wrongly_down for each in of),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=700)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = list(pool.map(run, seeds, chunksize=20))
    print(table(results))


if __name__ == "__main__":
    main()
