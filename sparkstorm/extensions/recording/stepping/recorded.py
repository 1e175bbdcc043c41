"""Recordings of a live bolt's inputs, read as slices that can be stepped through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.topology import Topology
from sparkstorm.extensions.recording.segments import (
    Header,
    Row,
    checked_row,
    read_parquet,
    read_part,
)
from sparkstorm.extensions.recording.stepping.stepper import Step, Stepper


@dataclass(frozen=True, slots=True)
class RecordedTuple:
    """One try of one input, with the reason if it failed."""

    at_ms: int
    component: str
    task: int
    stream: str
    values: tuple[Any, ...]
    failure: str | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive tries, with the state before the first (None: not written, or the bolt has
    none).
    """

    component: str
    task: int
    index: int
    state: Mapping[Any, Any] | None
    is_stateful: bool
    lost: int  # rows before it that were executed and not kept
    tuples: tuple[RecordedTuple, ...]

    def steps(
        self,
        topology: Topology,
        *,
        conf: Mapping[str, Any] | None = None,
        state: Mapping[Any, Any] | None = None,
    ) -> Iterator[Step]:
        """Execute the slice again, tuple by tuple, from its own state or a given one; `conf` as for
        the live run.
        """
        begin = self.state if state is None else state
        if begin is None and self.is_stateful:
            raise RecordingError(
                f"the state of '{self.component}' (task {self.task}) was too large to be recorded "
                "(topology.record.state.keys, a quarter of topology.record.max.bytes): give one"
            )
        steps = Stepper(topology, self.component, conf=conf, state=begin, task_index=self.index)
        return (steps.execute(t.values, t.component, t.stream, t.at_ms) for t in self.tuples)


def recorded(path: str | Path) -> list[Slice]:
    """Return the slices of one task's folder, or of one of its files, oldest first; RecordingError
    names an unreadable file.
    """
    segments = [_segment(file) for file in _files(Path(path))]
    slices: list[Slice] = []
    last: Header | None = None
    for header, state, rows in (segment for segment in segments if segment is not None):
        if last is not None and (header.component, header.task) != (last.component, last.task):
            raise RecordingError(
                f"{path} holds what several tasks were given: name the folder of one of them"
            )
        # A gap ends a slice: steps after it would not begin with the state that the task had.
        if (
            last is not None
            and not header.lost
            and (header.token, header.number) == (last.token, last.number + 1)
        ):
            slices[-1] = replace(slices[-1], tuples=(*slices[-1].tuples, *_tuples(rows)))
        else:
            slices.append(_slice(header, state, rows))
        last = header
    return slices


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    closed = {file.with_suffix(""): file for file in path.rglob("*.parquet")}
    begun = {file.with_suffix(""): file for file in path.rglob("*.part")}
    if not closed and not begun:
        raise RecordingError(f"{path}: there is no recording")
    return [file for _, file in sorted({**begun, **closed}.items())]


def _segment(path: Path) -> tuple[Header, list[Any], list[Row]] | None:
    try:
        if path.suffix == ".part":
            header, state, calls = read_part(path)
            rows = [checked_row(path, row) for call in calls for row in call.rows()]
            return None if header is None else (header, state, rows)
    # It has just been closed, under another name.
    except OSError:
        path = path.with_suffix(".parquet")
    return read_parquet(path) if path.exists() else None


def _slice(header: Header, state: list[Any], rows: list[Row]) -> Slice:
    pairs = (
        {tuple(key) if isinstance(key, list) else key: value for key, value in state}
        if header.has_state
        else None
    )
    return Slice(
        header.component,
        header.task,
        header.index,
        pairs,
        header.is_stateful,
        header.lost,
        _tuples(rows),
    )


def _tuples(rows: list[Row]) -> tuple[RecordedTuple, ...]:
    return tuple(
        RecordedTuple(at_ms, component, task, stream, tuple(values), reason)
        for at_ms, component, task, stream, values, reason in rows
    )
