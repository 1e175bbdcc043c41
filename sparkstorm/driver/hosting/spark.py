"""Slots as Spark tasks: one job of a single task per slot, kept alive by a thread of the driver,
spread over Spark's hosts.

Spark's own retry is not relied on: it counts failures per task set and never forgets them, and
`local[N]` has none. A slot's task never raises: it returns the reason of its end. Its closure
carries a one-time ticket (control_plane/cluster/tickets.py) and no secret.

Executors of this machine import the package from where this process has it. On other hosts it is
installed, or shipped: `--py-files sparkstorm.zip` for the package, `--archives env.tar.gz#env` with
PYSPARK_PYTHON for what it depends on.
"""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import count as count_from
from pathlib import Path
from typing import Final, Generic, TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from sparkstorm.common.errors import (
    InvalidConfigError,
    SlotsUnavailableError,
    StoreUnavailableError,
)
from sparkstorm.common.slot_spec import RestartPause
from sparkstorm.common.spark_versions import (
    Executor,
    cores_per_task,
    executor_of_group,
    executors_of,
    is_stopped,
    let_java_ignore_interrupts,
    one_partition,
    processors_of,
    task_slots,
    unfit_here,
)
from sparkstorm.driver.hosting.slot_executors import SlotExecutors
from sparkstorm.driver.hosting.spark_security import guard_accumulators, is_local
from sparkstorm.driver.hosting.spread import is_complete

_LOG = logging.getLogger(__name__)
JOB_GROUP: Final = "sparkstorm-slot"
SPARK_CONF: Final[Mapping[str, str]] = {
    # A speculative copy of a slot would be a second slot.
    "spark.speculation": "false",
    # A slot sends nothing to Spark until it ends.
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
"""For executors of a cluster on one machine: without C2 their JVM starts with half the CPU time.
SQL on large data needs C2.
"""
_NEVER_LOST: Final = ("spark.storage.blockManagerHeartbeatTimeoutMs", "7d")
"""Longest silence of the one executor of a local master. It is the driver's own process: after
120 s, as of a laptop that slept, Spark would give it up and log an error with each heartbeat.
"""
_LOST: Final = "the process of this slot was lost"
_CONTRADICTED = ("spark.speculation", "spark.dynamicAllocation.enabled")
_PACKAGE_ROOT = str(Path(__file__).parents[3])
EXECUTOR_WAIT_MS = 60_000
SETTLE_MS = 3_000
STOP_WAIT_MS = 8_000
KILL_WAIT_MS = 10_000
_POLL_S = 0.05
_LOOK_S = 0.2
# between looks for a host that has returned: Spark itself needs longer to start its executor
_EVEN_S = 1.0
_ANSWER_S = 2.0  # for a slot without a worker to end: it polls four times a second
_REST_S = 30.0  # after every slot of the crowded hosts had a worker
_PROCESS_END = re.compile(
    r"Python worker exited unexpectedly[^:\n]*|ExecutorLostFailure \([^\n]{,200}"
)
_PYTHON_ERROR = re.compile(r"(?!org\.|java\.|Py4J)[\w.]+(Error|Exception): ")


def slot_conf(conf: SparkConf) -> SparkConf:
    """Put what slots need into a conf, before the context is made; InvalidConfigError for a value
    against it, or a PySpark that cannot work here.
    """
    if fault := unfit_here():
        raise InvalidConfigError(fault)
    for name, value in SPARK_CONF.items():
        given = conf.get(name)
        if given is not None and (fault := contradiction(name, given)):
            raise InvalidConfigError(fault)
        conf.set(name, value)
    master = conf.get("spark.master") or ""
    if master.startswith("local-cluster"):
        conf.setIfMissing("spark.executor.extraJavaOptions", QUICK_JAVA)
    elif is_local(master):
        conf.setIfMissing(*_NEVER_LOST)
    # Executors of this machine import what this process does; on other hosts the package is
    # installed or shipped.
    given = conf.get("spark.executorEnv.PYTHONPATH") or os.environ.get("PYTHONPATH")
    return conf.set(
        "spark.executorEnv.PYTHONPATH",
        os.pathsep.join([_PACKAGE_ROOT, *([given] if given else [])]),
    )


def contradiction(name: str, given: str) -> str:
    """Return what is wrong with a setting of Spark for slots, a sentence; "" for nothing."""
    if name not in _CONTRADICTED or given == SPARK_CONF[name]:
        return ""
    return f"{name} is {given}, but slots need {SPARK_CONF[name]}: each is one long task"


def make_context(conf: SparkConf) -> SparkContext:
    """A context whose jobs an interrupt from the terminal does not touch: the driver decides what
    ends, and how.

    PySpark would answer SIGINT by cancelling every job, slots included, and under spark-submit the
    JVM, which gets the same signal, would shut the context down.
    """
    guard_accumulators()
    former = signal.getsignal(signal.SIGINT)
    sc = SparkContext(conf=conf)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, former)
    let_java_ignore_interrupts(sc)
    return sc


TicketT = TypeVar("TicketT")


class SparkSlots(Generic[TicketT]):
    """`count` slots on one SparkContext, under the laws of Slots, spread evenly over its hosts.

    Each submission of a slot's job, the first and every further one, runs `slot_main` with a fresh
    ticket that is good while the job runs; `ticket` gets the slot's number. `ask_to_stop` orders
    all slots to end gently (it makes the node at the spec's `stop_path`); without it they are
    cancelled. `ask_to_move` orders the slot of a number to end gently if it has no worker, None
    withdraws that; without it, slots stay where they are when a host returns.
    """

    def __init__(
        self,
        sc: SparkContext,
        count: int,
        slot_main: Callable[[TicketT], str],
        ticket: Callable[[int], AbstractContextManager[TicketT]],
        ask_to_stop: Callable[[], object] | None = None,
        ask_to_move: Callable[[int | None], object] | None = None,
    ) -> None:
        self._sc = sc
        self._count = count
        self._slot_main = slot_main
        self._ticket = ticket
        self._ask_to_stop = ask_to_stop
        self._ask_to_move = ask_to_move
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._group_by_slot: dict[int, str] = {}  # of the jobs that run
        self._runs = count_from(1)
        # A local master is one process: there is nothing to choose.
        is_local = _local_cores(_master_of(sc)) is not None
        self._slot_executors = None if is_local else SlotExecutors(lambda: executors_of(sc), count)
        self._moved: set[int] = set()  # slots that end because they are to run elsewhere
        self._asking = threading.RLock()
        self._asked: int | None = None  # the slot that was asked to move
        self._ask_due = 0.0
        self.ends = 0  # slot jobs that ended unasked
        self.last_end = ""  # why the last of them did

    def start(
        self, wait_ms: int = EXECUTOR_WAIT_MS, hosts: int = 0, settle_ms: int = SETTLE_MS
    ) -> None:
        """Submit a job per slot; SlotsUnavailableError when Spark has fewer cores even after
        `wait_ms`.

        Slots are spread over `hosts` hosts if so many come in time, else over those that have come;
        0: over those whose executors come within `settle_ms` of each other.
        """
        _check_context(self._sc)
        if self._slot_executors is None:
            self._wait_for_cores(wait_ms)
        else:
            self._wait_for_executors(wait_ms, hosts, settle_ms)
        for index in range(self._count):
            # Not pyspark's InheritableThread: each thread sets its own job group and inherits none.
            self._threads.append(
                threading.Thread(
                    target=self._keep, args=(index,), name=f"{JOB_GROUP}-{index}", daemon=True
                )
            )
        if self._slot_executors is not None:
            watch = threading.Thread(
                target=self._watch,
                args=(self._slot_executors,),
                name=f"{JOB_GROUP}-places",
                daemon=True,
            )
            self._threads.append(watch)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask the slots to end, cancel those that do not, and wait for the jobs' ends."""
        self._stopping.set()
        if self._ask_to_stop is not None and self._group_by_slot:
            try:
                self._ask_to_stop()
                self._join(STOP_WAIT_MS)
            except StoreUnavailableError as error:
                _LOG.warning("%s: slots cannot be asked to stop, and are cancelled", error)
            except Exception:
                # a store that is gone already must not keep the cancelling from happening
                _LOG.exception("slots could not be asked to stop; they are cancelled")
        for group in sorted(self._group_by_slot.copy().values()):
            self._sc.cancelJobGroup(group)
        self._join(KILL_WAIT_MS)

    def running(self) -> int:
        """Number of running slot jobs."""
        return len(self._group_by_slot)

    @property
    def are_placed(self) -> bool:
        """Return whether every slot was seen to run on its host; True on a local master."""
        return self._slot_executors is None or self._slot_executors.are_settled

    def _join(self, wait_ms: int) -> None:
        deadline = time.monotonic() + wait_ms / 1000
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _wait_for_cores(self, wait_ms: int) -> None:
        deadline = time.monotonic() + wait_ms / 1000
        master = _master_of(self._sc)
        while (cores := task_room(self._sc)) < self._count:
            most = _most_cores(master)
            if (most is not None and most < self._count) or time.monotonic() >= deadline:
                raise SlotsUnavailableError(_shortage(master, cores, self._count))
            time.sleep(_POLL_S)

    def _wait_for_executors(self, wait_ms: int, hosts: int, settle_ms: int) -> None:
        began = newest_at = time.monotonic()
        expected = _expected_executors(self._sc)
        known_ids: set[str] = set()
        while True:
            executors = executors_of(self._sc)
            now = time.monotonic()
            if {executor.id for executor in executors} - known_ids:
                newest_at = now
                known_ids |= {executor.id for executor in executors}
            if is_complete(
                executors, self._count, hosts, expected, round((now - newest_at) * 1000), settle_ms
            ):
                return
            if now - began >= wait_ms / 1000:
                break
            self._wait_for_cores(max(0, wait_ms - round((now - began) * 1000)))
            time.sleep(_POLL_S)
        there = sorted({executor.host for executor in executors})
        if not hosts:
            return
        _LOG.warning(
            "%d of the %d hosts of sparkstorm.slots.hosts have executors (%s): slots are spread over these, and another gets "
            "its share when it comes",
            len(there),
            hosts,
            ", ".join(there),
        )

    def _keep(self, index: int) -> None:
        pause = RestartPause()
        while not self._stopping.is_set():
            is_placed, executor = self._take_place(index)
            if not is_placed:
                return
            began = time.monotonic()
            reason = self._run_once(index, executor)
            if self._slot_executors is not None:
                self._slot_executors.leave(index)
            if _is_gone(self._sc):
                return
            if index in self._moved:
                self._moved.discard(index)
                _LOG.info("slot %d is to run on another host", index)
                continue
            self.last_end = reason
            self.ends += 1
            if self._stopping.wait(pause.after_ms(round((time.monotonic() - began) * 1000)) / 1000):
                return
            _LOG.warning("slot job %d ended (%s); it is submitted again", index, reason)

    def _take_place(self, index: int) -> tuple[bool, Executor | None]:
        """Wait until the slot has a place: whether it has one, and its executor (None on a local
        master).
        """
        while self._slot_executors is not None:
            try:
                self._withdraw(index)  # or the slot would end again in its new place
                if (executor := self._slot_executors.take(index)) is not None:
                    return True, executor
            except Exception as fault:  # ZooKeeper is away, or Spark ends
                if _is_gone(self._sc):
                    return False, None
                _LOG.warning("slot %d gets no place: %s", index, fault)
            if self._stopping.wait(_EVEN_S):
                return False, None
        return True, None

    def _run_once(self, index: int, executor: Executor | None) -> str:
        sc = self._sc
        group = f"{JOB_GROUP}-{index}-{next(self._runs)}"
        try:
            with self._ticket(index) as ticket:
                sc.setJobGroup(group, f"worker slot {index}", interruptOnCancel=True)
                self._group_by_slot[index] = group
                words: list[str] = (
                    one_partition(sc, executor)
                    .mapPartitions(_closure(self._slot_main, ticket))
                    .collect()
                )
                return words[0]
        except Exception as fault:
            # a killed process or executor, a cancelled job, a stopped context
            return _cause_of(fault)
        finally:
            self._group_by_slot.pop(index, None)

    # -- executors of slots ------------------------------------------------------------------------

    def _watch(self, plan: SlotExecutors) -> None:
        even_due = 0.0
        while not self._stopping.wait(_LOOK_S):
            try:
                self._check_landings(plan)
                if time.monotonic() >= even_due:
                    self._even_out(plan, time.monotonic())
                    even_due = time.monotonic() + _EVEN_S
            except Exception as fault:  # ZooKeeper is away, or Spark ends
                if _is_gone(self._sc):
                    return
                _LOG.warning("executors of slots: %s", fault)

    def _check_landings(self, plan: SlotExecutors) -> None:
        for index in plan.unsure():
            group = self._group_by_slot.get(index)
            executor = executor_of_group(self._sc, group) if group else None
            if group and executor and not plan.landed(index, executor):
                self._moved.add(index)
                self._sc.cancelJobGroup(group)

    def _even_out(self, plan: SlotExecutors, now: float) -> None:
        """Ask one slot after another of the crowded hosts to move, if it has no worker."""
        if self._ask_to_move is None or now < self._ask_due:
            return
        crowded = plan.surplus()
        with self._asking:
            asked = self._asked
            self._withdraw(asked)
            later = [slot for slot in crowded if asked is None or slot > asked]
            if later:
                self._asked = later[0]
                self._moved.add(later[0])
                self._ask_to_move(later[0])
            self._ask_due = now + (_ANSWER_S if later else _REST_S if crowded else 0.0)

    def _withdraw(self, index: int | None) -> None:
        with self._asking:
            if index is not None and self._asked == index and self._ask_to_move is not None:
                self._ask_to_move(None)
                self._moved.discard(index)
                self._asked = None


def _closure(
    slot_main: Callable[[TicketT], str], ticket: TicketT
) -> Callable[[Iterable[int]], Iterator[str]]:
    def run(_: Iterable[int]) -> Iterator[str]:
        attempt = TaskContext.get()
        # Spark repeats the task of a lost process or executor. Its ticket was used: a new job gets
        # a new one.
        yield slot_main(ticket) if attempt is None or not attempt.attemptNumber() else _LOST

    return run


def task_room(sc: SparkContext) -> int:
    """Return how many tasks can run at once on the present cores."""
    if (asked := _local_cores(_master_of(sc))) is not None:
        return (asked or processors_of(sc)) // cores_per_task(sc)
    return task_slots(sc)


def _is_gone(sc: SparkContext) -> bool:
    """Return whether the context is gone, or its JVM."""
    try:
        return is_stopped(sc)
    except Exception:  # py4j has several errors for a JVM that does not answer
        return True


def _master_of(sc: SparkContext) -> str:
    return sc.master or ""


def _local_cores(master: str) -> int | None:
    """The cores that a local master asks for, 0 for all of the machine; None for any other
    master.
    """
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[(\d+|\*)(,\s*\d+)?\]", master)
    return None if match is None else 0 if match[1] == "*" else int(match[1])


def _most_cores(master: str) -> int | None:
    """Return the cores that a master of fixed size can ever offer; None for a master whose
    executors may still come.
    """
    if (cores := _local_cores(master)) is not None:
        return cores or os.cpu_count() or 1
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    return None if match is None else int(match[1]) * int(match[2])


def _expected_executors(sc: SparkContext) -> int:
    """Return how many executors are known to come; 0 when the master decides that."""
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,.*", _master_of(sc))
    if match:
        return int(match[1])
    named = ("spark.executor.instances", "spark.cores.max", "spark.executor.cores")
    instances, most, cores = (int(sc.getConf().get(name, "0") or 0) for name in named)
    return instances or (most // cores if cores else 0)


def _check_context(sc: SparkContext) -> None:
    conf = sc.getConf()
    for name in (
        "spark.speculation",
        "spark.dynamicAllocation.enabled",
        "spark.python.worker.killOnIdleTimeout",
    ):
        if (conf.get(name, "false") or "false") != "false":
            raise InvalidConfigError(
                f"{name} must be false: a worker slot is one long task that tells Spark nothing"
            )


def _shortage(master: str, cores: int, count: int) -> str:
    """Return the sentence for too few cores, with both ways out; on a cluster they may only be
    late. `cores`: those that have come.
    """
    most = _most_cores(master)
    if most is not None and most < count:
        cores = most
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
    told = next(
        (line for line in lines if "Job aborted" in line or "cancelled" in line),
        lines[0] if lines else "",
    )
    return f"{type(fault).__name__}: {told[-300:]}"
