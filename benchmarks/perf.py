"""A gate for speed: the working tree next to another commit, in turn, on whole pipelines.
`make perf`.

Run: python -m benchmarks.perf [--against COMMIT] [--rounds N] [--minutes M] [--only NAME ...]
[--scale F] [--own-benchmarks]. The other commit (by default the merge base with main, or HEAD~1
where that is this very tree) is checked out as a git worktree under `.perf`, with its own core. The
benchmarks of the working tree drive both; with `--own-benchmarks` each tree is driven by its own,
for a commit whose modules have other names. Each tree has a process with its own cluster, and they
take turns (A B, then B A, ...), one probe at a time while the other waits. A probe gives costs, of
which less is better: microseconds of CPU per unit (workers, Redis and, in a replay, Spark), wall
time as a multiple of a bare Python loop's (in a replay, of the work by hand in PySpark) in the same
moment, and milliseconds of latency.

Noise is estimated from each tree's own rounds: `judge` has the formula. Exit status 1: at least one
cost has grown beyond it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TREES = ROOT / ".perf"
# A change below this is not worth a red gate, however quiet the machine: the same code compiled
# twice may differ by it
FLOOR = 0.03
# Of three standard errors one comparison in 700 of equal trees fails by chance; with two it would
# be one in 40, some in each run
ERRORS = 3.0
_LEAST_ROUNDS = 3
# Names of probes by what they need: a cluster, a Spark session
PROBES = {
    "live": (
        "words, rows",
        "words, columns",
        "words, 64 tasks",
        "trees of one row",
        "latency",
    ),
    "replay": ("sums, rows", "sums, columns"),
}
_MARK = "@perf "
Costs = dict[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Medians of one cost before and after, the median of the rounds' ratios, and the growth that
    noise alone may show.
    """

    before: float
    after: float
    ratio: float
    noise: float

    @property
    def is_worse(self) -> bool:
        """Return whether the cost has grown beyond noise."""
        return self.ratio > 1 + self.noise


def judge(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """Compare costs of two trees measured in turn, one of each per round; ValueError for fewer than
    three rounds.

    The noise of one measurement is taken from neighbouring rounds of the *same* tree: the median of |ln(x[i+1] / x[i])| over
    both trees, times 1.4826 (from a median to a standard deviation), divided by the root of 2 (a difference has the noise of
    two). The median of n ratios then has 1.2533 times root 2 of it, divided by the root of n. Three times that is allowed,
    and never less than FLOOR. Drift that both trees share is in no ratio.
    """
    rounds = min(len(before), len(after))
    if rounds < _LEAST_ROUNDS:
        raise ValueError(
            f"{rounds} rounds are too few to tell noise from a change: at least {_LEAST_ROUNDS} are needed"
        )
    ratio = statistics.median(new / old for old, new in zip(before, after, strict=False))
    steps = [
        abs(math.log(costs[i + 1] / costs[i]))
        for costs in (before, after)
        for i in range(rounds - 1)
    ]
    single = 1.4826 * statistics.median(steps) / math.sqrt(2)
    error = 1.2533 * math.sqrt(2) * single / math.sqrt(rounds)
    return Verdict(
        statistics.median(before),
        statistics.median(after),
        ratio,
        max(FLOOR, math.expm1(ERRORS * error)),
    )


# -- probes, in the process of a tree --------------------------------------------------------------


def live_probes(on: Any, scale: float) -> Mapping[str, Callable[[], Costs]]:
    """Return the probes on a cluster."""
    from benchmarks.field import storm_perf
    from benchmarks.field.case import TASKS, difference, rows_of
    from benchmarks.latency import measure
    from benchmarks.pipeline import run

    lines = int(300_000 * scale)
    conf = {
        "topology.workers": 2,
        "topology.acker.executors": 2,
        "topology.max.spout.pending": 5_000,
    }
    words = storm_perf.sentences(lines)
    lines_of_words = rows_of(words)

    def pipeline(case: Any, generator: Any, by: str, tasks: int = TASKS) -> Callable[[], Costs]:
        expected = case.answer(rows_of(generator))
        units = sum(expected.values())

        def probe() -> Costs:
            began = time.perf_counter()
            storm_perf.WORDS.answer(lines_of_words)
            bare = time.perf_counter() - began
            done = run(on, case.topology(generator, by, tasks), conf, "result")
            if wrong := difference(case.read(done.state), expected):
                raise SystemExit(f"{case.name} by {by}: {wrong}")
            used = done.cpu["workers"] + done.cpu["redis"]
            return {"us CPU per unit": used / units * 1e6, "times a bare loop": done.seconds / bare}

        return probe

    def latency() -> Costs:
        p50, p99, _ = measure(on, 1_000, max(2.0, 4.0 * scale))
        return {"ms p50": p50, "ms p99": p99}

    return {
        "words, rows": pipeline(storm_perf.WORDS, words, "rows"),
        "words, columns": pipeline(storm_perf.WORDS, words, "columns"),
        "words, 64 tasks": pipeline(storm_perf.WORDS, words, "rows", 64),
        "trees of one row": pipeline(storm_perf.ID, storm_perf.constants(lines), "rows"),
        "latency": latency,
    }


def replay_probes(spark: Any, folder: Path, scale: float) -> Mapping[str, Callable[[], Costs]]:
    """Return the probes on a Spark session: keyed sums of 10 s, replayed, next to the same work by
    hand.
    """
    from benchmarks.bench_replay import write_events
    from benchmarks.pipeline import cpu_by_kind
    from benchmarks.replay_variants import COLUMNS, ROWS, SUMS

    events, exact = write_events(folder / "events", int(1_000_000 * scale))

    def sums(replayed: str, by_hand: str) -> Callable[[], Costs]:
        def timed(name: str) -> tuple[float, float]:
            before = sum(cpu_by_kind().values())
            began = time.perf_counter()
            if SUMS[name](spark, str(folder / "events")) != exact:
                raise SystemExit(f"{name}: wrong sums")
            return time.perf_counter() - began, sum(cpu_by_kind().values()) - before

        def probe() -> Costs:
            hand, _ = timed(by_hand)
            seconds, used = timed(replayed)
            return {"us CPU per unit": used / events * 1e6, "times by hand": seconds / hand}

        return probe

    return {
        "sums, rows": sums("replay, rows", ROWS),
        "sums, columns": sums("replay, columns", COLUMNS),
    }


def serve(kind: str, scale: float) -> None:
    """Run probes as their names come in, a line each, and answer with their costs; the first answer
    names the tree.
    """
    import sparkstorm

    with contextlib.ExitStack() as opened:
        if kind == "live":
            from benchmarks.pipeline import cluster

            probes = live_probes(opened.enter_context(cluster()), scale)
        else:
            from benchmarks.bench_replay import session

            spark = session()
            opened.callback(spark.stop)
            probes = replay_probes(
                spark, Path(opened.enter_context(tempfile.TemporaryDirectory())), scale
            )
        print(
            _MARK
            + json.dumps(
                {"tree": str(Path(sparkstorm.__file__).parent.parent), "probes": list(probes)}
            ),
            flush=True,
        )
        for line in sys.stdin:
            print(_MARK + json.dumps(probes[line.strip()]()), flush=True)


# -- two trees in turn -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """The process of a tree and its probes."""

    process: subprocess.Popen[str]
    probes: Sequence[str]

    def ask(self, probe: str) -> Costs:
        """Return the costs of a probe."""
        assert self.process.stdin is not None
        self.process.stdin.write(probe + "\n")
        self.process.stdin.flush()
        return _answer(self.process)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    raise SystemExit(f"the process of {process.args!r} ended; what it said is above")


@contextlib.contextmanager
def serving(tree: Path, kind: str, scale: float) -> Iterator[Served]:
    """Start the process of a tree; SystemExit when it runs the code of another one."""
    command = [sys.executable, "-m", "benchmarks.perf", "--serve", kind, "--scale", str(scale)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        said = _answer(process)
        if Path(said["tree"]) != tree:
            raise SystemExit(f"the process of {tree} runs the code of {said['tree']}")
        yield Served(process, said["probes"])
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def compare(
    other: Path, kind: str, rounds: int, until: float, only: Sequence[str], scale: float
) -> dict[str, list[list[float]]]:
    """Return the costs of all probes of a kind, [before, after] by name; stops early, but never
    before three rounds.
    """
    values_by_probe: dict[str, list[list[float]]] = {}
    with serving(other, kind, scale) as before, serving(ROOT, kind, scale) as after:
        probes = [
            probe
            for probe in after.probes
            if probe in before.probes and (not only or probe in only)
        ]
        for round_ in range(rounds + 1):  # the first round warms caches and is not counted
            began = time.monotonic()
            for probe in probes:
                trees = [(0, before), (1, after)]
                for index, tree in trees[:: -1 if round_ % 2 else 1]:
                    for cost, value in (
                        tree.ask(probe).items() if round_ else _dropped(tree.ask(probe))
                    ):
                        values_by_probe.setdefault(f"{probe}: {cost}", [[], []])[index].append(
                            value
                        )
            print(
                f"  {kind}, round {round_} of {rounds}: {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if round_ >= _LEAST_ROUNDS and 2 * time.monotonic() - began > until:
                print("  the time is over: the rest is left out", flush=True)
                break
    return values_by_probe


def _dropped(_: Costs) -> list[tuple[str, float]]:
    return []


def git(*words: str) -> str:
    """Return what git says in this tree."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_before(head: str, base: str, is_changed: bool) -> str:
    """Return what to compare with: where this branch has left main, or the commit before where
    nothing has been changed since.
    """
    return base if base != head or is_changed else "HEAD~1"


def _default_commit() -> str:
    main = next(
        (
            name
            for name in ("origin/main", "main")
            if name in git("branch", "-a", "--format=%(refname:short)").split()
        ),
        "HEAD",
    )
    return commit_before(
        git("rev-parse", "HEAD"),
        git("merge-base", "HEAD", main),
        bool(git("status", "--porcelain", "-uno")),
    )


def tree_of(commit: str, own_benchmarks: bool) -> Path:
    """Check a commit out next to this tree, with its own core and either tree's benchmarks; a
    checkout that is there is used again.
    """
    name = git("rev-parse", "--short=12", f"{commit}^{{commit}}")
    tree = TREES / name
    if not tree.exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", "--force", str(tree), name)
    git("-C", str(tree), "checkout", "--force", name, "--", "benchmarks")
    if not own_benchmarks:
        shutil.copytree(ROOT / "benchmarks", tree / "benchmarks", dirs_exist_ok=True)
    for folder in (tree, ROOT):
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        environment = {**os.environ, "SPARKSTORM_CORE": "required"}
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return tree


def main() -> None:
    """Print a table of verdicts; exit 1 when a cost has grown beyond noise."""
    names = [name for probes in PROBES.values() for name in probes]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"probes: {'; '.join(names)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=7, help=f"at least {_LEAST_ROUNDS}")
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="begin no round that would end later, once there are three",
    )
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="sizes of the probes")
    parser.add_argument(
        "--own-benchmarks", action="store_true", help="let the other commit's benchmarks drive it"
    )
    parser.add_argument("--serve", choices=tuple(PROBES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.scale)
        return
    if options.rounds < _LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {_LEAST_ROUNDS}: noise is estimated from them")
    commit = options.against or _default_commit()
    began = time.monotonic()
    print(f"the working tree and {git('log', '-1', '--format=%h %s', commit)}", flush=True)
    tree = tree_of(commit, options.own_benchmarks)
    costs_by_probe: dict[str, list[list[float]]] = {}
    for kind, share in (("live", 0.7), ("replay", 1.0)):  # of the time: the live probes are more
        until = began + options.minutes * 60 * share
        if not options.only or set(options.only) & set(PROBES[kind]):
            costs_by_probe |= compare(
                tree, kind, options.rounds, until, options.only, options.scale
            )
    if not show({name: judge(*costs) for name, costs in costs_by_probe.items()}):
        raise SystemExit(1)


def show(verdicts: Mapping[str, Verdict]) -> bool:
    """Print a line per cost; return whether none is worse."""
    print("\n| cost | before | now | ratio | noise | |\n|---|---|---|---|---|---|")
    for name, verdict in verdicts.items():
        word = (
            "**worse**"
            if verdict.is_worse
            else "better"
            if verdict.ratio < 1 / (1 + verdict.noise)
            else "same"
        )
        print(
            f"| {name} | {verdict.before:.2f} | {verdict.after:.2f} | {verdict.ratio:.3f} | {verdict.noise:.1%} | {word} |"
        )
    worse = [name for name, verdict in verdicts.items() if verdict.is_worse]
    print(
        f"\nworse beyond noise: {', '.join(worse)}" if worse else "\nnothing is worse beyond noise"
    )
    return not worse


if __name__ == "__main__":
    main()
