"""The greatest version of each topology's assignment that one slot has seen, kept over restarts of
its process.

A signature proves the writer and the path of a record, not its time: without this, an old signed
record that is put back would be followed once more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.control_plane.supervisor.base import LocalRecords

_LOG = logging.getLogger(__name__)
_MOST_TOPOLOGIES = 500  # those seen last; ids are never used again


@dataclass(frozen=True, slots=True)
class SeenVersions:
    """Versions by topology id."""

    by_topology: Mapping[str, int] = field(default_factory=dict)


class VersionGuard:
    """Check that refuses versions that go back; one thread of one process uses the file."""

    def __init__(self, file: LocalRecords) -> None:
        self._file = file
        self._seen = self._read()

    def seen(self, topology_id: str) -> int:
        """The greatest version seen so far; 0 when there is none."""
        return self._seen.get(topology_id, 0)

    def admit(self, topology_id: str, version: int) -> bool:
        """Return whether this version may be followed; a new greatest one is written down first."""
        seen = self.seen(topology_id)
        if version > seen:
            kept = {name: number for name, number in self._seen.items() if name != topology_id}
            self._seen = dict([*kept.items(), (topology_id, version)][-_MOST_TOPOLOGIES:])
            try:
                self._file.put("seen", SeenVersions(self._seen))
            except OSError as fault:
                _LOG.warning(
                    "%s cannot be written: %s; a restarted slot would not know version %d of %s",
                    self._file.path,
                    fault,
                    version,
                    topology_id,
                )
        return version >= seen

    def _read(self) -> dict[str, int]:
        try:
            found = self._file.get("seen", SeenVersions)
        except StoreInconsistentError as fault:
            _LOG.warning("%s; it is written afresh", fault)
            found = None
        return dict(found.by_topology) if found else {}
