"""WorkerSpec: the specification of a worker process, the first line of the control pipe from its
slot (strict JSON).

Tasks and secrets come from this line only, not from environment variables, arguments or files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.status import ADDED_LATER, JsonValue
from sparkstorm.common.model.strict import UnfitValueError, read_as
from sparkstorm.common.tls import NO_FILES, TlsFiles

MAX_SPEC_BYTES = 16 * 1024 * 1024
# with versions below 2**21 tokens stay below 2**53: scripts in the store compare them as doubles
_LAUNCH_BITS = 32
# A Sentinel answers from memory. Half would pass one over on a busy host; double adds itself to a
# fail-over for each Sentinel that died with the primary's host.
_SENTINEL_ANSWER_S = 1.0
MOST_LOSSES = 5
"""Sentences about losses that a mark keeps: the newest."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address and credentials of a Redis; an empty password or user means none. A repr does not
    show the password.

    `name` distinguishes the stores of a cluster; the only store of a cluster has none. With
    `master` it is the primary of that name among the servers that the Sentinels at `sentinels`
    ("host:port") watch; `host` and `port` are then the first Sentinel's. With `nodes` ("host:port")
    it is the Redis Cluster that they belong to; `host` and `port` are then the first node's.
    """

    host: str
    port: int
    password: str = field(default="", repr=False)
    user: str = ""
    db: int = 0
    tls: bool = False
    tls_files: TlsFiles = field(default=NO_FILES, metadata=ADDED_LATER)
    name: str = field(default="", metadata=ADDED_LATER)
    master: str = field(default="", metadata=ADDED_LATER)
    sentinels: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    sentinel_password: str = field(default="", repr=False, metadata=ADDED_LATER)
    nodes: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)

    @property
    def place(self) -> str:
        """Return the place of this store for messages."""
        if self.nodes:
            return f"the cluster of {', '.join(self.nodes)}"
        return (
            f"{self.master} of the Sentinels at {', '.join(self.sentinels)}"
            if self.master
            else f"{self.host}:{self.port}"
        )

    def sentinel_hosts(self) -> list[tuple[str, int]]:
        """Return host and port of each Sentinel."""
        return _hosts(self.sentinels)

    def node_hosts(self) -> list[tuple[str, int]]:
        """Return host and port of each configured node of a cluster."""
        return _hosts(self.nodes)

    def sentinel_options(self) -> dict[str, Any]:
        """Return redis-py's options for connections to the Sentinels."""
        limits = {
            "socket_timeout": _SENTINEL_ANSWER_S,
            "socket_connect_timeout": _SENTINEL_ANSWER_S,
        }
        return {
            "password": self.sentinel_password or None,
            "ssl": self.tls,
            **limits,
            **self.tls_options(),
        }

    def tls_options(self) -> dict[str, Any]:
        """Return redis-py's options for `tls`; InvalidConfigError names a file that this host
        cannot use.
        """
        return self.tls_files.for_redis() if self.tls else {}


def _hosts(places: Sequence[str]) -> list[tuple[str, int]]:
    parts = [place.rpartition(":") for place in places]
    return [(host.strip("[]"), int(port)) for host, _, port in parts]


@dataclass(frozen=True, slots=True)
class RedisStores:
    """Redis servers of a cluster: the home store, which also holds the code of all topologies, and
    the others.

    Each topology has all its data in one of them, which its base names (`TopologyBase.store`). The
    home store is also the one of topologies whose base names none: those of a cluster with one
    store, and of earlier versions.
    """

    home: RedisAddress
    others: tuple[RedisAddress, ...] = ()

    def all(self) -> tuple[RedisAddress, ...]:
        """Return the stores in the order of the configuration, the home store first."""
        return (self.home, *self.others)

    def of(self, topology_id: str, store: str) -> RedisAddress:
        """Return the store of that name; StoreInconsistentError when there is none, in words about
        the topology.
        """
        if store in ("", self.home.name):
            return self.home
        for other in self.others:
            if other.name == store:
                return other
        raise unknown_store(topology_id, store, [address.name for address in self.all()])


def unknown_store(topology_id: str, store: str, names: Sequence[str]) -> StoreInconsistentError:
    """Return the error of a topology whose store is not among the known ones."""
    there = ", ".join(name for name in names if name) or "one store without a name"
    return StoreInconsistentError(
        f"the data of {topology_id} are in the store {store!r}, which is not known here ({there}): put it back into "
        "sparkstorm.redis.urls under that name and start the driver again; a client needs the cluster's present connection.json"
    )


@dataclass(frozen=True, slots=True)
class StoreMark:
    """Newest known state of a topology's data in the store, as a worker, its slot or ZooKeeper has
    it.

    `incarnation` is a random id; it and `generation` change whenever the store was found to have
    lost writes. `step` numbers the newest write that is known, `time_ms` is its time. `floor`
    numbers the newest known write that was at least `topology.store.tail.secs` older: a store that
    lacks it has lost more than its tail. `losses` are sentences.
    """

    incarnation: str
    generation: int
    step: int
    time_ms: int
    floor: int = 0
    losses: tuple[str, ...] = ()

    def with_loss(self, text: str) -> "StoreMark":
        """Return the mark with one loss more."""
        return replace(self, losses=(*self.losses, text)[-MOST_LOSSES:])


@dataclass(frozen=True, slots=True)
class PlacedExecutor:
    """Executor with the assignment version that placed it here: the major part of its fence
    token.
    """

    executor: ExecutorId
    placed_version: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """Input row (of a frame of a task's stream) during which worker processes have died, how many,
    and the end of the last.
    """

    task: int
    entry_id: str
    row: int
    deaths: int
    end: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Start parameters of a worker process: its tasks, fence tokens, stores, and rows that may kill
    it.

    `launch` grows with every process that is started for this (node, port), also over restarts of
    the slot: it is the minor part of a fence token. `careful` asks for one input row per commit,
    each announced by a `Trying` report, because an earlier process died inside an epoch: so many of
    each bolt, 0 for none.
    `code_path` is the code blob on this host's disk, whose signature the slot has checked. The file
    may change between that check and the unpickling, so the worker checks that its sha256 is
    `code_key`, which comes through a private pipe. `cpus` are the CPUs that the process may use;
    empty: all. `store_mark` is what is known of the topology's store, which may have lost data
    since. In `blobs_folder` are the blobs of `topology.blobstore.map`; empty: it has none. `cells`
    are the stores of all cells of a topology that lies in several, in order, and `cell` is the one
    of this worker's tasks, whose store `redis` is.
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
    status: str = "ACTIVE"
    activations: int = 0
    code_path: str = ""
    careful: int = 0
    suspects: tuple[Suspect, ...] = ()
    cpus: tuple[int, ...] = ()
    store_mark: StoreMark | None = None
    blobs_folder: str = field(default="", metadata=ADDED_LATER)
    cell: int = field(default=0, metadata=ADDED_LATER)
    cells: tuple[RedisAddress, ...] = field(default=(), metadata=ADDED_LATER)

    def tasks(self) -> list[int]:
        """Return the task ids of this worker, ascending."""
        return sorted(task for placed in self.executors for task in placed.executor.tasks)

    def token_by_task(self) -> dict[int, int]:
        """Fence token of each task: higher for a later placement, then for a later launch."""
        launch = min(self.launch, (1 << _LAUNCH_BITS) - 1)
        return {
            task: (placed.placed_version << _LAUNCH_BITS) | launch
            for placed in self.executors
            for task in placed.executor.tasks
        }

    def to_json(self) -> bytes:
        """Return one line of JSON without its newline; `from_json` is its inverse."""
        return encode_record(self)

    @classmethod
    def from_json(cls, line: bytes) -> "WorkerSpec":
        """Return the spec of a line; StoreInconsistentError names the first field that is missing,
        unknown or mistyped.
        """
        if len(line) > MAX_SPEC_BYTES:
            raise StoreInconsistentError(f"worker spec: longer than {MAX_SPEC_BYTES} bytes")
        return decode_record(cls, line, "worker spec")


@dataclass(frozen=True, slots=True)
class CellMarks:
    """Marks of the stores of a topology's cells, but the first, whose mark is a record alone."""

    by_cell: Mapping[int, StoreMark] = field(default_factory=dict)

    def with_mark(self, cell: int, mark: StoreMark) -> "CellMarks":
        """Return what is known with one more witness."""
        newer = newer_mark(self.by_cell.get(cell), mark)
        return self if newer is None else CellMarks({**self.by_cell, cell: newer})


def newer_mark(one: StoreMark | None, other: StoreMark | None) -> StoreMark | None:
    """Return what two witnesses know together."""
    if one is None or other is None:
        return one or other
    last, before = (
        (one, other)
        if (one.generation, one.step) >= (other.generation, other.step)
        else (other, one)
    )
    losses = tuple(dict.fromkeys((*before.losses, *last.losses)))[-MOST_LOSSES:]
    return replace(last, floor=max(last.floor, min(before.floor, last.step)), losses=losses)


def read_mark(fields: object) -> StoreMark | None:
    """Return a mark from a worker's statistics; None when it is none."""
    try:
        return read_as(StoreMark, fields, needs_all=True)
    except UnfitValueError:
        return None
