"""Owns what becomes of a removed topology's data in Redis: deleted, or handed to the successor of a hot deploy.

Handing over renames streams, cursors, journals and held inputs; fences, owners, sequence numbers and
progress belong to dead processes and are dropped, so a zombie finds no fence of its own and is turned away. Each rename
can be repeated, so a hand-over that was cut is finished by the next call.
"""

from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.connection import Link, text
from sparkstorm.transport.keys import Keys
from sparkstorm.transport.reader import RedisReader

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
            for name in _names(link, old):
                link.ask(("RENAME", name, new.prefix + name.removeprefix(old.prefix)))
        finally:
            link.close()


def _names(link: Link, keys: Keys) -> list[str]:
    pattern = keys.prefix.translate({ord(mark): f"\\{mark}" for mark in "\\[]*?^"}) + ":*"
    found: set[str] = set()
    cursor = b"0"
    while True:
        cursor, names = link.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))[0]
        found.update(map(text, names))
        if int(cursor) == 0:
            return sorted(found)
