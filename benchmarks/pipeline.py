"""Runs of whole topologies on one cluster: seconds from activation to the last commit, CPU by
process, memory.

The other benchmarks are built on it. A run: submit inactive, wait until every worker is up,
activate, wait until all is emitted, acked and committed, kill. Exactly-once with acking unless the
topology's configuration says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.client.request_client import SubmitOptions
from sparkstorm.common.config import merge
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.cluster import Cluster

NAME = "bench"
KINDS = ("workers", "redis", "other")
_KERNEL = ("system",)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: wall seconds, CPU seconds by kind of process, complete latencies, merged state of
    the component asked for; `kernel` is the part of `cpu` that was spent in the kernel.
    """

    seconds: float
    cpu: Mapping[str, float]
    p50_ms: float
    p99_ms: float
    state: Mapping[Any, Any] = field(repr=False)
    kernel: Mapping[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def cluster(slots: int = 2, **conf: Any) -> Iterator[Cluster]:
    """Open its own cluster with a number of slots; configuration keys are given with `_` for
    `.`.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    own = {key.replace("_", "."): value for key, value in conf.items()}
    with tempfile.TemporaryDirectory() as folder:
        shape = {"sparkstorm.supervisors": 1, "sparkstorm.slots.per.supervisor": slots}
        with Cluster.open(merge({"storm.local.dir": f"{folder}/storm", **shape, **own})) as opened:
            yield opened


def run(
    on: Cluster,
    topology: Topology,
    conf: Mapping[str, Any],
    state_of: str | None = None,
    watch: Callable[[TopologyHandle, float], None] | None = None,
    every_s: float = 0.05,
) -> Run:
    """Run a topology to its end; `watch` is called with the handle and the seconds since
    activation, every `every_s`.
    """
    handle = on.submit(NAME, topology, conf, options=SubmitOptions(TopologyStatus.INACTIVE))
    try:
        return _measured(handle, conf, state_of, watch, every_s)
    finally:
        handle.kill(0)
        while on.find(NAME) is not None:
            time.sleep(0.05)


def _measured(
    handle: TopologyHandle,
    conf: Mapping[str, Any],
    state_of: str | None,
    watch: Callable[[TopologyHandle, float], None] | None,
    every_s: float,
) -> Run:
    wanted = int(conf.get("topology.workers", 1))
    while len(handle.beats()) < wanted or any(b.state != "RUNNING" for b in handle.beats()):
        time.sleep(0.05)
    time.sleep(0.5)  # the workers are up and quiet
    before = cpu_by_kind()
    before_kernel = cpu_by_kind(_KERNEL)
    started = time.perf_counter()
    handle.activate()
    while not handle.progress().is_drained:
        time.sleep(every_s)
        if watch is not None:
            watch(handle, time.perf_counter() - started)
    seconds = time.perf_counter() - started
    after = cpu_by_kind()
    after_kernel = cpu_by_kind(_KERNEL)
    progress = handle.progress()
    state = dict(handle.key_values(state_of)) if state_of else {}
    cpu = {kind: after[kind] - before[kind] for kind in KINDS}
    kernel = {kind: after_kernel[kind] - before_kernel[kind] for kind in KINDS}
    return Run(seconds, cpu, progress.p50_ms or 0.0, progress.p99_ms or 0.0, state, kernel)


def processes() -> list[tuple[str, psutil.Process]]:
    """Return this process and all below it, each with its kind."""
    own = psutil.Process()
    running = []
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            running.append((_kind(process), process))
    return running


def _kind(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if "redis-server" in words or "valkey-server" in words:
        return "redis"
    return "workers" if process.name() == "storm-worker" else "other"


def cpu_by_kind(parts: Sequence[str] = ("user", *_KERNEL)) -> dict[str, float]:
    """Return the CPU seconds used so far by workers, Redis and the rest (driver, JVMs, slots)."""
    used = dict.fromkeys(KINDS, 0.0)
    for kind, process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[kind] += sum(getattr(times, part) for part in parts)
    return used


def memory_by_kind() -> dict[str, float]:
    """Return the resident megabytes of workers, Redis and the rest, pages shared by several counted
    in each.
    """
    used = dict.fromkeys(KINDS, 0.0)
    for kind, process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            used[kind] += process.memory_info().rss / 1e6
    return used


def median_of(runs: Sequence[float]) -> float:
    """Return the median of at least one figure."""
    return statistics.median(runs)
