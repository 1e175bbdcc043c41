"""Stepper of one bolt through recorded input, tuple by tuple, to reproduce a failure in a unit test
or a notebook.

Law: a step calls no target outside and changes nothing but the stepper's own task, with any effects
of the bolt. The task is that of a replay, so a failed step leaves no trace, as a failed input does
live. Left out: a worker with its own store, which a unit test would wait for, and retries: the
second try of a step would hide why the first one failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import BasicBolt, Conf, Effects
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.common.config import check, merge
from sparkstorm.common.errors import InvalidTopologyError, RecordingError
from sparkstorm.common.model.dead_letter import REPLAYED_FIELDS, DeadLetter
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.topology import (
    DEFAULT_STREAM,
    TIMER_STREAM,
    WATERMARK_STREAM,
    WINDOW_STREAM,
    Topology,
)
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.settings import settings_of
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.data_plane.executor.runner import RetryPolicy
from sparkstorm.data_plane.executor.watermark_routes import MARK_FIELDS
from sparkstorm.data_plane.executor.window_records import due_of, stored_cells
from sparkstorm.data_plane.task_kit.held import fresh
from sparkstorm.data_plane.task_kit.task import TICK
from sparkstorm.data_plane.task_kit.task_parts import LIVE_STREAMS, Outputs
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.tasks.out_edges import kept_outputs
from sparkstorm.replay.tasks.task import ReplayTask, TaskMode
from sparkstorm.replay.tasks.window_task import TimeInputs, WindowTask

_ONE_TRY = RetryPolicy(0)
_CHANNEL = (0, "marks")
"""The one sender of watermarks to a stepped task."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tuple: emitted values by stream, why it failed if it did, and the state after
    it.
    """

    input: Tuple
    emitted: Mapping[str, list[tuple[Any, ...]]]
    failure: Failure | None
    state: Mapping[Any, Any]


class _Undo(list[Any]):
    """Undo list of a state that keeps the keys which were changed for good."""

    def __init__(self) -> None:
        super().__init__()
        self._touched: dict[Any, None] = {}

    def clear(self) -> None:
        self._touched.update(dict.fromkeys(self[::3]))
        super().clear()

    def take(self) -> list[Any]:
        """Return the keys that were changed since the last call."""
        self.clear()
        touched = list(self._touched)
        self._touched = {}
        return touched


class _SinkWrites(BasicBolt):
    """The writes of a sink as a bolt: a row goes into an epoch that is never prepared, so the
    target is not called.
    """

    def __init__(self, sink: TransactionalSink) -> None:
        self._sink = sink

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Open the sink and begin the only epoch."""
        self._sink.open(conf, context)
        self._sink.begin(1)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Write a row; a sink gets no ticks."""
        if not tup.is_tick:
            self._sink.write(tup)


class Stepper:
    """One task of a bolt, executed tuple by tuple. Of a sink, `write` alone is executed, and its
    target is not called.

    A bolt with windows or timers also executes rows of WATERMARK_STREAM: they fire what is due up
    to a time.

    >>> from sparkstorm.api import TopologyBuilder
    >>> from sparkstorm.testing import FeederSpout, Nothing
    >>> builder = TopologyBuilder()
    >>> _ = builder.set_spout("numbers", FeederSpout(["n"]))
    >>> _ = builder.set_bolt("nothing", Nothing()).shuffle_grouping("numbers")
    >>> steps = Stepper(builder.build(), "nothing")
    >>> steps.execute([7], "numbers").failure is None
    True
    """

    def __init__(
        self,
        topology: Topology,
        component: str,
        *,
        conf: Mapping[str, Any] | None = None,
        state: Mapping[Any, Any] | None = None,
        task_index: int = 0,
        cells: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Prepare a task; with fewer tasks than the recorded run had, the index is taken modulo
        their number.

        `cells`: stored windows and timers with which the task begins. A bolt that has any needs
        them, if only none.
        """
        topology = _without_targets(topology)
        conf = merge(check(conf or {}, "the settings of the steps")).as_dict()
        self._plan = make_plan(topology, conf, "steps", {c.id: Effects.RUN for c in topology.bolts})
        chosen = self._plan.topology.components.get(component)
        if chosen is None or chosen.kind != "bolt":
            raise InvalidTopologyError(
                f"there is no bolt '{component}', only {', '.join(c.id for c in topology.bolts)}"
            )
        self._component = chosen
        self._has_time = isinstance(chosen.instance, WindowedBolt | TimedBolt)
        if self._has_time and cells is None:
            raise InvalidTopologyError(
                f"'{component}' has windows or timers, which cannot be stepped through: run its whole input with replay_locally"
            )
        self._parts = self._plan.parts(Codec(), LIVE_STREAMS)
        tasks = self._plan.tasks(component)
        task = tasks[task_index % len(tasks)]
        outputs, self._rows = kept_outputs(self._parts, task)
        # A copy: the topology's own instance stays as the user built it, for the next stepper.
        self._run = self._make_task(cloudpickle.loads(cloudpickle.dumps(chosen.instance)), outputs)
        self._undo = _Undo()
        if self._run.state is not None:
            self._run.state.undo = self._undo
        begun = Begun(
            list((state or {}).items()),
            stored_cells({"cells": cells or ()}),
            self._run.state_version,
        )
        self._run.begin(begun, self._parts, [task])

    def _make_task(self, bolt: Any, outputs: Outputs) -> ReplayTask:
        if not self._has_time:
            return ReplayTask(bolt, outputs, Codec(), TaskMode(False, _ONE_TRY, is_keyed=True))
        settings = settings_of(self._component, self._parts.conf(self._component.id))
        if settings is None:
            raise InvalidTopologyError(
                f"component '{self._component.id}' was not added by set_bolt: its settings are missing"
            )
        times = TimeInputs(settings, (_CHANNEL,), (), self._find_source)
        return WindowTask(bolt, outputs, Codec(), TaskMode(False, _ONE_TRY), times)

    def execute(
        self, values: Sequence[Any], component: str, stream: str = DEFAULT_STREAM, at_ms: int = 0
    ) -> Step:
        """Execute one tuple as if sent by that component; a failing one is tried once and its
        changes are undone.
        """
        return self._step(self._execute(values, component, stream, at_ms))

    def through(
        self, rows: Iterable[Sequence[Any]], component: str, stream: str = DEFAULT_STREAM
    ) -> Iterator[Step]:
        """Step through recorded rows, lazily."""
        return (self.execute(row, component, stream) for row in rows)

    def execute_letter(self, letter: DeadLetter) -> Step:
        """Execute what failed in a run once; RecordingError when the letter does not hold its
        window.
        """
        # A copy: user code may change lists among its values and in its window.
        letter = DeadLetter.decode(Codec(), letter.encode(Codec()))
        if not isinstance(self._run, WindowTask):
            return self.execute(
                letter.values, letter.source_component, letter.stream, letter.time_ms
            )
        record = letter.window or {}
        if letter.stream == WINDOW_STREAM and "tuples" not in record:
            raise RecordingError(
                f"the window of '{letter.component}' is not in its dead letter, because it was larger than 256 KiB or an older "
                "version wrote the letter: replay its input"
            )
        if letter.stream in (WINDOW_STREAM, TIMER_STREAM):
            tup = Tuple(
                letter.values, 0, Source(letter.component, -1, letter.stream, letter.fields)
            )
        else:
            tup = self._tuple(letter.values, letter.source_component, letter.stream, letter.time_ms)
        due = due_of(letter.stream, tup, letter.time_ms, record, self._input_source)
        watermark_ms = record.get("watermark_ms", NEVER)
        self._run.step(
            tup, due, letter.time_ms, watermark_ms if type(watermark_ms) is int else NEVER
        )
        return self._step(tup)

    def outcome(
        self, values: Sequence[Any], component: str, stream: str = DEFAULT_STREAM, at_ms: int = 0
    ) -> list[Any]:
        """Execute one tuple; return [emitted values by stream, the reason if it failed, changed
        pairs, deleted keys].

        Unlike `execute`, it copies no state: the cost is that of the tuple.
        """
        self._execute(values, component, stream, at_ms)
        emitted, failure = self._take_outcome()
        text = None if failure is None else str(failure)
        touched = self._undo.take()
        state = self._run.state
        if state is None:
            return [emitted, text, [], []]
        return [emitted, text, state.pairs(touched), [key for key in touched if key not in state]]

    def _execute(self, values: Sequence[Any], component: str, stream: str, at_ms: int) -> Tuple:
        tup = self._tuple(values, component, stream, at_ms)
        # The bolt may change lists among its values.
        self._run.execute([(fresh(Codec(), tup.values), tup.roots, tup.source)])
        return tup

    def _tuple(self, values: Sequence[Any], component: str, stream: str, at_ms: int) -> Tuple:
        if self._has_time and stream == WATERMARK_STREAM:
            return Tuple(
                (_CHANNEL[1], values[0]), at_ms, Source("", _CHANNEL[0], stream, MARK_FIELDS)
            )
        if self._has_time and stream in REPLAYED_FIELDS:
            return Tuple(
                tuple(values),
                at_ms,
                Source(component, _CHANNEL[0], stream, REPLAYED_FIELDS[stream]),
            )
        source = self._source(component, stream)
        tup = Tuple(tuple(map(Codec().normalise, values)), at_ms, source)
        if len(tup.values) != len(source.fields):
            raise InvalidTopologyError(
                f"stream '{stream}' of '{component}' has the fields {', '.join(source.fields)}; {len(tup.values)} values were given"
            )
        return tup

    def _step(self, tup: Tuple) -> Step:
        emitted, failure = self._take_outcome()
        state = dict(self._run.state.items()) if self._run.state is not None else {}
        return Step(tup, emitted, failure, state)

    def _take_outcome(self) -> tuple[dict[str, list[tuple[Any, ...]]], Failure | None]:
        self._run.take_emitted()
        dead = [DeadLetter.decode(Codec(), data) for data in self._run.take_dead()]
        emitted = {stream: [row[0] for row in rows] for stream, rows in self._rows.items() if rows}
        for rows in self._rows.values():
            rows.clear()
        return emitted, dead[0].failure if dead else None

    def _source(self, component: str, stream: str) -> Source:
        if (component, stream) == (TICK.component, TICK.stream):
            return TICK
        inputs = {(s.component, s.stream) for s in self._component.inputs}
        if (component, stream) not in inputs:
            names = ", ".join(f"{c}:{s}" for c, s in sorted(inputs))
            raise InvalidTopologyError(
                f"'{self._component.id}' does not listen to {component}:{stream}, only to {names}"
            )
        return self._parts.source(self._plan.tasks(component)[0], stream)

    def _find_source(self, task: int, stream: str) -> Source:
        """Return the source of a stored row, whose task is numbered as in the run."""
        return self._input_source(self._plan.component_by_task.get(task, ""), task, stream)

    def _input_source(self, component: Any, task: Any, stream: Any) -> Source:
        try:
            source = self._source(component, stream)
        except (InvalidTopologyError, TypeError) as error:
            raise RecordingError(f"the window of this dead letter: {error}") from error
        return Source(source.component, task, source.stream, source.fields)


def _without_targets(topology: Topology) -> Topology:
    """Return the topology with each sink as a bolt that only writes: the phases of a sink need a
    live worker.
    """
    sinks = {c.id: c for c in topology if isinstance(c.instance, TransactionalSink)}
    writers = {id: replace(c, instance=_SinkWrites(c.instance)) for id, c in sinks.items()}
    return Topology({**topology.components, **writers})
