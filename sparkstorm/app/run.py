"""Owns the run of one job on a cluster: submit or go on, watch, collect, end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

from pyspark import SparkContext

from sparkstorm.api.components import Spout
from sparkstorm.app.cluster import Cluster, wait_until
from sparkstorm.app.console import Console
from sparkstorm.app.dead_letter_file import DeadLetterFile
from sparkstorm.app.job import FAILED, INTERRUPTED, OK, PARKED, leave
from sparkstorm.app.job_file import JobFile
from sparkstorm.app.results import DEAD_LETTERS, collect, result_folder
from sparkstorm.app.waits import Absence
from sparkstorm.app.watch import Outcome, Watch
from sparkstorm.checkpoint.restore import FROM_CHECKPOINT
from sparkstorm.client.handle import TopologyHandle, TopologyProgress
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.embedded.stores import not_configured
from sparkstorm.errors import (
    NotAliveError,
    SlotsUnavailableError,
    StoreFullError,
    StoreUnavailableError,
    WorkerFailedError,
)
from sparkstorm.model.status import TopologyStatus
from sparkstorm.model.topology import Topology

_END_WAIT_MS = 30_000
_RETRY_S = 0.5
Result = TypeVar("Result")


class Run:
    """One run of a job; the result of either way to run it is an exit status."""

    def __init__(
        self,
        job: JobFile,
        topology: Topology,
        by_value: Sequence[str] = (),
        is_fresh: bool = False,
        console: Console | None = None,
    ) -> None:
        self._job, self._topology, self._by_value, self._is_fresh = job, topology, by_value, is_fresh
        self._console = console or Console()
        self._patience_s = job.conf.millis("sparkstorm.stores.patience.secs") / 1000
        self._stop = threading.Event()
        self._has_begun = False  # from then on a stop means that sources rest
        self._started = time.monotonic()
        self._is_all_kept = True  # whether results and dead letters are in files, so that the stores may go

    def in_own_cluster(self) -> int:
        """Start a cluster for this run alone; Ctrl-C and SIGTERM drain and stop it, a second one ends it at once."""
        self._console.say(starting_text(self._job))
        with _Signals(self.interrupt), _spark_may_end(lambda: self._has_begun):
            try:
                with Cluster.open(self._job.conf, say=self._console.say) as cluster:
                    status = self.on(cluster, lambda: _check_spark(cluster))
                    is_over = status in (OK, PARKED) and self._is_all_kept
                    is_last = is_over and not self._patiently(cluster.state.topology_ids)
            except _StoppedAtStartError:
                self._console.say("stopped while starting; no run was begun or changed")
                return INTERRUPTED
        if is_last:  # an unfinished run of another name may want the data
            cluster.stores.discard()
        return status

    def on(self, cluster: Cluster, check: Callable[[], None] = lambda: None) -> int:
        """Run to the end of a finite source, or until `interrupt`; what is unfinished then stays for another run."""
        self._has_begun = True
        handle = self._patiently(lambda: self._begin(cluster))
        took_s = time.monotonic() - self._started
        placed = self._patiently(lambda: placed_text(cluster.state, handle.topology_id, took_s))
        self._console.say(f"{placed}; logs are in {cluster.log_dir}")
        line_every_s = self._job.conf.millis("sparkstorm.progress.interval.ms") / 1000
        letters = self._dead_letters(handle)
        try:
            watch = Watch(handle, self._console, cluster.log_dir, line_every_s, self._patience_s, letters)
            outcome, progress = watch.run(self._stop.is_set, check)
        except WorkerFailedError:
            self._patiently(lambda: self._leave_failed(handle))
            raise
        self._console.show(progress)
        self._console.total(progress)
        self._patiently(letters.collect)
        if outcome is Outcome.STOPPED:
            self._say_stopped(handle, progress)
            return INTERRUPTED
        status = self._judge(letters, progress)
        self._patiently(lambda: collect(self._job.results, handle, self._console.say))
        self._patiently(lambda: _end(handle))
        return status

    def interrupt(self) -> None:
        """Let sources rest and finish what is under way; the second time, end the process."""
        if self._stop.is_set():
            self._console.say("stopped at once; the same command goes on from the last commit")
            leave(INTERRUPTED)
        self._stop.set()
        if not self._has_begun:
            self._console.say("stopping: nothing has begun yet; Spark and the servers are ended (again to stop at once) ...")
            raise _StoppedAtStartError
        self._console.say("stopping: sources rest, what is under way is finished (again to stop at once) ...")

    # -- beginning and end ---------------------------------------------------------------------------------------

    def _begin(self, cluster: Cluster) -> TopologyHandle:
        """The unfinished run of this name, or a new one."""
        handle = cluster.find(self._job.name)
        if handle is not None and (self._is_fresh or handle.status() is TopologyStatus.KILLED):
            self._dead_letters(handle).collect()
            _end(handle)
            handle = None
        if handle is None:
            return cluster.submit(self._job.name, self._topology, own_conf(self._job), self._by_value)
        self._console.say(f"going on with unfinished run {handle.topology_id}, in the code it began with (--fresh drops it)")
        if self._job.own_conf.get(FROM_CHECKPOINT):
            self._console.say("what it has is newer than the checkpoint, which is for new runs")
        handle.activate()
        return handle

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Call again while a store is away or has no room; for what may be done twice."""
        absence = Absence(self._console.say, self._patience_s)
        while True:
            try:
                result = call()
            except (StoreUnavailableError, StoreFullError) as error:
                if self._stop.is_set():
                    raise
                absence.bear(error)
                time.sleep(_RETRY_S)
            else:
                absence.end()
                return result

    def _leave_failed(self, handle: TopologyHandle) -> None:
        """A run that got nothing done is dropped: the next one shall take mended code."""
        progress = handle.progress()
        if progress.executed or progress.acked or progress.parked:
            handle.deactivate()
            self._console.say(f"{handle.topology_id} is kept as it stands; the same command goes on with it, --fresh drops it")
        else:
            _end(handle)

    def _say_stopped(self, handle: TopologyHandle, progress: TopologyProgress) -> None:
        rest = "every tree is settled" if progress.is_settled else f"{progress.pending:,} trees are open"
        self._console.say(f"stopped; {rest}; the same command goes on with {handle.topology_id} from here, --fresh drops it")

    def _dead_letters(self, handle: TopologyHandle) -> DeadLetterFile:
        path = result_folder(self._job.results, handle.topology_id) / DEAD_LETTERS
        return DeadLetterFile(path, handle.dead_letters.stored, self._job.conf.integer("sparkstorm.dead.letters.file.max.bytes"))

    def _judge(self, letters: DeadLetterFile, progress: TopologyProgress) -> int:
        if progress.parked:
            self._is_all_kept = letters.is_whole
            self._console.say(
                f"{progress.parked:,} tuples were parked after their tries; {kept_where(letters)}; "
                "the first causes by component, error and line:"
            )
            for line in letters.groups.lines(5):
                self._console.say(f"  {line}")
            return PARKED
        if progress.failed and not self._replays():
            self._console.say(f"{progress.failed:,} trees failed, and no spout emits them again")
            return PARKED
        return OK

    def _replays(self) -> bool:
        spouts = [c.instance for c in self._topology if c.kind == "spout"]
        return all(type(spout).fail is not Spout.fail for spout in spouts)


def starting_text(job: JobFile) -> str:
    """Return the names of the parts that a run starts: Spark, and the servers without a configured address."""
    names = {"redis": "Redis", "zookeeper": "ZooKeeper"}
    own = not_configured(job.conf)
    *first, last = ["Spark", *(names[name] for name in own)]
    started = f"{', '.join(first)} and {last}" if first else last
    given = " and ".join(said for name, said in names.items() if name not in own)
    return f"starting {started} for topology '{job.name}'{f' on your {given}' if given else ''} ..."


def placed_text(state: StormState, topology_id: str, took_s: float) -> str:
    """That it is assigned; or who else there is, since a topology without slots would wait in silence."""
    if state.read_assignment(topology_id) is not None:
        return f"{topology_id} is assigned {took_s:.1f} s after the start"
    others = sorted(other for other in state.topology_ids() if other != topology_id)
    held = f"they may be held by {', '.join(others)}: finish or drop that run" if others else "there are too few of them"
    return f"{topology_id} waits for free slots; {held}, or set storm.local.dir to a folder of this run's own"


def kept_where(letters: DeadLetterFile) -> str:
    """Return where dead letters are, for people."""
    return f"they are in {letters.path}" if letters.is_whole else f"{letters.trouble}; what it lacks is kept in Redis"


def own_conf(job: JobFile) -> dict[str, Any]:
    """The part of a job's configuration that is its topology's."""
    return {key: value for key, value in job.own_conf.items() if key.startswith(("topology.", "app."))}


def _end(handle: TopologyHandle) -> None:
    """Kill the topology, wait until its workers and records are gone, and delete its data and its code."""
    handle.blob_keys()
    with contextlib.suppress(NotAliveError):  # killed by somebody else, or in its last moments
        handle.kill(0)
    if not wait_until(lambda: handle.status() is None, _END_WAIT_MS, every_ms=20):
        raise WorkerFailedError(f"{handle.topology_id} did not end within {_END_WAIT_MS // 1000} s of its kill")
    handle.delete_data()


def _check_spark(cluster: Cluster) -> None:
    """Without Spark there are no slots, and nothing here can end in an orderly way: stop like a killed driver."""
    try:
        cluster.check_spark()
    except SlotsUnavailableError as error:
        with contextlib.suppress(OSError):  # our output went through the JVM that is gone
            print(f"{error}; the same command goes on from the last commit", file=sys.stderr, flush=True)
        leave(FAILED)


class _StoppedAtStartError(BaseException):
    """Raised by the signal handler, in whatever the main thread does: no library may take it for a fault of its own."""


@contextlib.contextmanager
def _spark_may_end(has_begun: Callable[[], bool]) -> Iterator[None]:
    """Turn what a call raises because spark-submit's JVM ended, our parent, into one sentence.

    A service manager sends its SIGTERM to that JVM, not to this process.
    """
    parent = os.getppid()
    try:
        yield
    except Exception as error:
        if not _is_jvm_gone(parent):
            raise
        rest = "; the same command goes on from the last commit" if has_begun() else " while the run was starting"
        raise SlotsUnavailableError(f"Spark was ended from outside{rest}") from error


def _is_jvm_gone(parent: int) -> bool:
    """Return whether the JVM has ended or shuts down: it is no longer our parent, or its Spark context has been stopped."""
    if os.getppid() != parent:
        return True
    try:
        runtime: Any = SparkContext._jvm
        return runtime is not None and bool(runtime.org.apache.spark.util.ShutdownHookManager.inShutdown())
    except Exception:  # py4j has several ways to say that nobody answers
        return True


class _Signals:
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
