"""Seams of a supervisor: its node's storage, and a slot's worker process.

Laws of NodeStorage: a lock has one holder at most and is free once its holder's process is dead;
records and code outlive processes; a record is never seen half written. Laws of WorkerProcess: no
method blocks; reports that were made before a death are readable after it; `poll_exit` returns an
exit code only when nothing of the process runs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from sparkstorm.common.model.worker_messages import WorkerCommand, WorkerReport
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.control_plane.blobs.named import BlobUse
from sparkstorm.control_plane.supervisor.worker_memory import Usage

RecordT = TypeVar("RecordT")


class Lock(Protocol):
    """An exclusive lock that ends with its process at the latest."""

    @property
    def is_held(self) -> bool:
        """Return whether this object holds it."""

    def try_take(self) -> bool:
        """Take the lock if it is free; return whether this object holds it afterwards."""

    def release(self) -> None:
        """Release it."""


class LocalRecords(Protocol):
    """A small map of records that is replaced as a whole (S2.12)."""

    @property
    def path(self) -> Path:
        """Path, for messages."""

    def get(self, name: str, kind: type[RecordT]) -> RecordT | None:
        """The record of that name, None when there is none; StoreInconsistentError when the file is
        damaged.
        """

    def put(self, name: str, record: object) -> None:
        """Set one record; a damaged file is replaced."""


class NodeStorage(Protocol):
    """Storage of a node on its host: claims on ports, the lock of the supervisor's duties, local
    records, code of topologies.
    """

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def local_state(self) -> LocalRecords:
        """Records of the supervisor."""

    def duties_lock(self) -> Lock:
        """The lock whose holder is this node's supervisor."""

    def clean_tmp(self) -> None:
        """Drop half-done downloads of the past (S2.10)."""

    def worker_state(self, port: int) -> LocalRecords:
        """Records of a port that outlive its slot process: launches, and the worker's local
        heartbeat (S2.7).
        """

    def seen_versions(self, port: int) -> LocalRecords:
        """Versions of assignments that the slot of that port has seen."""

    def try_claim(self, port: int) -> Lock | None:
        """Take a port for this process; None when another slot has it."""

    def ports(self) -> list[int]:
        """Every port that a slot has ever claimed here, ascending."""

    def live_ports(self, own: int) -> list[int]:
        """Ports that a living slot holds; `own` is this process's."""

    def keep_code(
        self, topology_id: str, key: str, port: int, now_ms: int, fetch: Callable[[str], bytes]
    ) -> Path:
        """Return the path of a topology's blob, fetched unless a whole copy is there (S2.27,
        S2.30); mark the topology as used.
        """

    def read_code(self, path: Path) -> bytes | None:
        """A blob that was kept; None when it is gone."""

    def has_code(self, path: Path) -> bool:
        """Return whether a blob that was kept is there still."""

    def keep_blob(
        self, topology_id: str, use: BlobUse, key: str, fetch: Callable[[str], bytes]
    ) -> Path:
        """Make a version of a blob the newest one in the topology's folder of blobs, and return
        that folder.
        """

    def forget_code(self, kept_ids: Iterable[str], before_ms: int) -> None:
        """Remove the code of all other topologies that was last used before a moment (S2.31)."""


class WorkerProcess(Protocol):
    """One worker process as its slot sees it."""

    @property
    def pid(self) -> int:
        """Process id."""

    def filenos(self) -> list[int]:
        """Descriptors that are readable when there are reports, or when the process is dead."""

    def give(self, spec: WorkerSpec) -> None:
        """Turn a spare into the worker of that spec."""

    def order(self, command: WorkerCommand) -> None:
        """Send a command."""

    def poll_reports(self) -> list[WorkerReport]:
        """Return the reports of the process since the last call."""

    def poll_exit(self) -> int | None:
        """The exit code (negative: the signal) once the process is dead."""

    def dump_stacks(self) -> None:
        """Ask where it hangs; only for a process that has had its spec."""

    def kill(self) -> None:
        """Send SIGKILL to everything that the process started."""

    def close(self) -> None:
        """Kill what still lives and give everything back."""

    def usage(self) -> Usage | None:
        """Return the memory and CPU that the process uses; None when that cannot be known."""

    def oom_kills(self) -> int:
        """Return how many processes around it the kernel has killed for lack of memory so far; 0
        when that cannot be known.
        """

    def rotate_log(self, cap_bytes: int) -> bool:
        """Move a log that outgrew its cap aside; True if it did."""

    def last_lines(self, has_crashed: bool = False) -> list[str]:
        """The end of its log, or the crash report of a process that `has_crashed`."""


SpawnWorker = Callable[[], WorkerProcess]
"""Starts a worker process without a spec; OSError when the machine refuses."""


class LogSink(Protocol):
    """Publisher of the last lines of a slot's worker log."""

    def step(self, topology_id: str, now_ms: int, store: str = "") -> None:
        """Publish new lines of that topology's worker in the store of that name, if it is time
        to.
        """

    def publish(self, topology_id: str) -> bool:
        """Publish new lines now; return False when the store did not take them."""

    def close(self) -> None:
        """Release the connection."""
