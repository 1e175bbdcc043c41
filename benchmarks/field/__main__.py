"""The field's benchmarks: SparkStorm live and replayed, a bare loop, Storm, Flink, Spark and
Bytewax on the same events, in turn.

Run: python -m benchmarks.field [--events N] [--runs N] [--cases NAME ...] [--systems WORD ...]
[--skip WORD ...] [--kafka] [--install] [--list]. Every round runs all systems on each case; the
order of systems is turned round in every other one. An answer that is not that of the oracle ends
the command. The output is one Markdown table: medians and ranges of events/s (words/s of the word
count), microseconds of CPU per event, and the rate as a part of the bare loop's in the same rounds.
Peers that cannot be had here, and runs that failed, are named in lines below it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.field.case import difference
from benchmarks.field.systems import (
    CASES,
    NotHereError,
    System,
    Took,
    Work,
    WrongAnswerError,
    bare_loop,
    bytewax,
    flink,
    from_kafka,
    install_flink,
    live,
    make_work,
    replayed,
    replayed_locally,
    spark,
    storm_names,
    storms,
)
from benchmarks.pipeline import cluster
from sparkstorm.embedded.java import find_java

BARE = "bare Python loop"
Figures = dict[tuple[str, str], list[Took]]


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

    found = [System(BARE, _everything, bare_loop)]
    lines = list[str]()
    names = {by: f"SparkStorm, 2 workers, {by}" for by in ("rows", "columns")}
    if options.kafka or any(map(is_wanted, names.values())):
        on = opened.enter_context(cluster())
        found += [System(name, _everything, live(on, by)) for by, name in names.items()]
        if options.kafka:
            from sparkstorm.testing.servers import KafkaServer

            kafka = opened.enter_context(KafkaServer())
            found += [
                System(f"SparkStorm from Kafka, {by}", "yahoo".__eq__, from_kafka(on, kafka, by))
                for by in ("rows", "columns")
            ]
    found += [
        System(f"SparkStorm replay on Spark, {by}", _everything, replayed(by))
        for by in ("rows", "columns")
    ]
    found.append(System("SparkStorm replay_locally", _everything, replayed_locally))
    workers = (1,) if options.one_jvm else (1, 2)
    if any(map(is_wanted, storm_names(workers))):
        peers, missing = storms(workers)
        found = found + peers
        lines = lines + missing
    makers: list[Callable[[], System]] = [partial(flink, "sql"), partial(flink, "datastream")]
    makers += [partial(spark, "batch"), partial(spark, "streaming"), bytewax]
    for make in makers:
        try:
            found.append(make())
        except NotHereError as error:
            lines.append(str(error))
    return [system for system in found if system.name == BARE or is_wanted(system.name)], lines


def measure(
    work: Work, systems: Sequence[System], runs: int, lines: list[str]
) -> Iterator[tuple[str, Took]]:
    """Yield the runs of a case; a peer that fails is left out from then on, with a line."""
    failed: set[str] = set()
    for round_ in range(runs):
        for system in list(systems)[:: -1 if round_ % 2 else 1]:
            if system.name in failed or not system.takes(work.case.name):
                continue
            try:
                took = system.run(work)
            except (WrongAnswerError, SystemExit) as error:
                if system.name.startswith("SparkStorm"):
                    raise
                failed.add(system.name)
                lines.append(f"{work.case.name}, {system.name}: {str(error)[-600:]}")
                continue
            if wrong := difference(took.answer, work.expected):
                raise SystemExit(f"{work.case.name}, {system.name}: wrong answer: {wrong}")
            print(
                f"  round {round_ + 1}: {work.case.name}, {system.name}: {work.units / took.seconds:,.0f}/s",
                flush=True,
            )
            yield system.name, took


def table(works: Sequence[tuple[str, int]], systems: Sequence[str], figures: Figures) -> str:
    """Return the Markdown table; `works` are the cases with their units."""
    head = "| benchmark | system | k events/s | least-most | of the bare loop | us CPU per event | p50 ms | p99 ms |"
    lines = [head, "|---" * 8 + "|"]
    for case, units in works:
        bare = figures.get((case, BARE), [])
        for system in systems:
            runs = figures.get((case, system))
            if not runs:
                continue
            rates = sorted(units / each.seconds / 1e3 for each in runs)
            ratio = (
                statistics.median(
                    one.seconds / each.seconds for one, each in zip(bare, runs, strict=False)
                )
                if bare
                else 0.0
            )
            cpu = statistics.median(each.cpu for each in runs) / units * 1e6
            latencies = [
                "-"
                if runs[0].p50_ms is None
                else f"{statistics.median(getattr(each, name) or 0 for each in runs):.1f}"
                for name in ("p50_ms", "p99_ms")
            ]
            cells = [
                case,
                system,
                f"{statistics.median(rates):,.0f}",
                f"{rates[0]:,.0f}-{rates[-1]:,.0f}",
                f"{ratio:.3f}",
            ]
            lines.append("| " + " | ".join([*cells, f"{cpu:.2f}", *latencies]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
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
        "--install", action="store_true", help="install Flink into an environment of its own, once"
    )
    parser.add_argument("--list", action="store_true", help="print cases and systems, and end")
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(Path(find_java()).resolve().parent.parent)
    if options.install:
        install_flink()
    names = [name for name in CASES if any(name.endswith(asked) for asked in options.cases)]
    if not names:
        parser.error(f"--cases: there are {', '.join(CASES)}")
    figures: Figures = {}
    works: list[tuple[str, int]] = []
    with contextlib.ExitStack() as opened:
        systems, lines = all_systems(opened, options)
        if options.list:
            print("\n".join([*names, *(system.name for system in systems), *lines]))
            return
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                work = make_work(name, options.events, Path(folder))
                works.append((name, work.units))
                for system, took in measure(work, systems, options.runs, lines):
                    figures.setdefault((name, system), []).append(took)
    print(f"\n{table(works, [system.name for system in systems], figures)}\n")
    print("\n".join([f"n = {options.runs}, {options.events:,} events", *lines]))


if __name__ == "__main__":
    main()
