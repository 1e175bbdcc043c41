"""The end of topologies: workers stopped first, then everything the topology left, then unused
blobs and orphans.

Laws: nothing is removed that an open request or a hot deploy names; each step may be cut and is
taken up again by the next Nimbus, because the base goes last. What is done in Redis may be done
again, however late, by a leader that was deposed meanwhile: an id ends once and never comes back
(`hooks.TopologyRetirement`), and an id that is forgotten has lost the mark of its initial state
first, by a write that only the leader can make. Left out: JStorm's sleep of ten seconds between the
end of the workers and that of their records, and a list of what is to be deleted: what exists is
compared with what is named, so nothing is lost with a list.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from sparkstorm.common.errors import (
    OneStoreAwayError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.requests import is_id_of, topology_name
from sparkstorm.common.model.status import Action, PendingAction, TopologyStatus
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks

_LOG = logging.getLogger(__name__)
# Finding them is a scan over all keys of Redis. Half is twice the scans of a store that as a rule
# has none; double keeps the bytes of a put that was cut for two hours.
_CHUNKS_MS = 3_600_000  # between two scans for chunks without metadata
# between two comparisons of bases with the data of all topologies; the first is at the begin of
# a leadership
_FORGOTTEN_MS = 3_600_000
# Between two tries to reach one of several stores: each keeps the topologies of the others waiting
# for two seconds (redis_cleanup). Half would be a tenth of Nimbus's time; double lets a killed
# topology's name be taken for that much longer.
_RETIRE_AGAIN_MS = 10_000
_ASK_AGAIN_MS = 60_000  # the same for a look without a waiting client


# A topology that is submitted again within a week gets its old places (use.old.assignment). With
# names that are used once, the records would fill ZooKeeper.
_BACKUP_MS = 7 * 86_400_000
_BACKUPS_EVERY_MS = 3_600_000


class TopologyCleanup:
    """Removal of ended topologies (REMOVE), and sweeps."""

    def __init__(
        self, state: StormState, blobs: BlobStore, settings: NimbusSettings, hooks: NimbusHooks
    ) -> None:
        self._hooks = hooks
        self._state = state
        self._blobs = blobs
        self._settings = settings
        self._next_sweep_ms = 0
        self._stray: set[str] = set()  # chunks that had no metadata at the last scan
        self._next_chunks_ms = 0
        self._next_backups_ms = 0
        self.forgotten: Mapping[str, int] = {}
        """Number of keys by id of topologies that have data, and no base though they never
        ended.
        """
        # killed topologies whose data cannot be deleted: why, and when next
        self._kept: dict[str, tuple[str, int]] = {}
        self.revived: Collection[str] = ()
        """Ids of topologies that have a base, though they have ended in Redis."""
        self._next_look_ms = 0
        self._stores_away_until_ms = 0

    @property
    def problems(self) -> dict[str, str]:
        """A sentence per topology that ZooKeeper has forgotten, or has again, by its id."""
        forgotten = {
            topology_id: _sentence(topology_id, keys)
            for topology_id, keys in self.forgotten.items()
        }
        undeleted = {
            topology_id: f"it was killed, and its data cannot be deleted yet: {problem}"
            for topology_id, (problem, _) in self._kept.items()
        }
        return (
            forgotten
            | {topology_id: _revived_sentence(topology_id) for topology_id in self.revived}
            | undeleted
        )

    def forgotten_of(self, name: str) -> list[str]:
        """Return the sentences on the forgotten topologies of that name."""
        return [
            _sentence(topology_id, keys)
            for topology_id, keys in self.forgotten.items()
            if topology_name(topology_id) == name
        ]

    def advance(self, base: TopologyBase, now_ms: int) -> bool:
        """Take one step of a killed topology's end whose time has come; True when it is gone.

        First the assignment goes, so that slots stop the workers; when their beats are gone, or the
        grace of task.cleanup.timeout.sec is over, all the rest goes (JStorm sleeps ten seconds in
        between).
        """
        topology_id = base.topology_id
        is_due = base.pending is None or base.pending.due_ms <= now_ms
        # From the store and not from the reading, which may be from before the last write.
        if topology_id in self._state.assignment_ids():
            if is_due:
                self._stop_workers(base, now_ms)
            return False
        # JStorm sleeps ten seconds here, in its only thread. Beats that are gone show it sooner,
        # and the time limit is for slots that died and cannot remove theirs.
        if not is_due and self._state.worker_beat_slots(topology_id):
            return False
        # An heir takes the data over when this topology is gone; see control_plane/nimbus/deploy.py.
        has_heir = base.pending is not None and base.pending.has_heir
        if not has_heir and not self._retire(base, now_ms):
            return False
        # The heir is to find the data that the marks name, or to say that they are gone.
        self._state.remove_topology(topology_id, keeps_marks=has_heir)
        # The base went last: while it is there, a Nimbus that follows goes on from here.
        self.revived = [other_id for other_id in self.revived if other_id != topology_id]
        self._next_sweep_ms = 0
        return True

    def _retire(self, base: TopologyBase, now_ms: int) -> bool:
        """Delete its data; False while one of its stores does not answer or is not known."""
        topology_id = base.topology_id
        problem, again_ms = self._kept.get(topology_id, ("", now_ms))
        if now_ms < again_ms:
            return False
        errors = []
        for store in base.stores:
            # The others end all the same: a worker that was left over could go on in them.
            try:
                self._hooks.store(topology_id, store).retire(topology_id)
            except (OneStoreAwayError, StoreInconsistentError) as error:
                errors.append(str(error))
        if errors:
            new_problem = "; ".join(errors)
            if new_problem != problem:
                _LOG.error(
                    "%s is killed, and its data cannot be deleted yet: %s", topology_id, new_problem
                )
            self._kept[topology_id] = (new_problem, now_ms + _RETIRE_AGAIN_MS)
            return False
        self._kept.pop(topology_id, None)
        return True

    def _stop_workers(self, base: TopologyBase, now_ms: int) -> None:
        # The new time first: without it a restart in between would skip the grace of the workers.
        grace = PendingAction(Action.REMOVE, now_ms + self._settings.cleanup_ms)
        if base.pending:
            grace = replace(base.pending, due_ms=grace.due_ms)
        self._state.update_base(base.topology_id, lambda stored: replace(stored, pending=grace))
        self._state.remove_assignment(base.topology_id)

    def forget(self, topology_id: str) -> None:
        """Remove all traces of an id that never became a topology, and its data, in whichever store
        they are.

        First goes the mark that its initial state is whole: should the rest be cut, no request can
        begin with a part of it.
        """
        if topology_id not in self._state.topology_ids():
            self._state.remove_worker_beats(topology_id)
            for store in self._hooks.all_stores():
                store.retire(topology_id)
            self._state.remove_topology(topology_id)
            self.forgotten = {
                other_id: keys
                for other_id, keys in self.forgotten.items()
                if other_id != topology_id
            }

    def take_back(self, topology_id: str) -> None:
        """Remove all traces of an id whose submission is refused.

        Data that workers have claimed stay: the submission was carried out in a state that ZooKeeper
        has lost, and came again with an older one. They are named as those of other lost records.
        """
        if any(topology_id in store.unended() for store in self._hooks.all_stores()):
            self._next_sweep_ms = self._next_look_ms = 0
        else:
            self.forget(topology_id)

    def sweep(self, reading: Reading, now_ms: int) -> bool:
        """Remove traces of topologies that have no base, and blobs that no record names, once per
        monitor period.
        """
        if now_ms < self._next_sweep_ms:
            return False
        # Set before the work: a sweep that breaks off at a store that is away must not be tried in
        # each turn.
        self._next_sweep_ms = now_ms + self._settings.round_ms
        # In this order: a client removes its mark only when its request names the id.
        known_ids = self._state.known_ids() - set(self._state.topology_ids())
        ids = set(self._state.protected_ids())
        named, is_whole = self._named(ids)
        # A difference of what exists and what is named, and no list of what to delete: such a list
        # could be lost unnoticed.
        left_ids = known_ids - ids
        is_due = bool(left_ids - self.forgotten.keys()) or now_ms >= self._next_look_ms
        # A store that does not answer is not asked in each sweep: the topologies of the others
        # would wait for it.
        if is_due and (
            now_ms < self._stores_away_until_ms or not self._compare_with_data(ids, reading, now_ms)
        ):
            left_ids = (
                set()
            )  # what looks like a trace may be all that is left of a topology's records
        for topology_id in sorted(left_ids - self.forgotten.keys()):
            _LOG.info("removing what was left of %s", topology_id)
            with contextlib.suppress(OneStoreAwayError):  # the next sweep finds it again
                self.forget(topology_id)
        # A record that cannot be read may name any blob.
        if is_whole and not reading.problems:
            self._sweep_blobs(reading, named, now_ms)
            self._sweep_chunks(now_ms)
            self._sweep_backups(reading, now_ms)
        return False

    def _compare_with_data(self, named: set[str], reading: Reading, now_ms: int) -> bool:
        """Find data of topologies that never ended and have no base, and bases of topologies that
        have ended.

        The state store has lost the records of the former, and the end of the latter: both stay
        until a client kills them. False while the data cannot be looked at.
        """
        # A topology that is being killed has a tombstone and a base for a moment, as it should. One
        # that an open request names counts too: the next look would be an hour after its end.
        live = {
            topology_id
            for topology_id, base in reading.bases.items()
            if base.status != TopologyStatus.KILLED
        }
        try:
            stores = self._hooks.all_stores()
            key_counts = Counter[str]()
            for store in stores:
                key_counts.update(store.unended())
            ended = sorted({topology_id for store in stores for topology_id in store.ended(live)})
        except (StoreUnavailableError, OneStoreAwayError) as error:
            _LOG.warning("the topologies cannot be compared with their data: %s", error)
            self._stores_away_until_ms = (
                now_ms + _ASK_AGAIN_MS if isinstance(error, OneStoreAwayError) else 0
            )
            return False
        here = named | set(self._state.topology_ids())
        # Reported and not deleted: ZooKeeper may have been emptied by mistake, and these keys are
        # then all that is left of a topology's states.
        forgotten = {
            topology_id: keys
            for topology_id, keys in key_counts.items()
            if topology_id not in here and is_id_of(topology_id, topology_name(topology_id))
        }
        # Only new ones, or the log would have the same sentence every hour.
        for topology_id in sorted(forgotten.keys() - self.forgotten.keys()):
            _LOG.error("%s", _sentence(topology_id, forgotten[topology_id]))
        for topology_id in sorted({*ended} - {*self.revived}):
            _LOG.error("%s", _revived_sentence(topology_id))
        self.revived = ended
        self.forgotten, self._next_look_ms = forgotten, now_ms + _FORGOTTEN_MS
        return True

    def _named(self, ids: set[str]) -> tuple[set[str], bool]:
        """Return the keys that open requests and deploys name, and whether all could be read; their
        ids are added to `ids`.
        """
        opened, unreadable = self._state.open_requests()
        keys = set[str]()
        is_whole = not unreadable
        for request, _ in opened:
            ids.add(request.topology_id)
            keys |= request.blob_keys()
        for name in self._state.deploy_names():
            try:
                deploy = self._state.read_deploy(name)
            except (StoreInconsistentError, TamperedBlobError):
                # All ids of that name: one of them may be the one that holds the data.
                ids |= {
                    known_id for known_id in self._state.known_ids() if is_id_of(known_id, name)
                }
                is_whole = False
                continue
            if deploy:
                # after a retreat: the refused one, which still holds the data
                ids.add(deploy.old_id)
            for base in deploy.bases() if deploy else []:
                ids.add(base.topology_id)
                keys |= {base.code_key, base.conf_key}
        try:
            keys |= {blob.key for blob in self._state.read_named_blobs().values()}
        except (StoreInconsistentError, TamperedBlobError):
            is_whole = False
        for topology_id in self._state.topology_ids():
            try:
                upgrade = self._state.read_upgrade(topology_id)
            except (StoreInconsistentError, TamperedBlobError):
                is_whole = False
                continue
            keys |= upgrade.blob_keys() if upgrade else set()
        return keys, is_whole

    def _sweep_backups(self, reading: Reading, now_ms: int) -> None:
        """Remove last assignments under names that nothing has used for long."""
        if now_ms < self._next_backups_ms:
            return
        self._next_backups_ms = now_ms + _BACKUPS_EVERY_MS
        names = {base.name for base in reading.bases.values()} | {*self._state.deploy_names()}
        for name in {*self._state.backup_names()} - names:
            try:
                last = self._state.read_backup_assignment(name)
            except (StoreInconsistentError, TamperedBlobError):
                last = None  # it is of no use to anybody
            placed_ms = max(last.start_ms_by_executor.values(), default=0) if last else 0
            if now_ms - placed_ms > _BACKUP_MS:
                self._state.remove_backup_assignment(name)

    def _sweep_chunks(self, now_ms: int) -> None:
        """Delete chunks without metadata, which a put or delete that was cut has left; finding them
        is a scan of all keys.

        Clients may be storing blobs now: only chunks that were there a while ago, and have no
        metadata still, go.
        """
        if now_ms < self._next_chunks_ms:
            return
        stray = self._blobs.stray_chunks()
        # Only those that the last scan saw too: a put writes its chunks before its metadata.
        self._blobs.delete_chunks(stray & self._stray)
        is_new = bool(stray - self._stray)
        self._stray = stray
        self._next_chunks_ms = now_ms + (
            max(self._settings.blob_delay_ms, self._settings.round_ms) if is_new else _CHUNKS_MS
        )

    def _sweep_blobs(self, reading: Reading, named: set[str], now_ms: int) -> None:
        used = named | {
            key for base in reading.bases.values() for key in (base.code_key, base.conf_key)
        }
        used |= {
            key
            for assignment in reading.snapshot.assignments.values()
            for key in assignment.blob_keys()
        }
        for key in set(self._state.blob_keys()) - used:
            try:
                metadata = self._state.read_blob_metadata(key)
            except (StoreInconsistentError, TamperedBlobError) as error:
                _LOG.error("a blob that nobody names stays: %s", error)
                continue
            # Storm waits five minutes too (nimbus.topology.blobstore.deletion.delay.ms): a client
            # stores blobs before the request that names them.
            if metadata and metadata.created_ms + self._settings.blob_delay_ms <= now_ms:
                self._blobs.delete(key)


def _sentence(topology_id: str, keys: int) -> str:
    return (
        f"ZooKeeper does not know {topology_id}, of which Redis keeps {keys} keys (states, positions, tuples in progress): it was "
        "emptied or put back to an older state, or another cluster uses this Redis. Submitted anew, "
        f"{topology_name(topology_id)} begins with empty states at the beginning of its sources; "
        f"`sparkstorm kill {topology_id}` deletes these keys"
    )


def _revived_sentence(topology_id: str) -> str:
    return (
        f"ZooKeeper has {topology_id}, which was killed, or replaced by a hot deploy: it was put back to an older state. "
        f"Redis keeps no data of it, and its workers cannot start; `sparkstorm kill {topology_id}` ends it"
    )
