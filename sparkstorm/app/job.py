"""Owns the run of one job from its file to its results: what `spark-submit jobs/run_topology.py` does."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from sparkstorm.app.cluster import Cluster
from sparkstorm.app.handle import TopologyHandle, TopologyProgress
from sparkstorm.app.job_file import JobFile, make_topology, read_job_file
from sparkstorm.config import inert_among, parse_override
from sparkstorm.errors import SparkStormError, WorkerFailedError

OK, FAILED, PARKED, INTERRUPTED = 0, 1, 3, 130
_DRAIN_S = 30.0


def main(arguments: Sequence[str]) -> int:
    """Run a job; the result is the process's exit status: 0 all done, 1 failed, 3 done but tuples were parked, 130 stopped."""
    options = _parse(arguments)
    try:
        job = read_job_file(options.conf, dict(parse_override(c) for c in options.c), options.name, options.input)
        for key in inert_among(job.own_conf):
            _say(f"note: {key} is accepted but changes nothing in this version")
        return Job(job, is_fresh=options.fresh).run()
    except SparkStormError as error:
        _say(f"{type(error).__name__.removesuffix('Error')}: {error}")
        return FAILED


class Job:
    """One run: submit or resume, watch, collect."""

    def __init__(self, job: JobFile, is_fresh: bool = False) -> None:
        self._job = job
        self._is_fresh = is_fresh
        self._stop = threading.Event()
        self._started = time.monotonic()

    def run(self) -> int:
        """Run to the end of a finite source, or until interrupted."""
        topology, by_value = make_topology(self._job)
        conf = self._job.conf
        _say(f"starting Spark, Redis and ZooKeeper for topology '{self._job.name}' ...")
        with _interrupts(self._interrupt), Cluster.open(conf) as cluster:
            handle = cluster.find(self._job.name)
            if handle is not None and self._is_fresh:
                _end(handle, cluster)
                handle = None
            if handle is not None:
                _say(f"going on with unfinished run {handle.topology_id} (--fresh drops it)")
                handle.activate()
            else:
                handle = cluster.submit(self._job.name, topology, self._own_conf(), by_value)
            _say(f"{handle.topology_id} is assigned {time.monotonic() - self._started:.1f} s after the start; "
                 f"logs are in {cluster.log_dir}")
            status = self._watch(handle)
            if status in (OK, PARKED):
                self._collect(handle)
            if status != FAILED:
                _end(handle, cluster)
        if status in (OK, PARKED):
            cluster.stores.discard()
        return status

    def _own_conf(self) -> dict[str, Any]:
        return {k: v for k, v in self._job.own_conf.items() if k.startswith("topology.") or "." not in k or k.startswith("app.")}

    def _interrupt(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()
        _say("\nstopping: sources rest, what is under way is finished (again to stop at once) ...")

    def _watch(self, handle: TopologyHandle) -> int:
        """Show progress until the sources are drained, a worker gives up, or we are stopped."""
        line = ProgressLine()
        every_s = self._job.conf.millis("sparkstorm.progress.interval.ms") / 1000
        drained = 0
        deadline: float | None = None
        next_line = 0.0
        while True:
            progress = handle.progress()
            drained = drained + 1 if progress.is_drained else 0
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + every_s
                line.show(progress)
                _raise_if_failed(handle)
            if drained >= 2:
                line.end(progress)
                return self._report(handle, progress)
            if self._stop.is_set() and deadline is None:
                deadline = time.monotonic() + _DRAIN_S
                handle.deactivate()
            if deadline is not None and (progress.pending == 0 or time.monotonic() > deadline):
                line.end(progress)
                _say(f"stopped with {progress.pending} trees open; `{self._job.path}` run again goes on from here"
                     if progress.pending else "stopped; every tree is settled")
                return INTERRUPTED
            time.sleep(0.1)

    def _report(self, handle: TopologyHandle, progress: TopologyProgress) -> int:
        if not progress.parked:
            return OK if not progress.failed else FAILED
        _say(f"{progress.parked} tuples were parked after their tries; the first causes:")
        for letter in handle.dead_letters(5):
            _say(f"  {letter['component']}#{letter['task']}: {letter['reason']}  {letter['values']!r:.100}")
        return PARKED

    def _collect(self, handle: TopologyHandle) -> None:
        component = self._job.results.get("component")
        if component is None:
            return
        folder = Path(self._job.results.get("directory", "results"), handle.topology_id)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = sorted(handle.key_values(component), key=lambda kv: (-kv[1] if isinstance(kv[1], int) else 0, str(kv[0])))
        file = folder / f"{component}.jsonl"
        file.write_text("".join(json.dumps([k, v], ensure_ascii=False) + "\n" for k, v in pairs), encoding="utf-8",
                        errors="backslashreplace")
        for key, value in pairs[: int(self._job.results.get("top", 10))]:
            _say(f"{value:>12,}  {key}" if isinstance(value, int) else f"  {key}: {value}")
        numbers = [v for _, v in pairs if isinstance(v, int)]
        _say(f"{len(pairs):,} keys, {sum(numbers):,} in all; results are in {file}")


class ProgressLine:
    """One line that is rewritten on a terminal and repeated elsewhere."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._last_executed: int | None = None

    def show(self, p: TopologyProgress) -> None:
        """Write the line."""
        now = time.monotonic()
        if self._last_executed is None:
            rate = 0.0
        else:
            rate = (p.executed - self._last_executed) / max(now - self._last, 1e-9)
        self._last, self._last_executed = now, p.executed
        share = f"{100 * p.done / p.total:5.1f} % of {p.total / 1e6:.1f} MB  " if p.total else ""
        latency = f"  p50 {p.p50_ms:.0f} ms  p99 {p.p99_ms:.0f} ms" if p.p50_ms is not None and p.p99_ms is not None else ""
        text = (f"{share}{rate:>11,.0f} tuples/s  pending {p.pending:,}  acked {p.acked:,}  failed {p.failed:,}{latency}")
        end = "\r" if sys.stdout.isatty() else "\n"
        print(f"{text:<110}" if end == "\r" else text, end=end, flush=True)

    def end(self, p: TopologyProgress) -> None:
        """Leave the line and say the totals."""
        took = time.monotonic() - self._began
        if sys.stdout.isatty():
            print()
        _say(f"{p.executed:,} tuples executed in {took:.1f} s ({p.executed / took:,.0f}/s), "
             f"{p.acked:,} trees acked, {p.failed:,} failed, {p.parked:,} parked")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run_topology.py", description="Run a topology on Spark, Redis and ZooKeeper.")
    parser.add_argument("conf", metavar="CONF.yaml", help="the job file: topology, parallelism, topology.* keys")
    parser.add_argument("--input", nargs="+", default=[], metavar="PATH", help="files or folders for the factory's `input`")
    parser.add_argument("-c", action="append", default=[], metavar="KEY=VALUE", help="override one configuration key")
    parser.add_argument("--name", help="name of the topology")
    parser.add_argument("--fresh", action="store_true", help="drop an unfinished run of this name instead of going on with it")
    return parser.parse_args(list(arguments))


def _raise_if_failed(handle: TopologyHandle) -> None:
    for beat in handle.beats():
        if beat.state == "FAILED":
            raise WorkerFailedError(f"worker {beat.node}:{beat.port} of {handle.topology_id} cannot run: {beat.message}")


def _end(handle: TopologyHandle, cluster: Cluster) -> None:
    """Kill the topology and wait until its workers and records are gone."""
    from sparkstorm.app.cluster import wait_until

    handle.kill(0)
    wait_until(lambda: handle.status() is None, 15_000)
    handle.delete_data()


class _interrupts:
    """Calls `act` on Ctrl-C and SIGTERM while inside."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __enter__(self) -> None:
        def handler(_signal: int, _frame: FrameType | None) -> None:
            self._act()

        self._former = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)


def _say(text: str) -> None:
    print(text, flush=True)
