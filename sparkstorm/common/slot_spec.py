"""Specification of a slot, pauses before its restarts, and the protocol of a worker's connection to
its slot.

Laws of `WorkerControl`: `poll` and `send` never block; a lost slot, or a line that is no command,
ends the worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.worker_messages import WorkerCommand, WorkerReport
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.tls import TlsFiles

FIRST_PORT = 6700
MOST_PORTS = 1000


@dataclass(frozen=True, slots=True)
class StateAddress:
    """Address of the cluster state in ZooKeeper; its password is not in the repr; `viewer` is the
    identity that may read.
    """

    hosts: str
    root: str = "/storm"
    user: str = ""
    password: str = field(default="", repr=False)
    session_timeout_ms: int = 20_000
    viewer: str = ""
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """Specification of a cluster's slots: addresses and secrets of the stores, folders,
    configuration.

    It travels to a Spark task by a one-time ticket (control_plane/cluster/tickets.py). `conf` holds no secret
    key: addresses and passwords are in `zookeeper`, `redis` (the home store) and `other_redis`.

    `nodes` are the emulated supervisors of each machine; when empty, the machine is one node under
    its own host name. A node has `slots_per_node` ports, or (0) as many as slots happen to land
    there: Spark places them, not we. The nodes of the driver with number n > 1 end in "@n": drivers
    that share a root have no node in common. A slot takes the first free (node, port), ports
    outermost, so that slots spread over the nodes. `local_dir` is made on every host, as `log_dir`
    is; "~" is the home of the user there. A node made at `stop_path` in the state store ends every
    slot gently; with a number as its content, the slot of that `number` if it has no worker.
    `hmac_key` is hexadecimal. `entry` ("module:function", empty outside tests) replaces the
    worker's runtime. `racks` are those of hosts, as far as known. `driver` is the address of Spark's
    driver ("HOST:PORT"), empty where slots are on its host.
    """

    zookeeper: StateAddress
    redis: RedisAddress
    local_dir: str
    log_dir: str
    slots_per_node: int = 0
    nodes: tuple[str, ...] = ()
    first_port: int = FIRST_PORT
    host: str = ""
    hmac_key: str = field(default="", repr=False)
    conf: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    stop_path: str = ""
    number: int = 0
    driver_number: int = 1
    entry: str = ""
    racks: Mapping[str, str] = field(default_factory=dict)
    other_redis: tuple[RedisAddress, ...] = ()
    driver: str = ""

    @property
    def stores(self) -> RedisStores:
        """All stores; `redis` is the home store."""
        return RedisStores(self.redis, self.other_redis)

    def ports(self) -> range:
        """The ports that a node may have."""
        return range(self.first_port, self.first_port + (self.slots_per_node or MOST_PORTS))

    def to_json(self) -> bytes:
        """One line of JSON without its newline; `from_json` is its inverse."""
        return encode_record(self)

    @classmethod
    def from_json(cls, line: bytes) -> "SlotSpec":
        """Read a spec back; StoreInconsistentError names the field that is wrong."""
        return decode_record(cls, line, "slot spec")


class RestartPause:
    """Pauses before a slot is launched again: none the first time, then doubling while it dies
    young.

    Young is a slot that has hardly come up. One that worked is no reason to wait, however often it
    is killed.
    """

    def __init__(self, first_ms: int = 200, longest_ms: int = 5_000, young_ms: int = 3_000) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._young_ms = young_ms
        self._young_deaths = 0

    def after_ms(self, lived_ms: int) -> int:
        """The pause after a slot that lived so long."""
        self._young_deaths = self._young_deaths + 1 if lived_ms < self._young_ms else 1
        doublings = min(self._young_deaths - 2, 20)
        return 0 if doublings < 0 else min(self._longest_ms, self._first_ms << doublings)


class WorkerControl(Protocol):
    """A worker's connection to its slot."""

    def poll(self) -> list[WorkerCommand]:
        """Commands that have arrived since the last call."""

    def send(self, report: WorkerReport) -> None:
        """Send a report to the slot."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` has something to give; -1 when there is
        none.
        """
