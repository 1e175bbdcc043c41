"""Cost curves of the whole pipeline: workers, tasks, tuple size, depth, fan-out and keys, each as a
table and a plot.

Run: python -m benchmarks.curves [--only NAME ...] [--runs N] [--scale F] [--storm]. Exactly-once,
acking on, 2 workers unless the curve varies them. Every point is a median over rounds that go
through all points in turn, beside a bare Python loop of the same work. With --storm, Apache Storm
then does the same work on as many worker JVMs, acked and kept in memory only: one run a point, the
median of three phases after a cold one (needs Maven and a JDK 17).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generated import chain
from benchmarks.peers.storm.runner import Job, class_path, phases, run_job
from benchmarks.pipeline import KINDS, Run, cluster, run
from benchmarks.plots import line_plot
from benchmarks.topologies import word_count
from benchmarks.wordcount import few_words
from sparkstorm.app.cluster import Cluster
from sparkstorm.model.topology import Topology

PLOTS = Path(__file__).parent / "plots"
STORM_PHASES = 4
CONF = {"topology.workers": 2, "topology.acker.executors": 2, "topology.max.spout.pending": 5_000}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve: its place, a topology, its units of work, and the same work as a bare
    loop and as a job of Storm.
    """

    at: int
    topology: Topology
    conf: Mapping[str, Any]
    units: int
    bare: Callable[[], None]
    storm: Job
    texts: Sequence[Path] = ()
    check: Callable[[Run], bool] = lambda _: True
    state_of: str | None = None


def keys_curve(folder: Path, scale: float) -> list[Point]:
    """Word count over 1 k to 5 M different words, drawn evenly: the cost of state."""
    counts = (1_000, 10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000)
    return [_words(folder, keys, even_words(int(3e6 * scale), keys)) for keys in counts]


def workers_curve(folder: Path, scale: float) -> list[Point]:
    """Word count on 1 to 4 workers."""
    lines = few_words(int(3e6 * scale))
    return [
        _words(folder, workers, lines, {"topology.workers": workers}) for workers in (1, 2, 3, 4)
    ]


def tasks_curve(folder: Path, scale: float) -> list[Point]:
    """Word count with 1 to 64 tasks of each component."""
    lines = few_words(int(2e6 * scale))
    return [_words(folder, tasks, lines, tasks=tasks) for tasks in (1, 2, 4, 8, 16, 32, 64)]


def fan_out_curve(folder: Path, scale: float) -> list[Point]:
    """Lines of 1 to 64 words: tuples per tree."""
    found = []
    for words in (1, 2, 4, 8, 16, 32, 64):
        total = int(min(3e6, 5e5 * words) * scale)
        found.append(_words(folder, words, even_words(total, 1000, words)))
    return found


def size_curve(folder: Path, scale: float) -> list[Point]:
    """Tuples of 10 B to 10 kB over one hop to the other worker."""
    return [
        _chain(size, int(n * scale), 1, size)
        for size, n in ((10, 4e5), (100, 4e5), (1_000, 2e5), (10_000, 5e4))
    ]


def depth_curve(folder: Path, scale: float) -> list[Point]:
    """1 to 6 hops of small tuples, each to either worker."""
    return [_chain(depth, int(3e5 * scale), depth, 10) for depth in (1, 2, 3, 4, 5, 6)]


def pending_curve(folder: Path, scale: float) -> list[Point]:
    """Word count with 20 to 20,000 open trees per spout task (`topology.max.spout.pending`); 0 is
    `auto`.
    """
    lines = few_words(int(3e6 * scale))
    limits = (0, 20, 100, 300, 1_000, 2_000, 5_000, 20_000)
    return [
        _words(folder, limit, lines, {"topology.max.spout.pending": limit or "auto"})
        for limit in limits
    ]


CURVES: dict[str, tuple[Callable[[Path, float], list[Point]], str, str]] = {
    "keys": (keys_curve, "different words", "words/s"),
    "workers": (workers_curve, "workers", "words/s"),
    "tasks": (tasks_curve, "tasks of each component", "words/s"),
    "size": (size_curve, "bytes of a tuple", "tuples/s"),
    "depth": (depth_curve, "hops", "tuples/s"),
    "pending": (pending_curve, "open trees per spout task", "words/s"),
    "fan-out": (fan_out_curve, "words of a line", "words/s"),
}


def even_words(words: int, keys: int, per_line: int = 10) -> list[str]:
    """Lines of words drawn evenly from a number of keys."""
    picked = [f"w{i}" for i in np.random.default_rng(42).integers(0, keys, words).tolist()]
    return [" ".join(picked[i : i + per_line]) for i in range(0, len(picked), per_line)]


def _words(
    folder: Path,
    at: int,
    lines: Sequence[str],
    conf: Mapping[str, Any] | None = None,
    tasks: int = 2,
) -> Point:
    files = [folder / f"{at}-{i}.txt" for i in range(max(2, tasks))]
    for i, file in enumerate(files):
        file.write_text("\n".join(lines[i :: len(files)]))
    expected = Counter(word for line in lines for word in line.split())

    def bare() -> None:
        counts: dict[str, int] = {}
        for line in lines:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1

    topology = word_count([str(file) for file in files], tasks)
    conf = {**CONF, **(conf or {})}
    job = Job("words", STORM_PHASES, conf["topology.workers"], tasks)
    return Point(
        at,
        topology,
        conf,
        expected.total(),
        bare,
        job,
        files,
        lambda r: r.state == expected,
        "count",
    )


def _chain(at: int, count: int, hops: int, size: int) -> Point:
    payload = "x" * size

    def bare() -> None:
        total = 0
        for _ in range(count):
            values = (payload,)
            for _ in range(hops):
                values = (values[0],)
            total += len(values[0])

    job = Job("chain", STORM_PHASES, 2, 2, count, size, hops)
    return Point(
        at,
        chain(count, hops, size),
        CONF,
        count,
        bare,
        job,
        (),
        lambda r: sum(r.state.values()) == count,
        "sink",
    )


def measure(on: Cluster, points: Sequence[Point], runs: int) -> dict[int, list[tuple[Run, float]]]:
    """Runs of every point with the seconds of its bare loop, round by round; the first round warms
    and is not counted.
    """
    found: dict[int, list[tuple[Run, float]]] = {point.at: [] for point in points}
    for round_ in range(runs + 1):
        for point in points if round_ else points[:1]:
            began = time.perf_counter()
            point.bare()
            bare = time.perf_counter() - began
            taken = run(on, point.topology, point.conf, point.state_of)
            if not point.check(taken):
                sys.exit(f"wrong results at {point.at}")
            if round_:
                found[point.at].append((taken, bare))
            print(
                f"  round {round_} at {point.at:,}: {point.units / taken.seconds:,.0f}/s",
                file=sys.stderr,
                flush=True,
            )
    return found


def measure_storm(points: Sequence[Point]) -> dict[int, list[float]]:
    """Return Storm's units of work per second at every point, one figure per phase after the
    first.
    """
    path = class_path()
    found = {}
    for point in points:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for i, file in enumerate(point.texts):
                (folder / f"{i}.txt").symlink_to(file)
            try:
                run_job(path, folder, point.storm)
            except SystemExit as error:
                print(f"  Storm at {point.at:,}: {error}", file=sys.stderr, flush=True)
            found[point.at] = [point.units / seconds for seconds in phases(folder)[1:]] or [0.0]
        print(
            f"  Storm at {point.at:,}: {statistics.median(found[point.at]):,.0f}/s",
            file=sys.stderr,
            flush=True,
        )
    return found


def _rates(point: Point, found: Sequence[tuple[Run, float]]) -> list[float]:
    return [point.units / taken.seconds for taken, _ in found]


def _cells(point: Point, found: Sequence[tuple[Run, float]]) -> str:
    """Return the cells of a point in the table: rate and its range, share of the bare loop, CPU of
    a unit, latencies.
    """
    rates = _rates(point, found)
    shares = [bare / taken.seconds for taken, bare in found]
    cpu = [
        statistics.median(taken.cpu[kind] for taken, _ in found) / point.units * 1e6
        for kind in KINDS
    ]
    used = " | ".join(f"{each:.2f}" for each in cpu)
    slow = " | ".join(
        f"{statistics.median(getattr(taken, name) for taken, _ in found):.0f}"
        for name in ("p50_ms", "p99_ms")
    )
    return f"{statistics.median(rates) / 1000:,.0f} k | {_span(rates)} | {statistics.median(shares):.3f} | {used} | {slow}"


def _cells_of_storm(rates: Sequence[float], ours: float) -> str:
    """Return the cells of Storm's rates at a point, and the ratio of our rate to their median."""
    median = statistics.median(rates)
    return (
        f" | {median / 1000:,.0f} k | {_span(rates)} | {ours / median:.2f}"
        if median
        else " | no end | | "
    )


def _span(rates: Sequence[float]) -> str:
    return f"{min(rates) / 1000:,.0f}-{max(rates) / 1000:,.0f} k"


def show(
    name: str,
    points: Sequence[Point],
    found: Mapping[int, list[tuple[Run, float]]],
    storm: Mapping[int, Sequence[float]],
) -> None:
    """Print a table in Markdown and draw the plot; Storm's figures are left out where there are
    none.
    """
    _, axis, unit = CURVES[name]
    heads = [
        axis,
        unit,
        "least-most",
        "of a bare loop",
        "us CPU: workers",
        "Redis",
        "rest",
        "p50 ms",
        "p99 ms",
    ]
    heads += ["Storm", "least-most", "ours / Storm"] if storm else []
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    places = []
    medians = []
    for point in points:
        median = statistics.median(_rates(point, found[point.at]))
        places.append(point.at)
        medians.append(median)
        cells = _cells(point, found[point.at])
        if storm:
            cells += _cells_of_storm(storm[point.at], median)
        print(f"| {f'{point.at:,}' if point.at else 'auto'} | {cells} |")
    PLOTS.mkdir(exist_ok=True)
    drawn = {
        "SparkStorm": [(place, rate) for place, rate in zip(places, medians, strict=True) if place]
    }
    if storm:
        drawn["Storm"] = [
            (place, statistics.median(storm[place])) for place in places if any(storm[place])
        ]
    (PLOTS / f"{name}.svg").write_text(line_plot(drawn, f"{name}: {unit}", axis))
    sys.stdout.flush()


def main() -> None:
    """Print a table per curve."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--at", nargs="+", type=int, help="these points of the curves alone")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the tuples of a full run"
    )
    parser.add_argument(
        "--storm",
        action="store_true",
        help="the same work on Apache Storm (not for --only pending)",
    )
    options = parser.parse_args()
    for name in options.only:
        with (
            tempfile.TemporaryDirectory() as folder,
            cluster(slots=4 if name == "workers" else 2) as on,
        ):
            points = [
                p
                for p in CURVES[name][0](Path(folder), options.scale)
                if p.at in (options.at or [p.at])
            ]
            storm = measure_storm(points) if options.storm and name != "pending" else {}
            show(name, points, measure(on, points, options.runs), storm)


if __name__ == "__main__":
    main()
