"""Arithmetic of 10 and 100 hosts from costs measured here: `python -m benchmarks.scale_out [--rounds
N] [--scale F] [--cores N] [--gbits G]`.

Measured, as CPU of workers and of the store, and the kernel's part of each: a commit, a megabyte of
entries (through the transport alone), a word, a tuple of 1 kB and of 10 kB (whole pipelines on two
workers; half of the words and all tuples cross to the other one). Computed from these: how many workers feed a store,
where one topology ends, and what 10 and 100 hosts carry. Nothing here has run on several hosts; a
network of the given speed, and cores like those of this machine, are assumed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.embedded_stores import Owner
from benchmarks.generated import chain
from benchmarks.pipeline import Run, cluster, processes, run
from benchmarks.topologies import word_count
from benchmarks.wordcount import few_words
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.embedded import start_redis
from sparkstorm.model.topology import Topology

FULL = 0.7
"""Share of a store's core that is used at most: at more, its queue adds to every commit."""
SPARE_CORES = 1
"""Cores of a host that are left to slots, Spark, ZooKeeper and the kernel's other work."""
HOSTS = (10, 100)
_TICKS = os.sysconf("SC_CLK_TCK")
_SMALL = 16  # bytes of an entry
_LARGE = 1 << 19
_COMMITS = {_SMALL: 3_000, _LARGE: 300}
_CONF = {"topology.workers": 2, "topology.max.spout.pending": 5_000}


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of CPU of a worker and of the store, with what each spends in the kernel."""

    worker: float
    store: float
    worker_kernel: float = 0.0
    store_kernel: float = 0.0

    @staticmethod
    def median(costs: Sequence[Cost]) -> Cost:
        """Return the medians, one by one."""
        return Cost(
            statistics.median(each.worker for each in costs),
            statistics.median(each.store for each in costs),
            statistics.median(each.worker_kernel for each in costs),
            statistics.median(each.store_kernel for each in costs),
        )

    def per(self, units: float) -> Cost:
        """Return the share of one of so many units."""
        return Cost(
            self.worker / units,
            self.store / units,
            self.worker_kernel / units,
            self.store_kernel / units,
        )

    def less(self, other: Cost) -> Cost:
        """Return what this costs more than another; 0 where it costs less."""
        return Cost(
            max(0.0, self.worker - other.worker),
            max(0.0, self.store - other.store),
            max(0.0, self.worker_kernel - other.worker_kernel),
            max(0.0, self.store_kernel - other.store_kernel),
        )


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of work: what a unit of it costs, and the bytes of it that cross to another host."""

    name: str
    cost: Cost
    bytes: float

    @staticmethod
    def median(loads: Sequence[Load]) -> Load:
        """Return the medians of measurements of one load."""
        cost = Cost.median([each.cost for each in loads])
        return Load(loads[0].name, cost, statistics.median(each.bytes for each in loads))


@dataclass(frozen=True, slots=True)
class Hosts:
    """Equal hosts: their number, the cores of each, and the speed of its network in Gbit/s, each
    way.
    """

    count: int
    cores: int
    gbits: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """Capacity of hosts for a load: units a second, the workers and stores for it, Gbit/s of each
    host, and the resource that is full first ("cores" or "network").
    """

    rate: float
    workers: int
    stores: int
    gbits: float
    ends_at: str


def workers_a_store(load: Load) -> float:
    """Return how many busy workers fill a store."""
    return FULL * load.cost.worker / load.cost.store


def topology_rate(load: Load) -> float:
    """Return the units a second at which one topology ends: its only store is full."""
    return FULL * 1e6 / load.cost.store


def commits_of(cost: Cost) -> float:
    """Return the commits a second that fill a store, however little is in them."""
    return FULL * 1e6 / cost.store


def fleet(load: Load, hosts: Hosts) -> Fleet:
    """Return what the hosts carry, with as many topologies as stores at least, spread evenly.

    A byte of an entry leaves a worker's host for the store's, and that for the receiver's; what
    stays on a host by chance (one in `count`) does not cross.
    """
    cores = hosts.count * (hosts.cores - SPARE_CORES)
    by_cores = cores * 1e6 / (load.cost.worker + load.cost.store / FULL)
    crossing = 2 * load.bytes * (1 - 1 / hosts.count)  # bytes that leave some host, for each unit
    by_network = hosts.count * hosts.gbits * 1e9 / 8 / crossing if crossing else math.inf
    rate = min(by_cores, by_network)
    return Fleet(
        rate,
        math.ceil(rate * load.cost.worker / 1e6),
        math.ceil(rate * load.cost.store / 1e6 / FULL),
        rate * crossing * 8 / 1e9 / hosts.count,
        "cores" if by_cores <= by_network else "network",
    )


# -- measuring -------------------------------------------------------------------------------------


def _used_us(pid: int) -> tuple[float, float]:
    """Return a process's CPU, and its kernel part, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user = int(fields[11])
    system = int(fields[12])
    return (user + system) * 1e6 / _TICKS, system * 1e6 / _TICKS


def measure_commit(size: int) -> Cost:
    """Return the cost of a commit with one entry of that size, which the next one consumes."""
    commits = _COMMITS[size]
    data = b"x" * size
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), password="bench")
        owner = Owner(server)
        try:
            own = _used_us(os.getpid())
            store = _used_us(server.pid)
            for _ in range(commits):
                owner.commit(1, data, b"j" * 50, 0)
            own_after = _used_us(os.getpid())
            store_after = _used_us(server.pid)
        finally:
            owner.close()
            server.stop()
    spent = [after - before for after, before in zip(own_after, own, strict=True)]
    at_store = [after - before for after, before in zip(store_after, store, strict=True)]
    return Cost(spent[0], at_store[0], spent[1], at_store[1]).per(commits)


@dataclass(frozen=True, slots=True)
class Case:
    """A load to measure: its topology, its units, and the components between which all of it must
    cross; with two tasks of each component a half of it does.
    """

    name: str
    topology: Topology
    units: int
    between: tuple[str, ...] = ()


def cases(folder: Path, scale: float) -> list[Case]:
    """Return the loads; tuples have one task of each component, so that their hop crosses wholly or
    not at all.
    """
    lines = few_words(int(3e6 * scale))
    file = folder / "words.txt"
    file.write_text("\n".join(lines))
    words = sum(len(line.split()) for line in lines)
    found = [Case("words", word_count([str(file)], 2), words)]
    for name, size, count in (("1 kB", 1_000, 2e5), ("10 kB", 10_000, 4e4)):
        units = int(count * scale)
        topology = chain(units, 1, size, tasks=1)
        found.append(Case(f"tuples of {name}", topology, units, ("payloads", "sink")))
    return found


def measure_case(on: Cluster, case: Case) -> Load:
    """Return the load of a unit; SystemExit when its rows do not cross between the workers."""
    places: dict[str, str] = {}

    def look(handle: TopologyHandle, _: float) -> None:
        if not places:
            places.update(places_of(on, handle))

    before = _bytes_of_stores()
    taken = run(on, case.topology, {**_CONF, "topology.acker.executors": 2}, watch=look)
    sent = _bytes_of_stores() - before
    if case.between and len({places.get(each, "") for each in case.between}) == 1:
        sys.exit(f"{case.name}: {' and '.join(case.between)} are in one worker, nothing crosses")
    return Load(case.name, cost_of(taken).per(case.units), sent / case.units)


def places_of(on: Cluster, handle: TopologyHandle) -> Mapping[str, str]:
    """Return the worker of each component's last task."""
    assignment = on.state.read_assignment(handle.topology_id)
    placed = {} if assignment is None else assignment.slot_by_executor
    tasks = handle.tasks()
    return {
        tasks[task].component_id: str(slot)
        for executor, slot in placed.items()
        for task in executor.tasks
        if task in tasks
    }


def _bytes_of_stores() -> int:
    """Return the bytes that stores have read from their sockets; they read little else."""
    return sum(process.io_counters().read_chars for kind, process in processes() if kind == "redis")


def cost_of(taken: Run) -> Cost:
    """Return the CPU of a run in microseconds."""
    return Cost(
        taken.cpu["workers"] * 1e6,
        taken.cpu["redis"] * 1e6,
        taken.kernel["workers"] * 1e6,
        taken.kernel["redis"] * 1e6,
    )


# -- tables ----------------------------------------------------------------------------------------


def _amount(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:,.3g} {unit}"
    return f"{number:,.3g}"


def show_costs(commit: Cost, megabyte: Cost, loads: Sequence[Load]) -> str:
    """Return the table of costs."""
    rows = [("commit", commit), ("MB of entries", megabyte)]
    rows += [(load.name, load.cost) for load in loads]
    sizes = {load.name: f"{load.bytes:,.3g}" for load in loads}
    head = "| us of CPU | worker | of it kernel | store | of it kernel | bytes to the store | busy workers a store |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for name, cost in rows:
        fed = f"{FULL * cost.worker / cost.store:,.1f}" if name in sizes else ""
        lines.append(
            f"| {name} | {cost.worker:,.3g} | {cost.worker_kernel:,.3g} | {cost.store:,.3g} | {cost.store_kernel:,.3g} | "
            f"{sizes.get(name, '')} | {fed} |"
        )
    return "\n".join(lines)


def show_fleets(loads: Sequence[Load], cores: int, gbits: float) -> str:
    """Return the table of hosts."""
    head = "| load | one topology ends at | hosts | a second | workers | stores | Gbit/s of a host | ends at |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for load in loads:
        for count in HOSTS:
            at = fleet(load, Hosts(count, cores, gbits))
            lines.append(
                f"| {load.name} | {_amount(topology_rate(load))}/s | {count} | {_amount(at.rate)} | {at.workers:,} | "
                f"{at.stores:,} | {at.gbits:,.1f} | {at.ends_at} |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="sizes of the loads")
    parser.add_argument("--cores", type=int, default=16, help="of each host (16)")
    parser.add_argument("--gbits", type=float, default=25.0, help="of each host's network (25)")
    options = parser.parse_args(arguments)
    small, large = (
        Cost.median([measure_commit(size) for _ in range(options.rounds)])
        for size in (_SMALL, _LARGE)
    )
    found: dict[str, list[Load]] = {}
    with tempfile.TemporaryDirectory() as folder, cluster() as on:
        chosen = cases(Path(folder), options.scale)
        for round_ in range(options.rounds + 1):  # the first warms
            for case in chosen if round_ else chosen[:1]:
                began = time.monotonic()
                load = measure_case(on, case)
                if round_:
                    found.setdefault(case.name, []).append(load)
                words = f"{case.name}: {load.cost.worker:.3g} and {load.cost.store:.3g} us"
                print(
                    f"  round {round_}, {words}, {time.monotonic() - began:.0f} s", file=sys.stderr
                )
    loads = [Load.median(each) for each in found.values()]
    print(show_costs(small, large.less(small).per(_LARGE / 1e6), loads))
    print(f"\n{_amount(commits_of(small))} small commits a second fill a store to {FULL:.0%}.\n")
    print(show_fleets(loads, options.cores, options.gbits))


if __name__ == "__main__":
    main()
