"""Read the `replay:` part of a job file strictly: where the history is, its event time, and which
results are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

from sparkstorm.api.components import Effects
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.strict import (
    UnfitValueError,
    expected,
    named_errors,
    one_of,
    read_as,
    reader_of,
    whole,
)
from sparkstorm.driver.replay.options import FORMATS
from sparkstorm.replay.inputs import EventTime

NOTE = ".sparkstorm-results"
"""File with the names of the folders next to it that replays wrote, one a line."""
_EFFECTS = one_of([effect.value for effect in Effects])


def _read_effect(value: object) -> Effects:
    return Effects(_EFFECTS(value))


def _read_event_time(value: object) -> str | Mapping[str, str]:
    """Read a column's name, or names by input."""
    if isinstance(value, str):
        return value
    try:
        return cast(Mapping[str, str], reader_of(Mapping[str, str])(value))
    except UnfitValueError as error:
        raise error if error.path else expected("a column, or columns by input", value) from None


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """Settings of a replay: how history is read, and which results are written."""

    inputs: Mapping[str, str] = field(default_factory=dict)  # path or table by "spout[:stream]"
    # of every input; by the path's ending if not given
    format: Annotated[str | None, one_of(FORMATS)] = None
    event_time: Annotated[str | Mapping[str, str] | None, _read_event_time] = None
    in_order: bool = True
    types: Mapping[str, str] = field(default_factory=dict)  # columns of results
    # columns of inputs without their own schema
    columns: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, Annotated[Effects, _read_effect]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)  # first states: path by component
    from_checkpoint: str | None = None  # folder of a savepoint or checkpoint to begin with
    outputs: tuple[str, ...] = ()
    # of history that each task of a spout reads; all of the others'
    rows: Mapping[str, Annotated[int, whole()]] = field(default_factory=dict)
    # where to leave what a live run may go on from; spouts without inputs then read themselves
    checkpoint: str | None = None
    skip_bad: bool = False

    @property
    def time(self) -> EventTime | None:
        """The event time, if there is one."""
        return None if self.event_time is None else EventTime(self.event_time, self.in_order)


def read_replay(where: str, content: Mapping[str, Any]) -> ReplayFile:
    """Read the part strictly; InvalidConfigError names the file and the key."""
    with named_errors(InvalidConfigError, prefix=f"{where}: replay: "):
        return read_as(ReplayFile, dict(content))


def with_inputs(file: ReplayFile, given: Sequence[str], only: str | None) -> ReplayFile:
    """The inputs of the command line over the file's: NAME=PATH, or a PATH alone where there is one
    stream to feed.
    """
    inputs = dict(file.inputs)
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            if only is None:
                raise InvalidConfigError(
                    f"--input {text}: the topology has several streams to feed; write spout[:stream]={text}"
                )
            name = only
            path = text
        inputs[name] = path
    return replace(file, inputs=inputs)
