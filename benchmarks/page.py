"""Budgets of the page: weight and time of the first paint, CPU and bytes of an open page,
throughput of a word count with one open.

Run: python -m benchmarks.page [paint] [cpu] [throughput] [--seconds N] [--pages N] [--words N]
[--runs N]; without a word all of them. An open page is its stream of events and the charts' request
for what is new every two seconds, as a browser sends them.

* cpu: of a server process of its own over a topology of 20 components and 80 tasks that has run for
  a day and whose every count changes each second.
* throughput: of the word count of `benchmarks.live` on a real cluster, in turn without
  `sparkstorm web`, with it (it samples without a page, too) and with a page open. Its CPU is printed
  too. Every count is checked, and a round in which the page got no events is an error. The exit
  status is 1 where the budget is missed by more than the noise.
* paint needs Chromium and playwright (tests/browser).
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import which

from benchmarks.listening import LargeSource, Listening, listening, running
from benchmarks.live import counts, seconds_of, text
from benchmarks.topologies import word_count
from sparkstorm.app.cluster import Cluster
from sparkstorm.config import merge
from sparkstorm.insight.sampler import Sampler
from sparkstorm.stores.addresses import connection_path
from sparkstorm.web.page import STATIC
from sparkstorm.web.serve import SamplerThread

# readings before the page is opened: period in milliseconds, and how many, so that every level of
# the history is full and each window begins at a moment of its own
_PAST = ((600_000, 126), (60_000, 170), (10_000, 60), (1_000, 75))
_CHARTS_S = 2.0
_LEAST_WORDS_RATIO = 0.98
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
    parser.add_argument("--runs", type=int, default=7, help="rounds of the throughput, at least 5")
    options = parser.parse_args()
    if options.parts == ["serve"]:
        serve()
        return
    if options.runs < 5:
        parser.error("--runs: fewer than 5 rounds say nothing about 2 %")
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"there is no part {min(unknown)}, only {', '.join(PARTS)}")
    parts = options.parts or PARTS
    if "paint" in parts:
        paint()
    if "cpu" in parts:
        cpu(options.seconds, options.pages)
    if "throughput" in parts and not throughput(options):
        sys.exit(1)


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
    source = LargeSource(20, 4)
    sampler = Sampler(source)
    for period_ms, times in _PAST:
        source.period_ms = period_ms
        for _ in range(times):
            sampler.step()
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

        at = Listening(int(port), token, server.pid)
        shares = {}
        taken = {}
        for count in (0, 1, pages):
            with ExitStack() as opened:
                seen = [opened.enter_context(open_page(at, "large")) for _ in range(count)]
                time.sleep(5)
                bytes_before = sum(map(sum, seen))
                shares[count] = _share(used, seconds)
                taken[count] = (sum(map(sum, seen)) - bytes_before) / seconds
            print(
                f"{count} pages: {100 * shares[count]:.2f} % of a core, {taken[count] / 1000:.1f} kB/s",
                flush=True,
            )
        server.stdin.close()
    each = (shares[pages] - shares[1]) / (pages - 1)
    print(
        f"first page, with the sampler: {100 * shares[1]:.2f} % of a core; one more page: "
        f"{100 * each:.2f} % (budget 1 % each); {taken[1] / 1000:.1f} kB/s (budget 20)"
    )


def _share(used: Callable[[], float], seconds: float) -> float:
    """Return the share of a core that was used in so many seconds from now."""
    before = used()
    began = time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - began)


@contextmanager
def open_page(at: Listening, topology: str) -> Iterator[list[int]]:
    """Read what an open page reads, on two threads; the list has the bytes of what came."""
    sizes: list[int] = []
    ended = threading.Event()
    threads = [
        threading.Thread(target=each, args=(at, topology, sizes, ended), daemon=True)
        for each in (_read_events, _read_charts)
    ]
    for thread in threads:
        thread.start()
    try:
        yield sizes
    finally:
        # the stream comes back with the next event, or the line that a quiet one sends every four
        # seconds
        ended.set()
        for thread in threads:
            thread.join(10)


def _read_events(at: Listening, topology: str, sizes: list[int], ended: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
    headers = {**at.headers, "accept-encoding": "gzip"}
    connection.request("GET", f"/page/stream?topology={topology}", headers=headers)
    answer = connection.getresponse()
    with suppress(OSError, ValueError, http.client.HTTPException):
        while not ended.is_set() and (part := answer.read1(65_536)):
            sizes.append(len(part))
    connection.close()


def _read_charts(at: Listening, topology: str, sizes: list[int], ended: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
    headers = {**at.headers, "accept-encoding": "gzip"}
    since_ms = 0
    with suppress(OSError, http.client.HTTPException):
        while not ended.wait(_CHARTS_S):
            path = f"/page/series/{topology}?window=10m&since_ms={since_ms}"
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
            sizes.append(len(data))
            # a topology that is not there yet, or no more, has none
            if answer.status == 200:
                text = gzip.decompress(data) if answer.headers["content-encoding"] else data
                since_ms = max(json.loads(text)["time_ms"], default=since_ms)
            else:
                since_ms = 0
    connection.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def throughput(options: argparse.Namespace) -> bool:
    """Print words/s in each way, and the median ratios of neighbours; return whether no budget is
    missed by more than the noise.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    shares: dict[str, list[float]] = {way: [] for way in WAYS[1:]}
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

            def seconds() -> float:
                topology = word_count(paths, 2)
                return seconds_of(cluster, topology, own, lambda of: counts(of) == expected)

            def rate(way: str) -> float:
                if way == WAYS[0]:
                    return words / seconds()
                with running(connection_path(conf)) as at, ExitStack() as opened:
                    seen = [0]
                    if way == WAYS[2]:
                        seen = opened.enter_context(open_page(at, "bench"))
                    before, began = cpu_seconds(at.pid), time.monotonic()
                    took = seconds()
                    passed = time.monotonic() - began
                    shares[way].append((cpu_seconds(at.pid) - before) / passed)
                    if way == WAYS[2] and len(seen) < passed / 2:
                        sys.exit("the page got no events: this round says nothing about one")
                    return words / took

            rate(WAYS[2])  # warms caches
            for run in range(options.runs):
                # each way is the first one in a third of the rounds
                for way in WAYS[run % 3 :] + WAYS[: run % 3]:
                    rates[way].append(rate(way))
                last = ", ".join(f"{rates[way][-1]:,.0f} words/s {way}" for way in WAYS)
                print(f"  round {run}: {last}", flush=True)
    for way, found in shares.items():
        print(f"{way}: its process uses {100 * statistics.median(found):.2f} % of a core")
    verdicts = [_is_within(way, rates[WAYS[0]], rates[way]) for way in WAYS[1:]]
    return all(verdicts)


def _is_within(way: str, plain: list[float], rates: list[float]) -> bool:
    """Print the median ratio of neighbours with its noise, and whether the budget is met; return
    False where it is missed.
    """
    ratios = [rate / other for rate, other in zip(rates, plain, strict=True)]
    median = statistics.median(ratios)
    # standard error of a median of normal values
    noise = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
    verdict = "met" if median >= _LEAST_WORDS_RATIO else "missed"
    if abs(median - _LEAST_WORDS_RATIO) < noise:
        verdict = "not decided, the noise is wider than the distance to it: take more rounds"
    print(
        f"{way}: {100 * (median - 1):+.1f} % words/s, +- {100 * noise:.1f} (one standard error), "
        f"median of {len(ratios)} (budget -2 %: {verdict})"
    )
    return bool(median + noise >= _LEAST_WORDS_RATIO)


if __name__ == "__main__":
    main()
