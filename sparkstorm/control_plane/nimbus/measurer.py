"""Reading of measurements for schedulers that ask: at most once a round for each topology.

Law: a store that is away costs no placement: the scheduler gets the last measurements, or none.
Nothing is kept that a new leader could not read itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from sparkstorm.common.errors import StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords, measure
from sparkstorm.control_plane.scheduling.snapshot import Snapshot

_LOG = logging.getLogger(__name__)
# After a store that did not answer: each try waits for seconds, and Nimbus's turn with it. Half
# would be a third of the turns of a store that is away for long.
_AWAY_MS = 60_000

ReadCounts = Callable[[TopologyBase], Sequence[CountRecords]]
"""Reads the counts of a topology, of each of its stores; StoreUnavailableError while one is away."""


def no_counts(_base: TopologyBase) -> Sequence[CountRecords]:
    """Return nothing: no store is known here."""
    return ()


class Measurer:
    """Measurements by topology, as of a round; `reads` counts the looks at stores."""

    def __init__(self, read_counts: ReadCounts, settings: NimbusSettings) -> None:
        self.reads = 0
        self._read_counts = read_counts
        self._settings = settings
        self._known: dict[str, tuple[int, Measurements | None]] = {}
        self._not_before_ms = 0

    def measured(
        self, snapshot: Snapshot, wanting: Collection[str], now_ms: int
    ) -> Mapping[str, Measurements]:
        """Return the measurements of the topologies whose schedulers ask."""
        self._known = {
            topology_id: measured
            for topology_id, measured in self._known.items()
            if topology_id in wanting
        }
        for topology_id in sorted(wanting):
            known = self._known.get(topology_id)
            is_fresh = known is not None and 0 <= now_ms - known[0] < self._settings.round_ms
            if not is_fresh and now_ms >= self._not_before_ms:
                self._look(topology_id, snapshot, now_ms)
        oldest_ms = now_ms - self._settings.window_ms
        return {
            topology_id: measured
            for topology_id, (made_ms, measured) in self._known.items()
            if measured is not None and made_ms >= oldest_ms
        }

    def _look(self, topology_id: str, snapshot: Snapshot, now_ms: int) -> None:
        known = snapshot.topologies[topology_id]
        assignment = snapshot.assignments.get(topology_id)
        if assignment is None:
            return
        self.reads += 1
        try:
            stores = self._read_counts(known.base)
        except (StoreUnavailableError, StoreInconsistentError) as error:
            _LOG.warning("%s is not measured: %s", topology_id, error)
            self._not_before_ms = now_ms + _AWAY_MS
            return
        beats = [beat for beat in snapshot.beats if beat.topology_id == topology_id]
        window_ms = self._settings.window_ms
        measurements = measure(known.outline, assignment, stores, beats, now_ms, window_ms)
        self._known[topology_id] = (now_ms, measurements)
