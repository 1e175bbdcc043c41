"""Writer of initial journals into Redis, from which the tasks of a new topology start.

Laws, the same for LocalSeeding: a task's journal is there wholly or not at all; the same one again
changes nothing; once a task of the topology was ever claimed, or it has ended, nothing is sown any
more (FencedError). Left out: workers that read the checkpoint's files at their first start. Every
host would need these files, and each start would have to find out whether it is the first. A base
is written in its place, without the journal that marks it as whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkstorm.common.errors import FencedError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.connection import Link, Script
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.state_base import RANGES, range_of

# A script's arguments are copied while the server runs nothing else. Half would be more round trips
# of a submission; double, longer stops of all others. Not measured.
_BYTES_AT_ONCE = 4 << 20


class RedisSeeding:
    """Writer of one topology's initial journals: entry by entry next to their place, then all of a
    task at once into it.
    """

    def __init__(self, address: RedisAddress, topology_id: str, patience_s: float = 10.0) -> None:
        self._keys = Keys(topology_id)
        self._topology_id = topology_id
        self._link = Link(address, patience_s, tag=self._keys.prefix)
        self._script = Script("seed.lua", self._link)
        # number of the link's connection on which the first entry was written
        self._began_on = 0

    def sow(self, task: int, entries: Iterable[bytes]) -> None:
        """Give a task its journal."""
        # Next to its place, since a client may die at any entry: half a journal in its place would
        # be taken for the whole by the first worker that claims the task.
        self._write(task, "begin", ())
        waiting: list[bytes] = []
        for entry in entries:
            waiting.append(entry)
            if sum(map(len, waiting)) >= _BYTES_AT_ONCE:
                self._write(task, "more", waiting)
                waiting = []
        self._write(task, "more", waiting)
        self._write(task, "end", ())

    def clear_base(self, task: int) -> None:
        """Empty the base of a task's lazy state; nothing happens to that of a task that has its
        journal, here and below.
        """
        self._write(task, "clear", [b"%d" % RANGES])

    def add_base(self, task: int, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write packed keys and values, some thousand at the most."""
        self._write(
            task,
            "base",
            [
                word
                for key, value in pairs
                if value is not None
                for word in (b"%d" % range_of(key), key, value)
            ],
        )

    def base_size(self, task: int) -> int:
        """Return the number of keys."""
        return int(self._write(task, "size", [b"%d" % RANGES])[1])

    def _write(self, task: int, what: str, entries: Sequence[bytes]) -> Any:
        # In a script because of its condition: a task may be claimed between a look and a write.
        answer = self._script.call(self._keys.prefix, lambda: [task, what, *entries])
        self._began_on = self._began_on or self._link.number
        if self._link.number != self._began_on:
            # Not written again from here: a script says of no part whether it is still there, and
            # the entries come from files of any size.
            raise StoreUnavailableError(
                f"the connection to Redis was lost while the initial state of {self._topology_id} was written, and what was "
                "written before may be gone: submit it again"
            )
        if answer[0] != b"OK":
            raise FencedError(
                f"{self._topology_id} has run or ended already: what its tasks have is newer than any checkpoint"
            )
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
