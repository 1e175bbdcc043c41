"""One replay from files to files: Spark session, frames, progress on the terminal, result files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.common.errors import InvalidConfigError, reason_of
from sparkstorm.common.model.names import counted, file_name
from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.common.settings import DriverSettings
from sparkstorm.common.spark_versions import has_context, start_java, unfit_here
from sparkstorm.connectors.file_source import Files
from sparkstorm.data_plane.checkpoint.restore import FROM_CHECKPOINT
from sparkstorm.driver.exit_status import OK, PARKED
from sparkstorm.driver.hosting.spark_security import remove_at_exit, secured, with_private_scratch
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.replay.compare import DIFFERS, compare, text_of
from sparkstorm.driver.replay.file_inputs import (
    FileInput,
    FilesInput,
    FileSource,
    reads_lines,
    source_of,
)
from sparkstorm.driver.replay.job_part import NOTE, ReplayFile
from sparkstorm.driver.replay.job_results import named, place_of, write_result
from sparkstorm.replay import EventTime, Replay, back_fill
from sparkstorm.replay.arrow_map import ReadByParts
from sparkstorm.replay.equality_warnings import ReplayWarning
from sparkstorm.replay.failures import SPARK_ERRORS, told_shortly, unwrapped
from sparkstorm.replay.inputs import parse_name
from sparkstorm.replay.job import STATE_MARK, Job, RunSettings, make_job
from sparkstorm.replay.options import ReplayOptions
from sparkstorm.replay.replay import start
from sparkstorm.replay.results.files import CSV, check_columns, writable
from sparkstorm.replay.spark import SMALL_MEMORY

_LINE_EVERY_S = 5.0
# what is none is no absence; CSV is read with names
_WRITING = {"json": {"ignoreNullFields": "false"}, "csv": CSV}
# what other jobs leave next to their data
_MARKERS = "_SUCCESS", "_metadata", "_common_metadata", "_started_", "_committed_"
_DEAD_LETTERS = "dead-letters"
_OF_LINES = "csv", "json"
_PACKAGE_ROOT = str(Path(__file__).parents[3])


class ReplayRun:
    """One run; the session is the caller's if there is one."""

    def __init__(
        self, job: JobFile, topology: Topology, by_value: Sequence[str], file: ReplayFile
    ) -> None:
        self._job = job
        self._topology = topology
        self._by_value = by_value
        self._file = file
        self._parsed: dict[str, FilesInput] = {}  # by input
        self._code: Job | None = None
        # results of the job file, in its own formats
        self._own = [] if file.outputs else named(job.results)

    def write(self, folder: Path, written: str, against: Path | None = None) -> int:
        """Replay and write every result; return the exit status. ReplayFailedError has one sentence
        from Spark's error.

        With `against`, the results of another version of the code, they are compared row by row.
        """
        try:
            return self._write_all(folder, written, against)
        except SPARK_ERRORS as error:
            raise told_shortly(error) from error

    def _write_all(self, folder: Path, written: str, against: Path | None) -> int:
        began = time.monotonic()
        spark = _session(self._job.name, DriverSettings.of(self._job.conf).authenticates)
        results, names = self._wanted(spark)
        results.keep()  # one may be written in two forms
        told = _tell(results, ())
        for name in names:
            check_columns(name, results.columns_of(name))
        own = [place for _, result in self._own if (place := place_of(result))]
        folders = result_folders(
            folder,
            [*dict.fromkeys([*names, *own]), *([_DEAD_LETTERS] if self._file.skip_bad else [])],
        )
        with _progress(spark, results), unwrapped():
            for name in names:
                if not self._is_bare(name, results):
                    save(writable(name, results[name], written), folders[name], written)
            for name, result in self._own:
                write_result(
                    self._job,
                    self._topology,
                    result,
                    results[name],
                    folder,
                    f"{self._job.name}-{uuid4().hex}",
                )
        _tell(results, told)
        for note in (note for parsed in self._parsed.values() if (note := parsed.note())):
            print(f"note: {note}", flush=True)
        executed, parked = (
            sum(counts[word] for counts in results.counts.values())
            for word in ("executed", "parked")
        )
        if not executed:
            print(
                "note: no bolt got a tuple: the inputs have no rows, or spouts and bolts pass nothing on",
                flush=True,
            )
        if self._file.skip_bad:
            with unwrapped():
                parked = results.dead_letter_lines.count()
                save(results.dead_letter_lines, folders[_DEAD_LETTERS], "text")
        took = time.monotonic() - began
        late, held = (
            sum(counts[word] for counts in results.counts.values()) for word in ("late", "waiting")
        )
        lost = (f", {late:,} late" if late else "") + (
            f", {held:,} neither acked nor failed" if held else ""
        )
        print(
            f"{counted(executed, 'tuple')} executed in {took:.1f} s ({executed / took:,.0f}/s), "
            f"{counted(parked, 'record')} put aside{lost}; results are in {folder.resolve()}",
            flush=True,
        )
        status = PARKED if parked else OK
        return status if against is None else _compared(spark, folders, against, written, status)

    def _wanted(self, spark: SparkSession) -> tuple[Replay, list[str]]:
        """Return the lazy results, and the names of those that are written."""
        if self._file.checkpoint:
            results = self.back_fill(spark, self._file.checkpoint)
            return results, list(self._file.outputs) or self._names(results)
        inputs = {name: self._read(spark, name, path) for name, path in self._file.inputs.items()}
        inputs |= self._bad_inputs(inputs)
        for note in (
            note
            for name, path in self._file.inputs.items()
            if name not in self._parsed and (note := passed_over(name, path))
        ):
            print(f"note: {note}", flush=True)
        names = list(self._file.outputs) or self._names(self.results(spark, inputs, None))
        return self.results(
            spark, inputs, [*dict.fromkeys([*names, *(name for name, _ in self._own)])]
        ), names

    def results(
        self,
        spark: SparkSession,
        inputs: Mapping[str, DataFrame | ReadByParts],
        names: Collection[str] | None,
    ) -> Replay:
        """Return the lazy results; unrequested ones are not kept."""
        file = self._file
        states = {
            name: _load(spark, name, path, _format_of(path)) for name, path in file.states.items()
        }
        options = ReplayOptions(
            conf=self._conf(),
            name=self._job.name,
            event_time=file.time,
            states=states,
            types=file.types,
            outputs=names,
            effects=file.effects,
            skip_bad=file.skip_bad,
            from_checkpoint=file.from_checkpoint,
            by_value=self._by_value,
        )
        return start(self._topology, inputs, options)

    def back_fill(self, spark: SparkSession, checkpoint: str) -> Replay:
        """The results up to a checkpoint, which is there when this returns."""
        file = self._file
        if file.states:
            raise InvalidConfigError(
                "replay: states: a replay that leaves a checkpoint begins with nothing"
            )
        time = None if file.event_time is None else EventTime(file.event_time, in_order=False)
        results = back_fill(
            self._topology,
            spark,
            checkpoint,
            rows=file.rows,
            conf=self._conf(),
            name=self._job.name,
            event_time=time,
            outputs=file.outputs or None,
            effects=file.effects,
            by_value=self._by_value,
            types=file.types,
            skip_bad=file.skip_bad,
            from_checkpoint=file.from_checkpoint,
        )
        print(
            f"checkpoint {Path(checkpoint).resolve()} is written; run_topology.py --from goes on from it",
            flush=True,
        )
        return results

    def _names(self, results: Replay) -> list[str]:
        """Return the results that nothing reads, but for streams that the job file has written in
        its own format.
        """
        own = {name for name, result in self._own if result.stream}
        return [name for name in results.sinks if name not in own]

    def _conf(self) -> dict[str, Any]:
        own = self._job.own_conf.items()
        return {
            key: value
            for key, value in own
            if key.startswith(("topology.", "app.")) and key != FROM_CHECKPOINT
        }

    def _read(self, spark: SparkSession, name: str, path: str) -> DataFrame | ReadByParts:
        feed = parse_name(self._topology, name)
        columns = self._file.columns.get(name)
        fields = self._topology.components[feed.spout].streams[feed.stream].fields
        kind = self._file.format or _format_of(path)
        is_guessed = self._file.format is None and columns is None
        if columns is None and feed.stream == DEFAULT_STREAM:
            spout = self._topology.components[feed.spout].instance
            source = source_of(spout, kind, path, len(fields), is_guessed)
            if source is not None:
                return self._from_files(spark, name, feed.spout, path, source)
        frame = _load(spark, name, path, kind, columns, self._file.skip_bad)
        if is_guessed and kind in _OF_LINES and len(fields) == 1 and fields[0] not in frame.columns:
            print(
                f"note: input '{name}': {path} has no column '{fields[0]}', so each of its lines is one, as live "
                f"(--format {kind} reads columns)",
                flush=True,
            )
            spout = self._topology.components[feed.spout].instance
            source = spout if reads_lines(spout) else Files(path)
            return self._from_files(spark, name, feed.spout, path, source)
        if frame.columns == ["value"] and len(fields) == 1:  # lines of text
            return frame.toDF(fields[0])
        if len(fields) == 1 and fields[0] not in frame.columns:
            raise InvalidConfigError(
                f"input '{name}': {path} has no column '{fields[0]}'; it has {', '.join(frame.columns)} "
                f"(--format text takes every line as '{fields[0]}')"
            )
        return frame

    def _from_files(
        self, spark: SparkSession, name: str, spout: str, path: str, source: FileSource
    ) -> ReadByParts:
        """Return what a source emits of files, which is the spout's own or in its place."""
        if isinstance(source, Files):
            _check_not_empty(name, path, source.format)
        if self._code is None:
            options = ReplayOptions(conf=self._conf(), name=self._job.name)
            self._code = make_job(options.plan(self._topology), RunSettings(), self._by_value)
        is_own = source is self._topology.components[spout].instance
        given = FileInput(self._code, spout, path, None if is_own else source)
        self._parsed[name] = FilesInput(spark, given, source)
        return self._parsed[name].input()

    def _bad_inputs(self, given: Collection[str]) -> dict[str, ReadByParts]:
        """Return the records that sources cannot read, for bolts and results that want them."""
        if self._file.event_time is not None:
            return {}
        names = {feed: f"{parse_name(self._topology, feed).spout}:bad" for feed in self._parsed}
        return {
            name: self._parsed[feed].input("bad")
            for feed, name in names.items()
            if name not in given
            and self._parsed[feed].has_bad
            and (self._topology.subscribers(name[:-4], "bad") or name in self._file.outputs)
        }

    def _is_bare(self, name: str, results: Replay) -> bool:
        """Return whether a result is the empty state of a bolt with windows or timers, and was not
        asked for by name.
        """
        component = self._topology.components.get(name.removesuffix(STATE_MARK))
        return (
            name.endswith(STATE_MARK)
            and name not in self._file.outputs
            and component is not None
            and isinstance(component.instance, WindowedBolt | TimedBolt)
            and results[name].isEmpty()
        )


def _compared(
    spark: SparkSession, folders: Mapping[str, Path], against: Path, written: str, status: int
) -> int:
    """Compare the results with those of another version; return the exit status."""
    compared = {
        name: folder
        for name, folder in folders.items()
        if name != _DEAD_LETTERS and folder.is_dir()
    }
    differences = compare(spark, compared, against, written)
    for difference in differences:
        print(text_of(difference), flush=True)
    if not differences:
        print(
            f"no difference to {against} in {', '.join(sorted(compared)) or 'no result'}",
            flush=True,
        )
    return DIFFERS if differences else status


def save(frame: DataFrame, folder: Path, written: str) -> None:
    """Write a result in a format, in place of what the folder held."""
    writer = frame.write.mode("overwrite").format(written)
    writer.options(**_WRITING.get(written, {})).save(str(folder))


def _tell(results: Replay, told: Collection[ReplayWarning]) -> tuple[ReplayWarning, ...]:
    """Print the warnings that were not printed before: the tasks' evidence is more exact than the
    topology, and withdraws some.
    """
    now = results.warnings
    for warning in now:
        if warning not in told:
            print(f"note: {warning}", flush=True)
    for cause in sorted(
        {(warning.component, warning.cause) for warning in told}
        - {(warning.component, warning.cause) for warning in now}
    ):
        print(
            f"note: component '{cause[0]}': the warning of \"{cause[1]}\" does not hold for this run",
            flush=True,
        )
    return now


def passed_over(name: str, path: str) -> str:
    """Return a warning of files that Spark leaves out by their names, though a spout over the same
    folder reads them.
    """
    folder = Path(path)
    inside = (
        (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
        if folder.is_dir()
        else ()
    )
    hidden = sorted(
        str(file)
        for file in inside
        if any(part[0] in "_." and "=" not in part for part in file.parts)
        and not file.name.endswith(".crc")
        and not file.name.startswith(_MARKERS)
    )
    if not hidden:
        return ""
    return (
        f"input '{name}': Spark passes over {len(hidden)} files whose own or folder's name begins with _ or . "
        f"(as {hidden[0]}); rename them if they are data"
    )


def _load(
    spark: SparkSession,
    name: str,
    path: str,
    kind: str,
    columns: str | None = None,
    skip_bad: bool = False,
) -> DataFrame:
    _check_not_empty(name, path, kind)
    with _readable(name, path, kind):
        if kind == "table":
            return spark.table(path)
        if kind == "text":  # at newlines alone, where Spark also ends lines at carriage returns
            reader = spark.read.format("text").options(recursiveFileLookup="true", lineSep="\n")
            return reader.load(path).selectExpr("TRIM(TRAILING CHAR(13) FROM value) AS value")
        reader = spark.read.format(kind).option("recursiveFileLookup", "true")
        if columns:
            reader = reader.schema(columns)
        if kind == "csv":
            reader = reader.options(**CSV, inferSchema=str(not columns).lower())
        if kind in _OF_LINES:  # else Spark makes nulls of what it cannot read, and says nothing
            reader = reader.option("mode", "DROPMALFORMED" if skip_bad else "FAILFAST")
        return reader.load(path)


@contextmanager
def _readable(name: str, path: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (AnalysisException, Py4JJavaError, ValueError) as error:
        # the latter of a file that is none of its kind
        said = (
            str(error.java_exception.getMessage())
            if isinstance(error, Py4JJavaError)
            else str(error)
        )
        raise InvalidConfigError(
            f"input '{name}': {path} cannot be read as {kind}: {said.splitlines()[0]}"
        ) from error


def _check_not_empty(name: str, path: str, kind: str) -> None:
    """Raise InvalidConfigError for a local folder without a file that Spark or `Files` reads, which
    would be an input without rows.
    """
    folder = Path(path)
    if kind == "table" or not folder.is_dir():
        return
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    if not any(all(part[0] not in "_." or "=" in part for part in file.parts) for file in files):
        hidden = (
            f" but {len(files)} whose own or folder's name begins with _ or ., which are left out"
            if files
            else ""
        )
        raise InvalidConfigError(f"input '{name}': there are no files in {path}{hidden}")


def _format_of(path: str) -> str:
    endings = {
        ".csv": "csv",
        ".json": "json",
        ".jsonl": "json",
        ".parquet": "parquet",
        ".orc": "orc",
    }
    here = Path(path)
    files = (
        [here]
        if here.suffix or not here.is_dir()
        else sorted(p for p in here.rglob("*") if p.is_file())
    )
    return next((endings[p.suffix] for p in files if p.suffix in endings), "text")


def result_folders(folder: Path, results: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each result below `folder`, noted there as written by us: only those are
    ever replaced.

    InvalidConfigError when two results have the same folder, or when one exists that no replay
    wrote.
    """
    names = {result: file_name(result.replace("!", ".").replace(":", ".")) for result in results}
    by_name: dict[str, str] = {}
    for result in results:
        if (name := names[result]) in by_name:
            raise InvalidConfigError(
                f"results '{by_name[name]}' and '{result}' would both be written to {folder / name}: ask for one (--result)"
            )
        by_name[name] = result
    try:
        note = folder / NOTE
        written = set(note.read_text(encoding="utf-8").splitlines()) if note.is_file() else set()
        for name in names.values():
            if (folder / name).is_symlink() or (name not in written and (folder / name).exists()):
                raise InvalidConfigError(
                    f"--output {folder}: {name} was not written by a replay; name another folder"
                )
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(
            "".join(f"{name}\n" for name in sorted(written | set(names.values()))), encoding="utf-8"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"--output {folder} cannot be used: {reason_of(error)}") from error
    return {result: folder / name for result, name in names.items()}


def _session(name: str, wants_authentication: bool) -> SparkSession:
    """The caller's session, or a new one with the settings of `secured`."""
    if fault := unfit_here():
        raise InvalidConfigError(fault)
    is_given = has_context()
    start_java()
    conf = SparkConf()
    given = conf.get("spark.executorEnv.PYTHONPATH") or os.environ.get("PYTHONPATH")
    conf.set(
        "spark.executorEnv.PYTHONPATH",
        os.pathsep.join([_PACKAGE_ROOT, *([given] if given else [])]),
    )
    # Spark's bar overwrites the progress lines; Spark itself has set it, as for a shell.
    conf.set("spark.ui.showConsoleProgress", "false")
    # Texts without a zone would be read and written in that of the machine.
    conf.setIfMissing("spark.sql.session.timeZone", "UTC")
    for key, value in SMALL_MEMORY.items():
        conf.setIfMissing(key, value)
    if not is_given:
        conf = with_private_scratch(
            secured(conf.setIfMissing("spark.master", "local[*]"), wants_authentication)
        )
    builder = SparkSession.builder.appName(f"{name} replay")
    for key, value in conf.getAll():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    if not is_given:
        remove_at_exit(session.sparkContext)
    session.sparkContext.setLogLevel("OFF")  # failures are reported by us, in one sentence
    return session


@contextmanager
def _progress(spark: SparkSession, results: Replay) -> Iterator[None]:
    """A line every few seconds, while actions run on this thread."""
    over = threading.Event()
    thread = threading.Thread(
        target=_say_progress, args=(spark, results, over), name="replay-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say_progress(spark: SparkSession, results: Replay, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(_LINE_EVERY_S):
        stages = [
            info
            for id in tracker.getActiveStageIds()
            if (info := tracker.getStageInfo(id)) is not None
        ]
        tasks = ", ".join(f"{s.numCompletedTasks} of {s.numTasks}" for s in stages) or "none"
        done = ", ".join(
            f"{name} {counts['executed']:,}" for name, counts in _sorted(results.counts)
        )
        print(
            f"Spark tasks done in running stages: {tasks}; tuples executed by finished tasks: {done or 'none yet'}",
            flush=True,
        )


def _sorted(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(counts.items())
