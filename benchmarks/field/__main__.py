"""The field's benchmarks: SparkStorm live and replayed, a bare loop, Storm, Flink, Spark and
Bytewax on events of the same generator and seed, in turn.

Run: python -m benchmarks.field [--minutes M] [--runs N] [--events N] [--cases NAME ...]
[--systems WORD ...] [--skip WORD ...] [--kafka] [--resume] [--tables] [--install] [--list]. Every
round runs all systems on each case; the order of systems is turned round in every other one. A
system whose answer is not that of the oracle, or that fails, is left out of that case with a line;
a wrong answer of any system, or a failure of ours, makes the exit code 1. A round that would not
fit into the minutes is not begun. Each run is written to the file of results as it ends: --resume goes on with an
interrupted file, or adds rounds, cases and systems to it.

The output is two Markdown tables: medians and ranges of thousands of units (events; words of the
word count) a second, microseconds of CPU a unit, and the rate as a part of the bare loop's in the
same rounds. Peers that cannot be had here, and runs that failed, are named in lines below them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.field.case import difference
from benchmarks.field.plan import events_of
from benchmarks.field.results import BARE, Measured, Results, cells_of, short_table, table
from benchmarks.field.served import ROOT, PeerFailedError
from benchmarks.field.systems import (
    CASES,
    NotHereError,
    System,
    Works,
    bare_loop,
    bytewax,
    flink,
    flink_process,
    from_kafka,
    install_flink,
    live,
    replay_process,
    replayed,
    replayed_locally,
    spark,
    spark_process,
    storm_names,
    storms,
)
from benchmarks.pipeline import cluster
from sparkstorm.extensions.embedded.java import find_java

# A second round takes so much of a first one's time
_OF_FIRST = 0.65
_FILE = ROOT / "results" / "field.jsonl"


def _everything(_: str) -> bool:
    return True


def all_systems(
    opened: contextlib.ExitStack, options: argparse.Namespace
) -> tuple[list[System], list[str]]:
    """Return the systems that run here and were asked for, and a line for each that cannot be
    had.
    """

    def is_wanted(name: str) -> bool:
        chosen = not options.systems or any(
            word.lower() in name.lower() for word in options.systems
        )
        return chosen and not any(word.lower() in name.lower() for word in options.skip)

    systems = [System(BARE, _everything, bare_loop)]
    lines = list[str]()
    names = {by: f"SparkStorm, 2 workers, {by}" for by in ("rows", "columns")}
    if options.kafka or any(map(is_wanted, names.values())):
        on = opened.enter_context(cluster())
        systems += [System(name, _everything, live(on, by)) for by, name in names.items()]
        if options.kafka:
            from sparkstorm.testing.servers import KafkaServer

            kafka = opened.enter_context(KafkaServer())
            systems += [
                System(f"SparkStorm from Kafka, {by}", "yahoo".__eq__, from_kafka(on, kafka, by))
                for by in ("rows", "columns")
            ]
    served = [replay_process(), flink_process(), spark_process()]
    for process in served:
        opened.callback(process.close)
    of_replay, of_flink, of_spark = served
    systems += [
        System(f"SparkStorm replay on Spark, {by}", _everything, replayed(of_replay, by))
        for by in ("rows", "columns")
    ]
    systems.append(System("SparkStorm replay_locally", _everything, replayed_locally))
    workers = (1,) if options.one_jvm else (1, 2)
    if any(map(is_wanted, storm_names(workers))):
        peers, missing = storms(workers)
        systems = systems + peers
        lines = lines + missing
    makers: list[Callable[[], System]] = [
        partial(flink, of_flink, kind) for kind in ("sql", "datastream")
    ]
    makers += [partial(spark, of_spark, kind) for kind in ("batch", "streaming")]
    makers.append(bytewax)
    for make in makers:
        try:
            systems.append(make())
        except NotHereError as error:
            lines.append(str(error))
    return [system for system in systems if system.name == BARE or is_wanted(system.name)], lines


class Rounds:
    """Rounds of all systems on some cases; a system that fails on a case is left out of it from
    then on, with a line.
    """

    def __init__(
        self, works: Works, names: Sequence[str], systems: Sequence[System], results: Results
    ) -> None:
        self.lines: list[str] = []
        self.is_bad = False  # a wrong answer, or a failure of ours
        self._works = works
        self._names = names
        self._systems = systems
        self._results = results
        self._failed: set[tuple[str, str]] = set()

    def measure(self, round_: int, events: int | None = None) -> None:
        """Run what the results do not have of a round; `events` in place of those of the plan."""
        for name in self._names:
            for system in list(self._systems)[:: -1 if round_ % 2 == 0 else 1]:
                is_out = (name, system.name) in self._failed or not system.takes(name)
                if is_out:
                    continue
                number = events or events_of(name, system.name)
                if not self._results.has(name, system.name, round_, number):
                    self._run(name, system, round_, number)

    def _run(self, name: str, system: System, round_: int, events: int) -> None:
        work = self._works.of(name, events)
        began = time.perf_counter()
        try:
            took = system.run(work)
            if wrong := difference(took.answer, work.expected):
                self.is_bad = True
                raise PeerFailedError(f"wrong answer: {wrong}")
        except (Exception, SystemExit) as error:
            self.is_bad |= system.name.startswith("SparkStorm")
            self._failed.add((name, system.name))
            self.lines.append(f"{name}, {system.name}: {str(error)[-600:]}")
            print(f"  round {round_}: {self.lines[-1]}", flush=True)
            return
        run = Measured(
            name,
            system.name,
            round_,
            work.units,
            took.seconds,
            took.cpu,
            took.p50_ms,
            took.p99_ms,
            events,
        )
        self._results.add(run)
        print(
            f"  round {round_}: {name}, {system.name}: {run.rate:,.0f}/s, {took.cpu / run.units * 1e6:.2f} us CPU, "
            f"{took.seconds:.1f} of {time.perf_counter() - began:.1f} s",
            flush=True,
        )


def run_all(rounds: Rounds, options: argparse.Namespace) -> None:
    """Run the rounds that fit into the minutes, by what the one before took; the first one always
    runs.
    """
    began = time.monotonic()
    expected_s = 0.0
    for round_ in range(1, options.runs + 1):
        if expected_s > options.minutes * 60 - (time.monotonic() - began):
            rounds.lines.append(f"{options.minutes:g} minutes: round {round_} was not begun")
            return
        start = time.monotonic()
        rounds.measure(round_, options.events)
        took = time.monotonic() - start
        # the first one also generates events, and runs Spark's and Flink's cases twice
        expected_s = took * (_OF_FIRST if round_ == 1 else 1.0)
        print(f"round {round_}: {took / 60:.1f} minutes", flush=True)


def print_tables(results: Results, lines: Sequence[str]) -> None:
    """Print both tables of all results of the file, and the lines below them."""
    cells = cells_of(results.runs)
    cases = [name for name in CASES if any(run.case == name for run in results.runs)]
    systems = list(dict.fromkeys(run.system for run in results.runs))
    print(f"\n{table(cases, systems, cells)}\n\n{short_table(cases, systems, cells)}\n")
    print("\n".join([f"results: {results.path}", *lines]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events", type=int, help="in place of the plan's events for each case and system"
    )
    parser.add_argument("--runs", type=int, default=5, help="rounds")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no round that would not fit"
    )
    parser.add_argument(
        "--cases", nargs="+", default=list(CASES), help="names or their ends: q5, yahoo"
    )
    parser.add_argument(
        "--systems", nargs="+", default=[], help="only systems whose name has one of these words"
    )
    parser.add_argument(
        "--skip", nargs="+", default=[], help="no systems whose name has one of these words"
    )
    parser.add_argument(
        "--kafka", action="store_true", help="the Yahoo benchmark also from a Kafka of its own"
    )
    parser.add_argument(
        "--one-jvm", action="store_true", help="Storm without its cluster of two worker JVMs"
    )
    parser.add_argument(
        "--results", type=Path, default=_FILE, help="file of results (results/field.jsonl)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="run only what the file of results has not"
    )
    parser.add_argument("--tables", action="store_true", help="only print the tables of the file")
    parser.add_argument(
        "--install", action="store_true", help="install Flink into an environment of its own, once"
    )
    parser.add_argument("--list", action="store_true", help="print cases and systems, and end")
    return parser


def main() -> None:
    """Print the tables."""
    parser = _parser()
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(Path(find_java()).resolve().parent.parent)
    if options.install:
        install_flink()
    names = [name for name in CASES if any(name.endswith(asked) for asked in options.cases)]
    if not names:
        parser.error(f"--cases: there are {', '.join(CASES)}")
    if options.tables:
        print_tables(Results(options.results, is_resumed=True), [])
        return
    with contextlib.ExitStack() as opened:
        systems, lines = all_systems(opened, options)
        if options.list:
            print("\n".join([*names, *(system.name for system in systems), *lines]))
            return
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        results = Results(options.results, is_resumed=options.resume)
        rounds = Rounds(Works(Path(folder)), names, systems, results)
        try:
            run_all(rounds, options)
        finally:
            print_tables(results, [*lines, *rounds.lines])
        if rounds.is_bad:
            raise SystemExit("a wrong answer, or a failure of SparkStorm: see the lines above")


if __name__ == "__main__":
    main()
