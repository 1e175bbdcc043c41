"""Failure capsules: execute a failed input again with the state that it met, as a step or line by
line.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import FailureKind
from sparkstorm.common.model.topology import Topology
from sparkstorm.extensions.recording.capsule_files import NAMES_CODE, read_capsule
from sparkstorm.extensions.recording.stepping.stepper import Step, Stepper

_OURS = str(Path(__file__).parents[3])
# A loop of user code has more than can be read. Half shows less of a long loop, double makes a
# notebook slow.
_MOST_LINES = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """Line of user code that was executed, with the local variables that it found changed, as
    text.
    """

    file: str
    number: int
    source: str
    changed: Mapping[str, str]

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.changed.items())
        return f"{Path(self.file).name}:{self.number}  {self.source}{f'    # {values}' if values else ''}"


@dataclass(frozen=True, slots=True)
class Capsule:
    """An opened capsule: `letter` has the input, its failure, the state and the settings of the
    run.
    """

    path: Path
    letter: DeadLetter

    def step(
        self,
        topology: Topology,
        state: Mapping[Any, Any] | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> Step:
        """Execute the input once, with the state of the run or a given one, in the present code.

        `conf` is laid over the settings of the run. Settings that name code to import
        (`topology.serializers`) are taken from it alone: a capsule is data, which nobody has signed.
        RecordingError for a row that the target of a sink has refused: a step calls no target.
        """
        letter = self.letter
        run = {name: value for name, value in letter.conf.items() if name not in NAMES_CODE}
        met = dict(letter.state or ()) if state is None else state
        component = topology.components.get(letter.component)
        if component is not None and isinstance(component.instance, TransactionalSink):
            self._require_write()
        cells = (letter.window or {}).get("cells", ())
        steps = Stepper(
            topology,
            letter.component,
            conf={**run, **(conf or {})},
            state=met,
            task_index=letter.index,
            cells=cells,
        )
        return steps.execute_letter(letter)

    def _require_write(self) -> None:
        """Refuse a letter of a sink's target, which names no error of user code."""
        failure = self.letter.failure
        if failure.kind is FailureKind.FAILED:
            raise RecordingError(
                f"{self.path}: the target of component '{failure.component}' refused this row ({failure.text[:200]}), "
                "and a step calls no target: change the row or the target, then use `sparkstorm dead-letters replay`"
            )

    def trace(self, topology: Topology, conf: Mapping[str, Any] | None = None) -> list[Line]:
        """Execute the input and return the lines of user code that ran, in order, with what each
        changed.

        In a notebook: `for line in open_capsule(path).trace(build()): print(line)`.
        """
        lines: list[Line] = []
        with _tracing(lines):
            self.step(topology, conf=conf)
        return lines


def open_capsule(path: str | Path) -> Capsule:
    """Open a capsule file; RecordingError names the file and what is wrong with it."""
    return Capsule(Path(path), read_capsule(Path(path)))


@contextmanager
def _tracing(lines: list[Line]) -> Iterator[None]:
    values_by_frame: dict[int, dict[str, str]] = {}

    def local(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and len(lines) < _MOST_LINES:
            before = values_by_frame.get(id(frame), {})
            now = {name: _shown(value) for name, value in frame.f_locals.items() if name != "self"}
            values_by_frame[id(frame)] = now
            changed = {name: value for name, value in now.items() if before.get(name) != value}
            file = frame.f_code.co_filename
            lines.append(
                Line(
                    file, frame.f_lineno, linecache.getline(file, frame.f_lineno).rstrip(), changed
                )
            )
        return local

    def begin(frame: FrameType, event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        # Code of libraries has no lines that the user could fix.
        is_library = file.startswith((_OURS, sys.prefix, sys.base_prefix)) or not linecache.getline(
            file, frame.f_lineno
        )
        return None if is_library else local(frame, event, _argument)

    former = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(former)


def _shown(value: Any) -> str:
    try:
        # Before the line runs, as text: a value that changes
        # later would be shown as it is at the end.
        text = repr(value)
    except Exception as error:  # user code
        text = f"<its repr raises {type(error).__name__}>"
    return text if len(text) <= 200 else f"{text[:197]}..."
