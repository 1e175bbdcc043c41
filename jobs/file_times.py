"""Example with event time: files of this machine by the time they were last changed, late ones told
apart.

Paths come in the order of their names, so their times jump back and forth over years: real data
that is out of order. `python jobs/file_times.py FOLDER... > files.csv` writes the same events as a
history that a replay can read.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sparkstorm.api import (
    BasicOutputCollector,
    Conf,
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

FIELDS = ("suffix", "bytes", "changed_ms")
DAY = Duration.hours(24).ms


def events(folders: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(suffix, bytes, time of the last change) of every file below the folders, by path."""
    for folder in folders:
        for path, names, files in os.walk(folder):
            names.sort()
            for name in sorted(files):
                try:
                    status = os.lstat(os.path.join(path, name))
                except OSError:  # gone since it was listed
                    continue
                yield (
                    os.path.splitext(name)[1].lower() or "none",
                    status.st_size,
                    max(0, int(status.st_mtime * 1000)),
                )


class FileTimes(ReplayableSpout):
    """Emits the events of its folders; its position is their number."""

    outputs = FIELDS

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)

    _next: tuple[str, int, int] | None

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Look at the first file."""
        self._collector = collector
        self.restore(0)

    def next_tuple(self) -> None:
        """Emit one file."""
        if self._next is not None:
            self._collector.emit(self._next, self._count)
            self._count += 1
            self._next = next(self._events, None)

    def is_exhausted(self) -> bool:
        """Return whether every file was emitted."""
        return self._next is None

    def snapshot(self) -> Any:
        """Return how many were emitted."""
        return self._count

    def restore(self, position: Any) -> None:
        """Pass by what was emitted before."""
        self._count = position
        self._events = islice(events(self._folders), position, None)
        self._next = next(self._events, None)


class ChangedPerMonth(FoldingBolt):
    """Bytes changed per suffix in each thirty days."""

    outputs = ("suffix", "until_ms", "bytes")
    key_fields = ("suffix",)

    def initial(self) -> int:
        """Nothing changed."""
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        """One more file."""
        return accumulator + int(tup["bytes"])

    def merge(self, one: int, other: int) -> int:
        """Two parts of a window."""
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """A month is complete."""
        collector.emit((*window.key, window.end, window.value))


class LargestMonth(StatefulBolt):
    """The most bytes that a suffix had in one month."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Keep the larger."""
        self.state.put(tup["suffix"], max(tup["bytes"], self.state.get(tup["suffix"], 0)))


class LateFiles(StatefulBolt):
    """Number of files that came later than the lag allows, and their bytes."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        self.state.add("files")
        self.state.add("bytes", tup["values"]["bytes"])


def build(input: Sequence[str] = (), lag_days: int = 365) -> Topology:
    """The folders' files (of /usr/share without any) through windows of thirty days, late by the
    lag.
    """
    builder = TopologyBuilder()
    builder.set_spout("files", FileTimes(list(input) or ["/usr/share"]))
    windows = (
        ChangedPerMonth()
        .with_tumbling_window(Duration(30 * DAY))
        .with_timestamp_field("changed_ms")
    )
    windows.with_lag(Duration(lag_days * DAY)).with_late_tuple_stream("late")
    builder.set_bolt("months", windows, parallelism=2).fields_grouping("files", "suffix")
    builder.set_bolt("largest", LargestMonth(), parallelism=2).fields_grouping("months", "suffix")
    builder.set_bolt("late", LateFiles()).global_grouping("months", stream="late")
    return builder.build()


if __name__ == "__main__":
    writer = csv.writer(sys.stdout)
    writer.writerow(FIELDS)
    writer.writerows(events(sys.argv[1:] or ["/usr/share"]))
