"""Word count without its own end: its source repeats the files until a gate opens.

A fault can be injected at any time, because work is left until the gate opens. The input is still
known exactly: the source emits a marker line at the end of each file, so that the marker's count is
how often that file was read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import FileLines, find_files

_MARKER = "end-of-file:"


class GatedLines(FileLines):
    """FileLines that begins again after its last file, until the file `gate` exists; then the pass
    under way is the last.

    `rest_s`: seconds that it sleeps before each line until the gate opens, for a test that needs
    work at any time but no load: without a rest the topology takes all the processors that there
    are.
    """

    def __init__(self, files: Sequence[tuple[str, int]], gate: str, rest_s: float = 0.0) -> None:
        super().__init__(files)
        self._gate = gate
        self._rest_s = rest_s

    def next_tuple(self) -> None:
        """Emit a line, and a marker for each file that ended before it; begin again after the last
        file.
        """
        if self._rest_s and not Path(self._gate).exists():
            time.sleep(self._rest_s)
        ended_from = self._at
        super().next_tuple()
        for number in range(ended_from, self._at):
            self._collector.emit((marker(self._mine[number][0]),), -number - 1)
        if super().is_exhausted() and self._mine and not Path(self._gate).exists():
            self._at, self._offsets = 0, [0] * len(self._mine)
            self._pass_by()

    def extent(self) -> tuple[int, int]:
        """Return (0, 0), unknown: the number of passes depends on the gate."""
        return 0, 0


class Split(BasicBolt):
    """Bolt that emits the words of a line."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every word."""
        for word in tup.values[0].split():
            collector.emit((word,))


class Count(StatefulBolt):
    """Bolt that keeps the number of occurrences of each word."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one word."""
        self.state.add(tup.values[0], 1)


def marker(path: str) -> str:
    """Return the marker line of a file: one word, because the path of a test's file has no
    spaces.
    """
    return f"{_MARKER}{path}"


def build(input: Sequence[str], gate: str, rest_s: float = 0.0) -> Topology:
    """Build the word count over files or folders; it ends when the file `gate` exists. `rest_s` is
    that of GatedLines.
    """
    builder = TopologyBuilder()
    builder.set_spout("lines", GatedLines(find_files(input), gate, rest_s), parallelism=2)
    builder.set_bolt("split", Split(), parallelism=2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", "word")
    return builder.build()


def job_file(input: Path, gate: Path, rest_s: float = 0.0) -> Mapping[str, Any]:
    """Return the content of a job file for this topology."""
    return {
        "name": "gated-count",
        "topology": f"{__name__}:build",
        "arguments": {"input": [str(input)], "gate": str(gate), "rest_s": rest_s},
        "results": {"component": "count"},
        "topology.workers": 2,
        "topology.acker.executors": 2,
    }


def expected_counts(files: Sequence[Path], found: Counter[str]) -> Counter[str]:
    """Count the words of the files independently, each as often as its marker was counted.

    AssertionError when a file was never read to its end.
    """
    expected: Counter[str] = Counter()
    for file in files:
        passes = found[marker(str(file))]
        assert passes or not file.stat().st_size, f"{file} was never read to its end"
        for word, count in Counter(file.read_bytes().decode("utf-8", "replace").split()).items():
            expected[word] += passes * count
        if passes:
            expected[marker(str(file))] += passes
    return expected
