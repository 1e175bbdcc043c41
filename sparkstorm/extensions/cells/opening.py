"""Transport of a worker and reader of a client, for a topology that lies in several Redis servers."""

from __future__ import annotations

import time

from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.settings import WorkerSettings
from sparkstorm.data_plane.transport.durability import (
    ON_DISK,
    ON_REPLICAS,
    ReplicaCursors,
    SyncedCursors,
    require_durable,
)
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.cells.cells import CellsTransport, StoredCursors
from sparkstorm.extensions.cells.foreign import RedisForeign


def open_cells(spec: WorkerSpec, own: RedisTransport) -> CellsTransport:
    """Return the transport over a worker's own Redis and those of its topology's other cells."""
    durability = WorkerSettings.of(spec.conf).durability
    stored: StoredCursors | None = None
    if durability == ON_REPLICAS:
        require_durable(durability, spec.cells)
        stored = ReplicaCursors(spec.redis, spec.topology_id)
    elif durability == ON_DISK:
        # Not all stores here: one that is away must not keep this cell from starting.
        stored = SyncedCursors(spec.redis, spec.topology_id)
    foreign = {
        cell: RedisForeign(address, spec.topology_id, cell, durability)
        for cell, address in enumerate(spec.cells)
        if cell != spec.cell
    }
    return CellsTransport(spec.topology_id, own, foreign, lambda: 1000 * time.monotonic(), stored)
