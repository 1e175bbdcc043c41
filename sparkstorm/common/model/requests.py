"""Requests that clients make of Nimbus, their outcomes, and the rules that make a request legal.
PURE.

A request is a record under nimbus/requests/<id>; its outcome is a record under
nimbus/outcomes/<id>. Both are signed. The first *create* of the outcome decides: Nimbus accepts or
refuses, or the client withdraws, and never both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError
from sparkstorm.common.model.assignment import (
    ExecutorId,
    Movement,
    TopologyBase,
    WorkerSlot,
    movement,
)
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import validate_name
from sparkstorm.common.model.upgrade import UpgradeOptions

_ID = re.compile(r"[0-9a-f]{32}")
_NUMBERS = re.compile(r"-\d{1,19}-\d{1,19}", re.ASCII)
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_WAIT_MS = 365 * 24 * 3600 * 1000
_MOST_HOST_CHARS = 253  # of a name in the DNS
_MOST_REASON_CHARS = 200


class RequestKind(StrEnum):
    """Kinds of requests; UPDATE is a hot deploy, UPGRADE the first batch of a gray upgrade,
    CONTINUE_UPGRADE the next one.
    """

    SUBMIT = "SUBMIT"
    UPDATE = "UPDATE"
    KILL = "KILL"
    ACTIVATE = "ACTIVATE"
    DEACTIVATE = "DEACTIVATE"
    REBALANCE = "REBALANCE"
    RESTART_WORKER = "RESTART_WORKER"
    SET_LOG_LEVEL = "SET_LOG_LEVEL"
    UPGRADE = "UPGRADE"
    CONTINUE_UPGRADE = "CONTINUE_UPGRADE"
    COMPLETE_UPGRADE = "COMPLETE_UPGRADE"
    ROLLBACK_UPGRADE = "ROLLBACK_UPGRADE"
    DRAIN_HOST = "DRAIN_HOST"
    EXCLUDE_HOST = "EXCLUDE_HOST"
    INCLUDE_HOST = "INCLUDE_HOST"

    @property
    def verb(self) -> str:
        """The verb of `sparkstorm` that makes it."""
        first, _, second = self.lower().partition("_")
        if second == "upgrade":
            return f"upgrade {first}"
        if self in HOST_KINDS:
            return f"hosts {first}"
        return {
            "upgrade": "upgrade start",
            "restart_worker": "restart",
            "set_log_level": "log-level",
        }.get(self.lower(), first)


_WITH_TOPOLOGY = (RequestKind.SUBMIT, RequestKind.UPDATE, RequestKind.UPGRADE)
HOST_KINDS = (RequestKind.DRAIN_HOST, RequestKind.EXCLUDE_HOST, RequestKind.INCLUDE_HOST)


class OutcomeState(StrEnum):
    """State of a request; all but ACCEPTED are final."""

    ACCEPTED = "ACCEPTED"
    DONE = "DONE"
    REFUSED = "REFUSED"
    WITHDRAWN = "WITHDRAWN"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class LogLevel:
    """Level of one logger in a topology's workers ("" resets it); a timeout of 0 lasts until the
    next change.
    """

    level: str
    timeout_ms: int = 0
    until_ms: int = 0  # set by Nimbus: when the timeout is over; 0 for never


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Log levels of a topology's workers by logger; "" is the root logger (Storm's LogConfig)."""

    topology_id: str
    levels: Mapping[str, LogLevel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmittedOutline:
    """A new topology's outline as its own blob: the id makes its address differ from that of
    any other topology.
    """

    topology_id: str
    outline: TopologyOutline


@dataclass(frozen=True, slots=True)
class HostMark:
    """Mark of an excluded host, which gets no new workers; the workers of a drained one also leave.
    `by` is the client.
    """

    is_drained: bool
    since_ms: int
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HostMarks:
    """Excluded and drained hosts by name; a host has the nodes of all drivers on it."""

    by_host: Mapping[str, HostMark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Placement before and after a rebalance, of a dry run; `slots` are those that the topology can
    have.
    """

    topology_id: str
    before: Mapping[ExecutorId, WorkerSlot]
    after: Mapping[ExecutorId, WorkerSlot]
    unplaced: tuple[ExecutorId, ...] = ()
    wanted_workers: int = 0
    slots: int = 0

    @property
    def given_workers(self) -> int:
        """Number of workers after the rebalance."""
        return len(set(self.after.values()))

    @property
    def shortfall(self) -> str:
        """Reason for which fewer workers are given than wanted; empty when they are not fewer."""
        given = self.given_workers
        executors = len(self.after) + len(self.unplaced)
        if given >= self.wanted_workers:
            return ""
        if given == executors:
            return f"it has {counted(executors, 'executor')}"
        return (
            f"{self.slots} slots are there for it"
            if given >= self.slots
            else f"its scheduler takes {given} of {self.slots} slots"
        )

    @property
    def movement(self) -> Movement:
        """Executors that stay, move and end."""
        return movement(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client; fields that its kind does not use keep their defaults."""

    id: str  # 32 hex digits, drawn by the client
    kind: RequestKind
    name: str  # of the topology; "" for a request about a host
    created_ms: int
    expires_ms: int  # not carried out when no Nimbus has accepted it by then
    # SUBMIT, UPDATE: the new one; others: the one that is meant, "" for the one with the name
    topology_id: str = ""
    client: str = ""  # "user@host:pid", to be shown
    # SUBMIT, UPDATE; UPGRADE: the running topology with the new code and configuration
    base: TopologyBase | None = None
    outline_key: str = ""  # with a base: blob of the SubmittedOutline
    has_state: bool = False  # SUBMIT: initial state lies in Redis under the new id
    wait_ms: int | None = None  # KILL, REBALANCE; None for the topology's message timeout
    rebalance: RebalanceOptions | None = None  # REBALANCE
    is_plan: bool = False  # REBALANCE, DRAIN_HOST: a dry run
    slot: WorkerSlot | None = None  # RESTART_WORKER; None for all workers
    log_levels: Mapping[str, LogLevel] = field(default_factory=dict)  # SET_LOG_LEVEL
    upgrade: UpgradeOptions | None = None  # UPGRADE, CONTINUE_UPGRADE: choice of the batch
    # UPGRADE: also when the code before cannot read the state of the new one
    is_forced: bool = False
    host: str = ""  # DRAIN_HOST, EXCLUDE_HOST, INCLUDE_HOST
    reason: str = ""  # DRAIN_HOST, EXCLUDE_HOST: to be shown

    @property
    def subject(self) -> str:
        """Return the name of the topology or host that it is about."""
        return self.host or self.name

    def blob_keys(self) -> set[str]:
        """Keys of the blobs that it needs."""
        return {self.base.code_key, self.base.conf_key, self.outline_key} if self.base else set()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a request; `step` is its progress in one sentence, `error_kind` the class of a
    SparkStormError.
    """

    id: str
    state: OutcomeState
    time_ms: int
    topology_id: str = ""
    step: str = ""
    error_kind: str = ""
    error: str = ""
    plan: RebalancePlan | None = None
    plans: tuple[RebalancePlan, ...] = ()  # of a drain: the topologies that would change

    @property
    def is_final(self) -> bool:
        """Return whether nothing will change any more."""
        return self.state is not OutcomeState.ACCEPTED


@dataclass(frozen=True, slots=True)
class Problems:
    """Nimbus's problems: sentences by topology id or name, "scheduler" or "turn"."""

    time_ms: int
    by_subject: Mapping[str, str] = field(default_factory=dict)


def is_request_id(text: str) -> bool:
    """Return whether it has the form of a request's id."""
    return _ID.fullmatch(text) is not None


def topology_name(topology_id: str) -> str:
    """Return the name in a topology's id: all but its two numbers."""
    return topology_id.rsplit("-", 2)[0]


def check_request(request: Request, request_id: str) -> None:
    """Refuse a request that no client of this release writes; InvalidTopologyError or
    InvalidConfigError names the field.
    """
    where = f"request {request_id}"
    if request.id != request_id or not is_request_id(request_id):
        raise InvalidConfigError(f"{where}: its record is that of request {request.id[:60]!r}")
    if request.kind in HOST_KINDS:
        check_host(request.host, request.reason)
    if (request.kind in HOST_KINDS) == bool(request.name) or (request.kind in HOST_KINDS) != bool(
        request.host
    ):
        raise InvalidConfigError(
            f"{where}: {request.kind} of topology {request.name[:60]!r} and host {request.host[:60]!r}"
        )
    if request.name:
        validate_name(request.name)
    if request.topology_id and not is_id_of(request.topology_id, request.name):
        raise InvalidTopologyError(
            f"{where}: {request.topology_id[:200]!r} is no id of a topology named {request.name}"
        )
    if not 0 <= request.created_ms <= request.expires_ms:
        raise InvalidConfigError(
            f"{where}: it expires at {request.expires_ms}, before it was made at {request.created_ms}"
        )
    if request.wait_ms is not None and request.wait_ms > MAX_WAIT_MS:
        raise InvalidConfigError(f"{where}: a wait of {request.wait_ms} ms is longer than a year")
    if (request.base is not None) != (request.kind in _WITH_TOPOLOGY):
        raise InvalidTopologyError(
            f"{where}: {request.kind} with {'a' if request.base else 'no'} topology"
        )
    if request.base is not None:
        _check_base(request, request.base, where)
    if request.upgrade is not None:
        check_upgrade(request.name, request.upgrade)
    if request.kind is RequestKind.SET_LOG_LEVEL:
        check_log_levels(request.name, request.log_levels)


def is_id_of(topology_id: str, name: str) -> bool:
    """Return whether it is the id of a topology of that name."""
    return topology_id.startswith(name) and _NUMBERS.fullmatch(topology_id[len(name) :]) is not None


def _check_base(request: Request, base: TopologyBase, where: str) -> None:
    if (base.topology_id, base.name) != (
        request.topology_id,
        request.name,
    ) or not request.topology_id:
        raise InvalidTopologyError(
            f"{where}: it is about {request.topology_id!r}, its base about {base.topology_id[:200]!r}"
        )
    if (
        base.status not in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)
        or base.pending
        or base.previous_status
    ):
        raise InvalidTopologyError(
            f"topology {base.name} cannot start as {base.status}, only ACTIVE or INACTIVE"
        )
    numbers = (base.num_workers, *base.executors_by_component.values())
    if min(numbers) < 1 or not all((base.code_key, base.conf_key, request.outline_key)):
        raise InvalidTopologyError(f"{where}: its base lacks workers, executors or blobs")


def check_upgrade(name: str, options: UpgradeOptions) -> None:
    """InvalidConfigError for a choice of no worker, or of a negative number."""
    if options.worker_num < 0:
        raise InvalidConfigError(
            f"upgrade of {name}: {options.worker_num} workers; a number from 0 on is needed"
        )
    if not options.workers and not options.component and not options.worker_num:
        raise InvalidConfigError(
            f"upgrade of {name}: no workers are chosen for this batch; give --num N, --workers NODE:PORT or --component ID "
            "(topology.upgrade.worker.num, .workers, .component; in Python worker_num, workers, component)"
        )


def check_host(host: str, reason: str = "") -> None:
    """InvalidConfigError for a text that is no host's name, or a reason that is too long or not one
    line.
    """
    if not isinstance(host, str) or not 0 < len(host) <= _MOST_HOST_CHARS or not host.isprintable():
        raise InvalidConfigError(
            f"{host!r:.60} is no host's name; `sparkstorm hosts` lists the hosts"
        )
    if not isinstance(reason, str) or len(reason) > _MOST_REASON_CHARS or not reason.isprintable():
        raise InvalidConfigError(
            f"host {host}: the reason {reason!r:.60} is not one line of at most {_MOST_REASON_CHARS} characters"
        )


def check_log_levels(name: str, levels: Mapping[str, LogLevel]) -> None:
    """InvalidConfigError for a level that Python's logging does not know, or an impossible
    timeout.
    """
    if not levels:
        raise InvalidConfigError(f"log levels of {name}: none is given; give a level by logger")
    for logger, wanted in levels.items():
        if wanted.level not in ("", *LOG_LEVELS):
            raise InvalidConfigError(
                f"log levels of {name}: {logger!r:.60} to {wanted.level!r:.60}; use one of {', '.join(LOG_LEVELS)}"
            )
        if not 0 <= wanted.timeout_ms <= MAX_WAIT_MS:
            raise InvalidConfigError(
                f"log levels of {name}: {f'logger {logger!r:.60}' if logger else 'the root logger'} for {wanted.timeout_ms} ms; "
                "a time from 0 (no end) to a year is needed"
            )
