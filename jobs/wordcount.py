"""Word count that `make run` shows: lines -> split -> count, over real files."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
    fields,
)
from sparkstorm.connectors import FileLines, find_files


class SplitWords(BasicBolt):
    """Splits a line into its words."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every word of a line."""
        for word in tup.values[0].split():
            collector.emit((word,))


class CountWords(StatefulBolt):
    """Counts each word; a count is written in the same commit as the ack of its word."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one word."""
        self.state.add(tup.values[0], 1)


def standard_library() -> list[tuple[str, int]]:
    """Return path and size of the standard library's sources, a corpus that every machine has,
    without installed packages.
    """
    files = find_files([sysconfig.get_paths()["stdlib"]], "*.py")
    return [
        (path, size)
        for path, size in files
        if not {"site-packages", "dist-packages"} & set(Path(path).parts)
    ]


def build(input: Sequence[str] = ()) -> Topology:
    """Return the topology over files or folders; without any, over the sources of Python's own
    standard library.
    """
    files = find_files(input) if input else standard_library()
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(files), parallelism=2)
    builder.set_bolt("split", SplitWords(), parallelism=2, inputs={"lines": "local_or_shuffle"})
    builder.set_bolt("count", CountWords(), parallelism=2, inputs={"split": fields("word")})
    return builder.build()
