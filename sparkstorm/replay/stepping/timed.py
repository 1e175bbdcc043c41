"""Steps of a bolt with windows or timers: through one dead letter by itself, or through a task's rows and watermarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.errors import InvalidTopologyError, RecordingError
from sparkstorm.executor.window_records import due_of, stored_cells
from sparkstorm.model.dead_letter import REPLAYED_FIELDS, DeadLetter
from sparkstorm.model.topology import TIMER_STREAM, WATERMARK_STREAM, WINDOW_STREAM, Topology
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.stepping.stepper import ONE_TRY, Step, Stepper
from sparkstorm.replay.tasks.task import ReplayTask, TaskMode
from sparkstorm.replay.tasks.window_task import TimeInputs, WindowTask
from sparkstorm.windowing.settings import settings_of
from sparkstorm.windowing.watermarks import NEVER

_CHANNEL = (0, "marks")  # the one sender of watermarks to a stepped task


def any_stepper(
    topology: Topology,
    component: str,
    conf: Mapping[str, Any],
    state: Mapping[Any, Any] | None = None,
    task_index: int = 0,
    cells: Sequence[Sequence[Any]] | None = (),
) -> Stepper:
    """Return a stepper for a bolt of any kind; one with windows or timers begins with stored cells, and needs some."""
    found = topology.components.get(component)
    if found is None or cells is None or not isinstance(found.instance, WindowedBolt | TimedBolt):
        return Stepper(topology, component, conf=conf, state=state, task_index=task_index)
    return WindowStepper(topology, component, conf, state or {}, task_index, cells)


class WindowStepper(Stepper):
    """One task of a windowed or timed bolt, which executes rows and, as rows of WATERMARK_STREAM, what is due up to a time."""

    def __init__(
        self,
        topology: Topology,
        component: str,
        conf: Mapping[str, Any],
        state: Mapping[Any, Any],
        task_index: int = 0,
        cells: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Prepare the task with a state and stored cells of windows and timers."""
        self._cells = stored_cells({"cells": cells})
        super().__init__(topology, component, conf=conf, state=state, task_index=task_index)

    def _tuple(self, values: Sequence[Any], component: str, stream: str, at_ms: int) -> Tuple:
        if stream == WATERMARK_STREAM:
            return Tuple((_CHANNEL[1], values[0]), at_ms, Source("", _CHANNEL[0], stream, ("stream", "at_ms")))
        if stream in REPLAYED_FIELDS:
            return Tuple(tuple(values), at_ms, Source(component, _CHANNEL[0], stream, REPLAYED_FIELDS[stream]))
        return super()._tuple(values, component, stream, at_ms)

    def _check_bolt(self, component: str, bolt: Any) -> None:
        """Windows and timers are what it steps through."""

    def _make_task(self, bolt: Any, task: int) -> ReplayTask:
        settings = settings_of(self._component, self._parts.conf(self._component.id))
        if settings is None:
            raise InvalidTopologyError(f"component '{self._component.id}' was not added by set_bolt: its settings are missing")
        times = TimeInputs(settings, (_CHANNEL,), (), self._find_source)
        run = WindowTask(bolt, self._outputs(task), Codec(), TaskMode(False, ONE_TRY), times)
        run.load_times(self._cells)
        return run

    def _find_source(self, task: int, stream: str) -> Source:
        """Return the source of a stored row, whose task is numbered as in the run."""
        return self._input_source(self._plan.component_by_task.get(task, ""), task, stream)

    def _input_source(self, component: Any, task: Any, stream: Any) -> Source:
        try:
            found = self._source(component, stream)
        except (InvalidTopologyError, TypeError) as error:
            raise RecordingError(f"the window of this dead letter: {error}") from error
        return Source(found.component, task, found.stream, found.fields)


class TimedStepper(WindowStepper):
    """One task of a windowed or timed bolt, which executes one dead letter."""

    def __init__(self, topology: Topology, letter: DeadLetter, conf: Mapping[str, Any], state: Mapping[Any, Any]) -> None:
        """Prepare the task with the state and the stored cells that the letter met."""
        self._letter, self._record = letter, letter.window or {}
        cells = self._record.get("cells", [])
        super().__init__(topology, letter.component, conf, state, letter.index, cells)

    def execute_letter(self) -> Step:
        """Execute what failed once; RecordingError when the letter does not hold its window."""
        letter, record = self._letter, self._record
        if letter.stream in (WINDOW_STREAM, TIMER_STREAM):
            tup = Tuple(letter.values, 0, Source(letter.component, -1, letter.stream, letter.fields))
            if letter.stream == WINDOW_STREAM and "tuples" not in record:
                raise RecordingError(
                    f"the window of '{letter.component}' is not in its dead letter, because it was larger than 256 KiB or an older "
                    "version wrote the letter: replay its input"
                )
        else:
            tup = self._tuple(letter.values, letter.source_component, letter.stream, letter.time_ms)
        due = due_of(letter.stream, tup, letter.time_ms, record, self._input_source)
        watermark_ms = record.get("watermark_ms", NEVER)
        assert isinstance(self._run, WindowTask)
        self._run.step(tup, due, letter.time_ms, watermark_ms if type(watermark_ms) is int else NEVER)
        return self._step(tup)
