"""Systems that run the field's benchmarks: SparkStorm live and replayed, a bare loop, and peers.

Every system gets events of the same generator and seed (`plan.py` has their number): ours by the
generator within its spout, others from files that `write_files` fills. A run gives its wall and CPU
time and its answer; a system whose answer is wrong is left out of the case. A peer that cannot run
here says why, in a line.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv

from benchmarks.field import nexmark, storm_perf, yahoo
from benchmarks.field.case import RESULT, TASKS, Answer, Case, Generator, Row, chunks_of, rows_of
from benchmarks.field.served import ROOT, PeerFailedError, Served
from benchmarks.peers.homes import PEERS
from benchmarks.peers.sql import FLINK, SPARK, STREAMED
from benchmarks.peers.storm.runner import Job, class_path, counted, phases, run_job
from benchmarks.pipeline import run
from benchmarks.wordcount import run_bytewax
from sparkstorm.api import TopologyBuilder
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import KafkaSource
from sparkstorm.driver.cluster import Cluster

FLINK_VERSION = "2.3.0"
FLINK_HOME = PEERS / f"flink-{FLINK_VERSION}"
# Tried in this order: 3.2.0 is the newest, but Maven does not give it everywhere; 2.8.3 is what the
# older figures are of
STORM_VERSIONS = ("3.2.0", "2.8.3")
# A run of ours takes seconds on a quiet machine, minutes on a busy one
_PATIENCE_S = 600.0
_STORM_PHASES = 3  # the first is cold and not counted
CONF = {
    "topology.workers": TASKS,
    "topology.acker.executors": TASKS,
    "topology.max.spout.pending": 5_000,
}
_STORM_KINDS = {
    **{f"nexmark {query}": query for query in ("q0", "q1", "q2")},
    "word count": "words",
    "id bolt": "id",
    "yahoo": "yahoo",
}
_IN_PYTHON = (
    *(f"nexmark {query}" for query in ("q0", "q1", "q2", "q7")),
    *("yahoo", "id bolt", "word count"),
)
CASES = {case.name: case for case in (*nexmark.CASES, *yahoo.CASES, *storm_perf.CASES)}


class NotHereError(Exception):
    """A peer cannot be had on this machine; the message is the line that says so."""


@dataclass(frozen=True, slots=True)
class Work:
    """A case with its data: the generator, all rows by stream, the exact answer, and the folder of
    the files.
    """

    case: Case
    generator: Generator
    rows: Mapping[str, Sequence[Row]]
    expected: Answer
    folder: Path

    @property
    def units(self) -> int:
        """Events; words of the word count."""
        return (
            sum(self.expected.values()) if self.case.name == "word count" else self.generator.events
        )


@dataclass(frozen=True, slots=True)
class Took:
    """One run: wall and CPU seconds, complete latencies where the system knows them, and the
    answer.
    """

    seconds: float
    cpu: float
    answer: Answer = field(repr=False)
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A way to run cases: its name, the cases that it takes, and the run."""

    name: str
    takes: Callable[[str], bool]
    run: Callable[[Work], Took]


def generator_of(name: str, events: int) -> Generator:
    """Return the events of a case: its name's first word chooses the generator."""
    if name.startswith("nexmark"):
        return nexmark.Nexmark(events)
    if name == "yahoo":
        return yahoo.Yahoo(events)
    return storm_perf.constants(events) if name == "id bolt" else storm_perf.sentences(events)


def write_files(generator: Generator, folder: Path) -> None:
    """Write each stream as two files, a chunk to each in turn (both are in the order of time), and
    as a whole.

    A text alone is a line; rows have commas, which no text of Nexmark has.
    """
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    for stream, fields in generator.streams.items():
        is_text = len(fields) == 1
        name = "text" if is_text else stream
        for part in (name, f"whole/{name}"):
            (folder / part).mkdir(parents=True)
        with contextlib.ExitStack() as opened:
            suffix = "txt" if is_text else "csv"
            paths = (*(f"{name}/{n}.{suffix}" for n in (0, 1)), f"whole/{name}/0.{suffix}")
            *halves, whole = [opened.enter_context((folder / path).open("wb")) for path in paths]
            for number in chunks_of(generator):
                batch = generator.part(number, (stream,))[stream].batch(fields)
                if is_text:
                    # a JSON text has quotes, which the writer of CSV refuses
                    text = "".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode()
                else:
                    sink = pa.BufferOutputStream()
                    pyarrow.csv.write_csv(batch, sink, options)
                    text = sink.getvalue().to_pybytes()
                halves[number % 2].write(text)
                whole.write(text)
    if isinstance(generator, yahoo.Yahoo):
        (folder / "campaign").mkdir()
        pairs = yahoo.campaign_by_ad(generator.seed).items()
        (folder / "campaign" / "0.csv").write_text(
            "".join(f"{ad},{campaign}\n" for ad, campaign in pairs)
        )


class Works:
    """Cases with their data: cases of one generator share rows and files of as many events."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data: dict[tuple[str, int], tuple[Mapping[str, Sequence[Row]], Path]] = {}
        self._works: dict[tuple[str, int], Work] = {}

    def of(self, name: str, events: int) -> Work:
        """Return a case with so many events."""
        if (name, events) not in self._works:
            generator = generator_of(name, events)
            case = CASES[name]
            family = name.split()[0]
            if (family, events) not in self._data:
                folder = self._folder / f"{family}-{events}"
                write_files(generator, folder)
                self._data[family, events] = (rows_of(generator), folder)
                gc.freeze()  # millions of rows that stay: no collection needs to look at them
            rows, folder = self._data[family, events]
            self._works[name, events] = Work(case, generator, rows, case.answer(rows), folder)
        return self._works[name, events]


# -- ours ------------------------------------------------------------------------------------------


def bare_loop(work: Work) -> Took:
    """The oracle: one thread of plain Python over rows that lie ready."""
    began = time.perf_counter()
    used = time.process_time()
    answer = work.case.answer(work.rows)
    return Took(time.perf_counter() - began, time.process_time() - used, answer)


def live(on: Cluster, by: str) -> Callable[[Work], Took]:
    """Return a run on a cluster: CPU is that of workers and Redis."""

    def run_live(work: Work) -> Took:
        return _on_cluster(on, work, work.case.topology(work.generator, by))

    return run_live


def _is_late(_: object, seconds: float) -> None:
    """End a run that hangs; its system is left out of the case."""
    if seconds > _PATIENCE_S:
        raise SystemExit(f"a run was not at its end after {_PATIENCE_S:g} s")


def _on_cluster(on: Cluster, work: Work, topology: Topology) -> Took:
    done = run(on, topology, CONF, RESULT, _is_late)
    return Took(
        done.seconds,
        done.cpu["workers"] + done.cpu["redis"],
        work.case.read(done.state),
        done.p50_ms,
        done.p99_ms,
    )


def from_kafka(on: Cluster, kafka: Any, by: str) -> Callable[[Work], Took]:
    """Return a run of the Yahoo benchmark with its events in a topic of two partitions; Kafka's CPU
    is not counted.
    """
    written: set[str] = set()

    def run_kafka(work: Work) -> Took:
        topic = f"ad-events-{by}-{work.generator.events}"
        if topic not in written:
            written.add(topic)
            kafka.create_topic(topic, partitions=TASKS)
            kafka.send(topic, (json.loads(line) for (line,) in work.rows["ad"]))
        builder = TopologyBuilder()
        builder.set_spout("events", KafkaSource(kafka.address, topic, follow=False), TASKS)
        (yahoo.by_rows if by == "rows" else yahoo.by_columns)(builder, TASKS, "default")
        return _on_cluster(on, work, builder.build())

    return run_kafka


def replayed_locally(work: Work) -> Took:
    """A replay of rows in this process, without Spark."""
    from sparkstorm.replay import EventTime, replay_locally

    more: dict[str, Any] = (
        {} if work.case.time is None else {"event_time": EventTime(work.case.time)}
    )
    began = time.perf_counter()
    used = time.process_time()
    result = replay_locally(
        work.case.topology(work.generator, "rows"),
        work.case.inputs(work.rows),
        partitions=TASKS,
        **more,
    )
    return Took(
        time.perf_counter() - began,
        time.process_time() - used,
        work.case.read(result.states[RESULT]),
    )


def replay_process() -> Served:
    """Return the process for replays on Spark."""
    return Served([sys.executable, "-m", "benchmarks.field.replayed"])


def replayed(process: Served, by: str) -> Callable[[Work], Took]:
    """Return a replay on Spark, in its own process."""
    return lambda work: _served(process, by, work)


# -- peers -----------------------------------------------------------------------------------------


def _served(process: Served, kind: str, work: Work) -> Took:
    answer = process.run(kind, work.case.name, work.folder)
    return Took(answer["seconds"], answer["cpu"], answer_of(answer["answer"]))


def answer_of(pairs: Sequence[Sequence[Any]]) -> Answer:
    """Return an answer from its JSON: keys that were tuples are lists there."""
    return {tuple(key) if isinstance(key, list) else key: value for key, value in pairs}


def spark_process() -> Served:
    """Return the process for Spark's SQL."""
    return Served([sys.executable, "-m", "benchmarks.peers.spark_field"])


def spark(process: Served, kind: str) -> System:
    """Return Spark's SQL as a batch or as Structured Streaming, on two local cores."""
    names = SPARK if kind == "batch" else STREAMED
    return System(
        f"Spark {version('pyspark')}, {kind}",
        names.__contains__,
        lambda work: _served(process, kind, work),
    )


def flink_process() -> Served:
    """Return the process for Flink; it is there, or not, when it is asked."""
    # its JVM starts the first `python` of PATH for functions in Python
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{FLINK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    python = str(FLINK_HOME / "bin" / "python")
    return Served([python, "-m", "benchmarks.peers.flink_field"], environment)


def flink(process: Served, kind: str) -> System:
    """Return Flink's SQL or its DataStream in Python, two slots; NotHereError when its environment
    is missing.
    """
    if not (FLINK_HOME / "installed").exists():
        raise NotHereError(f"Flink, {kind}: not here; --install puts it into {FLINK_HOME}")
    names: Any = FLINK if kind == "sql" else _IN_PYTHON
    label = f"Flink {FLINK_VERSION}, {'SQL' if kind == 'sql' else 'DataStream in Python'}"
    return System(label, names.__contains__, lambda work: _served(process, kind, work))


def install_flink() -> None:
    """Make Flink's environment in the user's cache, once; 0.8 GB with all that it needs."""
    if (FLINK_HOME / "installed").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(FLINK_HOME)], check=True)
    python = str(FLINK_HOME / "bin" / "python")
    command = [python, "-m", "pip", "install", "-q", f"apache-flink=={FLINK_VERSION}"]
    subprocess.run(command, check=True)
    # an interrupted installation has a Python already
    (FLINK_HOME / "installed").touch()


def bytewax() -> System:
    """Return Bytewax on two processes, whose start is not counted; NotHereError when it is
    missing.
    """
    if find_spec("bytewax") is None:
        raise NotHereError("Bytewax: not here; pip install -e '.[bench]' brings it")
    return System(
        f"Bytewax {version('bytewax')}",
        (*_IN_PYTHON, "nexmark q5", "nexmark q8").__contains__,
        _run_bytewax,
    )


def _run_bytewax(work: Work) -> Took:
    try:
        seconds, cpu, pairs = run_bytewax(work.case.name, work.folder)
    except subprocess.CalledProcessError as error:
        raise PeerFailedError(f"Bytewax: {error.stderr[-600:]}") from None
    return Took(seconds, cpu, _answer_of_bytewax(work.case.name, pairs))


def _answer_of_bytewax(case: str, parts: Sequence[tuple[Any, Any]]) -> Answer:
    if case == "yahoo":
        return _windows_of(dict(parts))
    answer: Answer = {}
    for key, value in parts:
        plain_key = tuple(key) if isinstance(key, list) else key
        answer[plain_key] = answer.get(plain_key, 0) + value
    return answer


def _windows_of(counts: Mapping[str, int]) -> Answer:
    """Return the Yahoo benchmark's answer from counts by "campaign window"."""
    split = ((key.split(), n) for key, n in counts.items())
    return {
        (campaign, n, (int(window) + 1) * yahoo.WINDOW_MS - 1): 1 for (campaign, window), n in split
    }


def storms(workers: Sequence[int]) -> tuple[list[System], list[str]]:
    """Return the ways in which Storm runs here, and a line for each version that is not to be
    had.
    """
    lines = []
    path = ""
    storm_version = ""
    for storm_version in STORM_VERSIONS:
        try:
            path = class_path(storm_version)
            break
        except (SystemExit, subprocess.CalledProcessError) as error:
            lines.append(f"Storm {storm_version}: not here; {error}")
    if not path:
        return [], lines
    return [_storm(path, storm_version, *way) for way in _ways(workers)], lines


def storm_names(workers: Sequence[int]) -> list[str]:
    """Return the names of the ways of all versions, without looking for one."""
    return [
        _storm_name(storm_version, *way)
        for storm_version in STORM_VERSIONS
        for way in _ways(workers)
    ]


def _ways(workers: Sequence[int]) -> list[tuple[str, str, int]]:
    """Return style, form of the bolts and number of workers of each way."""
    return [("tuned", "rich", n) for n in workers] + [("tuned", "basic", 1), ("shipped", "rich", 1)]


def _takes(style: str, form: str, workers: int) -> Callable[[str], bool]:
    """Return which cases a way of Storm runs: all of Storm's when tuned in one JVM.

    A run takes ten seconds of starting, on two JVMs thirty: the other ways run where they tell most.
    """
    if workers > 1:
        return "word count".__eq__
    if (style, form) == ("tuned", "rich"):
        return _STORM_KINDS.__contains__
    return ("word count", "yahoo").__contains__


def _storm_name(storm: str, style: str, form: str, workers: int) -> str:
    words = [
        f"Storm {storm}",
        "as shipped" if style == "shipped" else "tuned",
        f"{workers} JVM{'s' * (workers > 1)}",
    ]
    return ", ".join(words + ["BaseBasicBolt"] * (form == "basic"))


def _storm(path: str, storm: str, style: str, form: str, workers: int) -> System:
    def run_storm(work: Work) -> Took:
        job = Job(_STORM_KINDS[work.case.name], _STORM_PHASES, workers, style=style, form=form)
        marks: dict[int, float] = {}

        def watch(ended: int) -> None:
            if ended not in marks:
                marks[ended] = cpu_of_storm()

        def is_whole(counts: dict[str, int]) -> bool:
            return _answer_of_storm(work.case.name, counts) == work.expected

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            stream = "bid" if work.case.name.startswith("nexmark") else "text"
            for file in (work.folder / stream).iterdir():
                (folder / f"{file.stem}.txt").symlink_to(file)
            if (work.folder / "campaign").exists():
                (folder / "ads.csv").symlink_to(work.folder / "campaign" / "0.csv")
            run_job(path, folder, job, watch, is_whole)
            warm = phases(folder)[1:]
            counts = counted(folder)
        if uneven := [key for key, count in counts.items() if count % _STORM_PHASES]:
            raise PeerFailedError(
                f"Storm: {uneven[0]!r} was counted {counts[uneven[0]]} times in {_STORM_PHASES} equal phases"
            )
        first = min(mark for mark in marks if mark)  # 1, but the end of a short phase may go unseen
        used = (marks[_STORM_PHASES] - marks[first]) / max(1, _STORM_PHASES - first)
        return Took(sum(warm) / len(warm), used, _answer_of_storm(work.case.name, counts))

    return System(_storm_name(storm, style, form, workers), _takes(style, form, workers), run_storm)


def _answer_of_storm(case: str, counts: Mapping[str, int]) -> Answer:
    """Return the answer of a phase from the counts of all phases, which are equal."""
    once = {key: count // _STORM_PHASES for key, count in counts.items()}
    if case == "nexmark q2":
        return {tuple(map(int, key.split())): count for key, count in once.items()}
    return _windows_of(once) if case == "yahoo" else dict(once)


def cpu_of_storm() -> float:
    """Return the CPU seconds so far of Storm's JVMs below this process."""
    used = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if (
                "org.apache.storm" in (words := " ".join(process.cmdline()))
                or " WordCount " in words
            ):
                times = process.cpu_times()
                used += times.user + times.system
    return used
