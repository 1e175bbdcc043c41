"""Records over any state store: signed ones (Nimbus's and the clients') and plain ones (heartbeats,
errors).
"""

from collections.abc import Callable
from typing import TypeVar

from sparkstorm.common.errors import StateConflictError
from sparkstorm.common.model.names import node_to_name
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.control_plane.cluster.base import Hint, StateStore
from sparkstorm.control_plane.cluster.envelope import seal, unseal

CONFLICT_LIMIT = 20

RecordT = TypeVar("RecordT")


class RecordStore:
    """Typed reads and writes of nodes; `key` signs and checks."""

    def __init__(self, store: StateStore, key: bytes | None = None) -> None:
        self.store = store
        self._key = key
        # What was read last, by path: pollers read the same bytes over and over. Entries are
        # replaced whole.
        self._read_before: dict[str, tuple[bytes, object]] = {}

    def _seal(self, path: str, record: object) -> bytes:
        return seal(path, encode_record(record), self._key)

    def _write(self, path: str, record: object, version: int | None = None) -> None:
        self.store.put(path, self._seal(path, record), version)

    def _create(self, path: str, record: object) -> None:
        self.store.create(path, self._seal(path, record))

    def _read(
        self, kind: type[RecordT], path: str, hint: Hint | None = None
    ) -> tuple[RecordT, int] | None:
        stored = self.store.get(path, hint)
        if stored is None:
            self._read_before.pop(path, None)
            return None
        return self._opened(kind, path, stored.data), stored.version

    def _opened(self, kind: type[RecordT], path: str, data: bytes) -> RecordT:
        """Return the signed record in a node's bytes."""
        before, record = self._read_before.get(path, (b"", None))
        if before != data or not isinstance(record, kind):
            record = decode_record(kind, unseal(path, data, self._key), path)
            self._read_before[path] = (data, record)
        return record

    def _read_record(
        self, kind: type[RecordT], path: str, hint: Hint | None = None
    ) -> RecordT | None:
        versioned = self._read(kind, path, hint)
        return versioned[0] if versioned else None

    def _read_once(
        self, kind: type[RecordT], path: str, hint: Hint | None = None
    ) -> RecordT | None:
        """Read a signed record without keeping it: of paths that are never used again."""
        stored = self.store.get(path, hint)
        return decode_record(kind, unseal(path, stored.data, self._key), path) if stored else None

    def _read_plain(
        self, kind: type[RecordT], path: str, hint: Hint | None = None
    ) -> RecordT | None:
        stored = self.store.get(path, hint)
        return decode_record(kind, stored.data, path) if stored and stored.data else None

    def _update(
        self, kind: type[RecordT], path: str, change: Callable[[RecordT | None], RecordT | None]
    ) -> RecordT | None:
        """Change or make a record by a pure function, again when another writer was first; None
        writes nothing.
        """
        for _ in range(CONFLICT_LIMIT):
            versioned = self._read(kind, path)
            changed = change(versioned[0] if versioned else None)
            try:
                if changed is None or (versioned and changed == versioned[0]):
                    return changed
                if versioned:
                    self._write(path, changed, versioned[1])
                else:
                    self._create(path, changed)
                return changed
            except StateConflictError:
                continue
        raise StateConflictError(f"{path}: {CONFLICT_LIMIT} writers in a row were first")

    def _names(self, path: str, hint: Hint | None = None) -> list[str]:
        return [node_to_name(node) for node in self.store.children(path, hint)]
