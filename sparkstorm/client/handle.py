"""Owns what a driver or notebook may ask of one running topology."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkstorm.cluster.storm_state import StormState
from sparkstorm.executor.state import MemoryState
from sparkstorm.model.assignment import TaskInfo, WorkerBeat, WorkerSlot
from sparkstorm.model.codec import Codec
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.driver_service import NimbusService
from sparkstorm.transport.reader import RedisReader
from sparkstorm.worker.journal import Journal
from sparkstorm.worker.progress import Progress, TaskCounts, merge, percentile_ms


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """Exact counts over all workers, as of their last commits; latencies in milliseconds, None before the first ack."""

    total: int
    done: int
    emitted: int
    executed: int
    pending: int
    acked: int
    failed: int
    parked: int
    p50_ms: float | None
    p99_ms: float | None
    is_settled: bool  # nothing is under way
    is_drained: bool  # nothing is under way, and nothing will come: all sources are exhausted


class TopologyHandle:
    """One topology by id."""

    def __init__(self, topology_id: str, state: StormState, service: NimbusService, reader: RedisReader) -> None:
        self.topology_id = topology_id
        self._state = state
        self._service = service
        self._reader = reader
        self._info_by_task: dict[int, TaskInfo] = {}
        self._blob_keys: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Its name: the id without its two numbers."""
        return self.topology_id.rsplit("-", 2)[0]

    def status(self) -> TopologyStatus | None:
        """Its life-cycle status; None when it is gone."""
        base = self._state.read_base(self.topology_id)
        return None if base is None else base.status

    def counts(self) -> dict[int, TaskCounts]:
        """Exact counts by task."""
        return self._merged().counts_by_task

    def progress(self) -> TopologyProgress:
        """Exact counts over all workers."""
        merged = self._merged()
        backlog = self._reader.backlog()
        counts = list(merged.counts_by_task.values())
        spouts = self._spout_counts(merged)
        is_settled = not any(c.pending for c in spouts) and not any(c.is_waiting for c in counts) and not any(backlog.values())
        is_drained = is_settled and len(spouts) == self._spout_tasks() > 0 and all(c.is_exhausted for c in spouts)
        return TopologyProgress(
            sum(c.total for c in spouts),
            sum(c.done for c in spouts),
            sum(c.emitted for c in counts),
            sum(c.executed for c in counts),
            sum(c.pending for c in spouts),
            sum(c.acked for c in spouts),
            sum(c.failed for c in spouts),
            sum(c.parked for c in counts),
            percentile_ms(merged.latency_buckets, 0.50),
            percentile_ms(merged.latency_buckets, 0.99),
            is_settled,
            is_drained,
        )

    def key_values(self, component: str) -> Iterator[tuple[Any, Any]]:
        """Committed state of a stateful component, all tasks one after the other."""
        for task, info in self._table().items():
            if info.component_id == component:
                state = MemoryState(Codec())
                for fields in Journal(task, Codec()).read(self._reader.record(task)):
                    state.load(fields.get("s", ()), fields.get("d", ()))
                yield from state.items()

    def stored_letters(self, limit: int, after: str) -> list[tuple[str, bytes]]:
        """Return stored dead letters with ids greater than `after`; they stay when the topology is gone."""
        return self._reader.parked(limit, after)

    def drop_dead_letters(self) -> None:
        """Delete its dead letters."""
        self._reader.drop_dead_letters()

    def dead_letters(self, limit: int = 100) -> list[dict[str, Any]]:
        """The oldest parked inputs with their causes."""
        names = (
            "component",
            "task",
            "source",
            "source_task",
            "stream",
            "fields",
            "values",
            "attempts",
            "reason",
            "time_ms",
        )
        return [dict(zip(names, Codec().unpack(data), strict=True)) for _, data in self._reader.parked(limit)]

    def beats(self) -> list[WorkerBeat]:
        """Heartbeats of its workers."""
        slots = self._state.worker_beat_slots(self.topology_id)
        return [beat for slot in slots if (beat := self._state.read_worker_beat(self.topology_id, slot)) is not None]

    def slots(self) -> frozenset[WorkerSlot]:
        """The slots of its assignment; empty while it has none."""
        assignment = self._state.read_assignment(self.topology_id)
        return frozenset() if assignment is None else frozenset(assignment.slot_by_executor.values())

    def problems(self) -> list[str]:
        """Return Nimbus's problems with assigning this topology, a sentence each."""
        others = sorted(other for other in self._state.topology_ids() if other != self.topology_id)
        held = [f"slots may be held by {', '.join(others)}"] if others else []
        return self._service.problems_of(self.topology_id) + held

    def errors(self) -> list[str]:
        """The last errors of every component, one line each."""
        return [
            f"{e.component}#{e.task} on {e.host}:{e.port}: {e.text}"
            for component in self._state.error_components(self.topology_id)
            for e in self._state.read_errors(self.topology_id, component)
        ]

    def blob_keys(self) -> frozenset[str]:
        """Keys of its code and its configuration, as when they were first asked for; empty when it was gone by then."""
        if not self._blob_keys and (base := self._state.read_base(self.topology_id)):
            self._blob_keys = frozenset({base.code_key, base.conf_key})
        return self._blob_keys

    def kill(self, wait_secs: float | None = None) -> None:
        """Kill it after a wait (default: the message time-out)."""
        self._service.kill(self.name, wait_secs)

    def activate(self) -> None:
        """Let spouts emit."""
        self._service.activate(self.name)

    def deactivate(self) -> None:
        """Let spouts rest; what is under way is finished."""
        self._service.deactivate(self.name)

    def delete_data(self) -> None:
        """Delete everything it has in Redis but its dead letters; only after it is gone.

        Its code goes too when `blob_keys` was asked for before.
        """
        self._reader.delete()
        self._service.discard_blobs(self._blob_keys)

    def progress_by_worker(self) -> dict[str, Progress]:
        """What each worker ("node:port") has committed."""
        return {owner: Progress.decode(data) for owner, data in self._reader.progress().items()}

    def _merged(self) -> Progress:
        return merge(self.progress_by_worker().values())

    def _table(self) -> dict[int, TaskInfo]:
        """Tasks with their components; fixed for a topology's life."""
        if not self._info_by_task:
            table = self._state.read_tasks(self.topology_id)
            self._info_by_task = {} if table is None else dict(table.info_by_task)
        return self._info_by_task

    def _spout_tasks(self) -> int:
        return sum(1 for info in self._table().values() if info.kind == "spout")

    def _spout_counts(self, merged: Progress) -> list[TaskCounts]:
        table = self._table()
        return [c for task, c in merged.counts_by_task.items() if task in table and table[task].kind == "spout"]
