"""Example of event time on real data: when the files in Spark's own jars were built, per day and
kind of file.

Every jar that PySpark brings is an archive whose entries carry the moment they were written: some
157,000 events of many years. Within a jar they come by name, not by time, and old files lie next to
new ones: data out of order, and late data.
"""

from __future__ import annotations

import calendar
import datetime
import importlib.util
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    ReplayableSpout,
    SpoutOutputCollector,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    Window,
)
from sparkstorm.connectors import find_files

DAY_MS = 86_400_000
LAG_DAYS = 30  # files that lie further back than the newest one before them are late


class JarEntries(ReplayableSpout):
    """Emits the files of its share of the jars; its position is (jar, entry), so it goes on exactly
    where it was.
    """

    outputs = ("kind", "built_ms", "bytes")

    def __init__(self, jars: Sequence[str]) -> None:
        self._jars = list(jars)

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take every n-th jar."""
        self._collector = collector
        self._mine = self._jars[context.task_index :: len(context.peers)]
        self._jar = 0
        self._entry = 0
        self._entries: list[tuple[str, int, int]] | None = None

    def next_tuple(self) -> None:
        """Emit one file; a jar's list of files is read when its turn comes."""
        while self._jar < len(self._mine):
            if self._entries is None:
                self._entries = files_of(self._mine[self._jar])
            if self._entry < len(self._entries):
                kind, built_ms, size = self._entries[self._entry]
                self._collector.emit((kind, built_ms, size), message_id=[self._jar, self._entry])
                self._entry += 1
                return
            self._jar = self._jar + 1
            self._entry = 0
            self._entries = None

    def is_exhausted(self) -> bool:
        """Return whether every file of every jar was emitted."""
        return self._jar >= len(self._mine)

    def snapshot(self) -> Any:
        """(jar, entry) of the next file."""
        return [self._jar, self._entry]

    def restore(self, position: Any) -> None:
        """Go on from there."""
        self._jar, self._entry = position
        self._entries = None


class PerDay(FoldingBolt):
    """Number and bytes of the files of a kind that were built on a day."""

    outputs = ("kind", "day", "files", "bytes")

    def initial(self) -> list[int]:
        """No files, no bytes."""
        return [0, 0]

    def fold(self, accumulator: list[int], tup: Tuple) -> list[int]:
        """One more file."""
        return [accumulator[0] + 1, accumulator[1] + int(tup["bytes"])]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """A day is complete."""
        files, size = window.value
        collector.emit(
            (
                window.key[0],
                str(datetime.date.fromordinal(719_163 + window.start // DAY_MS)),
                files,
                size,
            )
        )


class Table(StatefulBolt):
    """Keeps files by day and kind; what was late is counted under its kind."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Note a day, or one late file."""
        if tup.stream == "late":
            self.state.add(f"late {tup['values']['kind']}")
        else:
            self.state.put(f"{tup['day']} {tup['kind']}", tup["files"])


def files_of(jar: str) -> list[tuple[str, int, int]]:
    """(kind, time in ms, bytes) of every file in a jar, in its own order; times are what the
    archive says, as UTC.
    """
    with zipfile.ZipFile(jar) as archive:
        return [
            (
                Path(entry.filename).suffix[1:] or "other",
                calendar.timegm((*entry.date_time, 0, 0, 0)) * 1000,
                entry.file_size,
            )
            for entry in archive.infolist()
            if not entry.is_dir()
        ]


def oldest_first(jars: Sequence[str]) -> list[str]:
    """Jars by the time of their newest file, as they would have come into being; empty ones are
    left out.
    """
    newest = {jar: max((time_ms for _, time_ms, _ in files_of(jar)), default=None) for jar in jars}
    return sorted(
        (jar for jar in jars if newest[jar] is not None), key=lambda jar: (newest[jar], jar)
    )


def spark_jars() -> Path:
    """Where Spark keeps its jars: under spark-submit in its home, else inside the installed
    PySpark.
    """
    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"], "jars")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "jars"


def build(input: Sequence[str] = ()) -> Topology:
    """Files per day and kind over the jars below these folders; without any, over Spark's own."""
    jars = oldest_first([path for path, _ in find_files(input or [str(spark_jars())], "*.jar")])
    days = (
        PerDay()
        .with_tumbling_window(Duration(DAY_MS))
        .with_timestamp_field("built_ms")
        .with_key("kind")
        .with_lag(Duration(LAG_DAYS * DAY_MS))
        .with_late_tuple_stream("late")
    )
    builder = TopologyBuilder()
    builder.set_spout("jars", JarEntries(jars))
    builder.set_bolt("days", days, parallelism=2).fields_grouping("jars", "kind")
    builder.set_bolt("table", Table(), parallelism=2).fields_grouping(
        "days", "kind"
    ).fields_grouping("days", "component", stream="late")
    return builder.build()
