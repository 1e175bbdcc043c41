"""Steps of a chain and the streams between them, which `build` puts into a TopologyBuilder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Grouping,
    Topology,
    TopologyBuilder,
    Tuple,
    fields,
)
from sparkstorm.api.function_components import component_of, made_of
from sparkstorm.api.functions import Declaration, WindowShape, row_of
from sparkstorm.common.errors import InvalidTopologyError, show

Function = Callable[..., Any]
Field = str | Mapping[str, str]  # a name, or, alone, types by name


@dataclass(frozen=True, eq=False)
class StreamStep:
    """A component to be: its name, its instance or decorated function, and the steps that it
    reads.
    """

    name: str
    component: Any
    parallelism: int = 1
    reads: tuple[StreamStep, ...] = ()
    grouping: Grouping | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> Any:
        """Return the output fields of its default stream, or types by field."""
        given = self.options.get("outputs")
        declared = (
            given if given is not None else component_of(self.name, self.component, _KINDS).outputs
        )
        return declared.get("default", declared) if isinstance(declared, Mapping) else declared


_KINDS = ("spout", "bolt", "windowed", "fold")


class MapBolt(BasicBolt):
    """A function of a tuple that makes a row: a tuple of values, or one value."""

    def __init__(self, function: Function, outputs: Any) -> None:
        self.outputs = outputs
        self._function = function

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what the function returns."""
        collector.emit(row_of(self._function(tup)))


class FilterBolt(MapBolt):
    """Function that decides whether a tuple goes on."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the tuple's values if the function returns true."""
        if self._function(tup):
            collector.emit(tup.values)


@dataclass(frozen=True)
class Stream:
    """Output of one or several steps. Every method adds a step and returns the output of that."""

    steps: tuple[StreamStep, ...]

    def map(
        self, function: Function, *outputs: Field, name: str = "", parallelism: int = 1
    ) -> Stream:
        """Make a row of each tuple."""
        return self._then(_name(function, name), MapBolt(function, _outputs(outputs)), parallelism)

    def flat_map(
        self, function: Function, *outputs: Field, name: str = "", parallelism: int = 1
    ) -> Stream:
        """Emit every row that a function of a tuple yields."""
        name = _name(function, name)
        return self._then(
            name, made_of(name, function, Declaration("bolt", outputs), ("bolt",)), parallelism
        )

    def filter(self, function: Function, *, name: str = "", parallelism: int = 1) -> Stream:
        """Let those tuples go on for which a function is true."""
        return self._then(
            _name(function, name),
            FilterBolt(function, self._fields(_name(function, name))),
            parallelism,
        )

    def key_by(self, *keys: str) -> KeyedStream:
        """Bring tuples with equal values in these fields to the same task of the next step."""
        return KeyedStream(self, keys)

    def window(self, shape: WindowShape, **options: Any) -> WindowedStream:
        """Cut the stream into windows; options are those of `api.fold`: time, lag, lateness, merge,
        late_stream.
        """
        return WindowedStream(self, shape, (), options)

    def merge(self, *others: Stream) -> Stream:
        """Put streams with the same fields together."""
        return Stream((*self.steps, *(step for other in others for step in other.steps)))

    def through(self, bolt: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
        """Send the stream through any bolt; options are those of `set_bolt`."""
        return self._then(_name(bolt, name), bolt, parallelism, None, options)

    def sink(self, bolt: Any, **options: Any) -> Stream:
        """End in a sink: the same as `through`."""
        return self.through(bolt, **options)

    def build(self, *others: Stream) -> Topology:
        """Return the topology that ends here, and in the other streams; InvalidTopologyError names
        a step and its remedy.
        """
        builder = TopologyBuilder()
        done: dict[str, StreamStep] = {}
        for step in (
            upstream
            for end in (self, *others)
            for last in end.steps
            for upstream in _upstream(last)
        ):
            if done.setdefault(step.name, step) is not step:
                raise InvalidTopologyError(
                    f"two steps are named '{step.name}'; give one of them another name, as in name='more'"
                )
        for step in done.values():
            if not step.reads:
                builder.set_spout(step.name, step.component, step.parallelism, **step.options)
                continue
            names = [read.name for read in step.reads]
            inputs: Any = names if step.grouping is None else dict.fromkeys(names, step.grouping)
            builder.set_bolt(
                step.name, step.component, step.parallelism, inputs=inputs, **step.options
            )
        return builder.build()

    def _then(
        self,
        name: str,
        component: Any,
        parallelism: int,
        grouping: Grouping | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Stream:
        return Stream(
            (StreamStep(name, component, parallelism, self.steps, grouping, options or {}),)
        )

    def _fields(self, name: str) -> Any:
        field_lists = [step.fields() for step in self.steps]
        if any(tuple(names) != tuple(field_lists[0]) for names in field_lists):
            parts = " and ".join(
                f"'{step.name}' has {', '.join(names)}"
                for step, names in zip(self.steps, field_lists, strict=True)
            )
            raise InvalidTopologyError(
                f"component '{name}': filter needs streams with the same fields, but {parts}"
            )
        return field_lists[0]


@dataclass(frozen=True)
class KeyedStream:
    """A stream whose next step gets equal keys in one task."""

    stream: Stream
    keys: tuple[str, ...]

    def update(
        self,
        function: Function,
        *outputs: Field,
        name: str = "",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Emit what a function of a tuple and the task's state yields; options are those of
        `api.bolt`, such as state_type.
        """
        name = _name(function, name)
        made = made_of(name, function, Declaration("bolt", outputs, self.keys, options), ("bolt",))
        return self.stream._then(name, made, parallelism)

    def window(self, shape: WindowShape, **options: Any) -> WindowedStream:
        """Cut the stream of each key into windows; options are those of `api.fold`: time, lag,
        lateness, merge, late_stream.
        """
        return WindowedStream(self.stream, shape, self.keys, options)

    def through(self, bolt: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
        """Send the stream through any bolt, by the key; options are those of `set_bolt`."""
        return self.stream._then(_name(bolt, name), bolt, parallelism, fields(*self.keys), options)


@dataclass(frozen=True)
class WindowedStream:
    """Windows of a stream, of each key if it has one."""

    stream: Stream
    shape: WindowShape
    keys: tuple[str, ...]
    options: Mapping[str, Any]

    def fold(
        self,
        function: Function,
        *outputs: Field,
        initial: Any,
        name: str = "",
        parallelism: int = 1,
    ) -> Stream:
        """Keep one accumulator per window and key, and emit it with the key and the time when the
        window is over.
        """
        options = {**self._options("merge"), "merge": self.options.get("merge"), "initial": initial}
        return self._made("fold", function, outputs, options, name, parallelism)

    def apply(
        self, function: Function, *outputs: Field, name: str = "", parallelism: int = 1
    ) -> Stream:
        """Emit what a function of a Window yields."""
        return self._made("windowed", function, outputs, self._options(), name, parallelism)

    def _made(
        self, kind: Any, function: Function, outputs: Any, options: Any, name: str, parallelism: int
    ) -> Stream:
        name = _name(function, name)
        made = made_of(name, function, Declaration(kind, outputs, self.keys, options), (kind,))
        return self.stream._then(name, made, parallelism)

    def _options(self, *more: str) -> dict[str, Any]:
        known_options = ("time", "lag", "lateness", "late_stream")
        unknown = sorted(self.options.keys() - {*known_options, *more})
        if unknown:
            raise InvalidTopologyError(
                f"window(...) has no option '{unknown[0]}' here; it has {', '.join((*known_options, *more))}"
            )
        return {
            "window": self.shape,
            **{option: self.options.get(option) for option in known_options},
        }


def stream(spout: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
    """Begin with a spout: an instance, or a function declared with @spout; options are those of
    `set_spout`.
    """
    return Stream((StreamStep(_name(spout, name), spout, parallelism, options=options),))


def _name(of: Any, name: str) -> str:
    """Return a step's name: the given one, a function's, or that of an instance's class in small
    letters ("file_sink").
    """
    if name:
        return name
    function_name = (
        getattr(of, "__name__", "")
        or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(of).__name__).lower()
    )
    if not function_name.isidentifier():
        raise InvalidTopologyError(
            f"a step has no name, since its function is {show(function_name)}: write a def, or give name='...'"
        )
    return function_name


def _outputs(outputs: tuple[Field, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Mapping) else outputs


def _upstream(step: StreamStep) -> Iterator[StreamStep]:
    """Yield a step and all that it reads, sources first."""
    for read in step.reads:
        yield from _upstream(read)
    yield step
