"""States larger than memory: throughput, restart, and bytes of Redis and of workers, by backend and
number of keys.

Run: python -m benchmarks.states [--backend lazy|memory] [--keys N [N ...]] [--working-set N] [--tuples N] [--runs N]. A state is
filled with every key once; then tuples with keys of the working set, spread evenly over all keys, are counted. Acking on,
exactly-once, 2 workers with a spout task and a stateful task each, embedded Redis (AOF on) and ZooKeeper. For every number of
keys, a run of the working set is not timed: until it ends, every key has been written to its hash, and Redis has rewritten its
log. These are costs of the fill. A restart is the time from SIGKILL of a worker to the first tuple that its successor has
committed. Several numbers of keys get a cluster each. Their runs alternate, so that the drift of the machine cancels, and the
ratio of each to the first is printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.start import wait
from sparkstorm.api import (
    BasicOutputCollector,
    ReplayableSpout,
    SpoutOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.config import merge
from sparkstorm.model.assignment import WorkerBeat
from sparkstorm.model.topology import Topology
from sparkstorm.stores.redis_client import client_of

_WORKERS = 2
_LIMIT_S = 900.0


class Keys(ReplayableSpout):
    """Emits each key once, then keys of the working set, as far as a file allows."""

    outputs = ("key",)

    def __init__(self, limit: str, keys: int, working_set: int) -> None:
        self._limit_file = limit
        self._keys = keys // _WORKERS
        self._step = max(1, keys // working_set)

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Begin."""
        self._collector = collector
        self._index = context.task_index
        self._sent = self._limit = self._seen_ns = 0

    def next_tuple(self) -> None:
        """Emit up to 64 keys."""
        if self._sent >= self._limit:
            if time.monotonic_ns() - self._seen_ns > 5_000_000:
                self._limit = int(Path(self._limit_file).read_text() or 0)
                self._seen_ns = time.monotonic_ns()
            return
        for n in range(self._sent, min(self._sent + 64, self._limit)):
            place = n if n < self._keys else n * self._step % self._keys
            self._collector.emit((f"user-{_WORKERS * place + self._index:07}",), n)
        self._sent = min(self._sent + 64, self._limit)

    def snapshot(self) -> Any:
        """Return how many were emitted."""
        return self._sent

    def restore(self, position: Any) -> None:
        """Go on."""
        self._sent = position


class Count(StatefulBolt):
    """Counts keys."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        self.state.add(tup.values[0])


def main() -> None:
    """Print one line per run and a table row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("lazy", "memory"), default="lazy")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000])
    parser.add_argument("--working-set", type=int, default=10_000)
    parser.add_argument("--tuples", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    # each step waits for a line of the input
    parser.add_argument("--in-turn", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if len(options.keys) > 1:
        alternate(options)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        conf = merge(
            {
                "storm.local.dir": f"{folder}/storm",
                "sparkstorm.supervisors": 1,
                "sparkstorm.slots.per.supervisor": _WORKERS,
            }
        )
        with Cluster.open(conf) as cluster:
            for line in measure(cluster, Path(folder, "limit"), options):
                print(line, flush=True)
                if options.in_turn and not sys.stdin.readline():
                    break  # the other process has failed


def alternate(options: argparse.Namespace) -> None:
    """Run a process per number of keys, one step of each in turn; print all lines and the ratios of
    the throughputs.
    """
    command = [sys.executable, "-m", "benchmarks.states", "--in-turn", "--backend", options.backend]
    for name in ("working_set", "tuples", "runs"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "bufsize": 1,
    }
    processes: list[Any] = [
        subprocess.Popen([*command, "--keys", str(keys)], **pipes) for keys in options.keys
    ]
    try:
        for process in processes:
            step(process)  # each has filled its state
        rates: list[list[float]] = [[] for _ in processes]
        for run in range(options.runs + 1):
            for n in range(len(processes)):
                place = (n + run) % len(processes)
                with suppress(BrokenPipeError):
                    processes[place].stdin.write("\n")
                line = step(processes[place])
                if run < options.runs:
                    rates[place].append(float(line.split()[3].replace(",", "")))
    finally:
        for process in processes:
            with suppress(BrokenPipeError):
                process.stdin.close()  # each ends after its step
        for process in processes:
            process.wait()
    for keys, measured in zip(options.keys[1:], rates[1:], strict=True):
        ratios = [one / first for one, first in zip(measured, rates[0], strict=True)]
        print(
            f"{keys:,} keys / {options.keys[0]:,} keys: {statistics.median(ratios):.2f} of the throughput "
            f"({min(ratios):.2f}-{max(ratios):.2f}, n = {len(ratios)})"
        )


def step(process: Any) -> str:
    """Print and return the next line of a process; SystemExit when it has ended."""
    line = process.stdout.readline()
    if not line:
        raise SystemExit(
            f"{' '.join(process.args[1:])} ended with {process.wait()} before its last line; the others are stopped"
        )
    print(line, end="", flush=True)
    return str(line)


def measure(cluster: Cluster, limit: Path, options: argparse.Namespace) -> Iterator[str]:
    """Fill, count, restart; yield a line after each."""
    (keys,) = options.keys
    redis: Any = client_of(cluster.stores.connection.redis, 60.0)
    before = int(redis.info("memory")["used_memory"])
    limit.write_text("0")
    settings = {
        "topology.workers": _WORKERS,
        "topology.acker.executors": _WORKERS,
        "topology.state.backend": options.backend,
        "topology.max.spout.pending": 20_000,
    }
    handle = cluster.submit("states", topology(limit, keys, options.working_set), settings)
    wait(
        lambda: len([beat for beat in handle.beats() if beat.state == "RUNNING"]) == _WORKERS,
        _LIMIT_S,
    )
    done = keys // _WORKERS
    fill_s = seconds_to(handle, limit, done)
    done = settle(handle, redis, limit, done, options)
    kept = int(redis.info("memory")["used_memory"]) - before
    yield f"{keys:,} keys filled in {fill_s:.0f} s"
    rates = []
    costs = []
    for run in range(options.runs):
        done += options.tuples // _WORKERS
        workers = [beat.pid for beat in handle.beats()]
        server = [int(redis.info("server")["process_id"])]
        used = cpu_s(workers), cpu_s(server)
        rates.append(options.tuples / seconds_to(handle, limit, done))
        costs.append(
            [
                (now - then) / options.tuples * 1e6
                for now, then in zip((cpu_s(workers), cpu_s(server)), used, strict=True)
            ]
        )
        yield f"{keys:,} run {run}: {rates[-1]:,.0f} tuples/s, CPU us: workers {costs[-1][0]:.2f}, Redis {costs[-1][1]:.2f}"
    rss = max(resident_mb(beat.pid) for beat in handle.beats())
    rate = statistics.median(rates)
    cost = " / ".join(f"{min(each):.2f}" for each in zip(*costs, strict=True))
    # more are a crash loop
    restarts = [
        restart_s(handle, limit, done + 1000 * (run + 1)) for run in range(min(5, options.runs))
    ]
    yield (
        f"| {options.backend} | {keys:,} | {keys / fill_s / 1000:,.0f} k | {rate / 1000:,.0f} k "
        f"({min(rates) / 1000:,.0f}-{max(rates) / 1000:,.0f}) | {cost} "
        f"| {statistics.median(restarts):.2f} ({max(restarts):.2f}) "
        f"| {kept / keys:,.0f} | {rss:,.0f} |"
    )
    handle.kill(0)
    wait(lambda: cluster.find("states") is None)


def settle(
    handle: TopologyHandle, redis: Any, limit: Path, done: int, options: argparse.Namespace
) -> int:
    """Count tuples until the fill is written to the hashes, let Redis rewrite its log; return how
    many each spout has emitted.
    """
    filled = done * _WORKERS
    while True:
        done += options.tuples // _WORKERS
        seconds_to(handle, limit, done)
        if options.backend != "lazy" or keys_in_bases(redis) == filled:
            break
    wait(lambda: not is_rewriting(redis), _LIMIT_S)
    redis.bgrewriteaof()
    wait(lambda: not is_rewriting(redis), _LIMIT_S)
    return done


def keys_in_bases(redis: Any) -> int:
    """Return the number of keys in the hashes of lazy states."""
    pipe = redis.pipeline(transaction=False)
    for name in redis.scan_iter("*:state:*", count=1000):
        pipe.hlen(name)
    return sum(pipe.execute())


def topology(limit: Path, keys: int, working_set: int) -> Topology:
    """Keys to counts."""
    builder = TopologyBuilder()
    builder.set_spout("keys", Keys(str(limit), keys, working_set), _WORKERS)
    builder.set_bolt("count", Count(), _WORKERS).fields_grouping("keys", "key")
    return builder.build()


def seconds_to(handle: TopologyHandle, limit: Path, each: int) -> float:
    """Let every spout task emit up to so many tuples; return the time until all are acked."""
    began = time.perf_counter()
    write(limit, each)
    wait(lambda: handle.progress().acked >= _WORKERS * each, _LIMIT_S)
    return time.perf_counter() - began


def restart_s(handle: TopologyHandle, limit: Path, each: int) -> float:
    """Kill a worker, let a few tuples come; return the time until its successor, in whatever slot,
    has committed the first.
    """
    # which names its tasks, from the worker's first report on
    wait(lambda: bool(handle.beats()[0].stats_by_executor), _LIMIT_S)
    victim = handle.beats()[0]

    def is_new(beat: WorkerBeat) -> bool:
        return beat.state == "RUNNING" and beat.pid != victim.pid

    tasks = [task for first, last in victim.stats_by_executor for task in range(first, last + 1)]
    began = time.perf_counter()
    os.kill(victim.pid, signal.SIGKILL)
    wait(lambda: not is_alive(victim.pid))
    before = executed(handle, tasks)
    write(limit, each)
    wait(lambda: executed(handle, tasks) > before, _LIMIT_S)
    seconds = time.perf_counter() - began
    wait(lambda: handle.progress().acked >= _WORKERS * each, _LIMIT_S)
    wait(lambda: len(beats := handle.beats()) == _WORKERS and all(map(is_new, beats)), _LIMIT_S)
    return seconds


def executed(handle: TopologyHandle, tasks: list[int]) -> int:
    """Return the tuples that tasks have executed and committed, in whatever workers."""
    counts = handle.counts()
    return sum(counts[task].executed for task in tasks if task in counts)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that its parent has not awaited does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_rewriting(redis: Any) -> bool:
    """Return whether a child of Redis writes its log anew, or will at once."""
    found = redis.info("persistence")
    return bool(
        found["aof_rewrite_in_progress"]
        or found["aof_rewrite_scheduled"]
        or found["rdb_bgsave_in_progress"]
    )


def write(limit: Path, each: int) -> None:
    """Replace the file as a whole."""
    new = limit.with_suffix(".new")
    new.write_text(str(each))
    new.replace(limit)


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds of processes so far."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    main()
