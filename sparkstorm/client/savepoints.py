"""Savepoints: checkpoints of a running topology, read from its journals while its spouts rest and
nothing is under way.

A consistent cut needs no barrier here: spouts rest, what was emitted is finished, and each resting
spout has written what it would hand over (journal field `h`). Then every task's record is whole,
and no task's holds what another's has not. Records are read one by one; should any count have
changed meanwhile (a tick), they are read again. Epochs of transactional sinks are no part of it:
their rows must be in the target, and the run that begins from it counts its epochs anew, under a
topology id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.client.task_records import (
    StoredTask,
    TaskReader,
    base_pairs,
    entries_of,
    is_lazy,
    stored_task,
)
from sparkstorm.common.errors import CheckpointError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.names import counted
from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.data_plane.checkpoint.files import POSITION, STATE, TIME, CheckpointWriter, Row
from sparkstorm.data_plane.task_kit.journal import whole_and_deltas
from sparkstorm.data_plane.transport.base import entry_order
from sparkstorm.data_plane.transport.progress import Progress, merge

_PAUSE_S = 0.05


class SavepointSource:
    """Parts of a savepoint: the tasks of one topology and the store's records of them."""

    def __init__(self, tasks: Mapping[int, TaskInfo], reader: TaskReader) -> None:
        self._tasks = tasks
        self._reader = reader

    def stored(self, component: str) -> Iterator[tuple[int, StoredTask]]:
        """Yield what each task of a component keeps, each as of its last commit."""
        for task, info in self._tasks.items():
            if info.component_id == component:
                yield task, stored_task(self._reader, task)

    def write(self, folder: Path, name: str, overwrite: bool = False) -> str:
        """Write a savepoint; return why that is not possible yet, empty when it is written."""
        before = self._counts()
        own = {
            task: info
            for task, info in self._tasks.items()
            if not info.component_id.startswith("__")
        }
        component_by_task = {task: info.component_id for task, info in self._tasks.items()}
        for task in self._tasks:
            if reason := self._under_way(task):
                return reason
        with CheckpointWriter(folder, name, component_by_task, overwrite) as writer:
            for task, info in own.items():
                record, entries = entries_of(self._reader, task)
                stored = StoredTask.of(entries)
                if info.kind == "spout" and stored.handed is None:
                    return f"spout '{info.component_id}' (task {task}) has not come to rest, or has no position to hand over"
                writer.add(
                    info.component_id,
                    info.kind,
                    self._rows(task, stored, is_lazy(entries)),
                    stored.version,
                )
                if is_lazy(entries) and self._reader.record(task).journal != record.journal:
                    return f"the state of '{info.component_id}' (task {task}) was changed while it was read"
            if self._counts() != before:
                return "tuples, ticks or timers were executed while it was read"
            writer.close()
        return ""

    def _under_way(self, task: int) -> str:
        info, (record, entries) = self._tasks[task], entries_of(self._reader, task)
        where = f"'{info.component_id}' (task {task})"
        if record.held:
            return f"{where} has {counted(len(record.held), 'input')} that it has neither acked nor failed"
        if entry_order(record.last_entry) > entry_order(record.cursor.entry) or record.cursor.row:
            return f"tuples wait for {where}"
        if any(part.entries for part in self._reader.inputs(task, 2).foreign):
            return f"tuples wait for {where} in the store of another cell"
        epochs = [fields["e"] for fields in entries if "e" in fields]
        if epochs and (epochs[-1][1] is not None or len(StoredTask.of(entries).state)):
            return f"sink {where} has rows that are not in its target yet"
        if info.kind == "spout":
            pending = Pending()
            pending.load(*whole_and_deltas(entries, "p"))
            if not pending.idle:
                return f"{where} has {counted(len(pending), 'open message')}"
        return ""

    def _rows(self, task: int, stored: StoredTask, has_base: bool) -> Iterator[Row]:
        if stored.handed is not None:
            yield task, POSITION, None, stored.handed[0]
        for part, state in ((STATE, stored.state), (TIME, stored.time)):
            for key, value in state.every_pair():
                yield task, part, key, value
        if has_base:
            yield from (
                (task, STATE, key, value) for key, value in base_pairs(self._reader, task, stored)
            )

    def _counts(self) -> Any:
        merged = merge(Progress.decode(data) for data in self._reader.progress().values())
        counts = merged.counts_by_task.items()
        return {
            task: (c.emitted, c.executed, c.acked, c.failed, c.parked, c.pending)
            for task, c in counts
        }


def write_in_time(write: Callable[[], str], patience_secs: float) -> None:
    """Try to write until it succeeds; CheckpointError names what is still under way after that
    time.
    """
    deadline = time.monotonic() + patience_secs
    while reason := write():
        if time.monotonic() >= deadline:
            raise CheckpointError(f"no savepoint after {patience_secs:g} s: {reason}")
        time.sleep(_PAUSE_S)
