"""Twin of a node's storage inside one process: the same laws as NodeDir, for simulated slots."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.control_plane.blobs.named import BlobUse, lay_out

RecordT = TypeVar("RecordT")


class MemoryRecords:
    """Records by name; they are frozen, so that they need no copy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record_by_name: dict[str, object] = {}

    def get(self, name: str, kind: type[RecordT]) -> RecordT | None:
        """The record of that name; StoreInconsistentError when it is of another kind."""
        record = self._record_by_name.get(name)
        if record is not None and not isinstance(record, kind):
            raise StoreInconsistentError(
                f"{self.path}: {name}: expected a {kind.__name__}, got a {type(record).__name__}"
            )
        return record

    def put(self, name: str, record: object) -> None:
        """Set one record."""
        self._record_by_name[name] = record


@dataclass(slots=True)
class MemoryDisk:
    """Storage of one node that outlives its slot processes: records, code, and holders of locks."""

    node: str
    holder_by_lock: dict[str, object] = field(default_factory=dict)
    records: dict[str, MemoryRecords] = field(default_factory=dict)
    code: dict[Path, bytes] = field(default_factory=dict)
    used_ms_by_topology: dict[str, int] = field(default_factory=dict)
    blobs: TemporaryDirectory[str] | None = None  # real files

    def close(self) -> None:
        """Delete the real files."""
        if self.blobs is not None:
            self.blobs.cleanup()
            self.blobs = None


class MemoryLock:
    """A lock of one process on a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, name: str, process: object) -> None:
        self._disk = disk
        self._name = name
        self._process = process

    @property
    def is_held(self) -> bool:
        """Return whether this process holds it."""
        return self._disk.holder_by_lock.get(self._name) is self._process

    def try_take(self) -> bool:
        """Take the lock if it is free."""
        return self._disk.holder_by_lock.setdefault(self._name, self._process) is self._process

    def release(self) -> None:
        """Release it."""
        if self.is_held:
            del self._disk.holder_by_lock[self._name]


class MemoryNodeDir:
    """A node's storage as one slot process uses it; `die` frees its locks, as the kernel does."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    @property
    def node(self) -> str:
        """The node's name."""
        return self._disk.node

    @property
    def local_state(self) -> MemoryRecords:
        """Records of the supervisor."""
        return self._records("localstate")

    def duties_lock(self) -> MemoryLock:
        """The lock whose holder is this node's supervisor."""
        return MemoryLock(self._disk, "duties", self)

    def clean_tmp(self) -> None:
        """Do nothing: downloads are never half done here."""

    def worker_state(self, port: int) -> MemoryRecords:
        """Records of a port that outlive its slot process."""
        return self._records(f"{port}")

    def seen_versions(self, port: int) -> MemoryRecords:
        """Versions of assignments that the slot of that port has seen."""
        return self._records(f"{port}.seen")

    def try_claim(self, port: int) -> MemoryLock | None:
        """Take a port for this process; None when another slot has it."""
        lock = MemoryLock(self._disk, f"port {port}", self)
        self._records(f"claim of {port}")
        return lock if lock.try_take() else None

    def ports(self) -> list[int]:
        """Every port that a slot has ever claimed here, ascending."""
        return sorted(
            int(name.removeprefix("claim of "))
            for name in self._disk.records
            if name.startswith("claim of ")
        )

    def live_ports(self, own: int) -> list[int]:
        """Ports that a living slot holds."""
        return [
            port
            for port in self.ports()
            if port == own or f"port {port}" in self._disk.holder_by_lock
        ]

    def keep_code(
        self, topology_id: str, key: str, port: int, now_ms: int, fetch: Callable[[str], bytes]
    ) -> Path:
        """Return the path of a topology's blob, fetched unless it is there; mark the topology as
        used.
        """
        path = Path("/memory", self.node, topology_id, key)
        if path not in self._disk.code:
            self._disk.code[path] = fetch(key)
        self._disk.used_ms_by_topology[topology_id] = now_ms
        return path

    def has_code(self, path: Path) -> bool:
        """Return whether a blob that was kept is there still."""
        return path in self._disk.code

    def read_code(self, path: Path) -> bytes | None:
        """A blob that was kept; None when it is gone."""
        return self._disk.code.get(path)

    def keep_blob(
        self, topology_id: str, use: BlobUse, key: str, fetch: Callable[[str], bytes]
    ) -> Path:
        """Make a version of a blob the newest one in the topology's folder of blobs: real files,
        since user code opens them.
        """
        if self._disk.blobs is None:
            self._disk.blobs = TemporaryDirectory(prefix="sparkstorm-blobs-")
        folder = Path(self._disk.blobs.name, topology_id)
        lay_out(folder, use, key, lambda: fetch(key))
        return folder

    def forget_code(self, kept_ids: Iterable[str], before_ms: int) -> None:
        """Remove the code of all other topologies that was last used before a moment."""
        used = self._disk.used_ms_by_topology
        gone = {topology_id for topology_id, used_ms in used.items() if used_ms < before_ms} - set(
            kept_ids
        )
        for topology_id in gone:
            del used[topology_id]
            if self._disk.blobs is not None:
                shutil.rmtree(Path(self._disk.blobs.name, topology_id), ignore_errors=True)
        if gone:
            self._disk.code = {
                path: data for path, data in self._disk.code.items() if path.parent.name not in gone
            }

    def die(self) -> None:
        """End the process: its locks are free."""
        self._disk.holder_by_lock = {
            name: holder for name, holder in self._disk.holder_by_lock.items() if holder is not self
        }

    def _records(self, name: str) -> MemoryRecords:
        records = self._disk.records.get(name)
        if records is None:
            records = self._disk.records[name] = MemoryRecords(Path("/memory", self.node, name))
        return records
