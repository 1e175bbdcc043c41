"""Steps of a chain and the streams between them, which `build` puts into a TopologyBuilder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    Grouping,
    Topology,
    TopologyBuilder,
    Tuple,
    fields,
)
from sparkstorm.api.function_components import component_of, made_of
from sparkstorm.api.functions import Declaration, WindowShape, row_of
from sparkstorm.api.windows import TimeAware, late_stream_of
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.names import unknown_field
from sparkstorm.common.model.strict import near_name
from sparkstorm.common.model.topology import DEFAULT_STREAM
from sparkstorm.common.model.topology import Stream as TopologyStream
from sparkstorm.streams.as_of_join import AsOfJoinBolt
from sparkstorm.streams.interval_join import IntervalJoinBolt
from sparkstorm.streams.keyed_join import Kind
from sparkstorm.streams.lookup import Fetch, LookupBolt

Function = Callable[..., Any]
Field = str | Mapping[str, str]  # a name, or, alone, types by name


@dataclass(frozen=True, eq=False)
class StreamStep:
    """A component to be: name, instance or decorated function, and the steps that it reads."""

    name: str
    component: Any
    parallelism: int = 1
    reads: tuple[StreamStep, ...] = ()
    grouping: Grouping | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    """Stream of each step that it reads; empty: the default one of all."""

    def inputs(self) -> list[str]:
        """Return what it reads, as `inputs=` has it."""
        return [source_of(step.name, name) for step, name in _pairs(self.reads, self.streams)]

    def fields(self, stream: str = DEFAULT_STREAM) -> Any:
        """Return the output fields of a stream, or types by field."""
        made = component_of(self.name, self.component, _KINDS)
        given = self.options.get("outputs")
        declared = given if given is not None else made.outputs
        if stream == DEFAULT_STREAM:
            return declared.get(stream, declared) if isinstance(declared, Mapping) else declared
        late = late_stream_of(made.time_conf() if isinstance(made, TimeAware) else {})
        streams = {**(declared if isinstance(declared, Mapping) else {}), **late}
        if isinstance(fields := streams.get(stream, ""), str):
            raise InvalidTopologyError(
                f"step '{self.name}' has no stream '{stream}': a late stream is named by "
                "late_stream=, one of rows without a partner by unmatched_stream="
            )
        return fields.fields if isinstance(fields, TopologyStream) else fields


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
    """Output of one or several steps; every method adds a step and returns its output."""

    steps: tuple[StreamStep, ...]
    streams: tuple[str, ...] = ()
    """Stream of each step; empty: the default one of all."""

    if not TYPE_CHECKING:  # a type checker knows each name

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_step(self, name)

    def map(
        self, function: Function, *outputs: Field, name: str = "", parallelism: int = 1
    ) -> Stream:
        """Make a row of each tuple."""
        name = _name(function, name)
        _check_plain(f"component '{name}': map", function)
        if not outputs:
            raise InvalidTopologyError(f"component '{name}': map needs the names of its fields")
        return self._then(name, MapBolt(function, _outputs(outputs)), parallelism)

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
        name = _name(function, name)
        _check_plain(f"component '{name}': filter", function)
        fields = self._fields(f"component '{name}': filter")
        return self._then(name, FilterBolt(function, fields), parallelism)

    def side(self, stream: str) -> Stream:
        """Go on from another stream of the last step, such as its late stream."""
        for step in self.steps:
            step.fields(stream)
        return Stream(self.steps, (stream,) * len(self.steps))

    def key_by(self, *keys: str) -> KeyedStream:
        """Bring tuples with equal values in these fields to one task of the next step."""
        if stray := [key for key in keys if not isinstance(key, str)]:
            raise InvalidTopologyError(
                f"key_by takes names of fields, as in key_by('user', 'city'), not {show(stray[0])}"
            )
        if not keys:  # rows would go to any task
            raise InvalidTopologyError(
                "key_by has no field; name some, as in key_by('user', 'city')"
            )
        return KeyedStream(self, keys)

    def window(self, shape: WindowShape, **options: Any) -> WindowedStream:
        """Cut the stream into windows; options as of `api.fold`."""
        return WindowedStream(self, shape, (), options)

    def merge(self, *others: Stream) -> Stream:
        """Put streams with the same fields together."""
        if stray := [other for other in others if not isinstance(other, Stream)]:
            raise InvalidTopologyError(
                f"merge takes streams without keys, not a {type(stray[0]).__name__}; write .key_by(...) behind it"
            )
        streams = (self, *others)
        pairs = [pair for one in streams for pair in _pairs(one.steps, one.streams)]
        return Stream(tuple(step for step, _ in pairs), tuple(name for _, name in pairs))

    def look_up(
        self,
        fetch: Fetch,
        *,
        key: str | Sequence[str],
        add: Any,
        name: str = "look_up",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Add values by `LookupBolt` to all fields."""
        keys = (key,) if isinstance(key, str) else tuple(key)
        return self._looked_up(fetch, keys, add, name, parallelism, None, options)

    def through(self, bolt: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
        """Send the stream through any bolt; options as of `set_bolt`."""
        return self._then(_name(bolt, name), bolt, parallelism, None, options)

    def sink(self, bolt: Any, **options: Any) -> Stream:
        """End in a sink, as `through`."""
        return self.through(bolt, **options)

    def build(self, *others: Stream) -> Topology:
        """Return the topology that ends here and in the other streams; InvalidTopologyError names a
        step and its remedy.
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
            names = step.inputs()
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
            (
                StreamStep(
                    name,
                    component,
                    parallelism,
                    self.steps,
                    grouping,
                    options or {},
                    self.streams,
                ),
            )
        )

    def _looked_up(
        self,
        fetch: Fetch,
        keys: tuple[str, ...],
        add: Any,
        name: str,
        parallelism: int,
        grouping: Grouping | None,
        options: Mapping[str, Any],
    ) -> Stream:
        if given := [option for option in ("key", "keep") if option in options]:
            raise InvalidTopologyError(
                f"component '{name}': a look-up has its key of key_by and keeps all fields; drop {given[0]}"
            )
        kept = self._fields(f"component '{name}': a look-up")
        for key in keys:
            if key not in kept:
                raise InvalidTopologyError(
                    f"component '{name}': the key has {unknown_field(key, self.steps[0].name, kept)}"
                )
        bolt = LookupBolt(fetch, keys, keep=kept, add=add, **options)
        return self._then(name, bolt, parallelism, grouping)

    def _fields(self, who: str) -> Any:
        field_lists = [step.fields(name) for step, name in _pairs(self.steps, self.streams)]
        if any(tuple(names) != tuple(field_lists[0]) for names in field_lists):
            parts = " and ".join(
                f"'{step.name}' has {', '.join(names)}"
                for step, names in zip(self.steps, field_lists, strict=True)
            )
            raise InvalidTopologyError(f"{who} needs streams with the same fields, but {parts}")
        return field_lists[0]


@dataclass(frozen=True)
class KeyedStream:
    """Stream whose next step gets equal keys in one task."""

    stream: Stream
    keys: tuple[str, ...]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_step(self, name)

    def update(
        self,
        function: Function,
        *outputs: Field,
        name: str = "",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Emit what a function of a tuple and the task's state yields; options as of `api.bolt`."""
        name = _name(function, name)
        made = made_of(name, function, Declaration("bolt", outputs, self.keys, options), ("bolt",))
        return self.stream._then(name, made, parallelism)

    def window(self, shape: WindowShape, **options: Any) -> WindowedStream:
        """Cut the stream of each key into windows; options as of `api.fold`."""
        return WindowedStream(self.stream, shape, self.keys, options)

    def through(self, bolt: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
        """Send the stream through any bolt, by the key; options as of `set_bolt`."""
        return self.stream._then(_name(bolt, name), bolt, parallelism, fields(*self.keys), options)

    def join(
        self,
        other: KeyedStream,
        *,
        time: str,
        within: Duration | None = None,
        lower: Duration | None = None,
        upper: Duration | None = None,
        kind: Kind = "inner",
        name: str = "join",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Join another stream by `IntervalJoinBolt`. Options: select, lag, late_stream,
        unmatched_stream, time_output.
        """
        bolt = IntervalJoinBolt(*_side(name, self)).join(
            *_side(name, other), within=within, lower=lower, upper=upper, kind=kind
        )
        return self._joined(other, bolt, name, parallelism, {"time": time, **options})

    def join_as_of(
        self,
        table: KeyedStream,
        *,
        within: Duration | None = None,
        deletes: Mapping[str, Any] | None = None,
        kind: Literal["inner", "left"] = "inner",
        name: str = "join",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Join the latest row of a table by `AsOfJoinBolt`. Options: time, select, lag,
        late_stream, unmatched_stream, time_output.
        """
        if options.get("lag") is not None and options.get("time") is None:
            raise InvalidTopologyError(
                f"component '{name}': lag is that of event time; name its field by time, or drop lag"
            )
        bolt = AsOfJoinBolt(*_side(name, self)).join(
            *_side(name, table), within=within, deletes=deletes, kind=kind
        )
        return self._joined(table, bolt, name, parallelism, options)

    def look_up(
        self,
        fetch: Fetch,
        *,
        add: Any,
        name: str = "look_up",
        parallelism: int = 1,
        **options: Any,
    ) -> Stream:
        """Add values by `LookupBolt`, each key in one task."""
        grouping = fields(*self.keys)
        return self.stream._looked_up(fetch, self.keys, add, name, parallelism, grouping, options)

    def _joined(
        self,
        other: KeyedStream,
        bolt: IntervalJoinBolt | AsOfJoinBolt,
        name: str,
        parallelism: int,
        options: Mapping[str, Any],
    ) -> Stream:
        setters: dict[str, Callable[[Any], Any]] = {
            "time": bolt.with_timestamp_field,
            "lag": bolt.with_lag,
            "late_stream": bolt.with_late_tuple_stream,
            "unmatched_stream": bolt.with_unmatched_stream,
            "time_output": bolt.with_time_output,
            # a text is one column, as a key is, and not one for each letter
            "select": lambda columns: bolt.select(
                *([columns] if isinstance(columns, str) else columns)
            ),
        }
        for option, value in options.items():
            if option not in setters:
                raise InvalidTopologyError(
                    f"component '{name}': a join has no option '{option}'; it has {', '.join(setters)}{near_name(option, setters)}"
                )
            if value is not None:
                setters[option](value)
        return self.stream.merge(other.stream)._then(name, bolt, parallelism)


def _side(name: str, keyed: KeyedStream) -> tuple[list[str], tuple[str, ...], Any]:
    """Return sources, key and fields of a side of a join."""
    if not isinstance(keyed, KeyedStream):
        raise InvalidTopologyError(
            f"component '{name}': a join takes streams with keys, not a {type(keyed).__name__}; write .key_by(...) behind it"
        )
    pairs = _pairs(keyed.stream.steps, keyed.stream.streams)
    sources = [source_of(step.name, stream) for step, stream in pairs]
    return sources, keyed.keys, keyed.stream._fields(f"component '{name}': a join")


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
        """Keep one accumulator per window and key; emit it with the key and the time when the
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
            options = (*known_options, *more)
            raise InvalidTopologyError(
                f"window(...) has no option '{unknown[0]}' here; it has {', '.join(options)}{near_name(unknown[0], options)}"
            )
        return {
            "window": self.shape,
            **{option: self.options.get(option) for option in known_options},
        }


def stream(spout: Any, *, name: str = "", parallelism: int = 1, **options: Any) -> Stream:
    """Begin with a spout: an instance, or a function declared with @spout; options as of
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


def _no_step(stream: Any, name: str) -> AttributeError:
    """Return the error of a step that a stream does not have, with the remedy where streams with or
    without keys have it. An AttributeError: hasattr and copies ask for names too.
    """
    words = f"'{type(stream).__name__}' object has no attribute '{name}'"
    if not name.startswith("_"):
        if hasattr(KeyedStream, name):
            words = f"a stream needs keys for {name}: write .key_by(...) before .{name}(...)"
        elif hasattr(Stream, name):
            words = f"a stream with keys has no {name}: write .{name}(...) before .key_by(...), or .through(...)"
    return AttributeError(words, name=name, obj=stream)


def _check_plain(who: str, function: Any) -> None:
    """Refuse what cannot be called, and a function whose call runs nothing: its result is true."""
    if not callable(function):
        raise InvalidTopologyError(f"{who} takes a function of a tuple, not {show(function)}")
    kinds = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise InvalidTopologyError(
            f"{who} takes a function that returns its result; one with yield or async is for flat_map"
        )


def _outputs(outputs: tuple[Field, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Mapping) else outputs


def source_of(component: str, stream: str) -> str:
    """Return a source as `inputs=` has it."""
    return component if stream == DEFAULT_STREAM else f"{component}:{stream}"


def _pairs(
    steps: tuple[StreamStep, ...], streams: tuple[str, ...]
) -> Iterator[tuple[StreamStep, str]]:
    return zip(steps, streams or (DEFAULT_STREAM,) * len(steps), strict=True)


def _upstream(step: StreamStep) -> Iterator[StreamStep]:
    """Yield a step and all that it reads, sources first."""
    for read in step.reads:
        yield from _upstream(read)
    yield step
