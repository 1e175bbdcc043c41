"""Owns what a slot and its worker child say to each other after the spec: JSON lines, one frozen record per kind.

Down the control pipe go commands (`SetStatus`, `SetLogLevels`, `Stop`); up the status pipe go reports. A line that is no known
record is refused by name, never guessed at, so a user's stray write cannot steer a slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeAlias

from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.requests import LOG_LEVELS

MAX_LINE_BYTES = 1024 * 1024
HUNG: Final = "hung"
"""First word of a ComponentError that a silent child sends when its slot asks where it hangs."""


class ExitCode(IntEnum):
    """Why a worker child ended, where it could still say so; a negative code is the signal that killed it."""

    STOPPED = 0
    CRASHED = 1
    FAILED_START = 20
    FENCED = 21
    STORE_LOST = 22
    RELOAD = 23
    ORPHANED = 24
    BAD_SPEC = 25
    DAMAGED = 26  # the topology's data in Redis cannot be used; another start finds the same


@dataclass(frozen=True, slots=True)
class SetStatus:
    """The topology is now ACTIVE or INACTIVE: spouts go on or rest."""

    status: str


@dataclass(frozen=True, slots=True)
class SetLogLevels:
    """Set these levels by logger; loggers that are not named get back the levels that they had."""

    levels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stop:
    """End after the current epoch, cleaning up components; the slot waits a few seconds, then kills."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Every component is open or prepared and the loop is about to run its first epoch."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The loop turned; `stats` is what the worker wants Nimbus to know (it rides in the worker's heartbeat)."""

    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trying:
    """Careful mode: the next commit holds this one input row; should the child die now, the row is the suspect."""

    task: int
    entry: str
    row: int


@dataclass(frozen=True, slots=True)
class Passed:
    """Careful mode is over: no row is under suspicion, later deaths are anybody's."""


@dataclass(frozen=True, slots=True)
class ComponentError:
    """User code raised, or a row was parked; becomes a record under errors/<topology>/<component>."""

    component: str
    task: int
    text: str


@dataclass(frozen=True, slots=True)
class Exiting:
    """The child's last words: its exit code and one sentence."""

    code: int
    reason: str


WorkerCommand: TypeAlias = SetStatus | SetLogLevels | Stop
WorkerReport: TypeAlias = Ready | Beat | Trying | Passed | ComponentError | Exiting

_COMMAND_BY_NAME: Final[dict[str, type]] = {"status": SetStatus, "log": SetLogLevels, "stop": Stop}
_REPORT_BY_NAME: Final[dict[str, type]] = {
    "ready": Ready, "beat": Beat, "trying": Trying, "passed": Passed, "error": ComponentError, "exit": Exiting,
}  # fmt: skip
_FIELDS: Final[dict[type, dict[str, type]]] = {
    SetStatus: {"status": str},
    SetLogLevels: {"levels": dict},
    Stop: {},
    Ready: {},
    Beat: {"stats": dict},
    Trying: {"task": int, "entry": str, "row": int},
    Passed: {},
    ComponentError: {"component": str, "task": int, "text": str},
    Exiting: {"code": int, "reason": str},
}


def encode_command(command: WorkerCommand) -> bytes:
    """One line, newline included."""
    return _encode("do", _COMMAND_BY_NAME, command)


def decode_command(line: bytes) -> WorkerCommand:
    """InvalidConfigError when the line is no command."""
    command: WorkerCommand = _decode("do", _COMMAND_BY_NAME, line)
    if isinstance(command, SetStatus) and command.status not in ("ACTIVE", "INACTIVE"):
        raise InvalidConfigError(f"control line: status {command.status!r} is neither ACTIVE nor INACTIVE")
    if isinstance(command, SetLogLevels) and not set(command.levels.values()) <= {*LOG_LEVELS}:
        raise InvalidConfigError(f"control line: levels {str(command.levels)[:80]} are not among {', '.join(LOG_LEVELS)}")
    return command


def encode_report(report: WorkerReport) -> bytes:
    """One line, newline included."""
    return _encode("type", _REPORT_BY_NAME, report)


def decode_report(line: bytes) -> WorkerReport:
    """InvalidConfigError when the line is no report."""
    report: WorkerReport = _decode("type", _REPORT_BY_NAME, line)
    return report


def _encode(tag: str, kind_by_name: Mapping[str, type], record: Any) -> bytes:
    name = next(name for name, kind in kind_by_name.items() if kind is type(record))
    return json.dumps({tag: name, **asdict(record)}, separators=(",", ":")).encode() + b"\n"


def _decode(tag: str, kind_by_name: Mapping[str, type], line: bytes) -> Any:
    try:
        fields = json.loads(line)
        kind = kind_by_name[fields.pop(tag)]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InvalidConfigError(f"worker line is no known record: {line[:80]!r}") from None
    wanted = _FIELDS[kind]
    if fields.keys() != wanted.keys():
        raise InvalidConfigError(f"worker line {kind.__name__}: fields {sorted(fields)} are not {sorted(wanted)}")
    for name, type_ in wanted.items():
        if type(fields[name]) is not type_:
            raise InvalidConfigError(f"worker line {kind.__name__}: {name!r} is not a {type_.__name__}")
    return kind(**fields)
