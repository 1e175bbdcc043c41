"""Owns the order a slot gives to its worker child: the first line of the control pipe, one strictly read JSON object.

The child trusts nothing else: no environment variable, no argument and no file names it a secret or a task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.errors import StoreInconsistentError
from sparkstorm.model.assignment import ExecutorId
from sparkstorm.model.records import decode_record, encode_record
from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.model.status import JsonValue

MAX_SPEC_BYTES = 16 * 1024 * 1024
_LAUNCH_BITS = 32  # with versions below 2**21 tokens stay below 2**53: scripts in the store compare them as doubles


@dataclass(frozen=True, slots=True)
class PlacedExecutor:
    """One executor and the assignment version in which Nimbus placed it here: the major part of its fence token."""

    executor: ExecutorId
    placed_version: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """An input row (of one frame of one task's stream) in whose processing worker children have died, and how many."""

    task: int
    entry_id: str
    row: int
    deaths: int


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker child needs: which tasks, at which fence, where the stores are, what has killed it before.

    `launch` grows with every child started for this (node, port), also over restarts of the slot process: it is the
    minor part of a fence token. `careful` asks for one input row per commit, each announced by a `Trying` report,
    because an earlier child died inside an epoch. `code_path` is the code blob on this host's disk, whose signature the
    slot has checked; between that check and the unpickling somebody may have written to the disk, so the worker checks
    that its sha256 is `code_key`, which comes through a private pipe.
    """

    topology_id: str
    node: str
    port: int
    host: str
    launch: int
    assignment_version: int
    executors: tuple[PlacedExecutor, ...]
    component_by_task: Mapping[int, str]
    conf: Mapping[str, JsonValue]
    code_key: str
    conf_key: str
    redis: RedisAddress
    log_path: str
    hmac_key: str = field(default="", repr=False)
    status: str = "ACTIVE"
    code_path: str = ""
    careful: bool = False
    suspects: tuple[Suspect, ...] = ()

    def tasks(self) -> list[int]:
        """The task ids this worker owns, ascending."""
        return sorted(task for placed in self.executors for task in placed.executor.tasks)

    def token_by_task(self) -> dict[int, int]:
        """Fence token of each task: higher for a later placement, then for a later launch."""
        launch = min(self.launch, (1 << _LAUNCH_BITS) - 1)
        return {
            task: (placed.placed_version << _LAUNCH_BITS) | launch for placed in self.executors for task in placed.executor.tasks
        }

    def to_json(self) -> bytes:
        """One line of JSON without its newline; `from_json` is its inverse."""
        return encode_record(self)

    @classmethod
    def from_json(cls, line: bytes) -> "WorkerSpec":
        """Read a spec back; StoreInconsistentError names the first field that is missing, unknown or mistyped."""
        if len(line) > MAX_SPEC_BYTES:
            raise StoreInconsistentError(f"worker spec: longer than {MAX_SPEC_BYTES} bytes")
        return decode_record(cls, line, "worker spec")
