"""Owns the order a slot gives to its worker child: the first line of the control pipe, one JSON object, checked field by field.

The child trusts nothing else: no environment variable, no argument, no file names it a secret or a task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparkstorm.errors import InvalidConfigError

_T = TypeVar("_T")

SPEC_VERSION = 1
MAX_SPEC_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlacedExecutor:
    """One executor (an inclusive range of task ids) and the assignment version in which Nimbus placed it here."""

    first_task: int
    last_task: int
    placed_version: int

    def tasks(self) -> range:
        return range(self.first_task, self.last_task + 1)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An input row in whose processing worker children have died, and how many of them."""

    task: int
    entry_id: str
    row: int
    deaths: int


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where the topology's streams live; the password never shows in a repr."""

    host: str
    port: int
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker child needs: which tasks, at which fence, where the stores are, what has killed it before.

    `launch` grows with every child started for this (node, port), also over restarts of the slot process; an owner's fence
    token is made of an executor's `placed_version` and this number. `careful` asks for one input row per commit, each announced
    by a `Trying` message, because an earlier child died inside an epoch. `entry` is empty except in tests.
    """

    topology_id: str
    node: str
    port: int
    host: str
    launch: int
    executors: tuple[PlacedExecutor, ...]
    component_by_task: Mapping[int, str]
    conf: Mapping[str, Any]
    code_key: str
    redis: RedisAddress
    hmac_key: str = field(repr=False)
    log_path: str
    status: str = "ACTIVE"
    code_path: str = ""
    careful: bool = False
    suspects: tuple[Suspect, ...] = ()
    entry: str = ""

    def tasks(self) -> list[int]:
        """The task ids this worker owns, ascending."""
        return sorted(task for executor in self.executors for task in executor.tasks())

    def to_json(self) -> str:
        """One line of JSON; `from_json` is its inverse."""
        document = {
            "version": SPEC_VERSION,
            "topology_id": self.topology_id,
            "node": self.node,
            "port": self.port,
            "host": self.host,
            "launch": self.launch,
            "executors": [[e.first_task, e.last_task, e.placed_version] for e in self.executors],
            "component_by_task": {str(task): name for task, name in self.component_by_task.items()},
            "conf": dict(self.conf),
            "code_key": self.code_key,
            "redis": {"host": self.redis.host, "port": self.redis.port, "password": self.redis.password},
            "hmac_key": self.hmac_key,
            "log_path": self.log_path,
            "status": self.status,
            "code_path": self.code_path,
            "careful": self.careful,
            "suspects": [[s.task, s.entry_id, s.row, s.deaths] for s in self.suspects],
            "entry": self.entry,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSpec:
        """Read a spec back; InvalidConfigError names the first field that is missing or of a wrong type."""
        record = _parse_object(text)
        if record.get("version") != SPEC_VERSION:
            raise InvalidConfigError(f"worker spec: version {record.get('version')!r} is not {SPEC_VERSION}")
        redis = _take(record, "redis", _object)
        return cls(
            topology_id=_take(record, "topology_id", _text),
            node=_take(record, "node", _text),
            port=_take(record, "port", _integer),
            host=_take(record, "host", _text),
            launch=_take(record, "launch", _integer),
            executors=_take(record, "executors", _executors),
            component_by_task=_take(record, "component_by_task", _components),
            conf=_take(record, "conf", _object),
            code_key=_take(record, "code_key", _text),
            redis=RedisAddress(_take(redis, "host", _text), _take(redis, "port", _integer), _take(redis, "password", _text)),
            hmac_key=_take(record, "hmac_key", _text),
            log_path=_take(record, "log_path", _text),
            status=_take(record, "status", _text),
            code_path=_take(record, "code_path", _text),
            careful=_take(record, "careful", _flag),
            suspects=_take(record, "suspects", _suspects),
            entry=_take(record, "entry", _text),
        )


def _parse_object(text: str | bytes) -> dict[str, Any]:
    if len(text) > MAX_SPEC_BYTES:
        raise InvalidConfigError(f"worker spec: {len(text)} bytes is more than {MAX_SPEC_BYTES}")
    try:
        record = json.loads(text)
    except ValueError as fault:
        raise InvalidConfigError(f"worker spec: not JSON ({fault})") from None
    if not isinstance(record, dict):
        raise InvalidConfigError("worker spec: not a JSON object")
    return record


def _take(record: Mapping[str, Any], name: str, check: Callable[[Any], _T]) -> _T:
    if name not in record:
        raise InvalidConfigError(f"worker spec: field {name!r} is missing")
    try:
        return check(record[name])
    except (TypeError, ValueError) as fault:
        raise InvalidConfigError(f"worker spec: field {name!r}: {fault}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return value


def _rows(value: Any, width: int) -> list[list[Any]]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    for row in value:
        if not isinstance(row, list) or len(row) != width:
            raise TypeError(f"{row!r} is not a list of {width}")
    return value


def _executors(value: Any) -> tuple[PlacedExecutor, ...]:
    executors = tuple(PlacedExecutor(_integer(a), _integer(b), _integer(v)) for a, b, v in _rows(value, 3))
    for executor in executors:
        if not 0 < executor.first_task <= executor.last_task:
            raise ValueError(f"[{executor.first_task}, {executor.last_task}] is no range of task ids")
    return executors


def _suspects(value: Any) -> tuple[Suspect, ...]:
    return tuple(Suspect(_integer(t), _text(e), _integer(r), _integer(d)) for t, e, r, d in _rows(value, 4))


def _components(value: Any) -> dict[int, str]:
    return {int(task): _text(name) for task, name in _object(value).items()}
