"""Owns the end of topologies: workers stopped first, then everything the topology left, then unused blobs and orphans.

Laws: nothing is removed that a submission under way may need; each step may be cut and is taken up again by the next
Nimbus, because the base goes last.
"""

import logging
from dataclasses import replace

from sparkstorm.blobs.store import BlobStore
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import StoreInconsistentError, TamperedBlobError
from sparkstorm.model.assignment import TopologyBase
from sparkstorm.model.status import Action, PendingAction
from sparkstorm.nimbus.cluster_reader import Reading
from sparkstorm.nimbus.listeners import NothingToRetire, TopologyRetirement
from sparkstorm.nimbus.nimbus_times import NimbusTimes

_LOG = logging.getLogger(__name__)


class TopologyCleanup:
    """Carries REMOVE out, and sweeps."""

    def __init__(self, state: StormState, blobs: BlobStore, times: NimbusTimes) -> None:
        self.retirement: TopologyRetirement = NothingToRetire()
        self._state = state
        self._blobs = blobs
        self._times = times
        self._next_sweep_ms = 0
        self._has_swept_chunks = False

    def advance(self, base: TopologyBase, now_ms: int) -> bool:
        """Take one step of a killed topology's end whose time has come; True when it is gone.

        First the assignment goes, so that slots stop the workers; when their beats are gone, or the grace of
        task.cleanup.timeout.sec is over, all the rest goes (JStorm sleeps ten seconds in between).
        """
        topology_id = base.topology_id
        is_due = base.pending is None or base.pending.due_ms <= now_ms
        if topology_id in self._state.assignment_ids():
            if is_due:
                self._stop_workers(base, now_ms)
            return False
        if not is_due and self._state.worker_beat_slots(topology_id):
            return False
        if not (base.pending and base.pending.has_heir):
            self.retirement.retire(topology_id)
        self._state.remove_topology(topology_id)
        self._next_sweep_ms = 0
        return True

    def _stop_workers(self, base: TopologyBase, now_ms: int) -> None:
        # The new time first: without it a restart in between would skip the grace of the workers.
        grace = PendingAction(Action.REMOVE, now_ms + self._times.cleanup_ms)
        if base.pending:
            grace = replace(base.pending, due_ms=grace.due_ms)
        self._state.update_base(base.topology_id, lambda found: replace(found, pending=grace))
        self._state.remove_assignment(base.topology_id)

    def sweep(self, reading: Reading, now_ms: int) -> None:
        """Remove traces of topologies that have no base, and blobs that nobody names, once per monitor period."""
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + self._times.round_ms
        names = {*self._state.submission_names(), *self._state.deploy_names()}
        for topology_id in sorted(self._state.known_ids() - set(self._state.topology_ids())):
            if topology_id.rsplit("-", 2)[0] in names:
                continue  # somebody is at it
            _LOG.info("removing what was left of %s", topology_id)
            self.retirement.retire(topology_id)
            self._state.remove_topology(topology_id)
        if not names and not reading.problems:
            self._sweep_blobs(reading, now_ms)
            self._sweep_chunks()

    def _sweep_chunks(self) -> None:
        """Once per Nimbus: what a put or delete that was cut left in the bytes store; it means a scan of all keys."""
        if not self._has_swept_chunks:
            self._has_swept_chunks = True
            self._blobs.sweep()

    def _sweep_blobs(self, reading: Reading, now_ms: int) -> None:
        used = {key for base in reading.bases.values() for key in (base.code_key, base.conf_key)}
        used |= {key for each in reading.snapshot.assignments.values() for key in (each.code_key, each.conf_key)}
        for key in set(self._state.blob_keys()) - used:
            try:
                metadata = self._state.read_blob_metadata(key)
            except (StoreInconsistentError, TamperedBlobError) as error:
                _LOG.error("a blob that nobody names stays: %s", error)
                continue
            if metadata and metadata.created_ms + self._times.blob_delay_ms <= now_ms:
                self._blobs.delete(key)
