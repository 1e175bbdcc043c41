"""A simulated cluster that suffers faults: it carries each out at its place, undoes it when its
time is over, and counts places.
"""

from __future__ import annotations

import heapq
import itertools
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sparkstorm.common.model.worker_messages import ExitCode
from sparkstorm.control_plane.cluster.base import StateStore
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.supervisor.local import MemoryDisk
from sparkstorm.control_plane.supervisor.worker_memory import Usage
from sparkstorm.testing.faults import Fault, Trigger
from sparkstorm.testing.faulty_session import FaultySession
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.local_cluster import LocalCluster
from sparkstorm.testing.sim_data import DataPlane, TopologyData
from sparkstorm.testing.sim_slot import Duty, SimSlot
from sparkstorm.testing.sim_threads import SimThread
from sparkstorm.testing.sim_transport import CommitFault, FaultyTransport
from sparkstorm.testing.simulation import SimulatedDeath

SESSION_MS = 3_000
# with 1 no write of Nimbus would follow another directly; with 100 hardly anything comes between
_YIELDS_ONE_IN = 4
_BY_DISK = 256  # bit of a fault's random number: its stores are full by their disk, else by memory
QUICK = {
    "nimbus.task.timeout.secs": 5,
    "nimbus.task.launch.secs": 8,
    "nimbus.supervisor.timeout.secs": 5,
    "nimbus.monitor.freq.secs": 2,
    "supervisor.worker.timeout.secs": 3,
    "supervisor.worker.start.timeout.secs": 3,
    "supervisor.worker.shutdown.sleep.secs": 1,
    "supervisor.heartbeat.frequency.secs": 2,
    "supervisor.monitor.frequency.secs": 2,
    "worker.heartbeat.frequency.secs": 1,
    "task.cleanup.timeout.sec": 1,
    "nimbus.request.timeout.secs": 10,
    "sparkstorm.worker.store.timeout.secs": 5,
    "topology.max.worker.deaths": 1_000_000,
    "worker.memory.limit.mb": 1000,
}
"""Timers of the control plane, short, so that all it waits for happens within seconds."""


class FaultyCluster(LocalCluster):
    """A cluster under faults; `log` has what was done, in order, and `count` how often each trigger
    has come.
    """

    steps_threads = True

    def __init__(
        self,
        seed: int,
        faults: Sequence[Fault],
        conf: Mapping[str, Any],
        supervisors: int = 3,
        slots: int = 2,
        stores: Sequence[str] = ("",),
    ) -> None:
        self.log: list[str] = []
        self.struck: list[Fault] = []  # so far, in order
        self.count: dict[Trigger, int] = defaultdict(int)
        self.is_over = False
        self._sessions: list[FaultySession] = []
        self._at: dict[Trigger, dict[int, Fault]] = defaultdict(dict)
        self._timed: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._delay_ms = 0
        # between which cells (own store, other store) there is no way, and when
        self._cuts: dict[tuple[str, str], range] = {}
        super().__init__(
            supervisors,
            slots,
            seed=seed,
            conf={**QUICK, **conf},
            make_transport=self._transport,
            is_lively=True,
            poll_ms=1_000,
            stores=stores,
        )
        # Half of the seeds run the way of a real worker, half the one that users' tests run. By
        # the second bit, since the first one decides about lazy states.
        self.checks_values = seed & 2 == 0
        self._fate = Duty(self.simulation, self._step_fate, lambda: False)
        self.simulation.add(self._fate, has_threads=False)
        for fault in faults:
            if fault.kind.trigger is not Trigger.TIME:
                self._at[fault.kind.trigger][fault.at] = fault
            elif hasattr(self, f"_{fault.kind.name.lower()}"):
                self.after(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def end_threads(self) -> None:
        """End the threads of sources that still run, as those of zombies and of a run that failed
        do.
        """
        for actor in self.simulation.actors:
            if isinstance(actor, SimThread):
                actor.kill()

    # -- places ------------------------------------------------------------------------------------

    def after(self, ms: int, do: Callable[[], None]) -> None:
        """Have something done so many milliseconds from now."""
        heapq.heappush(self._timed, (self.now_ms + ms, next(self._numbers), do))
        if hasattr(self, "_fate"):
            self.simulation.wake(self._fate)

    @property
    def has_more(self) -> bool:
        """Return whether a fault, or the end of one, is still to come."""
        return bool(self._timed)

    def say(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{self.now_ms - self.simulation.start_ms} ms: {text}")

    def open_session(self, who: str) -> StateStore:
        """A new session, which faults may meet."""
        session = FaultySession(LocalStateStore(self.tree), who, self._on_write)
        self._sessions.append(session)
        return session

    def _step_fate(self, now_ms: int) -> int | None:
        while self._timed and self._timed[0][0] <= now_ms:
            heapq.heappop(self._timed)[2]()
        return self._timed[0][0] if self._timed else None

    def _take(self, trigger: Trigger) -> Fault | None:
        if self.is_over:
            return None
        self.count[trigger] += 1
        fault = self._at[trigger].pop(self.count[trigger], None)
        if fault is not None:
            self.struck.append(fault)
            self.say(str(fault))
        return fault

    def _strike(self, fault: Fault) -> None:
        self.struck.append(fault)
        done = getattr(self, f"_{fault.kind.name.lower()}")(fault)
        self.say(f"{fault}: {done or ''}")

    # -- around commits and writes -----------------------------------------------------------------

    def _transport(self, worker: InProcessWorker) -> FaultyTransport:
        assert worker.spec is not None
        store = worker.spec.redis.name
        return FaultyTransport(
            worker, self._choose, self._take_delay, lambda: not self.reaches(worker.place, store)
        )

    def reaches(self, place: str, store: str) -> bool:
        """Return whether a worker reaches a store, its own or that of another cell."""
        node = next(node for node in self.nodes if place.startswith(f"{node.name}:"))
        if node.is_cut(self.now_ms) or self.data_plane.at(store).is_away(self.now_ms):
            return False
        own = next(
            (
                slot.process.spec.redis.name
                for slot in self.slots
                if str(slot.slot) == place and slot.process and slot.process.spec
            ),
            store,
        )
        return self.now_ms not in self._cuts.get((own, store), range(0))

    def _choose(self) -> CommitFault:
        fault = self._take(Trigger.COMMIT)
        if fault is None:
            return CommitFault.NONE
        if fault.kind.name == "LATE_FRAMES":
            self._delay_ms = fault.size
            return CommitFault.NONE
        return CommitFault[fault.kind.name]

    def _take_delay(self) -> int:
        delay_ms = self._delay_ms
        self._delay_ms = 0
        if delay_ms:
            self.after(delay_ms, lambda: None)  # time must not leap over the arrival
        return delay_ms

    def _on_write(self, session: FaultySession) -> str:
        if session.who == "client":
            return ""
        if session.who == "nimbus":
            self._step_others()
        fault = self._take(Trigger.NIMBUS_WRITE if session.who == "nimbus" else Trigger.SLOT_WRITE)
        if fault is None:
            return ""
        self._restart_ms = fault.size
        return fault.kind.name

    def _step_others(self) -> None:
        """Let slots take a turn before a write of Nimbus, now and then: they are other
        processes.
        """
        simulation = self.simulation
        for slot in self.slots:
            for thread in slot.threads if simulation.random.randrange(_YIELDS_ONE_IN) == 0 else ():
                simulation.step(thread)

    def _step_nimbus(self, now_ms: int) -> int | None:
        try:
            return super()._step_nimbus(now_ms)
        except SimulatedDeath:
            self._crash_nimbus(self._restart_ms)
            return None

    def _crash_nimbus(self, restart_ms: int) -> None:
        """Kill Nimbus's process: its session lasts a while, and another Nimbus comes."""
        if self.nimbus_store is None:
            return
        for duty in self.nimbus_duties:
            self.simulation.discard(duty)
        self.nimbus_duties = []
        nimbus_store = self.nimbus_store
        self.nimbus_store = None
        self._let_session_expire(nimbus_store)
        self.after(restart_ms, self.start_nimbus)

    def _let_session_expire(self, session: StateStore | None) -> None:
        """Close the session of a dead process when its time is over; nothing uses it any more."""
        if isinstance(session, FaultySession):
            session.is_cut = True
            self._sessions.remove(session)
            self.after(SESSION_MS, session.close)

    # -- timed faults; each returns what it did ----------------------------------------------------

    def _at_slot(
        self, fault: Fault, do: Callable[[SimSlot], object], is_working: bool = True
    ) -> str:
        """Do something to a slot that is up, with a worker unless `is_working` is false; return its
        name, "None" without such a slot.
        """
        slots = [
            slot
            for slot in self.slots
            if slot.is_up and (slot.worker is not None or not is_working)
        ]
        if not slots:
            return "None"
        slot = slots[fault.pick % len(slots)]
        do(slot)
        return str(slot.slot)

    def _kill_worker(self, fault: Fault) -> str:
        return self._at_slot(fault, lambda slot: slot.bury(-signal.SIGKILL, "killed"))

    def _crash_worker(self, fault: Fault) -> str:
        # the next one is careful
        return self._at_slot(fault, lambda slot: slot.bury(ExitCode.CRASHED, "crashed"))

    def _pause_worker(self, fault: Fault) -> str:
        return self._at_slot(fault, lambda slot: self._pause_process(slot.process, fault.size))

    def _pause_process(self, process: InProcessWorker | None, ms: int) -> None:
        if process is not None:
            process.paused_until_ms = self.now_ms + ms
            self.after(ms, lambda: self.simulation.wake(process))

    def _leave_zombie(self, fault: Fault) -> str:
        return self._at_slot(fault, SimSlot.disown)

    def _kill_slot(self, fault: Fault) -> str:
        return self._at_slot(fault, lambda slot: self._end_slot(slot, fault.size), False)

    def _end_slot(self, slot: SimSlot, restart_ms: int) -> None:
        self._let_session_expire(slot.die())
        self.after(restart_ms, lambda: None if slot.is_up else slot.start())

    def _pause_slot(self, fault: Fault) -> str:
        return self._at_slot(fault, lambda slot: self._pause_threads(slot, fault.size), False)

    def _pause_threads(self, slot: SimSlot, ms: int) -> None:
        for duty in slot.threads:
            duty.paused_until_ms = self.now_ms + ms
        if ms > SESSION_MS:
            self._expire_later(slot.store)

    def _expire_later(self, session: StateStore | None) -> None:
        def expire() -> None:
            if isinstance(session, FaultySession) and not session.is_dead:
                session.inner.expire_session()

        self.after(SESSION_MS, expire)

    def _lose_node(self, fault: Fault) -> str:
        node = self.nodes[fault.pick % len(self.nodes)]
        for slot in self.slots:
            if slot.node is node and slot.is_up:
                self._end_slot(slot, fault.size)
        return node.name

    def _replace_node(self, fault: Fault) -> str:
        """Lose a node as LOSE_NODE does, and its disk is lost too."""
        name = self._lose_node(fault)
        node = self.nodes[fault.pick % len(self.nodes)]
        if not any(slot.is_up for slot in self.slots if slot.node is node):
            node.disk.close()
            node.disk = MemoryDisk(node.name)
        return name

    def _freeze_node(self, fault: Fault) -> str:
        node = self.nodes[fault.pick % len(self.nodes)]
        for slot in self.slots:
            if slot.node is node and slot.is_up:
                self._pause_threads(slot, fault.size)
                if slot.process is not None:
                    self._pause_process(slot.process, fault.size)
        return node.name

    def _cut_from_redis(self, fault: Fault) -> str:
        node = self.nodes[fault.pick % len(self.nodes)]
        node.cut_from(self.now_ms, fault.size)
        self.after(fault.size, lambda: None)  # the run is not over before
        return node.name

    def _kill_nimbus(self, fault: Fault) -> None:
        self._crash_nimbus(fault.size)

    def _pause_nimbus(self, fault: Fault) -> None:
        for duty in self.nimbus_duties:
            duty.paused_until_ms = self.now_ms + fault.size
        if fault.size > SESSION_MS:
            self._expire_later(self.nimbus_store)

    def _pick_session(self, fault: Fault) -> FaultySession:
        servers = [session for session in self._sessions if session.who != "client"]
        return servers[fault.pick % len(servers)]

    def _expire_session(self, fault: Fault) -> str:
        session = self._pick_session(fault)
        session.inner.expire_session()
        return session.who

    def _cut_session(self, fault: Fault) -> str:
        session = self._pick_session(fault)
        session.is_cut = True
        if fault.size > SESSION_MS:
            self._expire_later(session)
        self.after(fault.size, lambda: self._mend(session))
        return session.who

    def _mend(self, session: FaultySession) -> None:
        session.is_cut = session not in self._sessions

    def _zookeeper_away(self, fault: Fault) -> None:
        def come_back() -> None:
            self.tree.is_down = False

        self.tree.is_down = True
        self.after(fault.size, come_back)

    def _zookeeper_back(self, fault: Fault) -> None:
        """Put ZooKeeper back to the state of now, later."""
        self.after(fault.size, partial(self._restore_tree, self.tree.checkpoint()))

    def _zookeeper_emptied(self, fault: Fault) -> None:
        self._restore_tree(None)

    def _restore_tree(self, copy: LocalStateTree.Checkpoint | None) -> None:
        """Put the tree back: all sessions begin anew, and nodes of those that the copy knows last
        until their time is over.
        """
        sessions = self.tree.restore(copy)
        for session in self._sessions:
            session.inner.renew_session()
        for number in sessions:
            self.after(SESSION_MS, partial(self.tree.end_session, number))

    def _clock_jump(self, fault: Fault) -> None:
        self.simulation.clock.advance(fault.size)

    def _late_cleanup(self, fault: Fault) -> None:
        self.data_plane.repeat_ends()

    def _clock_back(self, fault: Fault) -> str:
        """Set the clock of a node back, and kill a worker there: the next one begins with it."""

        def set_back(slot: SimSlot) -> None:
            slot.node.behind_ms = fault.size
            slot.kill()

        return self._at_slot(fault, set_back)

    def _worker_over_memory(self, fault: Fault) -> str:
        """Have a slot stop its worker in an orderly way, at its limit of memory."""

        def use_much(slot: SimSlot) -> None:
            if slot.process is not None:
                slot.process.used = Usage(1 << 40, 0)

        return self._at_slot(fault, use_much)

    def _stop_while_refused(self, fault: Fault) -> str:
        """Refuse all commits for a while, in which workers are stopped in an orderly way: by their
        memory, or by a request.
        """
        refused = self._refuse(self.data_plane.all(), fault)
        if fault.pick % 3 == 0:
            refused += f", {self._worker_over_memory(fault)}"
        return refused

    def _kill_while_refused(self, fault: Fault) -> str:
        """Refuse all commits for a while, in which the topology is killed."""
        return self._refuse(self.data_plane.all(), fault)

    def _disk_full(self, fault: Fault) -> None:
        def set_full(is_full: bool) -> None:
            for data in self.data_plane.all():
                data.store.is_disk_full = is_full

        set_full(True)
        self.after(fault.size, lambda: set_full(False))

    # -- faults of one of several stores -----------------------------------------------------------

    def _pick_store(self, fault: Fault) -> DataPlane:
        planes = self.data_plane.planes()
        return planes[fault.pick % len(planes)]

    def _store_away(self, fault: Fault) -> str:
        plane = self._pick_store(fault)
        plane.away_ms = range(self.now_ms, self.now_ms + fault.size)
        self.after(fault.size, self.wake_workers)
        return plane.name

    def _store_full(self, fault: Fault) -> str:
        """Let a store take nothing more: by its memory, which what is freed gives back, or by its
        disk.
        """
        plane = self._pick_store(fault)
        return f"{plane.name}, {self._refuse(plane.own(), fault)}"

    def _refuse(self, refusing: Sequence[TopologyData], fault: Fault) -> str:
        """Let these data grow no more for a while, by a full memory, or change, by a full disk."""
        by_disk = bool(fault.pick & _BY_DISK)

        def set_full(is_full: bool) -> None:
            for data in refusing:
                data.store.is_disk_full = by_disk and is_full
                data.store.max_bytes = data.store.used_bytes() + 1 if is_full else None

        set_full(True)
        self.after(fault.size, lambda: set_full(False))
        return "disk" if by_disk else "memory"

    def _cut_between_cells(self, fault: Fault) -> str:
        """Cut the workers of a cell off from the store of another, in this direction only."""
        names = [plane.name for plane in self.data_plane.planes()]
        own = names[fault.pick % len(names)]
        others = [name for name in names if name != own]
        store = others[(fault.pick >> 4) % len(others)]
        self._cuts[own, store] = range(self.now_ms, self.now_ms + fault.size)
        self.after(fault.size, self.wake_workers)
        return f"{own} from {store}"

    def _store_restarts(self, fault: Fault) -> str:
        """Restart a store that comes back whole: all connections to it are new."""
        plane = self._pick_store(fault)
        for data in plane.own():
            data.restore(data.store.checkpoint())
        self.wake_workers()
        return plane.name

    def _store_fails_over(self, fault: Fault) -> str:
        """Let the replica of a store get nothing more for a while, and promote it then."""
        plane = self._pick_store(fault)
        behind = plane.own()
        for data in behind:
            data.store.fall_behind()

        def promote() -> None:
            for data in behind:
                if any(other is data for other in self.data_plane.all()):
                    data.restore(data.store.durable.checkpoint())
            self.wake_workers()

        self.after(fault.size, promote)
        return plane.name

    def _store_loses_power(self, fault: Fault) -> str:
        """Let a store come back with what it had synced: all that it answered, or what it had a
        while before.
        """
        plane = self._pick_store(fault)
        if plane.is_synced:
            return self._store_restarts(fault)
        self._restore_later(fault.size, of=plane.own())
        return plane.name

    def _redis_goes_back(self, fault: Fault) -> None:
        self._restore_later(fault.size)

    _redis_older = _redis_goes_back  # by more than a tail

    def _redis_older_twice(self, fault: Fault) -> None:
        """Redis is put back to the same copy twice."""
        self._restore_later(fault.size, 2 * fault.size + 1_000)

    def has_met(self, *kinds: str) -> bool:
        """Return whether a fault of one of these kinds has struck."""
        return any(fault.kind.name in kinds for fault in self.struck)

    def _redis_emptied(self, fault: Fault) -> None:
        for plane in self.data_plane.planes():
            plane.empty()
        for key in self.bytes_store.list_keys():  # code and configurations lie in it too
            self.bytes_store.delete(key)
        self.wake_workers()

    def _restore_later(self, *times_ms: int, of: Sequence[TopologyData] | None = None) -> None:
        """Put these data, those of all topologies unless given, back to those of now, once for each
        of these times from now.
        """
        behind = self.data_plane.all() if of is None else of
        checkpoints = [(data, data.store.checkpoint()) for data in behind]

        def go_back() -> None:
            for data, checkpoint in checkpoints:
                if any(other is data for other in self.data_plane.all()):
                    data.restore(checkpoint)
            self.wake_workers()

        for ms in times_ms:
            self.after(ms, go_back)
