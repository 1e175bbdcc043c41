"""Distance benchmark: workers behind links with delay and loss, each in a network namespace of its
own.

Run as root: python -m benchmarks.distance [--only paced|limits] [--delay MS ...] [--loss PERCENT] [--seconds S] [--rounds N].

Paced: rows offered at a rate, and how many were carried. Limits: words/s and commits under
`topology.max.spout.pending: auto` beside fixed limits. A link is a pair of TUN devices between
which one process carries packets, late or not at all: TCP itself meets the delay and the loss, on
kernels without netem too. Workers are the real ones, driven without slots.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import heapq
import itertools
import json
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Process
from pathlib import Path
from random import Random
from typing import Any

import redis

from benchmarks.topologies import Count, Paced, Relay, Split
from sparkstorm.api import ReplayableSpout, TopologyBuilder
from sparkstorm.clock import SystemClock
from sparkstorm.config import merge
from sparkstorm.embedded.process import free_port
from sparkstorm.embedded.redis import bundled_redis
from sparkstorm.model.assignment import ExecutorId
from sparkstorm.model.tasks import number_tasks, system_topology, tasks_by_component
from sparkstorm.model.topology import Topology
from sparkstorm.model.worker_spec import PlacedExecutor, RedisAddress, WorkerSpec
from sparkstorm.transport.progress import Progress, percentile_ms
from sparkstorm.transport.reader import RedisReader
from sparkstorm.transport.redis import RedisTransport
from sparkstorm.worker.epoch import RandomIds
from sparkstorm.worker.loop import WakeUp, drive
from sparkstorm.worker.parts import WorkerParts
from sparkstorm.worker.run import Beats, SlotReporter, WorkerRun, plan_of, start_worker

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_PACKET_BYTES = 2048
_LINES = [
    "the cow jumped over the moon",
    "an apple a day keeps the doctor away",
    "four score and seven years ago",
]
_runs = itertools.count(1)


# -- the links -------------------------------------------------------------------------------------


class Link:
    """A link to a network namespace `name`, whose address of the store is `near`."""

    def __init__(self, number: int, delay_s: float, loss: float) -> None:
        self.name = f"distance{os.getpid()}-{number}"
        self.near = f"10.213.{number}.1"
        far = f"10.213.{number}.2"
        inner = f"dist{number}i"
        outer = f"dist{number}o"
        self._fds = [_open_tun(outer), _open_tun(inner)]
        _ip("netns", "add", self.name)
        _ip("link", "set", inner, "netns", self.name)
        _ip("addr", "add", self.near, "peer", far, "dev", outer)
        _ip("link", "set", outer, "up", "txqueuelen", "10000")
        for words in (
            ["addr", "add", far, "peer", self.near, "dev", inner],
            ["link", "set", inner, "up", "txqueuelen", "10000"],
            ["link", "set", "lo", "up"],
        ):
            _ip("-n", self.name, *words)
        self._process = Process(target=_carry, args=(self._fds, delay_s, loss, number), daemon=True)
        self._process.start()

    def close(self) -> None:
        """Take it down."""
        self._process.kill()
        self._process.join()
        for fd in self._fds:
            os.close(fd)
        _ip("netns", "del", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


def _carry(fds: Sequence[int], delay_s: float, loss: float, seed: int) -> None:
    """Carry packets between two devices, each after the delay, a share of them never."""
    chance = Random(seed)
    on_the_way = list[tuple[float, int, int, bytes]]()
    number = itertools.count()
    other = {fds[0]: fds[1], fds[1]: fds[0]}
    while True:
        now = time.monotonic()
        while on_the_way and on_the_way[0][0] <= now:
            _, _, fd, packet = heapq.heappop(on_the_way)
            with suppress(OSError):  # a device that is full or gone loses packets, as networks do
                os.write(fd, packet)
        wait_s = max(0.0, on_the_way[0][0] - now) if on_the_way else None
        for fd in select.select(fds, [], [], wait_s)[0]:
            for _ in range(64):
                try:
                    packet = os.read(fd, _PACKET_BYTES)
                except BlockingIOError:
                    break
                if chance.random() >= loss:
                    heapq.heappush(
                        on_the_way, (time.monotonic() + delay_s, next(number), other[fd], packet)
                    )


# -- topologies ------------------------------------------------------------------------------------


class Endless(ReplayableSpout):
    """Emits lines without end."""

    outputs = ("line",)

    def open(self, conf: Mapping[str, Any], context: Any, collector: Any) -> None:
        """Begin."""
        self._collector = collector
        self._sent = 0

    def next_tuple(self) -> None:
        """Emit one."""
        self._collector.emit((_LINES[self._sent % len(_LINES)],), self._sent)
        self._sent += 1

    def snapshot(self) -> Any:
        """Return how many were sent."""
        return self._sent

    def restore(self, position: Any) -> None:
        """Go on."""
        self._sent = position


def words(workers: int) -> Topology:
    """Endless lines -> split -> count, a task of each per worker."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Endless(), workers)
    builder.set_bolt("split", Split(), workers).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), workers).fields_grouping("split", "word")
    return builder.build()


def paced(workers: int, per_second: int) -> Topology:
    """Rows at a rate, all spout tasks together -> relay -> relay."""
    builder = TopologyBuilder()
    builder.set_spout("paced", Paced(per_second // workers, 3600), workers)
    builder.set_bolt("relay1", Relay(), workers).shuffle_grouping("paced")
    builder.set_bolt("relay2", Relay(), workers).shuffle_grouping("relay1")
    return builder.build()


TOPOLOGIES: dict[str, Callable[..., Topology]] = {"words": words, "paced": paced}


# -- workers ---------------------------------------------------------------------------------------


class _NoSlot:
    """A control line on which nothing is ever said."""

    def __init__(self) -> None:
        self._fds = os.pipe()

    def poll(self) -> list[Any]:
        """Return no command."""
        return []

    def send(self, report: Any) -> None:
        """Drop a report."""

    def fileno(self) -> int:
        """Return a descriptor that never becomes readable."""
        return self._fds[0]


def run_worker(order: Mapping[str, Any]) -> None:
    """Run one worker of a topology until the process is killed."""
    topology = TOPOLOGIES[order["topology"]](*order["arguments"])
    conf = merge(order["conf"]).as_dict()
    component_by_task = number_tasks(topology, conf)
    mine = [
        task
        for tasks in tasks_by_component(component_by_task).values()
        for at, task in enumerate(sorted(tasks))
        if at % order["workers"] == order["index"]
    ]
    executors = tuple(PlacedExecutor(ExecutorId(task, task), 1) for task in mine)
    address = RedisAddress(order["host"], order["port"])
    place = (order["id"], f"node{order['index']}", 6700, "here", 1, 1)
    spec = WorkerSpec(*place, executors, component_by_task, conf, "", "", address, "")
    control = _NoSlot()
    clock = SystemClock()
    wake_up = WakeUp()
    transport = RedisTransport(address, spec.topology_id)
    plan = plan_of(
        spec,
        system_topology(topology, conf),
        lambda name: copy.deepcopy(topology.components[name].instance),
    )
    reporter = SlotReporter(control, clock, 1000, 5)
    beats = Beats(control, clock)
    ids = RandomIds()
    make_parts = partial(WorkerParts, plan, transport, clock, ids, reporter, wake_up.send)
    run = WorkerRun(spec, control, clock, beats, lambda: start_worker(make_parts))
    drive(run, control, clock, transport, wake_up)


# -- measurement -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One run: workers at a distance (-1: beside the store, without a link), a topology, and
    settings over the defaults.
    """

    name: str
    topology: str
    arguments: tuple[int, ...]
    delays_ms: tuple[float, ...]
    loss: float
    conf: Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """Trees acked per second, commits per thousand of them, and quantiles of their latency, in a
    span of time.
    """

    rate: float
    commits: float
    p50_ms: float


@contextmanager
def store(hosts: Sequence[str], folder: str) -> Iterator[tuple[int, redis.Redis]]:
    """Run a Redis that listens on these addresses too."""
    port = free_port()
    settings = [
        "--bind",
        "127.0.0.1",
        *hosts,
        "--port",
        str(port),
        "--protected-mode",
        "no",
        "--save",
        "",
        "--appendonly",
        "yes",
    ]
    process = subprocess.Popen(
        [bundled_redis() or "redis-server", *settings, "--dir", folder, "--logfile", "log"]
    )
    client = redis.Redis(port=port)
    try:
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield port, client
    finally:
        client.close()
        process.kill()
        process.wait()


def measure(case: Case, warm_s: float, seconds: float) -> Figures:
    """Run a case and return its figures after the warm-up."""
    with ExitStack() as stack:
        links = [
            Link(at + 1, ms / 1000, case.loss) if ms >= 0 else None
            for at, ms in enumerate(case.delays_ms)
        ]
        for link in links:
            if link is not None:
                stack.callback(link.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(
            store([link.near for link in links if link is not None], folder)
        )
        topology_id = f"distance-{next(_runs)}"
        common = {
            "id": topology_id,
            "port": port,
            "workers": len(links),
            "topology": case.topology,
            "arguments": case.arguments,
        }
        conf = {"topology.workers": len(links), "topology.acker.executors": len(links), **case.conf}
        for index, link in enumerate(links):
            order = {
                **common,
                "index": index,
                "conf": conf,
                "host": "127.0.0.1" if link is None else link.near,
            }
            process = _start_worker(order, link, Path(folder, f"worker{index}"))
            stack.callback(process.wait)
            stack.callback(process.kill)
        reader = RedisReader(RedisAddress("127.0.0.1", port), topology_id)
        stack.callback(reader.close)
        try:
            _wait_for_trees(reader)
        except TimeoutError:
            for path in sorted(Path(folder).glob("worker*")):
                print(path.read_text()[-2000:])
            raise
        threading.Event().wait(warm_s)
        began = time.monotonic()
        before = _sums(reader)
        threading.Event().wait(seconds)
        took_s = time.monotonic() - began
        after = _sums(reader)
        acked = max(1, after[0] - before[0])
        buckets = {bucket: count - before[2].get(bucket, 0) for bucket, count in after[2].items()}
        return Figures(
            acked / took_s,
            1000 * (after[1] - before[1]) / acked,
            percentile_ms(buckets, 0.5) or 0.0,
        )


def _start_worker(
    order: Mapping[str, Any], link: Link | None, log: Path
) -> subprocess.Popen[bytes]:
    """Start a worker, at the far end of its link if it has one."""
    inside = [] if link is None else ["ip", "netns", "exec", link.name]
    command = [*inside, sys.executable, "-m", "benchmarks.distance", "--worker", json.dumps(order)]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def _wait_for_trees(reader: RedisReader, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not _sums(reader)[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("no tree was acked")
        time.sleep(0.1)


def _sums(reader: RedisReader) -> tuple[int, int, dict[int, int]]:
    """Return acked trees, commits, and latencies in buckets, of all workers."""
    found = [Progress.decode(data) for data in reader.progress().values()]
    buckets: dict[int, int] = {}
    for progress in found:
        for bucket, count in progress.latency_buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
    spouts = ("lines", "paced")
    acked = sum(
        c.acked
        for progress in found
        for c in progress.counts_by_task.values()
        if c.component in spouts
    )
    return acked, sum(progress.commits for progress in found), buckets


def cases(options: argparse.Namespace) -> list[Case]:
    """Return what is to be measured."""
    found: list[Case] = []
    loss = options.loss / 100
    if options.only in (None, "paced"):
        for ms in options.delay:
            for limit in ("auto", 2_000):
                conf = {"topology.max.spout.pending": limit}
                where = {
                    "all": (ms,) * options.workers,
                    "one": (-1,) * (options.workers - 1) + (ms,),
                }
                for who, delays in where.items():
                    name = f"paced {options.rate}/s, {who} at {ms:g} ms, {limit}"
                    found.append(
                        Case(name, "paced", (options.workers, options.rate), delays, loss, conf)
                    )
    if options.only in (None, "limits"):
        for ms in [-1, *options.delay]:
            for limit in ("auto", *options.limits):
                conf = {"topology.max.spout.pending": limit}
                delays = (ms,) * options.workers
                found.append(
                    Case(
                        f"words at {ms:g} ms, {limit}",
                        "words",
                        (options.workers,),
                        delays,
                        loss,
                        conf,
                    )
                )
    return found


def main() -> None:
    """Print the figures of every round, and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["paced", "limits"])
    parser.add_argument("--delay", type=float, nargs="*", default=[100.0], help="ms each way")
    parser.add_argument("--loss", type=float, default=0.0, help="per cent of packets, each way")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--limits", type=int, nargs="*", default=[1_000, 5_000, 20_000])
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(json.loads(options.worker))
        return
    figures: dict[str, list[Figures]] = {}
    for _ in range(options.rounds):
        for case in cases(options):
            found = measure(case, options.warm, options.seconds)
            figures.setdefault(case.name, []).append(found)
            print(
                f"{case.name:45} {found.rate:10,.0f}/s {found.commits:10.3f} commits/1000  p50 {found.p50_ms:6.0f} ms",
                flush=True,
            )
    print(f"\nmedians of {options.rounds}")
    for name, each in figures.items():
        rate, commits, p50_ms = (
            statistics.median(values)
            for values in zip(*((f.rate, f.commits, f.p50_ms) for f in each), strict=True)
        )
        print(f"{name:45} {rate:10,.0f}/s {commits:10.3f} commits/1000  p50 {p50_ms:6.0f} ms")


if __name__ == "__main__":
    main()
