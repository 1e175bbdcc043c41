"""Results of the field's benchmarks: a file with a line of JSON for each run, and the tables of it."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.field.served import ROOT

BARE = "bare Python loop"
# Words of systems that only the whole table has
_VARIANTS = ("replay_locally", "2 JVMs", "BaseBasicBolt", "as shipped", "Kafka")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a system: its case, round and units (events; words of the word count), wall and
    CPU seconds, and complete latencies where the system knows them.
    """

    case: str
    system: str
    round: int
    units: int
    seconds: float
    cpu: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    events: int = 0  # asked for

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.units / self.seconds


class Results:
    """Runs in the order in which they came; each is in the file before the next one begins."""

    def __init__(self, path: Path, *, is_resumed: bool) -> None:
        self.path = path
        self.runs: list[Measured] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not is_resumed:
            # a table of half an hour is not overwritten by the next one
            stamp = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%d-%H%M%S")
            path.rename(path.with_name(f"{path.stem}-{stamp}{path.suffix}"))
        if path.exists():
            self.runs = [Measured(**record) for record in _lines(path) if "case" in record]
            if not path.read_text().endswith("\n"):  # cut by an interruption
                self._write("\n")
        self._is_begun = False

    def add(self, run: Measured) -> None:
        """Keep a run."""
        if not self._is_begun:
            self._append(machine())
            self._is_begun = True
        self.runs.append(run)
        self._append(asdict(run))

    def has(self, case: str, system: str, round_: int, events: int) -> bool:
        """Return whether this run is there; SystemExit when it is one of another size."""
        for run in self.runs:
            if (run.case, run.system, run.round) == (case, system, round_):
                if run.events != events:
                    raise SystemExit(
                        f"{self.path}: round {round_} of {case}, {system} has {run.events} events, not {events}: "
                        "give another --results"
                    )
                return True
        return False

    def _append(self, record: Mapping[str, Any]) -> None:
        self._write(json.dumps(record) + "\n")

    def _write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; the last line may have been cut by an interruption."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def machine() -> dict[str, Any]:
    """Return when, where and of which commit runs are that follow in the file."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"at": now, "commit": commit, "cores": cores, "processor": model}


Cells = Mapping[tuple[str, str], Sequence[Measured]]


def cells_of(runs: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """Return runs by case and system."""
    runs_by_cell: dict[tuple[str, str], list[Measured]] = {}
    for run in runs:
        runs_by_cell.setdefault((run.case, run.system), []).append(run)
    return runs_by_cell


def of_bare(cells: Cells, runs: Sequence[Measured]) -> float | None:
    """Return the median of the rates as parts of the bare loop's in the same rounds."""
    bare = {run.round: run.rate for run in cells.get((runs[0].case, BARE), ())}
    ratios = [run.rate / bare[run.round] for run in runs if run.round in bare]
    return statistics.median(ratios) if ratios else None


def table(cases: Sequence[str], systems: Sequence[str], cells: Cells) -> str:
    """Return the Markdown table: a line for each case and system."""
    heads = ["benchmark", "system", "k units/s", "least-most", "n", "of the bare loop"]
    heads += ["us CPU a unit", "p50 ms", "p99 ms"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case in cases:
        for system in systems:
            runs = cells.get((case, system))
            if not runs:
                continue
            rates = sorted(run.rate / 1e3 for run in runs)
            ratio = of_bare(cells, runs)
            line = [
                case,
                system,
                _three_digits(statistics.median(rates)),
                f"{_three_digits(rates[0])}-{_three_digits(rates[-1])}",
                str(len(runs)),
                "-" if ratio is None else f"{ratio:.3f}",
                f"{_cpu(runs):.2f}",
                *(_latency(runs, name) for name in ("p50_ms", "p99_ms")),
            ]
            lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def short_table(cases: Sequence[str], systems: Sequence[str], cells: Cells) -> str:
    """Return a Markdown table with a line for each case and a column for each system, variants left
    out: thousands of units a second, and microseconds of CPU a unit.
    """
    shown = [
        system
        for system in systems
        if any((case, system) in cells for case in cases)
        and not any(word in system for word in _VARIANTS)
    ]
    lines = [
        f"| k units/s (us CPU a unit) | {' | '.join(shown)} |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for case in cases:
        line = [case]
        for system in shown:
            runs = cells.get((case, system))
            line.append(
                f"{_three_digits(statistics.median(r.rate / 1e3 for r in runs))} ({_cpu(runs):.2f})"
                if runs
                else ""
            )
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def _cpu(runs: Sequence[Measured]) -> float:
    return statistics.median(run.cpu / run.units for run in runs) * 1e6


def _latency(runs: Sequence[Measured], name: str) -> str:
    values = [value for run in runs if (value := getattr(run, name)) is not None]
    return f"{statistics.median(values):.1f}" if values else "-"


def _three_digits(number: float) -> str:
    """Return a number with three digits at the least: "1.23", "12.3", "1,234"."""
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f}"
