"""Owns the word count that `make run` shows: lines -> split -> count, over real files."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.model.topology import Topology


class SplitWords(BasicBolt):
    """One line in, its words out."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every word."""
        for word in tup.values[0].split():
            collector.emit((word,))


class CountWords(StatefulBolt):
    """Keeps how often each word came; the counts are written in the same commit as the words' acks."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one word."""
        self.state.add(tup.values[0], 1)


def standard_library() -> list[tuple[str, int]]:
    """The sources of Python's own standard library: a real corpus that every machine has; not what pip installed into it."""
    files = find_files([sysconfig.get_paths()["stdlib"]], "*.py")
    return [(path, size) for path, size in files if not {"site-packages", "dist-packages"} & set(Path(path).parts)]


def build(input: Sequence[str] = ()) -> Topology:
    """Count the words of files or folders; without any, of the sources of Python's own standard library."""
    files = find_files(input) if input else standard_library()
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(files), parallelism=2)
    builder.set_bolt("split", SplitWords(), parallelism=2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountWords(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
