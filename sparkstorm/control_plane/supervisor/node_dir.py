"""Folder of one node on its host: claims of slots on ports, the supervisor's lock, last known
records.

Claims are flocks, which the kernel frees when their holder dies, so a replaced slot takes the same
port again and the duties pass on at once. Its `tmp` (S2.10) and LocalState (S2.12) are here; no
supervisor id is, because the node's name is the id.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.stores.folders import own_folder
from sparkstorm.control_plane.blobs.named import BlobUse, lay_out

RecordT = TypeVar("RecordT")


class LocalState:
    """A small map of records in one JSON file, replaced as a whole (S2.12); readers never see half
    of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, name: str, kind: type[RecordT]) -> RecordT | None:
        """The record of that name, None when there is none; StoreInconsistentError when the file is
        damaged.
        """
        stored = self._snapshot().get(name)
        return (
            None
            if stored is None
            else decode_record(kind, json.dumps(stored).encode(), f"{self.path}: {name}")
        )

    def put(self, name: str, record: object) -> None:
        """Set one record; the caller must see to it that there is one writer at a time. A damaged
        file is replaced.
        """
        try:
            following = self._snapshot()
        except StoreInconsistentError:
            following = {}
        following[name] = json.loads(encode_record(record))
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        fresh.write_bytes(json.dumps(following, sort_keys=True).encode())
        os.replace(fresh, self.path)

    def _snapshot(self) -> dict[str, object]:
        try:
            snapshot = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as fault:
            raise StoreInconsistentError(f"{self.path}: not JSON ({fault})") from fault
        if not isinstance(snapshot, dict):
            raise StoreInconsistentError(f"{self.path}: not a JSON object")
        return snapshot


class Flock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    @property
    def is_held(self) -> bool:
        """Return whether this object holds it."""
        return self._fd >= 0

    def try_take(self) -> bool:
        """Take the lock if it is free; return whether this object holds it afterwards."""
        if self.is_held:
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Release it."""
        if self.is_held:
            os.close(self._fd)
            self._fd = -1


class NodeDir:
    """The folder of one node:
    `supervisor/{lock,localstate,tmp,stormdist}` and `workers/<port>.*`.
    """

    def __init__(self, local_dir: Path, node: str) -> None:
        self.node = node
        self._root = own_folder(local_dir / file_name(node))
        for folder in (self.tmp, self.stormdist, self.workers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.local_state = LocalState(self._root / "supervisor" / "localstate")

    @property
    def tmp(self) -> Path:
        return self._root / "supervisor" / "tmp"

    @property
    def stormdist(self) -> Path:
        return self._root / "supervisor" / "stormdist"

    @property
    def workers(self) -> Path:
        return self._root / "workers"

    def code_dir(self, topology_id: str) -> Path:
        """Return the folder of a topology's code (S2.27)."""
        return self.stormdist / file_name(topology_id)

    def keep_code(
        self, topology_id: str, key: str, port: int, now_ms: int, fetch: Callable[[str], bytes]
    ) -> Path:
        """Return the path of a topology's blob, fetched unless a whole copy is there; its name is
        its hash (S2.27, S2.30).
        """
        if not key.isalnum():
            raise StoreInconsistentError(f"{key[:80]!r} is no blob key")
        folder = self.code_dir(topology_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / key
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != key:
            fresh = self.tmp / f"{key}.{os.getpid()}.{port}"
            fresh.write_bytes(fetch(key))
            os.replace(fresh, path)
        os.utime(folder, (now_ms / 1000, now_ms / 1000))
        return path

    def has_code(self, path: Path) -> bool:
        """Return whether a blob that was kept is there still."""
        return path.exists()

    def read_code(self, path: Path) -> bytes | None:
        """A blob that was kept; None when it is gone."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def keep_blob(
        self, topology_id: str, use: BlobUse, key: str, fetch: Callable[[str], bytes]
    ) -> Path:
        """Make a version of a blob the newest one in the topology's folder of blobs, and return
        that folder.
        """
        folder = self.code_dir(topology_id) / "blobs"
        lay_out(folder, use, key, lambda: fetch(key))
        return folder

    def forget_code(self, kept_ids: Iterable[str], before_ms: int) -> None:
        """Remove the code of all other topologies that was last used before a moment (S2.31)."""
        kept_names = {self.code_dir(topology_id).name for topology_id in kept_ids}
        for folder in self.stormdist.iterdir():
            if folder.name not in kept_names and folder.stat().st_mtime * 1000 < before_ms:
                shutil.rmtree(folder, ignore_errors=True)

    def duties_lock(self) -> Flock:
        """The lock whose holder is this node's supervisor."""
        return Flock(self._root / "supervisor" / "lock")

    def clean_tmp(self) -> None:
        """Drop half-done downloads of the past (S2.10)."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.tmp.mkdir(mode=0o700, exist_ok=True)

    def worker_state(self, port: int) -> LocalState:
        """Records of a port that outlive its slot process: launches, and the worker's local
        heartbeat (S2.7).
        """
        return LocalState(self.workers / f"{port}.json")

    def seen_versions(self, port: int) -> LocalState:
        """Versions of assignments that the slot of that port has seen."""
        return LocalState(self.workers / f"{port}.seen.json")

    def early_log(self, port: int) -> Path:
        """Return the log of a worker process of that port before it has its own."""
        return self.workers / f"{port}.early.log"

    def try_claim(self, port: int) -> Flock | None:
        """Take a port for this process; None when another slot has it."""
        with self._claiming():
            lock = self._port_lock(port)
            return lock if lock.try_take() else None

    def ports(self) -> list[int]:
        """Every port that a slot has ever claimed here, ascending."""
        return sorted(
            int(path.stem) for path in self.workers.glob("*.lock") if path.stem.isdecimal()
        )

    def live_ports(self, own: int) -> list[int]:
        """Ports that a living slot holds; `own` is this process's."""
        with self._claiming():
            return [port for port in self.ports() if port == own or self._is_held(port)]

    def _is_held(self, port: int) -> bool:
        lock = self._port_lock(port)
        taken = lock.try_take()
        lock.release()
        return not taken

    def _port_lock(self, port: int) -> Flock:
        return Flock(self.workers / f"{port}.lock")

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """Keep claims and looks at them apart: a look takes the lock for a moment."""
        fd = os.open(self.workers / "claims.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
