"""Compares schedulers on small problems with the best there is, and times the traffic scheduler.

    python -m benchmarks.placement [--seed 1] [--problems 300] [--used 0.6 0.9] [--large]
    python -m benchmarks.placement --paper [--seed 1] [--clusters 10] [--latex FILE] [--csv FILE]

Problems are drawn from the seed (`sparkstorm/extensions/laboratory/optimum.py`): a topology of at most eight executors
with measured rates and CPU, on nodes that are `--used` full of it. `crossing` and `busiest` are
means of ratios to the least traffic between nodes and the least load of the busiest node, each over
all placements that fit. `best of both` is, by exhaustive search, the placement with the least
crossing times its ratio plus the balance weight times the busiest's: no answer can be better in one
without being worse in the other. `moved` is of a rebalance to one worker more.

`--paper` makes a table of schedulers by shapes of topologies instead, on larger clusters: two
topologies of 12 executors on six nodes in racks of four, `--clusters` of each shape.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from sparkstorm.common.config import keys
from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.extensions.laboratory import SHAPES, Scene, generate, latex, moved, sweep
from sparkstorm.extensions.laboratory.optimum import (
    Small,
    draw,
    least_busiest,
    least_crossing,
    numbers_of,
)

SCHEDULERS = ("even", "default", "multitenant", "jstorm", "resource-aware", "traffic")
CONF: dict[str, Any] = {"multitenant.scheduler.user.pools": {}}
BALANCE_KEY = "traffic.scheduler.balance.weight"
LARGE = ((1_000, 100), (10_000, 1_000))


@dataclass(slots=True)
class Row:
    """Sums over the problems."""

    crossing: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    over: int = 0
    moved: list[float] = field(default_factory=list)
    as_asked: int = 0
    unplaced: int = 0
    seconds: float = 0.0

    def text(self, name: str, problems: int) -> str:
        """Return it as a line of the table."""
        columns = (self.crossing, self.busiest, self.moved)
        shown = [f"{sum(each) / len(each):.3f}" if each else "-" for each in columns]
        cells = (name, shown[0], shown[1], self.over, shown[2], self.as_asked, self.unplaced)
        return f"| {' | '.join(map(str, cells))} | {1000 * self.seconds / problems:.1f} |"


@dataclass(frozen=True, slots=True)
class Reference:
    """A problem with the least that can be reached."""

    scene: Scene
    problem: Small
    crossing: float
    busiest: float

    @classmethod
    def of(cls, scene: Scene) -> Reference:
        """Search all placements."""
        problem = numbers_of(scene)
        crossing, busiest = least_crossing(problem), least_busiest(problem)
        assert crossing and busiest
        return cls(scene, problem, crossing, busiest)

    def judge(self, row: Row, places: list[int]) -> None:
        """Add an answer to a row."""
        busiest = self.problem.busiest(places)
        row.crossing.append(self.problem.crossing(places) / self.crossing)
        row.busiest.append(busiest / self.busiest)
        row.over += busiest > 1.0 + 1e-6

    def best_of_both(self, weight: float) -> list[int]:
        """Return the placement with the least sum of both ratios."""
        nodes = range(len(self.problem.capacity))
        every = (list(each) for each in product(nodes, repeat=len(self.problem.cpu)))
        fitting = (each for each in every if self.problem.fits(each))

        def ratios(places: list[int]) -> float:
            crossing = self.problem.crossing(places) / self.crossing
            return crossing + weight * self.problem.busiest(places) / self.busiest

        return min(fitting, key=ratios)


def measure(name: str, references: Sequence[Reference]) -> Row:
    """Schedule all problems by one scheduler."""
    row = Row()
    for each in references:
        topology = each.scene.topologies[0]
        began = time.process_time()
        after = each.scene.scheduled(name, CONF)
        row.seconds += time.process_time() - began
        placed = after.assignments.get(topology.id, {})
        if len(placed) < len(topology.executors):
            row.unplaced += 1
            continue
        at = {node.id: number for number, node in enumerate(each.scene.supervisors)}
        each.judge(row, [at[placed[executor].node] for executor in topology.executors])
        workers = len(set(placed.values()))
        row.as_asked += workers == each.problem.workers
        slots = sum(each.problem.slots)
        if workers < min(slots, len(topology.executors)):
            asked = after.rebalanced(topology.id, num_workers=workers + 1)
            row.moved.append(float(len(moved(after, asked.scheduled(name, CONF)))))
    return row


def _table(arguments: argparse.Namespace) -> None:
    dice = Random(arguments.seed)
    drawn = (draw(dice, tuple(arguments.used)) for _ in range(arguments.problems))
    references = [Reference.of(each) for each in drawn]
    print("| scheduler | crossing | busiest | over capacity | moved | as asked | unplaced | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.schedulers:
        print(measure(name, references).text(name, len(references)), flush=True)
    weight = float(keys()[BALANCE_KEY].default)
    row = Row()
    for each in references:
        each.judge(row, each.best_of_both(weight))
    row.as_asked = len(references)
    print(row.text("best of both", len(references)))


def _large() -> None:
    print("| executors | nodes | topologies | first, s of CPU |\n|---|---|---|---|")
    for executors, nodes in LARGE:
        for topologies in sorted({1, executors // 1_000}):
            scene = generate(nodes, topologies, executors // topologies, 2 * nodes // topologies)
            cluster = scene.view()
            scheduler = scheduler_by_name("traffic", {})
            began = time.process_time()
            scheduler.schedule(cluster.topologies, cluster)
            took = time.process_time() - began
            print(f"| {executors:,} | {nodes:,} | {topologies} | {took:.2f} |", flush=True)


PAPER: dict[str, Any] = {"num_nodes": [6], "num_topologies": [2], "cluster": ["racked"]}
COLUMNS = ("bytes_between_nodes", "imbalance", "moved_by_rebalance", "throughput")


def _paper(arguments: argparse.Namespace) -> None:
    seeds = range(arguments.seed, arguments.seed + arguments.clusters)
    parameters = {"shapes": list(SHAPES), **PAPER}
    found = sweep(arguments.schedulers, seeds, parameters, CONF, arguments.processes)
    by = ["shapes", "scheduler"]
    rows = found.summary(COLUMNS, by, ratios=["bytes_between_nodes", "throughput"])
    print("| shape | scheduler | crossing | imbalance | moved | throughput |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        cells = [
            f"{row[name]:.2f} ± {row[f'{name}_ci']:.2f}" if row[name] is not None else "-"
            for name in COLUMNS
        ]
        print(f"| {row['shapes']} | {row['scheduler']} | {' | '.join(cells)} |")
    if arguments.latex:
        caption = "Bytes between nodes and throughput by those of default, with 95 % intervals"
        Path(arguments.latex).write_text(latex(rows, caption), encoding="utf-8")
    if arguments.csv:
        found.to_csv(arguments.csv)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schedulers", nargs="*", default=SCHEDULERS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--used", type=float, nargs=2, default=(0.6, 0.9), metavar="SHARE")
    parser.add_argument("--large", action="store_true", help="time large clusters instead")
    parser.add_argument("--paper", action="store_true", help="schedulers by shapes instead")
    parser.add_argument("--clusters", type=int, default=10, help="of each shape")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--latex", metavar="FILE")
    parser.add_argument("--csv", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.paper:
        _paper(arguments)
    elif arguments.large:
        _large()
    else:
        _table(arguments)


if __name__ == "__main__":
    main()
