"""Memory of one long run: workers, Redis, its append-only file and the driver, once a second, as a
table and a plot.

Run: python -m benchmarks.soak [--words 50000000]. A word count of generated lines, exactly-once
with acking, two workers. Exit status 1 when the last third of the run holds more memory than the
middle third: it must stay flat.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from benchmarks.curves import CONF, PLOTS
from benchmarks.generated import endless_words
from benchmarks.pipeline import cluster, memory_by_kind, run
from benchmarks.plots import line_plot
from sparkstorm.client.handle import TopologyHandle

_GROWTH = 1.05  # of the last third over the middle third, beside _SLACK_MB
_SLACK_MB = 8.0
_FILE = "append-only file"  # not memory: Redis rewrites it when it has doubled


class Samples:
    """Megabytes by kind of process once a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0.0
        self.by_kind: dict[str, list[tuple[float, float]]] = {}

    def take(self, handle: TopologyHandle, seconds: float) -> None:
        """Take a sample when a second has passed since the last."""
        if time.monotonic() - self._last < 1.0:
            return
        self._last = time.monotonic()
        found = memory_by_kind()
        files = [path for path in self._folder.rglob("*.aof") if path.is_file()]
        found[_FILE] = sum(path.stat().st_size for path in files) / 1e6
        for kind, megabytes in found.items():
            self.by_kind.setdefault("driver and JVMs" if kind == "other" else kind, []).append(
                (seconds, megabytes)
            )


def main() -> int:
    """Print the table, draw the plot; 1 when memory grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=50_000_000)
    options = parser.parse_args()
    with cluster() as on:
        samples = Samples(Path(on.conf.text("storm.local.dir")))
        found = run(on, endless_words(options.words // 10), CONF, "count", samples.take)
    if sum(found.state.values()) != options.words // 10 * 10:
        sys.exit("the counts are wrong")
    print(
        f"{options.words:,} words in {found.seconds:.0f} s: {options.words / found.seconds / 1000:,.0f} k words/s\n"
    )
    print("| MB | first third | middle | last | most |\n|---|---|---|---|---|")
    grown = []
    for kind, points in samples.by_kind.items():
        values = [megabytes for _, megabytes in points]
        third = max(1, len(values) // 3)
        first, middle, last = (
            statistics.median(values[third * at : third * (at + 1)]) for at in range(3)
        )
        print(f"| {kind} | {first:.0f} | {middle:.0f} | {last:.0f} | {max(values):.0f} |")
        if kind != _FILE and last > middle * _GROWTH + _SLACK_MB:
            grown.append(kind)
    PLOTS.mkdir(exist_ok=True)
    plot = line_plot(
        samples.by_kind, f"memory over {options.words:,} words, MB", "seconds", is_log=False
    )
    (PLOTS / "soak.svg").write_text(plot)
    if grown:
        print(f"memory grew: {', '.join(grown)}")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
