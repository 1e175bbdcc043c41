"""A slot's knowledge of the store of its topology's data, or of its cell's: by its workers and by
ZooKeeper.

The slot's main thread notes and asks, its store thread reads and writes; every hand-over is one
assignment.
"""

from __future__ import annotations

from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.common.model.worker_spec import StoreMark, WorkerSpec, newer_mark
from sparkstorm.control_plane.cluster.storm_state import StormState

WRITE_EVERY_MS = 1_000
Cell = tuple[str, int]
"""A topology's id, and the number of one of its cells."""


class StoreMarks:
    """Marks of the stores of one slot's topology."""

    def __init__(self) -> None:
        self._marks: dict[Cell, StoreMark] = {}
        self._new: Cell | None = None  # cell whose mark ZooKeeper lacks
        self._due_ms = 0
        self._written: tuple[Cell, StoreMark, int] | None = None  # cell, mark, session
        self._first_task: tuple[Cell, int] = (("", 0), 0)  # of the cell of the worker that runs

    def get(self, topology_id: str, cell: int = 0) -> StoreMark | None:
        """Return what is known of the store of a topology's cell."""
        return self._marks.get((topology_id, cell))

    def note(self, spec: WorkerSpec, mark: StoreMark | None) -> None:
        """Take in a worker's record of its store; the record of the worker with the lowest task, or
        of a new incarnation, counts for all.
        """
        cell = spec.topology_id, spec.cell
        known_mark = self._marks.get(cell)
        if mark is None:
            return
        is_new = known_mark is None or (known_mark.incarnation, known_mark.losses) != (
            mark.incarnation,
            mark.losses,
        )
        if (newer := newer_mark(known_mark, mark)) is not None:
            self._marks = {cell: newer}
        if is_new or min(spec.tasks(), default=0) == self._first_task_of(spec):
            self._new = cell

    def _first_task_of(self, spec: WorkerSpec) -> int:
        """Return the lowest task of a worker's cell, worked out once for each."""
        cell = spec.topology_id, spec.cell
        if self._first_task[0] != cell:
            cells = cell_by_task(spec.component_by_task, max(1, len(spec.cells)))
            first = min((task for task, its in cells.items() if its == spec.cell), default=0)
            self._first_task = cell, first
        return self._first_task[1]

    def read(self, state: StormState, topology_id: str, cells: int) -> None:
        """Read what ZooKeeper knows of a topology's stores, before its worker is started."""
        stored = {
            (topology_id, cell): mark
            for cell, mark in state.read_store_marks(topology_id, cells).items()
        }
        noted = {cell: mark for cell, mark in self._marks.items() if cell[0] == topology_id}
        both = {cell: newer_mark(noted.get(cell), stored.get(cell)) for cell in {*noted, *stored}}
        self._marks = {cell: mark for cell, mark in both.items() if mark is not None}

    def write(self, state: StormState, now_ms: int) -> None:
        """Write what is known to ZooKeeper, once a second."""
        cell = self._new
        if cell is None or now_ms < self._due_ms:
            return
        mark = self._marks.get(cell)
        # A ZooKeeper that was put back to an older state ends the session: then it is written
        # again.
        written = None if mark is None else (cell, mark, state.store.session_epoch)
        if mark is not None and written != self._written:
            state.note_store_mark(cell[0], mark, cell[1])
            self._written = written
        self._due_ms = now_ms + WRITE_EVERY_MS
        if self._new == cell:
            self._new = None
