"""Two stores beside one on one machine: `python -m benchmarks.two_stores [--cut] [--size BYTES]
[--rounds N] [--scale F]`.

Two topologies of two workers each over two stores, beside the same two over one; with `--cut` one
topology of two workers, over two stores as two cells, beside the same over one. A word count, half
of its words crossing, or with `--size` tuples of so many bytes, half of them crossing. The cost is
CPU of workers and stores per word or tuple, since two stores on the same cores can carry no more
than they save; the rate is printed beside it, for machines with cores to spare. One store and two
take turns; exit status 1 when two carry less than GATE of one per CPU, by the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.generated import chain, endless_words
from benchmarks.pipeline import cluster, cpu_by_kind
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.submission import SubmitOptions
from sparkstorm.embedded import start_redis
from sparkstorm.model.status import TopologyStatus
from sparkstorm.model.topology import Topology

GATE = 0.95
"""Share of the units per CPU of one store that two stores have to reach."""
_NAMES = ("one", "two")
_WORDS_A_LINE = 10
_LINES = 100_000  # of a topology; a quiet machine has them in some seconds
_TUPLES = 60_000  # of a topology, where tuples have a size
_CONF = {"topology.workers": 2, "topology.max.spout.pending": 5_000}


@contextmanager
def stores(count: int) -> Iterator[Cluster]:
    """Open a cluster of four slots with so many stores of its own."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        urls = []
        for number in range(count):
            server = start_redis(Path(folder, str(number)), password="bench")
            opened.callback(server.stop)
            urls.append(f"redis://{server.host}:{server.port}#{_NAMES[number]}")
        secret = Path(folder, "password")
        secret.write_text("bench")
        secret.chmod(0o600)
        own = {"sparkstorm_redis_urls": urls, "sparkstorm_redis_password_file": str(secret)}
        yield opened.enter_context(cluster(4, **own))


@dataclass(frozen=True, slots=True)
class Load:
    """Work of a round: one topology over all stores or two of them with a store each, its tuples'
    bytes (0: words), and how much of it.
    """

    is_cut: bool
    size: int
    scale: float

    @property
    def unit(self) -> str:
        """Return what is counted."""
        return f"tuple of {self.size:,} bytes" if self.size else "word"

    def topology(self, scale: float) -> tuple[Topology, int]:
        """Return a topology for a share of the work, and how many units it has."""
        if self.size:
            tuples = int(_TUPLES * self.scale * scale)
            return chain(tuples, 1, self.size), tuples
        lines = int(_LINES * self.scale * scale)
        return endless_words(lines), lines * _WORDS_A_LINE

    def conf_by_name(self, stores: int) -> dict[str, dict[str, Any]]:
        """Return the configuration of each topology over so many stores."""
        if self.is_cut:
            cells = {"topology.cells": stores} if stores > 1 else {}
            return {"cut": {**cells, "topology.redis.store": ",".join(_NAMES[:stores])}}
        return {
            name: {"topology.redis.store": _NAMES[number % stores]}
            for number, name in enumerate(("left", "right"))
        }


class Figures(NamedTuple):
    """A round over so many stores: microseconds of CPU of workers and stores per unit, and units
    per second.
    """

    us: float
    per_s: float


def measure(on: Cluster, load: Load, stores: int, scale: float = 1.0) -> Figures:
    """Run a share of the work to its end."""
    topology, units = load.topology(scale)
    handles = [
        on.submit(name, topology, {**_CONF, **own}, options=SubmitOptions(TopologyStatus.INACTIVE))
        for name, own in load.conf_by_name(stores).items()
    ]
    for handle in handles:
        while sum(beat.state == "RUNNING" for beat in handle.beats()) < _CONF["topology.workers"]:
            time.sleep(0.05)
    time.sleep(0.5)  # the workers are up and quiet
    before = cpu_by_kind()
    began_s = time.perf_counter()
    for handle in handles:
        handle.activate()
    while not all(handle.progress().is_drained for handle in handles):
        time.sleep(0.05)
    seconds = time.perf_counter() - began_s
    after = cpu_by_kind()
    for handle in handles:
        handle.kill(0)
        while on.find(handle.name) is not None:
            time.sleep(0.05)
    spent = sum(after[kind] - before[kind] for kind in ("workers", "redis"))
    units *= len(handles)
    return Figures(spent * 1e6 / units, units / seconds)


def verdict(one: Sequence[float], two: Sequence[float]) -> tuple[float, bool]:
    """Return the median share of one store's words per CPU that two reach, and whether it is
    enough; costs of rounds in turn.
    """
    share = statistics.median(each / other for each, other in zip(one, two, strict=True))
    return share, share >= GATE


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and end with 1 below the gate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cut", action="store_true", help="one topology in two cells")
    parser.add_argument("--size", type=int, default=0, help="bytes of a tuple instead of words")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the load")
    options = parser.parse_args(arguments)
    load = Load(options.cut, options.size, options.scale)
    found: dict[int, list[Figures]] = {1: [], 2: []}
    for round_ in range(options.rounds):
        for count in (1, 2) if round_ % 2 else (2, 1):
            with stores(count) as on:
                measure(on, load, count, 0.1)  # warms
                found[count].append(measure(on, load, count))
        one, two = (found[count][-1] for count in (1, 2))
        print(
            f"round {round_}: {one.us:.2f} and {two.us:.2f} us, {one.per_s:,.0f} and {two.per_s:,.0f} a second",
            file=sys.stderr,
        )
    share, is_enough = verdict(*([each.us for each in found[count]] for count in (1, 2)))
    one, two = (
        Figures(*map(statistics.median, zip(*found[count], strict=True))) for count in (1, 2)
    )
    print(f"us of CPU per {load.unit}: {one.us:.2f} over one store, {two.us:.2f} over two")
    print(f"a second: {one.per_s:,.0f} over one store, {two.per_s:,.0f} over two")
    print(f"two stores carry {share:.2f} of one per CPU; the gate is {GATE}")
    sys.exit(0 if is_enough else 1)


if __name__ == "__main__":
    main()
