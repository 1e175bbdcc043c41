"""Slots as Spark tasks: one job of a single task per slot, kept alive by a thread of the driver.

Spark's own retry is not relied on: it counts failures per task set and never forgets them, and `local[N]` has none. A
slot's task never raises: it returns a word. Its closure carries a one-time ticket (cluster/tickets.py) and no secret.

Executors of this machine import the package from where this process has it. On other hosts it is installed, or shipped:
`--py-files sparkstorm.zip` for the package, `--archives env.tar.gz#env` with PYSPARK_PYTHON for what it depends on.
"""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from sparkstorm.errors import InvalidConfigError, SlotsUnavailableError, StoreUnavailableError
from sparkstorm.hosting.base import RestartPause
from sparkstorm.hosting.spark_security import guard_accumulators

_LOG = logging.getLogger(__name__)
JOB_GROUP: Final = "sparkstorm-slot"
SPARK_CONF: Final[Mapping[str, str]] = {
    # A speculative copy of a slot would be a second slot.
    "spark.speculation": "false",
    # A slot says nothing to Spark until it ends.
    "spark.python.worker.killOnIdleTimeout": "false",
    "spark.python.worker.idleTimeoutSeconds": "0",
    # Idle executors hold the slots of a topology that comes later.
    "spark.dynamicAllocation.enabled": "false",
    # A bar that never fills would overwrite the run's own progress line.
    "spark.ui.showConsoleProgress": "false",
    # A segmentation fault in a slot shows where it was.
    "spark.python.worker.faulthandler.enabled": "true",
    # A replay in the same application gets its share of the cores that slots leave.
    "spark.scheduler.mode": "FAIR",
}
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For executors of a cluster on one machine: without C2 their JVM starts with half the CPU time. SQL on large data needs C2."""
_LOST: Final = "the process of this slot was lost"
_CONTRADICTED = ("spark.speculation", "spark.dynamicAllocation.enabled")
_PACKAGE_ROOT = str(Path(__file__).parents[2])
EXECUTOR_WAIT_MS = 60_000
STOP_WAIT_MS = 8_000
KILL_WAIT_MS = 10_000
_POLL_S = 0.05
_PROCESS_END = re.compile(r"Python worker exited unexpectedly[^:\n]*|ExecutorLostFailure \([^\n]{,200}")
_PYTHON_ERROR = re.compile(r"(?!org\.|java\.|Py4J)[\w.]+(Error|Exception): ")


def slot_conf(conf: SparkConf) -> SparkConf:
    """Put what slots need into a conf, before the context is made; InvalidConfigError for a value against it."""
    for name, value in SPARK_CONF.items():
        given = conf.get(name)
        if name in _CONTRADICTED and given not in (None, value):
            raise InvalidConfigError(f"{name} is {given}, but slots need {value}: each is one long task")
        conf.set(name, value)
    if (conf.get("spark.master") or "").startswith("local-cluster"):
        conf.setIfMissing("spark.executor.extraJavaOptions", QUICK_JAVA)
    # Executors of this machine import what this process does; on other hosts the package is installed or shipped.
    given = conf.get("spark.executorEnv.PYTHONPATH") or os.environ.get("PYTHONPATH")
    return conf.set("spark.executorEnv.PYTHONPATH", os.pathsep.join([_PACKAGE_ROOT, *([given] if given else [])]))


def make_context(conf: SparkConf) -> SparkContext:
    """A context whose jobs an interrupt from the terminal does not touch: the driver decides what ends, and how.

    PySpark would answer SIGINT by cancelling every job, slots included, and under spark-submit the JVM, which gets the
    same signal, would shut the context down.
    """
    guard_accumulators()
    former = signal.getsignal(signal.SIGINT)
    sc = SparkContext(conf=conf)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, former)
    misc: Any = sc._jvm.sun.misc  # type: ignore[union-attr]
    misc.Signal.handle(misc.Signal("INT"), misc.SignalHandler.SIG_IGN)
    return sc


TicketT = TypeVar("TicketT")


class SparkSlots(Generic[TicketT]):
    """`count` slots on one SparkContext, under the laws of Slots.

    Each submission of a slot's job, the first and every further one, runs `slot_main` with a fresh ticket that is good
    while the job runs. `ask_to_stop` tells all slots to end gently (it makes the node at the spec's `stop_path`);
    without it they are cancelled.
    """

    def __init__(
        self,
        sc: SparkContext,
        count: int,
        slot_main: Callable[[TicketT], str],
        ticket: Callable[[], AbstractContextManager[TicketT]],
        ask_to_stop: Callable[[], None] | None = None,
    ) -> None:
        self._sc, self._count, self._slot_main, self._ticket = sc, count, slot_main, ticket
        self._ask_to_stop = ask_to_stop
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._active: set[int] = set()
        self.ends = 0  # slot jobs that ended unasked
        self.last_end = ""  # why the last of them did

    def start(self, wait_ms: int = EXECUTOR_WAIT_MS) -> None:
        """Submit a job per slot; SlotsUnavailableError when Spark has fewer cores even after `wait_ms`."""
        _check_context(self._sc)
        self._wait_for_cores(wait_ms)
        for index in range(self._count):
            # Not pyspark's InheritableThread: each thread sets its own job group and inherits none.
            thread = threading.Thread(target=self._keep, args=(index,), name=f"{JOB_GROUP}-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask the slots to end, cancel those that do not, and wait for the jobs' ends."""
        self._stopping.set()
        if self._ask_to_stop is not None and self._active:
            try:
                self._ask_to_stop()
                self._join(STOP_WAIT_MS)
            except StoreUnavailableError as error:
                _LOG.warning("%s: slots cannot be asked to stop, and are cancelled", error)
            except Exception:  # a store that is gone already must not keep the cancelling from happening
                _LOG.exception("slots could not be asked to stop; they are cancelled")
        for index in sorted(self._active):
            self._sc.cancelJobGroup(f"{JOB_GROUP}-{index}")
        self._join(KILL_WAIT_MS)

    def running(self) -> int:
        """Number of running slot jobs."""
        return len(self._active)

    def _join(self, wait_ms: int) -> None:
        deadline = time.monotonic() + wait_ms / 1000
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _wait_for_cores(self, wait_ms: int) -> None:
        deadline, master = time.monotonic() + wait_ms / 1000, _master_of(self._sc)
        while (cores := task_room(self._sc)) < self._count:
            most = _most_cores(master)
            if (most is not None and most < self._count) or time.monotonic() >= deadline:
                raise SlotsUnavailableError(_shortage(master, cores if most is None else most, self._count))
            time.sleep(_POLL_S)

    def _keep(self, index: int) -> None:
        pause = RestartPause()
        while not self._stopping.is_set():
            began = time.monotonic()
            self._active.add(index)
            try:
                reason = self._run_once(index)
            finally:
                self._active.discard(index)
            if _is_stopped(self._sc):
                return
            self.last_end = reason
            self.ends += 1
            if self._stopping.wait(pause.after_ms(round((time.monotonic() - began) * 1000)) / 1000):
                return
            _LOG.warning("slot job %d ended (%s); it is submitted again", index, reason)

    def _run_once(self, index: int) -> str:
        sc = self._sc
        try:
            with self._ticket() as ticket:
                sc.setJobGroup(f"{JOB_GROUP}-{index}", f"worker slot {index}", interruptOnCancel=True)
                words: list[str] = sc.parallelize([index], 1).mapPartitions(_closure(self._slot_main, ticket)).collect()
                return words[0]
        except Exception as fault:  # a killed process or executor, a cancelled job, a stopped context
            return _cause_of(fault)


def _closure(slot_main: Callable[[TicketT], str], ticket: TicketT) -> Callable[[Iterable[int]], Iterator[str]]:
    def run(_: Iterable[int]) -> Iterator[str]:
        attempt = TaskContext.get()
        # Spark repeats the task of a lost process or executor. Its ticket was used: a new job gets a new one.
        yield slot_main(ticket) if attempt is None or not attempt.attemptNumber() else _LOST

    return run


def task_room(sc: SparkContext) -> int:
    """Return how many tasks can run at once on the present cores."""
    per_task = int(sc.getConf().get("spark.task.cpus", "1") or 1)
    jvm: Any = sc._jvm
    if (asked := _local_cores(_master_of(sc))) is not None:
        return (asked or int(jvm.java.lang.Runtime.getRuntime().availableProcessors())) // per_task
    java: Any = sc._jsc
    executors = java.sc().statusStore().executorList(True)
    return sum(int(executors.apply(at).totalCores()) // per_task for at in range(executors.size()))


def _is_stopped(sc: SparkContext) -> bool:
    """Return whether the context is gone, or its JVM."""
    try:
        java: Any = sc._jsc
        return java is None or bool(java.sc().isStopped())
    except Exception:  # py4j has several ways to say that nobody answers
        return True


def _master_of(sc: SparkContext) -> str:
    return sc.master or ""


def _local_cores(master: str) -> int | None:
    """The cores that a local master asks for, 0 for all of the machine; None for any other master."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\d+|\*)(,\s*\d+)?\]", master)
    return None if found is None else 0 if found[1] == "*" else int(found[1])


def _most_cores(master: str) -> int | None:
    """Return the cores that a master of fixed size can ever offer; None for a master whose executors may still come."""
    if (cores := _local_cores(master)) is not None:
        return cores or os.cpu_count() or 1
    found = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    return None if found is None else int(found[1]) * int(found[2])


def _check_context(sc: SparkContext) -> None:
    conf = sc.getConf()
    for name in ("spark.speculation", "spark.dynamicAllocation.enabled", "spark.python.worker.killOnIdleTimeout"):
        if (conf.get(name, "false") or "false") != "false":
            raise InvalidConfigError(f"{name} must be false: a worker slot is one long task that tells Spark nothing")


def _shortage(master: str, cores: int, count: int) -> str:
    """Return the sentence for too few cores, with both ways out; on a cluster they may only be late."""
    fewer = "sparkstorm.supervisors x sparkstorm.slots.per.supervisor of them"
    if _local_cores(master) is not None:
        advice = f"start with --master local[{count}] or more, or configure fewer ({fewer})"
    else:
        late = "if executors were only late, raise sparkstorm.slots.start.timeout.ms"
        advice = f"add executors or cores, or configure fewer ({fewer}); {late}"
    return f"{count} worker slots need {count} Spark cores, but {master} offers {cores}: {advice}"


def _cause_of(fault: Exception) -> str:
    """One line for a job's end: Spark's own sentence out of the many lines of a Java stack."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    if python := [line for line in lines if _PYTHON_ERROR.match(line)]:
        return python[-1][:300]
    if end := _PROCESS_END.search(str(fault)):
        return end[0]
    told = next((line for line in lines if "Job aborted" in line or "cancelled" in line), lines[0] if lines else "")
    return f"{type(fault).__name__}: {told[-300:]}"
