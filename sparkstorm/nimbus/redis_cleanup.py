"""Clean-up of a removed topology's data in Redis: deleted, or handed to the successor of a hot deploy.

Handing over renames streams, cursors, journals and held inputs; fences, owners, sequence numbers and
progress belong to dead processes and are dropped, so a zombie finds no fence of its own and is turned away. Each rename
can be repeated, so a hand-over that was cut is finished by the next call.
"""

from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.connection import Link
from sparkstorm.transport.keys import Keys
from sparkstorm.transport.reader import RedisReader, names_of

_OF_PROCESSES = ("fence", "owner", "seq", "low", "progress")
_PATIENCE_S = 10.0


class RedisRetirement:
    """TopologyRetirement over the data plane's keys."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    def retire(self, topology_id: str) -> None:
        """Delete every key of the topology."""
        reader = RedisReader(self._address, topology_id, _PATIENCE_S)
        try:
            reader.delete()
        finally:
            reader.close()

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Rename the old topology's keys to the new one's."""
        old, new = Keys(old_id), Keys(new_id)
        link = Link(self._address, _PATIENCE_S)
        try:
            link.ask(("DEL", *(old(part) for part in _OF_PROCESSES)))
            for name in sorted(names_of(link, f"{old.prefix}:")):
                if name.startswith(old.log("")):  # of workers that are gone; a slot may still write its last lines
                    link.ask(("UNLINK", name))
                    continue
                link.ask(("RENAME", name, new.prefix + name.removeprefix(old.prefix)))
        finally:
            link.close()
