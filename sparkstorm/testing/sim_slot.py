"""Nodes and slots of a simulated cluster: the real slot, sync and supervisor over a tree and
storage in memory.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sparkstorm.common.config import Conf
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.settings import SupervisorSettings
from sparkstorm.common.slot_spec import SlotSpec, StateAddress
from sparkstorm.control_plane.blobs.base import BytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.base import StateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.control_plane.cluster.watched import WatchedStore
from sparkstorm.control_plane.supervisor.local import MemoryDisk, MemoryNodeDir
from sparkstorm.control_plane.supervisor.slot import ClaimedSlot, Slot
from sparkstorm.control_plane.supervisor.slot_sync import SlotStores, SlotSync
from sparkstorm.control_plane.supervisor.supervisor import Supervisor, SupervisorDuties
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.testing.in_process_worker import InProcessWorker, SimServices
from sparkstorm.testing.sim_data import DataPlane
from sparkstorm.testing.simulation import Simulation, WorkerClock

KEY = b"key of a simulated cluster"
_LOOK_MS = 500  # a slot's thread looks at everything so often; what concerns it wakes it besides


class ControlPlane(SimServices, Protocol):
    """Services that slots share with the cluster around them."""

    slot_conf: Conf
    bytes_store: BytesStore

    def open_session(self, who: str) -> StateStore:
        """A new session on the cluster's tree."""

    def rest_or(self, due_ms: int, /) -> int | None:
        """Return the time at which a part of the control plane is due: none while the whole of it
        has nothing to do and may sleep.
        """


@dataclass(slots=True)
class SimNode:
    """A machine: its disk and its host name."""

    disk: MemoryDisk
    host: str
    cut_ms: range = range(0)  # times at which it does not reach Redis
    behind_ms: int = 0  # of its clock, as processes that start now read it

    def cut_from(self, now_ms: int, ms: int) -> None:
        """Cut it from Redis for so long."""
        self.cut_ms = range(now_ms, now_ms + ms)

    def is_cut(self, now_ms: int) -> bool:
        """Return whether it is cut from Redis."""
        return now_ms in self.cut_ms

    @property
    def name(self) -> str:
        """The supervisor's id."""
        return self.disk.node


class SimProbe:
    """The way of a node to a store."""

    def __init__(self, node: SimNode, store: DataPlane, now_ms: Callable[[], int]) -> None:
        self._node = node
        self._store = store
        self._now_ms = now_ms

    def away(self) -> tuple[int, str]:
        """Return for how many milliseconds it has been cut, or the store away, and why."""
        now_ms = self._now_ms()
        for times, words in (
            (self._node.cut_ms, "the network is cut"),
            (self._store.away_ms, "it does not answer"),
        ):
            if now_ms in times:
                return max(1, now_ms - times.start), words
        return 0, ""

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class Duty:
    """An actor made of one step function, such as a thread of a slot; it can be paused, as by
    SIGSTOP.
    """

    def __init__(
        self,
        simulation: Simulation,
        step: Callable[[int], int | None],
        is_woken: Callable[[], bool],
    ) -> None:
        self._simulation = simulation
        self._step = step
        self._is_woken = is_woken
        self.paused_until_ms = 0

    def step(self, now_ms: int) -> int | None:
        """Do what is due."""
        return self.paused_until_ms if now_ms < self.paused_until_ms else self._step(now_ms)

    def is_woken(self) -> bool:
        """Return whether something has come for it."""
        return self._is_woken() and self._simulation.clock.now_ms() >= self.paused_until_ms

    def wait_for_threads(self) -> bool:
        """Do nothing: the slot has none."""
        return False


class SimSlot:
    """One (node, port): the slot process that holds it, and the worker of the moment."""

    def __init__(self, around: ControlPlane, node: SimNode, port: int) -> None:
        self._around = around
        self.node = node
        self.slot = WorkerSlot(node.name, port)
        self.deaths: list[str] = []  # of its workers, why
        self.process: InProcessWorker | None = None
        self.zombies: list[InProcessWorker] = []
        self.machine: Slot | None = None
        self.sync: SlotSync | None = None
        self.store: StateStore | None = None
        self._held_until_ms = 0
        self._storage: MemoryNodeDir | None = None
        self.threads: list[Duty] = []

    # -- life and death of the slot process --------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Return whether a slot process holds the port."""
        return self.machine is not None

    def start(self) -> None:
        """Start a slot process; the port must be free."""
        storage = self._storage = MemoryNodeDir(self.node.disk)
        claim = storage.try_claim(self.slot.port)
        assert claim is not None, f"{self.slot} is taken"
        plane = self._around.data_plane
        home, *others = (
            RedisAddress("memory", 0, name=name) for name in (plane.name, *plane.others)
        )
        spec = SlotSpec(
            StateAddress("memory"),
            home,
            "",
            "",
            conf=self._around.slot_conf,
            other_redis=tuple(others),
        )
        sync = self.sync = SlotSync(self.slot, storage, lambda: self._connect(storage))
        self.machine = Slot(
            spec, ClaimedSlot(self.slot, self.node.host, storage, claim), sync, self._spawn
        )
        simulation = self._around.simulation
        thread = Duty(simulation, self._step_machine, lambda: False)
        syncing = Duty(simulation, self._step_sync, lambda: sync.is_woken)
        sync.notify = lambda: simulation.wake(thread)
        self.threads = [thread, syncing]
        for duty in self.threads:
            simulation.add(duty, has_threads=False)

    def die(self) -> StateStore | None:
        """End the slot process without a report: its worker dies with it; its session is returned
        and lasts until it is closed.
        """
        for duty in self.threads:
            self._around.simulation.discard(duty)
        if self._storage is not None:
            self._storage.die()
        self.machine = self.sync = None
        if self.process is not None:
            self.process.kill()
        store = self.store
        self.store = None
        return store

    def close(self) -> None:
        """End the slot and its worker in an orderly way, and zombies, whose threads would stay."""
        for zombie in self.zombies:
            if zombie.exit_code is None:
                zombie.end(-signal.SIGKILL, "killed")
        if self.worker is not None:
            assert self.process is not None and self.process.run is not None
            self.process.run.stop()
            self.process.end(0, "stopped")
        self.die()

    def look(self, now_ms: int) -> None:
        """Let its worker look for open taps, as the loop of a worker process does once a second."""
        if self.worker is not None and self.process is not None and self.process.run is not None:
            for extension in self.process.run.extensions:
                extension.after_beat(now_ms)

    def hold(self, ms: int) -> None:
        """Let the slot's main thread do nothing for so long."""
        self._held_until_ms = self._around.simulation.clock.now_ms() + ms

    # -- its worker --------------------------------------------------------------------------------

    @property
    def host(self) -> Any:
        """Data that its worker reaches."""
        return self.process.data if self.process is not None else None

    @property
    def worker(self) -> Worker | None:
        """The runtime of the living worker."""
        return None if self.process is None or self.process.is_zombie else self.process.worker

    @property
    def clock(self) -> WorkerClock:
        """The clock of its worker."""
        assert self.process is not None, f"{self.slot} has no worker"
        return self.process.clock

    @property
    def tasks(self) -> list[int]:
        """The tasks of its last worker."""
        return (
            self.process.spec.tasks()
            if self.process is not None and self.process.spec is not None
            else []
        )

    @property
    def topology_id(self) -> str:
        """The topology that its last worker belongs to."""
        return (
            self.process.spec.topology_id
            if self.process is not None and self.process.spec is not None
            else ""
        )

    def kill(self) -> None:
        """Kill the worker as kill -9 does; the slot starts the next one."""
        self.bury(-signal.SIGKILL, "killed")

    def bury(self, code: int, reason: str, restart_ms: int = 0) -> None:
        """End the worker with an exit code; the slot does not notice it for a while."""
        if (
            self.process is not None
            and self.process.exit_code is None
            and not self.process.is_zombie
        ):
            self.hold(restart_ms)
            self.process.end(code, reason)

    def disown(self) -> InProcessWorker | None:
        """Have the slot take its worker for dead while it goes on; return that zombie."""
        process = self.process
        if process is None or process.worker is None or process.is_zombie:
            return None
        self.zombies.append(process)
        process.leave()
        return process

    # -- its threads -------------------------------------------------------------------------------

    def _spawn(self) -> InProcessWorker:
        process: InProcessWorker | None = None

        def on_news() -> None:
            if (
                process is not None
                and process.exit_code not in (None, 0)
                and process.end_reason
                and process is self.process
            ):
                self._note_death(process)
            if self.threads:
                self._around.simulation.wake(self.threads[0])

        assert self._storage is not None
        process = InProcessWorker(
            self._around, str(self.slot), on_news, self._storage.read_code, self.node.behind_ms
        )
        self.process = process
        return process

    def _note_death(self, process: InProcessWorker) -> None:
        if not process.is_zombie:
            self.deaths.append(process.end_reason)

    def _step_machine(self, now_ms: int) -> int | None:
        if now_ms < self._held_until_ms:
            return self._held_until_ms
        assert self.machine is not None
        due_ms = self.machine.step(now_ms)
        is_wait_of_its_own = self.machine.due_ms > now_ms
        return self._around.rest_or(
            min(self.machine.due_ms, now_ms + _LOOK_MS)
            if is_wait_of_its_own
            else max(due_ms, now_ms + _LOOK_MS)
        )

    def _step_sync(self, now_ms: int) -> int | None:
        assert self.sync is not None
        self.sync.step(now_ms)
        return self._around.rest_or(now_ms + self._around.options.poll_ms)

    def _connect(self, storage: MemoryNodeDir) -> SlotStores:
        self.store = self._around.open_session(str(self.slot))
        state = StormState(
            WatchedStore(self.store, self._around.simulation.clock.now_ms, str(self.slot)), KEY
        )
        settings = SupervisorSettings.of(self._around.slot_conf)
        duties = SupervisorDuties(
            host=self.node.host,
            own_port=self.slot.port,
            heartbeat_ms=settings.heartbeat_ms,
            monitor_ms=settings.monitor_ms,
            worker_timeout_ms=settings.worker_timeout_ms,
            resources=settings.resources,
        )
        now_ms = self._around.simulation.clock.now_ms
        probe, *of_others = (
            SimProbe(self.node, plane, now_ms) for plane in self._around.data_plane.planes()
        )
        others = dict(zip(self._around.data_plane.others, of_others, strict=True))
        supervisor = Supervisor(duties, storage, state, probe=probe, other_probes=others)
        gatherer = TaskBeatGatherer(state, settings.task_heartbeat_ms)
        blobs = BlobStore(state, self._around.bytes_store, KEY)
        return SlotStores(state, blobs, supervisor, gatherer=gatherer, has_several=bool(others))
