"""Steps one bolt through recorded input, tuple by tuple, to reproduce a failure in a unit test or a notebook."""

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
from sparkstorm.config import check, merge
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.executor.emitter import Route
from sparkstorm.executor.runner import RetryPolicy
from sparkstorm.grouping.routes import Target
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.failure import Failure
from sparkstorm.model.topology import DEFAULT_STREAM, Grouping, Topology
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.tasks.task import ReplayTask, TaskMode
from sparkstorm.tasks.task import TICK
from sparkstorm.tasks.task_parts import LIVE_STREAMS, Outputs, TaskParts

ONE_TRY = RetryPolicy(0)


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tuple: emitted values by stream, why it failed if it did, and the state after it."""

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
        touched, self._touched = list(self._touched), {}
        return touched


class _SinkWrites(BasicBolt):
    """The writes of a sink as a bolt: a row goes into an epoch that is never prepared, so the target is not called."""

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
    """One task of a bolt, executed tuple by tuple. Of a sink, `write` alone is executed, and its target is not called.

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
    ) -> None:
        """Prepare a task; with fewer tasks than the recorded run had, the index is taken modulo their number."""
        topology = _without_targets(topology)
        self._plan = make_plan(
            topology,
            merge(check(conf or {}, "the settings of the steps")).as_dict(),
            "steps",
            {c.id: Effects.RUN for c in topology.bolts},
        )
        if component not in self._plan.topology.components or topology.components[component].kind != "bolt":
            raise InvalidTopologyError(f"there is no bolt '{component}', only {', '.join(c.id for c in topology.bolts)}")
        self._check_bolt(component, topology.components[component].instance)
        self._component = self._plan.topology.components[component]
        plan = self._plan
        where = ("steps-0-0", plan.topology, plan.conf, plan.component_by_task)
        self._parts = TaskParts(*where, Codec(), LIVE_STREAMS)
        self._rows: dict[str, list[Any]] = {}
        self._undo = _Undo()
        self._run = self._prepared(cloudpickle.loads(cloudpickle.dumps(self._component.instance)), task_index, state or {})

    def execute(self, values: Sequence[Any], component: str, stream: str = DEFAULT_STREAM, at_ms: int = 0) -> Step:
        """Execute one tuple as if sent by that component; a failing one is tried once and its changes are undone."""
        return self._step(self._execute(values, component, stream, at_ms))

    def _step(self, tup: Tuple) -> Step:
        emitted, failure = self._outcome()
        state = dict(self._run.state.items()) if self._run.state is not None else {}
        return Step(tup, emitted, failure, state)

    def outcome(self, values: Sequence[Any], component: str, stream: str = DEFAULT_STREAM, at_ms: int = 0) -> list[Any]:
        """Execute one tuple; return [emitted values by stream, the reason if it failed, changed pairs, deleted keys].

        Unlike `execute`, it copies no state: the cost is that of the tuple.
        """
        self._execute(values, component, stream, at_ms)
        emitted, failure = self._outcome()
        text = None if failure is None else str(failure)
        touched, state = self._undo.take(), self._run.state
        if state is None:
            return [emitted, text, [], []]
        return [emitted, text, state.pairs(touched), [key for key in touched if key not in state]]

    def _execute(self, values: Sequence[Any], component: str, stream: str, at_ms: int) -> Tuple:
        tup = self._tuple(values, component, stream, at_ms)
        self._run.execute([(tup.values, tup.roots, tup.source)])
        return tup

    def _tuple(self, values: Sequence[Any], component: str, stream: str, at_ms: int) -> Tuple:
        source = self._source(component, stream)
        tup = Tuple(tuple(map(Codec().normalise, values)), at_ms, source)
        if len(tup.values) != len(source.fields):
            raise InvalidTopologyError(
                f"stream '{stream}' of '{component}' has the fields {', '.join(source.fields)}; {len(tup.values)} values were given"
            )
        return tup

    def _outcome(self) -> tuple[dict[str, list[tuple[Any, ...]]], Failure | None]:
        self._run.take_emitted()
        dead = [DeadLetter.decode(Codec(), data) for data in self._run.take_dead()]
        emitted = {stream: [row[0] for row in rows] for stream, rows in self._rows.items() if rows}
        for rows in self._rows.values():
            rows.clear()
        return emitted, dead[0].failure if dead else None

    def through(self, rows: Iterable[Sequence[Any]], component: str, stream: str = DEFAULT_STREAM) -> Iterator[Step]:
        """Step through recorded rows, lazily."""
        return (self.execute(row, component, stream) for row in rows)

    def _prepared(self, bolt: Any, task_index: int, state: Mapping[Any, Any]) -> ReplayTask:
        tasks = self._plan.tasks(self._component.id)
        task = tasks[task_index % len(tasks)]
        run = self._make_task(bolt, task)
        if run.state is not None:
            run.state.load(state.items())
            run.state.undo = self._undo
        run.prepare(self._parts.context(task, [task], run.now_ms, effect_key=run.effect_key))
        return run

    def _check_bolt(self, component: str, bolt: Any) -> None:
        if isinstance(bolt, WindowedBolt | TimedBolt):
            raise InvalidTopologyError(
                f"'{component}' has windows or timers, which cannot be stepped through: run its whole input with replay_locally"
            )

    def _make_task(self, bolt: Any, task: int) -> ReplayTask:
        return ReplayTask(bolt, self._outputs(task), Codec(), TaskMode(False, ONE_TRY, is_keyed=True))

    def _outputs(self, task: int) -> Outputs:
        routes = {}
        for name, stream in self._component.streams.items():
            route = routes[name] = Route(Source(self._component.id, task, name, stream.fields), Codec(), stream.direct)
            rows = self._rows[name] = list[Any]()
            every = sorted(self._plan.component_by_task) if stream.direct else [0]
            route.subscribe(Grouping("direct" if stream.direct else "global"), [Target(t, rows, False) for t in every], task, 0)
        return Outputs(task, self._component.id, routes)

    def _source(self, component: str, stream: str) -> Source:
        if (component, stream) == (TICK.component, TICK.stream):
            return TICK
        inputs = {(s.component, s.stream) for s in self._component.inputs}
        if (component, stream) not in inputs:
            known = ", ".join(f"{c}:{s}" for c, s in sorted(inputs))
            raise InvalidTopologyError(f"'{self._component.id}' does not listen to {component}:{stream}, only to {known}")
        return self._parts.source(self._plan.tasks(component)[0], stream)


def _without_targets(topology: Topology) -> Topology:
    """Return the topology with each sink as a bolt that only writes: the phases of a sink need a live worker."""
    sinks = {c.id: c for c in topology if isinstance(c.instance, TransactionalSink)}
    writers = {id: replace(c, instance=_SinkWrites(c.instance)) for id, c in sinks.items()}
    return Topology({**topology.components, **writers})
