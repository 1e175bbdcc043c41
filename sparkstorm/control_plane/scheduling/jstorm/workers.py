"""JStorm's WorkerScheduler, the first half of its scheduler: makes workers and places them on
supervisors.

Workers that the user defined come first, then those that stay where they were (their state and
caches are there), then new ones on the supervisors with most free ports.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    PlannedWorker,
    SupervisorPorts,
    flag,
)
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot, defined_slots

ISOLATION_KEY = "isolation.scheduler.machines"
USE_OLD_KEY = "use.old.assignment"
RESERVE_KEY = "jstorm.reserve.workers"
MEMORY_KEY = "worker.memory.size"
CPU_KEY = "worker.cpu.slot.num"
DEFAULT_MEMORY_BYTES = 2 * 1024**3


@dataclass(slots=True, eq=False)
class Ports:
    """Free ports of a supervisor while workers are being placed."""

    id: str
    host: str
    num_ports: int
    free: list[int]

    @classmethod
    def of(cls, supervisor: SupervisorPorts) -> "Ports":
        """Return the ports of a supervisor, ascending."""
        return cls(
            supervisor.id, supervisor.host, len(supervisor.ports), sorted(supervisor.available)
        )

    @property
    def num_used(self) -> int:
        """Ports in use."""
        return self.num_ports - len(self.free)

    def take(self, wanted: int) -> int:
        """Take that port if it is free, else the lowest one."""
        index = bisect_left(self.free, wanted)
        return self.free.pop(index if index < len(self.free) and self.free[index] == wanted else 0)

    def give(self, port: int) -> None:
        """Add a free port."""
        index = bisect_left(self.free, port)
        if index == len(self.free) or self.free[index] != port:
            self.free.insert(index, port)


class WorkerScheduler:
    """JStorm's WorkerScheduler for one topology."""

    def __init__(
        self,
        context: AssignContext,
        supervisors: Sequence[Ports],
        unstopped: Iterable[PlannedWorker],
    ) -> None:
        self._context = context
        self._unstopped = list(unstopped)
        isolated = context.conf.get(ISOLATION_KEY)
        hosts = set(isolated) if isinstance(isolated, (list, tuple)) else set()
        # If any isolation supervisor is named and alive, only those are used (S0.88).
        self._supervisors = [ports for ports in supervisors if ports.host in hosts] or list(
            supervisors
        )

    def available_workers(self, need: set[int], count: int) -> list[JStormSlot]:
        """Return `count` placed workers; tasks that are already assigned to them are removed from
        `need` (S0.82-S0.90).
        """
        reserve = int(self._context.conf.get(RESERVE_KEY) or 0)
        free = sum(len(ports.free) for ports in self._supervisors)
        if free - reserve < count:
            raise FailedAssignTopologyError(
                f"there's no enough worker. allocWorkerNum={count}, availableWorkerNum={free},reserveWorkerNum={reserve}"
            )
        slots = self._wanted_slots(need, count)
        if len(slots) > count:
            raise FailedAssignTopologyError(
                "Too many workers are required for user define or old assignments. "
                f"workersNum={count}, assignedWorkersNum={len(slots)}"
            )
        slots += [JStormSlot() for _ in range(count - len(slots))]
        place(slots, self._supervisors)
        self._set_memory_and_cpu(slots)
        return slots

    def _wanted_slots(self, need: set[int], count: int) -> list[JStormSlot]:
        context = self._context
        slots: list[JStormSlot] = []
        is_new = context.assign_type is AssignType.NEW
        defined = _accept(defined_slots(context, self._unstopped, is_new), need, slots, count)
        self._explain(defined, "a worker of use.userdefine.assignment lists it")
        old = sorted(context.old_workers, key=lambda worker: worker.order)
        if flag(context.conf, USE_OLD_KEY):
            taken = _accept([JStormSlot.of(worker) for worker in old], need, slots, count)
            self._explain(taken, "it stays with its old worker (use.old.assignment)")
        elif context.assign_type is AssignType.REBALANCE and not context.is_reassign:
            slots += [JStormSlot(worker.node, worker.host, worker.port) for worker in old[:count]]
        return slots

    def _explain(self, tasks: Iterable[int], words: str) -> None:
        if self._context.reason_by_task is not None:
            self._context.reason_by_task.update(dict.fromkeys(tasks, words))

    def _set_memory_and_cpu(self, slots: Iterable[JStormSlot]) -> None:
        memory = int(self._context.conf.get(MEMORY_KEY) or 0)
        cpu = int(self._context.conf.get(CPU_KEY) or 0)
        for slot in slots:
            if slot.memory_bytes <= 0:
                slot.memory_bytes = memory if memory > 0 else DEFAULT_MEMORY_BYTES
            if slot.cpu <= 0:
                slot.cpu = cpu if cpu > 0 else 1


def _accept(
    candidates: Iterable[JStormSlot], need: set[int], slots: list[JStormSlot], count: int
) -> set[int]:
    """Add candidates whose tasks all need a place, or none if there are too many; return their
    tasks.
    """
    taken: set[int] = set()
    accepted = []
    for slot in candidates:
        tasks = slot.tasks or set()
        if tasks <= need and not tasks & taken:
            taken |= tasks
            accepted.append(slot)
    if len(accepted) + len(slots) <= count:
        slots += accepted
        need -= taken
        return taken
    return set()


def place(slots: Sequence[JStormSlot], supervisors: Sequence[Ports]) -> None:
    """Place workers with a named host, then the others by load; FailedAssignTopologyError if ports
    run out (S0.91-S0.96).
    """
    with_room = [ports for ports in supervisors if ports.free]
    _place_on_hosts(slots, with_room)
    supervisors_left = sorted(
        (ports for ports in with_room if ports.free), key=lambda ports: -len(ports.free)
    )
    homeless = [slot for slot in slots if slot.node is None]
    if homeless and not supervisors_left:
        raise FailedAssignTopologyError(
            f"no supervisor has a free port for {len(homeless)} of {len(slots)} workers"
        )
    if homeless:
        _place_by_load(slots, supervisors_left)
    unplaced = sum(slot.node is None for slot in slots)
    if unplaced:
        raise FailedAssignTopologyError(
            f"no supervisor has a free port for {unplaced} of {len(slots)} workers"
        )


def _place_on_hosts(slots: Iterable[JStormSlot], supervisors: Iterable[Ports]) -> None:
    """Place workers on their named host if a port is free there; otherwise they are placed by
    load.
    """
    by_host: dict[str, list[Ports]] = {}
    by_id: dict[str, Ports] = {}
    for ports in supervisors:
        by_host.setdefault(ports.host, []).append(ports)
        by_id[ports.id] = ports
    for slot in slots:
        wanted = by_host.get(slot.host, []) if slot.host is not None else []
        if slot.host is None and slot.node in by_id:
            wanted = [by_id[slot.node]]
        # of two supervisors on its host its own, whose port may be equal
        with_room = [ports for ports in wanted if ports.free]
        home = min(with_room, key=lambda ports: ports.id != slot.node, default=None)
        if home is None:
            # Its node is gone or full: with the node kept, it would stay on a dead supervisor
            # (defect 2).
            slot.node = None
        else:
            slot.port = home.take(slot.port)
            slot.node = home.id
            slot.host = home.host
            slot.placed_by = "the worker is on the host that it names"


def _settle(slot: JStormSlot, home: Ports) -> None:
    slot.host, slot.node, slot.port = home.host, home.id, home.take(home.free[0])
    slot.placed_by = (
        "the worker went to the supervisor whose turn it was, those with most free ports first"
    )


def _place_by_load(slots: Sequence[JStormSlot], supervisors: list[Ports]) -> None:
    """Place workers round robin on supervisors below the expected average; the overloaded ones take
    the rest.

    The average counts every worker of this round, those placed by host included, as the original
    does.
    """
    waiting = iter(slots)
    average = (sum(ports.num_used for ports in supervisors) + len(slots)) // len(supervisors) + 1
    overloaded: list[Ports] = []
    index = 0
    slot = _next_homeless(waiting)
    while slot is not None and supervisors:
        index = index if index < len(supervisors) else 0
        home = supervisors[index]
        if home.num_used >= average:
            overloaded.append(home)
            del supervisors[index]
            continue
        _settle(slot, home)
        if not home.free:
            del supervisors[index]
        index = index + 1
        slot = _next_homeless(waiting)
    overloaded.sort(key=lambda ports: -len(ports.free))
    _place_in_turn(slot, waiting, overloaded)


def _place_in_turn(
    slot: JStormSlot | None, waiting: Iterator[JStormSlot], supervisors: list[Ports]
) -> None:
    index = 0
    while slot is not None and supervisors:
        index = index if index < len(supervisors) else 0
        _settle(slot, supervisors[index])
        if not supervisors[index].free:
            del supervisors[index]
        index = index + 1
        slot = _next_homeless(waiting)


def _next_homeless(waiting: Iterator[JStormSlot]) -> JStormSlot | None:
    return next((slot for slot in waiting if slot.node is None), None)
