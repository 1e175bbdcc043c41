"""Budgets of the page: weight and time of the first paint, CPU and bytes of an open page,
throughput of a word count with one open.

Run: python -m benchmarks.page [paint] [cpu] [throughput] [--seconds N] [--pages N] [--words N]
[--runs N]; without a word all of them. The CPU is that of a server process of its own over a
topology of 20 components and 80 tasks whose every count changes each second. The throughput is that
of the word count of `benchmarks.live` on a real cluster, by turns without `sparkstorm web`, with it
(it samples without a page, too) and with a page open. The first paint needs Chromium and playwright
(tests/browser).
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which

from benchmarks.live import counts, seconds_of, text
from benchmarks.topologies import word_count
from sparkstorm.app.cluster import Cluster
from sparkstorm.config import merge
from sparkstorm.insight.sampler import Sampler
from sparkstorm.stores.addresses import connection_path
from sparkstorm.web.page import STATIC
from sparkstorm.web.serve import SamplerThread
from tests.web.listening import LargeSource, listening, running

PARTS = ("paint", "cpu", "throughput")
WAYS = ("without sparkstorm web", "with it", "with a page open")


def main() -> None:
    """Print each figure beside its budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all without one"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of CPU")
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--words", type=int, default=8_000_000)
    parser.add_argument("--keys", type=int, default=27)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    if options.parts == ["serve"]:
        serve()
        return
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"there is no part {min(unknown)}, only {', '.join(PARTS)}")
    parts = options.parts or PARTS
    if "paint" in parts:
        paint()
    if "cpu" in parts:
        cpu(options.seconds, options.pages)
    if "throughput" in parts:
        throughput(options)


def paint() -> None:
    """Print the weight of the first load, and the time to its first paint where there is a
    browser.
    """
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".LICENSE"]
    weight = sum(len(gzip.compress(path.read_bytes(), 6)) for path in files)
    print(f"static files: {weight:,} bytes with gzip (budget 120,000)", flush=True)
    browser = importlib.import_module("tests.browser.__main__")
    found = next(filter(None, map(which, browser.BROWSERS)), None)
    try:
        sync_playwright = importlib.import_module("playwright.sync_api").sync_playwright
    except ModuleNotFoundError as error:
        print(f"first paint: not measured, {error}: pip install playwright")
        return
    if found is None:
        print("first paint: not measured, there is no Chromium here")
        return
    with (
        browser.served() as address,
        sync_playwright() as play,
        play.chromium.launch(executable_path=found, args=["--no-sandbox"]) as at,
    ):
        sent, paints = browser.first_loads(at, address, 15)
    print(
        f"first load: {sent:,} bytes as sent; first paint {statistics.median(paints):.0f} ms (budget 300), of {len(paints)}"
    )


def serve() -> None:
    """Serve the large topology; for each line of standard input print the CPU seconds of this
    process.
    """
    sampler = Sampler(LargeSource(20, 4))
    thread = SamplerThread(sampler)
    thread.start()
    with listening(sampler) as at:
        print(at.port, at.token, flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)
    thread.stop()


def cpu(seconds: float, pages: int) -> None:
    """Print the CPU of the server by the number of open pages, and the bytes of one."""
    command = [sys.executable, "-m", "benchmarks.page", "serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        port, token = server.stdout.readline().split()

        def used() -> float:
            assert server.stdin is not None and server.stdout is not None
            server.stdin.write("\n")
            server.stdin.flush()
            return float(server.stdout.readline())

        shares = {}
        taken = {}
        for count in (0, 1, pages):
            with ExitStack() as opened:
                seen = [
                    opened.enter_context(reading(int(port), token, "large")) for _ in range(count)
                ]
                time.sleep(3)
                before = used()
                bytes_before = sum(map(sum, seen))
                began = time.monotonic()
                time.sleep(seconds)
                passed = time.monotonic() - began
                shares[count] = (used() - before) / passed
                taken[count] = (sum(map(sum, seen)) - bytes_before) / passed
            print(
                f"{count} pages: {100 * shares[count]:.2f} % of a core, {taken[count] / 1000:.1f} kB/s",
                flush=True,
            )
        server.stdin.close()
    each = (shares[pages] - shares[1]) / (pages - 1)
    print(
        f"one more page: {100 * each:.2f} % of a core (budget 1 %), {taken[1] / 1000:.1f} kB/s (budget 20)"
    )


@contextmanager
def reading(port: int, token: str, topology: str) -> Iterator[list[int]]:
    """Read the stream of an open page on a thread; the list has the bytes of its lines."""
    sizes: list[int] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"authorization": f"Bearer {token}", "accept-encoding": "gzip"}
    connection.request("GET", f"/page/stream?topology={topology}", headers=headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"the page answers {answer.status}")
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                part = answer.read1(65_536)
            except (OSError, ValueError, http.client.HTTPException):
                return
            if not part:
                return
            sizes.append(len(part))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield sizes
    finally:
        # it comes back with the next event, or the line that a quiet stream sends every four
        # seconds
        ended.set()
        thread.join(10)
        connection.close()


def throughput(options: argparse.Namespace) -> None:
    """Print words/s in each way, and the median ratios of neighbours."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        paths, expected = text(options, Path(folder), 2)
        words = sum(expected.values())
        conf = merge({"storm.local.dir": f"{folder}/storm", "sparkstorm.slots.per.supervisor": 1})
        own = {
            "topology.workers": 2,
            "topology.acker.executors": 2,
            "topology.max.spout.pending": 5_000,
        }
        with Cluster.open(conf) as cluster:

            def rate(way: str) -> float:
                with ExitStack() as opened:
                    if way != WAYS[0]:
                        at = opened.enter_context(running(connection_path(conf)))
                    if way == WAYS[2]:
                        opened.enter_context(reading(at.port, at.token, "bench"))
                    return words / seconds_of(
                        cluster,
                        word_count(paths, 2),
                        own,
                        lambda handle: counts(handle) == expected,
                    )

            rate(WAYS[2])  # warms caches
            ratios: dict[str, list[float]] = {way: [] for way in WAYS[1:]}
            for run in range(options.runs):
                # Each way is the first one in a third of the rounds.
                order = WAYS[run % 3 :] + WAYS[: run % 3]
                found = {way: rate(way) for way in order}
                for way, each in ratios.items():
                    each.append(found[way] / found[WAYS[0]])
                print(
                    f"  round {run}: "
                    + ", ".join(f"{found[way]:,.0f} words/s {way}" for way in WAYS),
                    flush=True,
                )
    for way, each in ratios.items():
        change = 100 * (statistics.median(each) - 1)
        print(f"{way}: {change:+.1f} % words/s, median of {len(each)} (budget -2 %)")


if __name__ == "__main__":
    main()
