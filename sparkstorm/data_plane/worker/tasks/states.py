"""States of a worker's bolts: of the backend that topology.state.backend names, and what to read
for a block of rows.

Law: the backend changes where values lie and never a result. Left out: choosing it by the size of
the state: an epoch that made it too large would have to move it while its worker waits, and memory
is planned beforehand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from sparkstorm.common.errors import CodecError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.settings import StateSettings
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.frames import Row
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

_BACKEND = "topology.state.backend"
Expect = Callable[[Sequence[Row]], None]
"""Function that notes the state's keys of rows of one channel before they run."""


@dataclass(frozen=True, slots=True)
class TaskBase:
    """One task's base in a topology's store."""

    store: Transport
    topology_id: str
    task: int

    @property
    def name(self) -> str:
        """Return the pattern of its keys in Redis."""
        return Keys(self.topology_id)("state", self.task, "*")

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the packed values of packed keys."""
        return self.store.read_state(self.task, keys)

    def scan(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield every packed key with its packed value."""
        return self.store.scan_state(self.task)


def stored_state(
    plan: WorkerPlan,
    store: Transport,
    task: int,
    fields: Sequence[dict[str, Any]],
    is_threaded: bool = False,
) -> MemoryState:
    """Return the state of a task whose journal has these entries, of the backend that its
    component's settings name.

    A state in memory becomes a lazy one at its next start under that backend. The way back is
    refused: a lazy state may be larger than memory.
    """
    component = plan.component_by_task[task]
    marks = [field["n"] for field in fields if "n" in field]
    settings = StateSettings.of(plan.conf, plan.topology.components[component].conf)
    is_strict = plan.is_strict or plan.careful > 0
    # A simulation draws the backend by its seed, so that both are run by the same tests.
    is_drawn = plan.lazy_keys > 0 and not is_threaded
    if settings.backend != "lazy" and not is_drawn:
        if marks:
            raise WorkerFailedError(
                f"component '{component}' (task {task}): its state was written with {_BACKEND}: lazy, and may be too large for "
                "memory; set the key to lazy again, or begin a new topology from a savepoint of this one"
            )
        state = MemoryState(plan.codec, is_strict)
    elif is_threaded:
        raise WorkerFailedError(
            f"component '{component}': a bolt with a thread of its own (blocking, topology.executor.threads) works on a copy of "
            f"its state, which {_BACKEND}: lazy does not have; set {_BACKEND}: memory in this component's settings"
        )
    else:
        state = LazyState(
            plan.codec,
            TaskBase(store, plan.topology_id, task),
            plan.lazy_keys or settings.cache_keys,
            is_strict,
        )
    if plan.is_strict:
        state.handed = []
    for field in fields:
        state.load(field.get("s", ()), field.get("d", ()))
    if isinstance(state, LazyState):
        # Only the last marks count: each holds the numbers of its commit.
        state.resume(marks[-1] if marks else None)
    return state


def load_fields(
    plan: WorkerPlan, deltas: Iterable[dict[str, Any]], changed: str, deleted: str
) -> MemoryState:
    """Return the state in memory that the journal's fields of these names describe."""
    state = MemoryState(plan.codec, plan.is_strict or plan.careful > 0)
    for fields in deltas:
        state.load(fields.get(changed, ()), fields.get(deleted, ()))
    return state


def warn_of_lost_changes(component: str, state: MemoryState, codec: Codec) -> None:
    """Warn once of a value that user code has changed in the copy that it was handed alone, without
    `put` or `delete` since the last call.
    """
    handed = state.handed or ()
    lost = next(
        (k for k, value, copy in handed if state.holds(k, value) and _differ(codec, value, copy)),
        None,
    )
    state.handed = [] if lost is None else None
    if lost is not None:
        warnings.warn(
            f"component '{component}', state key {lost!r:.60}: its value was changed in place, which changes a "
            "copy alone; put it back, as in state.put(key, value), or change another copy",
            stacklevel=2,
        )


def _differ(codec: Codec, value: Any, copy: Any) -> bool:
    # By their forms: NaN is unequal to itself.
    try:
        return codec.pack(copy) != codec.pack(value)
    except CodecError:
        return True  # the copy has got something that no state can hold


def expecting(
    topology: Topology, component: str, bolt: Any, state: MemoryState | None
) -> Expect | None:
    """Return a function after which a lazy state reads the keys of a block's rows at once, when it
    misses one; else None.

    The keys are taken for the values of the bolt's `key_fields`, else of the fields by which the
    input is grouped: bare for one field, a tuple for several. A wrong guess costs reads, never a
    result.
    """
    if not isinstance(state, LazyState):
        return None
    own = tuple(getattr(bolt, "key_fields", ()))
    names_by_input = {
        (source.component, source.stream): own or source.grouping.fields
        for source in topology.components[component].inputs
    }
    pick_by_source: dict[Source, Callable[[Any], Any] | None] = {}

    def pick_of(source: Source) -> Callable[[Any], Any] | None:
        names = names_by_input.get((source.component, source.stream), ())
        # A guess may name fields that the source does not have: then nothing is read ahead.
        is_known = names and all(name in source.fields for name in names)
        return itemgetter(*map(source.position, names)) if is_known else None

    def keys_of(rows: Sequence[Row]) -> Iterable[Any]:
        source = rows[0][2]
        if source not in pick_by_source:
            pick_by_source[source] = pick_of(source)
        if (pick := pick_by_source[source]) is None:
            return ()
        try:
            return {pick(row[0]) for row in rows}
        except TypeError:  # a list, which is no key of a state
            return ()

    def expect(rows: Sequence[Row]) -> None:
        # Asked at the first key that is missing: a block whose keys are all in memory costs
        # nothing.
        state.coming = partial(keys_of, rows)

    return expect
