"""Messages between a slot and its worker process after the spec: JSON lines, one frozen record per
kind.

Commands go through the control pipe, reports through the status pipe. A line that is no known
record is an error, so that output of user code cannot control a slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final, TypeAlias

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.requests import LOG_LEVELS
from sparkstorm.common.model.strict import expected, named_errors, one_of, read_as

MAX_LINE_BYTES = 1024 * 1024


def _object(value: object) -> object:
    if not isinstance(value, dict):
        raise expected("an object", value)
    return value


_Object: TypeAlias = Annotated[Mapping[str, Any], _object]
_Level: TypeAlias = Annotated[str, one_of(LOG_LEVELS)]


class ExitCode(IntEnum):
    """Exit code of a worker process; a negative code is the signal that killed it."""

    STOPPED = 0
    CRASHED = 1
    FAILED_START = 20
    FENCED = 21
    STORE_LOST = 22
    RELOAD = 23
    ORPHANED = 24
    BAD_SPEC = 25
    DAMAGED = 26  # the topology's data in Redis cannot be used; a restart does not help
    MISTAKEN = 27  # a mistake of the job, as a topic that is not there; its sentence tells all


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Order to activate or deactivate the spouts: the topology is now ACTIVE or INACTIVE, after so
    many activations.
    """

    status: Annotated[str, one_of(("ACTIVE", "INACTIVE"))]
    activations: int = 0


@dataclass(frozen=True, slots=True)
class SetLogLevels:
    """Set these levels by logger; loggers that are not named get back the levels that they had."""

    levels: Mapping[str, _Level]


@dataclass(frozen=True, slots=True)
class SetShadow:
    """Order to run other code next to a task and to compare what both come to; task 0 ends it.

    The code is a blob on this host's disk, which the slot has checked; `conf` is the configuration
    that comes with it.
    """

    task: int
    code_path: str
    code_key: str
    conf: _Object = field(default_factory=dict)


INACTIVE: Final = SetStatus("INACTIVE")
NO_SHADOW: Final = SetShadow(0, "", "")


@dataclass(frozen=True, slots=True)
class Stop:
    """Order to end after the current epoch and clean up components; the slot kills the process
    after a few seconds.
    """


@dataclass(frozen=True, slots=True)
class Ready:
    """Report that every component is open or prepared, before the first epoch."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Report of a thread next to the loop: the process runs, also while its loop makes no progress;
    much output counts as progress.
    """

    is_printing: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """Report of the loop's progress; `stats` become part of the worker's heartbeat."""

    stats: _Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trying:
    """Report in careful mode: the next commit holds only this input row, the suspect if the process
    dies now.
    """

    task: int
    entry: str
    row: int


@dataclass(frozen=True, slots=True)
class Passed:
    """Report that careful mode is over: no row is a suspect any more."""


@dataclass(frozen=True, slots=True)
class ComponentError:
    """Report that user code raised or a row was parked; it becomes a record under
    errors/<topology>/<component>.
    """

    failure: Failure


@dataclass(frozen=True, slots=True)
class Exiting:
    """Last report of a worker process: its exit code and one sentence."""

    code: int
    reason: str


WorkerCommand: TypeAlias = SetStatus | SetLogLevels | SetShadow | Stop
WorkerReport: TypeAlias = Ready | Alive | Beat | Trying | Passed | ComponentError | Exiting

_COMMAND_BY_NAME: Final[dict[str, type]] = {
    "status": SetStatus,
    "log": SetLogLevels,
    "shadow": SetShadow,
    "stop": Stop,
}
_REPORT_BY_NAME: Final[dict[str, type]] = {
    "ready": Ready, "alive": Alive, "beat": Beat, "trying": Trying, "passed": Passed, "error": ComponentError, "exit": Exiting,
}  # fmt: skip


def encode_command(command: WorkerCommand) -> bytes:
    """Return the message as one line with its newline."""
    return _encode("do", _COMMAND_BY_NAME, command)


def decode_command(line: bytes) -> WorkerCommand:
    """Return the command of a line; InvalidConfigError if it is none."""
    command: WorkerCommand = _decode("do", _COMMAND_BY_NAME, line)
    return command


def encode_report(report: WorkerReport) -> bytes:
    """Return the message as one line with its newline."""
    return _encode("type", _REPORT_BY_NAME, report)


def decode_report(line: bytes) -> WorkerReport:
    """Return the report of a line; InvalidConfigError if it is none."""
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
    with named_errors(InvalidConfigError, prefix=f"worker line {kind.__name__}: "):
        return read_as(kind, fields, needs_all=True)
