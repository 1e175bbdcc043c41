"""streamparse's classes: projects run after their imports are changed (docs/from-storm.md)."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sparkstorm import api
from sparkstorm.api.collector import OutputCollector, SpoutOutputCollector
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model import topology as model
from sparkstorm.common.model.tuples import Tuple

_TICK_KEY = "topology.tick.tuple.freq.secs"


@dataclass(frozen=True)
class Stream:
    """Declared output: `Stream(fields=["word"], name="words")`."""

    fields: Sequence[str] = ()
    name: str = "default"
    direct: bool = False


class Grouping:
    """streamparse's groupings; those of Java code are refused."""

    SHUFFLE = model.Grouping("shuffle")
    GLOBAL = model.Grouping("global")
    ALL = model.Grouping("all")
    NONE = model.Grouping("none")
    DIRECT = model.Grouping("direct")
    LOCAL_OR_SHUFFLE = model.Grouping("local_or_shuffle")

    @staticmethod
    def fields(*names: str | Sequence[str]) -> model.Grouping:
        """Group by fields, given one by one or as a list."""
        flat = [
            name
            for argument in names
            for name in ([argument] if isinstance(argument, str) else argument)
        ]
        return model.Grouping("fields", tuple(flat))

    @staticmethod
    def custom_object(*_: Any) -> model.Grouping:
        """Refuse a grouping of Java code."""
        raise InvalidTopologyError(
            "Grouping.custom_object names a Java class; use sparkstorm.api.custom(object with choose_tasks)"
        )

    custom_serialized = custom_object


class _StreamparseComponent:
    """Base of spouts and bolts."""

    outputs: Any = None
    config: Mapping[str, Any] | None = None
    own_conf: Mapping[str, Any] = MappingProxyType({})
    _collector: Any

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        inputs: Any = None,
        par: Any = 1,
        config: Mapping[str, Any] | None = None,
    ) -> Specification:
        """Declare this component in a Topology."""
        return Specification(cls, name, inputs, par, {**cls._own_config(), **(config or {})})

    @classmethod
    def _own_config(cls) -> dict[str, Any]:
        return dict(cls.config or {})

    def _begin(self, conf: api.Conf, context: TopologyContext, collector: Any) -> None:
        self._collector = collector
        self.storm_conf = {**conf, **self.own_conf}
        self.context = {
            "taskid": context.task_id,
            "componentid": context.component_id,
            "task->component": {
                str(task): name for task, name in context.component_by_task.items()
            },
        }
        self.component_name = context.component_id
        self.task_id = context.task_id
        self.topology_name = context.topology_id
        self.pid = os.getpid()
        self.logger = logging.getLogger(
            f"{self.topology_name}.{self.component_name}.{self.task_id}"
        )
        self.initialize(self.storm_conf, self.context)

    def initialize(self, storm_conf: Any, context: Any) -> None:
        """Prepare the task; override it."""

    def log(self, message: Any, level: str | None = None) -> None:
        """Write a line to the worker's log."""
        self.logger.log(
            logging.getLevelNamesMapping().get(str(level or "info").upper(), logging.INFO), message
        )

    def report_metric(self, name: str, value: Any) -> None:
        """Write a metric to the worker's log."""
        self.logger.debug("metric %s = %r", name, value)

    @staticmethod
    def is_heartbeat(tup: Any) -> bool:
        """Return False: there is no heartbeat without a pipe."""
        return False


class Spout(_StreamparseComponent, api.Spout):
    """Spout of streamparse: `initialize`, `next_tuple`, `ack`, `fail`, and
    `emit(values, tup_id=...)`.
    """

    def open(
        self, conf: api.Conf, context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Prepare the task."""
        self._begin(conf, context, collector)

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> None:
        """Send a tuple; with an id it is tracked."""
        _refuse_task_ids(need_task_ids)
        if direct_task is not None:
            self._collector.emit_direct(direct_task, list(tup), tup_id, stream or "default")
        else:
            self._collector.emit(list(tup), tup_id, stream or "default")

    def raise_exception(self, exception: BaseException, tup: Any = None) -> None:
        """Record an error of this component."""
        self._collector.report_error(exception)


class ReliableSpout(Spout):
    """Spout that emits a failed tuple again, at most `max_fails` times."""

    max_fails = 3

    def open(
        self, conf: api.Conf, context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Prepare the task."""
        self.failed_tuples: Counter[Any] = Counter()
        self.unacked_tuples: dict[Any, tuple[Any, ...]] = {}
        super().open(conf, context, collector)

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> None:
        """Send a tuple with an id, and remember it until it is acked."""
        if tup_id is None:
            raise ValueError("a ReliableSpout emits with tup_id=...")
        self.unacked_tuples[tup_id] = (tup, stream, direct_task)
        super().emit(tup, tup_id, stream, direct_task, need_task_ids)

    def ack(self, tup_id: Any) -> None:
        """Forget a tuple."""
        self.failed_tuples.pop(tup_id, None)
        self.unacked_tuples.pop(tup_id, None)

    def fail(self, tup_id: Any) -> None:
        """Emit a tuple again, or give it up."""
        unacked = self.unacked_tuples.get(tup_id)
        if unacked is None:
            return
        if self.failed_tuples[tup_id] >= self.max_fails:
            self.ack(tup_id)
            return
        self.failed_tuples[tup_id] += 1
        tup, stream, direct_task = unacked
        self.emit(tup, tup_id, stream, direct_task)


class _NamedComponent(Tuple):
    """Tuple as a streamparse bolt sees it: `tup.values.word` next to `tup.values[0]`.

    Its own tuple, because its values are of another type than those that are recorded, parked
    and packed; `given` is the tuple that the task has in work.
    """

    __slots__ = ("given",)

    def __init__(self, given: Tuple, values: tuple[Any, ...]) -> None:
        super().__init__(values, given.roots, given.source)
        self.given = given


def _given(tup: Tuple) -> Tuple:
    """Return the tuple that the task has in work for one that its bolt sees."""
    return tup.given if isinstance(tup, _NamedComponent) else tup


class Bolt(_StreamparseComponent, api.Bolt):
    """Bolt of streamparse: `initialize`, `process(tup)`, `process_tick(tup)`, `emit`; anchors, acks
    and fails by itself.

    An exception fails the tuple and is recorded; with `auto_fail = False` the tuple stays open
    until its time-out.
    """

    auto_anchor = True
    auto_ack = True
    auto_fail = True

    def prepare(self, conf: api.Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the task."""
        self._current: list[Tuple] = []
        self._types: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {}
        self._begin(conf, context, collector)

    def _named(self, tup: Tuple) -> Tuple:
        """Return a tuple whose values are read by name too; names that Python cannot have are
        `_0`, `_1`, ..., as in streamparse.
        """
        key = tup.component, tup.stream
        if (made := self._types.get(key)) is None:
            made = self._types[key] = namedtuple("Values", tup.fields, rename=True)
        return _NamedComponent(tup, made(*tup.values))

    def execute(self, tup: Tuple) -> None:
        """Process one tuple or tick."""
        self._current = [tup]
        try:
            if tup.is_tick:
                self._current = []
                self.process_tick(tup)
                return
            self.process(self._named(tup))
            if self.auto_ack:
                self.ack(tup)
        except Exception as error:  # user code may raise anything
            if self.auto_fail or tup.is_tick:
                raise
            self.raise_exception(error, tup)
        finally:
            self._current = []

    def process(self, tup: Tuple) -> None:
        """Process one tuple; override it."""
        raise NotImplementedError

    def process_tick(self, tup: Tuple) -> None:
        """Process a tick; override it, and set `topology.tick.tuple.freq.secs` in `config`."""

    def emit(
        self,
        tup: Sequence[Any],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> None:
        """Send a tuple, anchored to the present one unless `anchors` or `auto_anchor` is set
        otherwise.
        """
        _refuse_task_ids(need_task_ids)
        if anchors is None:
            anchors = self._current if self.auto_anchor else ()
        given = [_given(anchor) for anchor in anchors]
        if direct_task is not None:
            self._collector.emit_direct(direct_task, list(tup), given, stream or "default")
        else:
            self._collector.emit(list(tup), given, stream or "default")

    def ack(self, tup: Tuple) -> None:
        """Mark a tuple as done."""
        self._collector.ack(_given(tup))

    def fail(self, tup: Tuple) -> None:
        """Mark a tuple as failed."""
        self._collector.fail(_given(tup))

    def raise_exception(self, exception: BaseException, tup: Any = None) -> None:
        """Record an error of this component."""
        self._collector.report_error(exception)

    @staticmethod
    def is_tick(tup: Tuple) -> bool:
        """Return whether this is a tick."""
        return tup.is_tick


class BatchingBolt(Bolt):
    """Bolt that gathers tuples between ticks (one a second by default): `group_key(tup)`,
    `process_batch(key, tups)`; a batch is acked or failed whole.
    """

    ticks_between_batches = 1

    def prepare(self, conf: api.Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the task."""
        self._batches: defaultdict[Any, list[Tuple]] = defaultdict(list)
        self._ticks = 0
        super().prepare(conf, context, collector)

    @classmethod
    def _own_config(cls) -> dict[str, Any]:
        return {_TICK_KEY: 1, **super()._own_config()}

    def group_key(self, tup: Tuple) -> Any:
        """Return the key of a tuple's batch; by default there is one batch."""
        return None

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        """Process a batch; override it."""
        raise NotImplementedError

    def execute(self, tup: Tuple) -> None:
        """Put a tuple to its batch; at a tick, process what is due."""
        if not tup.is_tick:
            named = self._named(tup)
            self._batches[self.group_key(named)].append(named)
            return
        self.process_tick(tup)
        self._ticks += 1
        if self._ticks >= self.ticks_between_batches:
            self._ticks = 0
            self._process_batches()

    def _process_batches(self) -> None:
        batches = self._batches
        self._batches = defaultdict(list)
        for key, tups in batches.items():
            self._current = tups
            try:
                self.process_batch(key, tups)
            except Exception as error:  # as above
                self.raise_exception(error)
                for tup in tups if self.auto_fail else ():
                    reason = f"its batch failed: {type(error).__name__}: {error}"
                    self._collector.fail(_given(tup), reason)
            else:
                for tup in tups if self.auto_ack else ():
                    self.ack(tup)
            finally:
                self._current = []


class TicklessBatchingBolt(BatchingBolt):
    """Batching bolt with its own period, `secs_between_batches`."""

    secs_between_batches: float = 2

    @classmethod
    def _own_config(cls) -> dict[str, Any]:
        return {**super()._own_config(), _TICK_KEY: cls.secs_between_batches}


@dataclass(eq=False)
class Specification:
    """One component of a Topology: class, name, inputs, parallelism and configuration."""

    component: type[Any]
    name: str | None
    inputs: Any
    par: Any
    config: Mapping[str, Any]

    def __getitem__(self, stream: str) -> tuple[Specification, str]:
        """Return a stream of this component as an input."""
        return self, stream


class _TopologyType(type):
    """A Topology's class, which is built when it is called: `topology: module:WordCount` of a job
    file does so.
    """

    def __call__(cls) -> model.Topology:
        specs = {}
        for base in reversed(cls.__mro__):
            specs.update(
                {key: spec for key, spec in vars(base).items() if isinstance(spec, Specification)}
            )
        names = {spec: spec.name or key for key, spec in specs.items()}
        shared = {
            key: value
            for base in reversed(cls.__mro__)
            for key, value in (vars(base).get("config") or {}).items()
        }
        builder = api.TopologyBuilder()
        for spec, name in names.items():
            outputs = _outputs(name, spec.component.outputs)
            conf = {**shared, **spec.config}
            instance = spec.component()
            # keys of the project's own too, which are in no configuration here
            instance.own_conf = conf
            conf = {key: value for key, value in conf.items() if key.startswith("topology.")}
            if issubclass(spec.component, api.Spout):
                builder.set_spout(
                    name, instance, _parallelism(name, spec.par), conf=conf, outputs=outputs
                )
                continue
            declarer = builder.set_bolt(
                name, instance, _parallelism(name, spec.par), conf=conf, outputs=outputs
            )
            for source, grouping in _inputs(name, spec.inputs):
                spec_of, stream = source if isinstance(source, tuple) else (source, "default")
                if spec_of not in names:
                    raise InvalidTopologyError(
                        f"component '{name}': its input {show(source)} is no component of {cls.__name__}"
                    )
                declarer.grouping(names[spec_of], grouping, stream)
        return builder.build()


class Topology(metaclass=_TopologyType):
    """Topology of streamparse: class attributes are `Component.spec(...)`; `config` goes to each
    component.
    """


def _inputs(name: str, inputs: Any) -> list[tuple[Any, model.Grouping]]:
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    if isinstance(inputs, list | tuple) and not (len(inputs) == 2 and isinstance(inputs[1], str)):
        return [(source, Grouping.SHUFFLE) for source in inputs]
    if isinstance(inputs, Specification | tuple):
        return [(inputs, Grouping.SHUFFLE)]
    raise InvalidTopologyError(
        f"component '{name}': inputs is {show(inputs)}; use [spec, ...] or {{spec: Grouping...}}"
    )


def _outputs(name: str, declared: Any) -> dict[str, model.Stream]:
    """Streams by name, from a list of fields or of Streams."""
    if declared is None:
        return {}
    if isinstance(declared, str) or not isinstance(declared, list | tuple):
        raise InvalidTopologyError(
            f"component '{name}': outputs is {show(declared)}; write a list of fields or of Streams"
        )
    plain = [output for output in declared if isinstance(output, str)]
    streams = {
        output.name: model.Stream(tuple(output.fields), output.direct)
        for output in declared
        if isinstance(output, Stream)
    }
    return {**({"default": model.Stream(tuple(plain))} if plain else {}), **streams}


def _parallelism(name: str, par: Any) -> int:
    """Return the number of executors; of several by environment, the least."""
    number = min(par.values()) if isinstance(par, Mapping) and par else par
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidTopologyError(
            f"component '{name}': par is {show(par)}, not a number of executors"
        )
    return number


def _refuse_task_ids(need_task_ids: bool) -> None:
    if need_task_ids:
        raise NotImplementedError(
            "need_task_ids=True: the receiving tasks are chosen at the commit, and not known at the emit"
        )
