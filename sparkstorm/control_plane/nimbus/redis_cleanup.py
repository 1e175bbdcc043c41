"""Clean-up of a removed topology's data in Redis: deleted, or handed to the successor of a hot
deploy.

Both begin with the tombstone (data_plane/transport/end.lua), which fences all processes of the topology off
for good. A hand-over then renames streams, cursors, journals and held inputs in one script. An id
ends once: a call that is repeated, also by a leader that was deposed long ago, finds the tombstone
and changes nothing. Left out: copying data to the heir's names, which would need room for all of it
a second time and could be cut in the middle.
"""

import logging
from collections import Counter
from collections.abc import Collection
from contextlib import closing

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.data_plane.transport.base import TOMBSTONE_MS
from sparkstorm.data_plane.transport.connection import Link, Script, links_to_all
from sparkstorm.data_plane.transport.keys import Keys, topology_of
from sparkstorm.data_plane.transport.progress import INHERITED, Progress, under_way
from sparkstorm.data_plane.transport.reader import RedisReader, end, names_of

_LOG = logging.getLogger(__name__)

# A turn of Nimbus waits for it, so less than the 30 s after which workers are taken for dead. A
# Redis that is away longer ends the turn, and the next one tries again.
PATIENCE_S = 10.0
# With several stores the topologies of the others wait meanwhile.
PATIENCE_OF_SEVERAL_S = 2.0


def read_counts(stores: RedisStores, patience_s: float, base: TopologyBase) -> list[CountRecords]:
    """Return the counts of a topology, of each of its stores; StoreUnavailableError while one is
    away.
    """
    found = []
    for name in base.stores:
        address = stores.of(base.topology_id, name)
        reader = RedisReader(address, base.topology_id, patience_s, may_write=False)
        with closing(reader):
            found.append(CountRecords.decoded(reader.progress(), reader.earlier()))
    return found


class RedisRetirement:
    """TopologyRetirement over the data plane's keys."""

    def __init__(self, address: RedisAddress, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._patience_s = patience_s

    def retire(self, topology_id: str) -> None:
        """Delete every key of the topology but its dead letters and its tombstone."""
        reader = RedisReader(self._address, topology_id, self._patience_s)
        try:
            reader.delete()
        finally:
            reader.close()

    def unended(self) -> dict[str, int]:
        """Count the keys of each topology that workers have claimed and that has no tombstone: one
        scan of all names.
        """
        names: Counter[str] = Counter()
        for link in links_to_all(self._address, self._patience_s):
            with closing(link):
                # Names alone: reading what lies there would be a load on the store for a check that
                # is made once an hour.
                names.update(filter(None, map(topology_of, names_of(link, "{"))))
        # Initial state without a claim belongs to a submission that is under way. Not by the fence:
        # what a successor has inherited has none before its first claim.
        claimed = self._with_key(names, "steps")
        ended = {*self._with_key(claimed, "ended")}
        return {
            topology_id: names[topology_id] for topology_id in claimed if topology_id not in ended
        }

    def ended(self, topology_ids: Collection[str]) -> list[str]:
        """Return those of these ids that have a tombstone."""
        return self._with_key(topology_ids, "ended")

    def _with_key(self, topology_ids: Collection[str], name: str) -> list[str]:
        """Return those of these ids that have that key, in order."""
        if not topology_ids:
            return []
        ids = sorted(topology_ids)
        with_key: list[str] = []
        # In a cluster ids may lie on different nodes.
        for group in [[topology_id] for topology_id in ids] if self._address.nodes else [ids]:
            tag = Keys(group[0]).prefix
            with closing(Link(self._address, self._patience_s, tag=tag)) as link:
                have = link.ask(*(("EXISTS", Keys(topology_id)(name)) for topology_id in group))
            with_key += [
                topology_id for topology_id, has_key in zip(group, have, strict=True) if has_key
            ]
        return with_key

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Rename the old topology's keys to the new one's, unless the old one has ended before."""
        old = Keys(old_id)
        link = Link(self._address, self._patience_s, tag=old.prefix)
        try:
            # The tombstone decides once which topology inherits: a leader that was deposed and goes
            # on late finds another name, or none.
            if end(link, old, new_id) != new_id:
                return
            progress = _left(link, old)
            own = {old("ended"), old("progress"), old("earlier")}
            names = sorted(set(names_of(link, f"{old.prefix}:")) - own)
            # of workers that are gone
            logs = [name for name in names if name.startswith(old.log(""))]
            moved = [name.removeprefix(old.prefix) for name in names if name not in logs]
            words = [new_id, Keys(new_id).prefix, TOMBSTONE_MS, INHERITED, progress, *moved]
            Script("hand_over.lua", link).call(old.prefix, lambda: words)
            if logs:
                link.ask(("UNLINK", *logs))
        finally:
            link.close()


def _left(link: Link, old: Keys) -> bytes:
    """Return the record with which the counts of an heir begin."""
    stored = link.ask(("HGETALL", old("progress")))[0]
    try:
        return under_way(map(Progress.decode, stored[1::2])).encode()
    except StoreInconsistentError as error:
        # Counts are worth a warning, not a topology that ends without one in its place.
        _LOG.warning("%s: the counts after it begin at zero: %s", old("progress"), error)
        return Progress().encode()
