"""Two topologies over two stores beside the same two over one: `python -m benchmarks.two_stores
[--rounds N] [--scale F]`.

A word count of two workers each, half of its words crossing, on one machine. The cost is CPU of
workers and stores per word, since two stores on the same cores can carry no more than they save.
One store and two take turns; exit status 1 when two carry less than GATE of one, by the median of
the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.generated import endless_words
from benchmarks.pipeline import cluster, cpu_by_kind
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.submission import SubmitOptions
from sparkstorm.embedded import start_redis
from sparkstorm.model.status import TopologyStatus

GATE = 0.95
"""Share of the words per CPU of one store that two stores have to reach."""
_NAMES = ("one", "two")
_WORDS_A_LINE = 10
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


def cost_of(on: Cluster, lines: int, count: int) -> float:
    """Return the microseconds of CPU of workers and stores per word, of two topologies at once."""
    handles = [
        on.submit(
            name,
            endless_words(lines),
            {**_CONF, "topology.redis.store": _NAMES[number % count]},
            options=SubmitOptions(TopologyStatus.INACTIVE),
        )
        for number, name in enumerate(("left", "right"))
    ]
    for handle in handles:
        while sum(beat.state == "RUNNING" for beat in handle.beats()) < _CONF["topology.workers"]:
            time.sleep(0.05)
    time.sleep(0.5)  # the workers are up and quiet
    before = cpu_by_kind()
    for handle in handles:
        handle.activate()
    while not all(handle.progress().is_drained for handle in handles):
        time.sleep(0.05)
    after = cpu_by_kind()
    for handle in handles:
        handle.kill(0)
        while on.find(handle.name) is not None:
            time.sleep(0.05)
    spent = sum(after[kind] - before[kind] for kind in ("workers", "redis"))
    return spent * 1e6 / (len(handles) * lines * _WORDS_A_LINE)


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the load")
    options = parser.parse_args(arguments)
    lines = int(100_000 * options.scale)
    costs: dict[int, list[float]] = {1: [], 2: []}
    for round_ in range(options.rounds):
        for count in (1, 2) if round_ % 2 else (2, 1):
            with stores(count) as on:
                cost_of(on, lines // 10, count)  # warms
                costs[count].append(cost_of(on, lines, count))
        print(f"round {round_}: {costs[1][-1]:.2f} and {costs[2][-1]:.2f} us", file=sys.stderr)
    share, is_enough = verdict(costs[1], costs[2])
    one, two = (statistics.median(costs[count]) for count in (1, 2))
    print(f"us of CPU per word: {one:.2f} over one store, {two:.2f} over two")
    print(f"two stores carry {share:.2f} of one per CPU; the gate is {GATE}")
    sys.exit(0 if is_enough else 1)


if __name__ == "__main__":
    main()
