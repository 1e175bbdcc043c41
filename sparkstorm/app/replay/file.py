"""The `replay` part of a job file: place of the history, event time, results; read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.api.components import Effects
from sparkstorm.errors import InvalidConfigError
from sparkstorm.replay.inputs import EventTime

FORMATS = ("text", "csv", "json", "parquet", "orc", "table")
WRITTEN = ("parquet", "json", "csv", "orc")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "inputs": (dict,),
    "format": (str,),
    "event_time": (str, dict),
    "in_order": (bool,),
    "types": (dict,),
    "effects": (dict,),
    "rows": (dict,),
    "checkpoint": (str,),
    "outputs": (list,),
    "skip_bad": (bool,),
    "columns": (dict,),
    "states": (dict,),
}


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """Settings of a replay: how history is read, and which results are written."""

    inputs: Mapping[str, str] = field(default_factory=dict)  # path or table by "spout[:stream]"
    format: str | None = None  # of every input; by the path's ending if not given
    event_time: str | Mapping[str, str] | None = None
    in_order: bool = True
    types: Mapping[str, str] = field(default_factory=dict)  # columns of results
    columns: Mapping[str, str] = field(default_factory=dict)  # columns of inputs without a schema of their own
    effects: Mapping[str, Effects] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)  # first states: path by component
    outputs: Sequence[str] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # of history that each task of a spout reads; all of the others'
    checkpoint: str | None = None  # where to leave what a live run may go on from; spouts without inputs then read themselves
    skip_bad: bool = False

    @property
    def time(self) -> EventTime | None:
        """The event time, if there is one."""
        return None if self.event_time is None else EventTime(self.event_time, self.in_order)


def read_replay(where: str, content: Mapping[str, Any]) -> ReplayFile:
    """Check the part; InvalidConfigError names the file and the key."""
    for key, value in content.items():
        if key not in _KINDS:
            raise InvalidConfigError(f"{where}: replay has no key '{key}'; it has {', '.join(sorted(_KINDS))}")
        if not isinstance(value, _KINDS[key]):
            wanted = " or ".join(kind.__name__ for kind in _KINDS[key])
            raise InvalidConfigError(f"{where}: replay: {key}: {value!r:.60} is no {wanted}")
        if key == "rows" and isinstance(value, dict):
            _check_rows(where, value)
        elif isinstance(value, dict) and not all(isinstance(v, str) for v in value.values()):
            raise InvalidConfigError(f"{where}: replay: {key}: every value must be text, not {value!r:.60}")
    if content.get("format") not in (None, *FORMATS):
        raise InvalidConfigError(f"{where}: replay: format: {content['format']!r} is none of {', '.join(FORMATS)}")
    effects = {bolt: _effects(where, bolt, word) for bolt, word in content.get("effects", {}).items()}
    return ReplayFile(**{**content, "effects": effects})


def _effects(where: str, bolt: str, word: str) -> Effects:
    try:
        return Effects(word)
    except ValueError:
        words = ", ".join(known.value for known in Effects)
        raise InvalidConfigError(f"{where}: replay: effects: '{bolt}': {word!r:.60} is none of {words}") from None


def _check_rows(where: str, rows: Mapping[str, Any]) -> None:
    for spout, count in rows.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidConfigError(f"{where}: replay: rows: '{spout}': {count!r:.60} is no number of rows")


def with_inputs(file: ReplayFile, given: Sequence[str], only: str | None) -> ReplayFile:
    """The inputs of the command line over the file's: NAME=PATH, or a PATH alone where there is one stream to feed."""
    inputs = dict(file.inputs)
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            if only is None:
                raise InvalidConfigError(f"--input {text}: the topology has several streams to feed; write spout[:stream]={text}")
            name, path = only, text
        inputs[name] = path
    return replace(file, inputs=inputs)
