"""Price of the delivery guarantees: words/s of the word count under each of the three, in turn, and
their ratios.

Run: python -m benchmarks.guarantees [--words N] [--runs N]. Two workers; ratios are medians of the
ratios of each round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.curves import CONF
from benchmarks.pipeline import cluster, run
from benchmarks.topologies import word_count
from benchmarks.wordcount import zipf_words

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    lines = zipf_words(options.words)
    rates: dict[str, list[float]] = {each: [] for each in GUARANTEES}
    with tempfile.TemporaryDirectory() as folder, cluster() as on:
        files = [Path(folder, f"{i}.txt") for i in (0, 1)]
        for i, file in enumerate(files):
            file.write_text("\n".join(lines[i::2]))
        topology = word_count([str(file) for file in files])
        for round_ in range(options.runs + 1):  # the first round warms and is not counted
            for guarantee in GUARANTEES:
                taken = run(
                    on, topology, {**CONF, "topology.delivery.guarantee": guarantee}, "count"
                )
                if sum(taken.state.values()) != options.words:
                    sys.exit(f"{guarantee}: the counts are wrong")
                if round_:
                    rates[guarantee].append(options.words / taken.seconds)
            print(f"  round {round_}", file=sys.stderr, flush=True)
    print(
        f"| n = {options.runs} | k words/s | least-most | exactly-once to it |\n|---|---|---|---|"
    )
    for guarantee, found in rates.items():
        ratio = statistics.median(
            mine / other for mine, other in zip(rates[GUARANTEES[0]], found, strict=True)
        )
        span = f"{min(found) / 1000:,.0f}-{max(found) / 1000:,.0f}"
        print(f"| {guarantee} | {statistics.median(found) / 1000:,.0f} | {span} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
