"""TopologyBuilder: adds spouts and bolts to a topology, connects them, and checks the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from sparkstorm.api.columns import EXACT, ColumnBolt, arrow_type
from sparkstorm.api.components import (
    BasicBolt,
    Bolt,
    Effects,
    GatheringBolt,
    Outputs,
    Spout,
    Stateful,
    check_effects,
)
from sparkstorm.api.function_components import BatchFunctionBolt, component_of
from sparkstorm.api.inputs import Inputs, inputs_of, key_range
from sparkstorm.api.signatures import check_grouping, check_methods
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.storm_names import name_here, refuse_name
from sparkstorm.api.windows import TimedBolt, WindowedBolt, check_times, late_stream_of
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.shared_memory import (
    SHARED_MEMORY_KEY,
    SharedMemory,
    check_regions,
    regions_of,
)
from sparkstorm.common.model.topology import (
    DEFAULT_STREAM,
    Component,
    Grouping,
    Stream,
    Subscription,
    Topology,
    validate,
)
from sparkstorm.common.model.values.column_types import ANY, ColumnType, parse_type
from sparkstorm.common.settings import ComponentSettings


class TopologyBuilder:
    """Builder of a topology: add spouts and bolts; `build()` checks the whole.

    >>> builder = TopologyBuilder()
    >>> class Lines(Spout):
    ...     def next_tuple(self): pass
    >>> class Split(BasicBolt):
    ...     def execute(self, tup, collector): pass
    >>> _ = builder.set_spout("lines", Lines(), outputs=["line"])
    >>> _ = builder.set_bolt("split", Split(), parallelism=2, inputs="lines")
    >>> sorted(builder.build().components)
    ['lines', 'split']
    """

    def __init__(self) -> None:
        self._components: dict[str, Component] = {}

    def __getattr__(self, name: str) -> NoReturn:
        """Name what a topology's user has forgotten, or a method of Storm's by its name here."""
        if name_here(TopologyBuilder, name) is not None:
            refuse_name(self, name)
        raise AttributeError(
            f"TopologyBuilder has no {name!r}: it is no topology yet, its `build()` returns one"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a TopologyBuilder is no topology yet: its `build()` returns one")

    def set_spout(
        self,
        id: str,
        spout: Spout | Callable[[], Any],
        parallelism: int = 1,
        *,
        num_tasks: int | None = None,
        conf: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
    ) -> Declarer:
        """Add a spout or a function declared with @spout; parallelism is its number of executors."""
        spout = component_of(id, spout, ("spout",), outputs)
        if not isinstance(spout, Spout):
            raise InvalidTopologyError(
                f"component '{id}': set_spout needs an instance of Spout, not {_shown(spout)}"
            )
        check_methods(id, spout)
        streams = _streams(id, spout, outputs)
        return self._add(
            Component(id, "spout", spout, parallelism, num_tasks, _conf(id, conf), streams)
        )

    def set_bolt(
        self,
        id: str,
        bolt: Bolt | BasicBolt | WindowedBolt | TimedBolt | TransactionalSink | Callable[..., Any],
        parallelism: int = 1,
        *,
        inputs: Inputs | None = None,
        num_tasks: int | None = None,
        conf: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
    ) -> Declarer:
        """Add a bolt, or a function declared with @bolt, @windowed or @fold.

        `inputs` names the components whose tuples it gets: `inputs="split"`, or
        `inputs={"split": fields("word")}` with the grouping of each ("component:stream" for a
        stream other than the default one). An input without a grouping is grouped by the bolt's key
        if it has one, else shuffled. The grouping methods of the returned declarer do the same.
        """
        bolt = component_of(id, bolt, ("bolt", "windowed", "fold"), outputs)
        if not isinstance(bolt, Bolt | BasicBolt | WindowedBolt | TimedBolt | TransactionalSink):
            raise InvalidTopologyError(
                f"component '{id}': set_bolt needs an instance of Bolt or BasicBolt, not {_shown(bolt)}"
            )
        check_methods(id, bolt)
        _check_sink(id, bolt, outputs)
        _check_state(id, bolt)
        if getattr(bolt, "effects", None) is not None:
            check_effects(id, bolt.effects)  # type: ignore[union-attr]
        own = _conf(id, conf)
        if isinstance(bolt, WindowedBolt | TimedBolt):
            own = {**bolt.time_conf(), **own}
        streams = _streams(id, bolt, outputs)
        for name, late in late_stream_of(own).items():
            if name in streams:
                raise InvalidTopologyError(
                    f"component '{id}': its late stream needs a stream of its own, and '{name}' is another output; rename one"
                )
            streams = {**streams, name: late}
        declarer = self._add(Component(id, "bolt", bolt, parallelism, num_tasks, own, streams))
        for component, stream, grouping in inputs_of(id, bolt, inputs, num_tasks or parallelism):
            declarer.grouping(component, grouping, stream)
        return declarer

    def build(self) -> Topology:
        """Check everything and return the topology; InvalidTopologyError names the component and
        the remedy.
        """
        topology = Topology(dict(self._components))
        validate(topology)
        for bolt in topology.bolts:
            if not bolt.inputs and ComponentSettings.of({}, bolt.conf).tick_ms is None:
                raise InvalidTopologyError(
                    f"bolt '{bolt.id}' has no inputs, so its execute is never called: add a grouping, as in "
                    f"set_bolt('{bolt.id}', ...).shuffle_grouping('{topology.spouts[0].id}'), or drop it"
                )
        check_regions(((component.id, component.conf) for component in topology), "")
        check_times(topology)
        _check_batch_types(topology)
        _type_frames(topology)
        _check_sink_fields(topology)
        return topology

    def _add(self, component: Component) -> Declarer:
        if component.id in self._components:
            raise InvalidTopologyError(
                f"component id '{component.id}' is used twice; ids are unique over spouts and bolts"
            )
        self._components[component.id] = component
        return Declarer(self._components, component.id)


class Declarer:
    """Inputs of a bolt that `set_bolt` has added (Storm's InputDeclarer); methods return the
    declarer.
    """

    def __init__(self, components: dict[str, Component], id: str) -> None:
        self._components = components
        self._id = id

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            """Name a method of Storm's by its name here."""
            refuse_name(self, name)

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send tuples to the tasks in turn."""
        return self.grouping(component, Grouping("shuffle"), stream)

    def load_aware_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send tuples in turn, fewer to tasks for which more is waiting."""
        return self.grouping(component, Grouping("load_aware_shuffle"), stream)

    def fields_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Send tuples with equal values of these fields to one task."""
        return self.grouping(component, Grouping("fields", fields), stream)

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Send tuples with equal values to two tasks: see `partial_key`."""
        return self.grouping(component, Grouping("partial_key", fields), stream)

    def key_range_grouping(
        self, component: str, field: str, bounds: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Send tuples to the task of the range of a field's value: see `key_range`."""
        return self.grouping(component, key_range(field, bounds), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send every tuple to every task."""
        return self.grouping(component, Grouping("all"), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send every tuple to the task with the lowest id."""
        return self.grouping(component, Grouping("global"), stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send tuples to any task: as shuffle."""
        return self.grouping(component, Grouping("none"), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send each tuple to the task named with `emit_direct`."""
        return self.grouping(component, Grouping("direct"), stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Send tuples to the tasks in the producer's worker, in runs of up to 64, else to all tasks
        in turn.
        """
        return self.grouping(component, Grouping("local_or_shuffle"), stream)

    def custom_grouping(
        self, component: str, custom: Any, stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Let user code choose: see `custom`."""
        return self.grouping(component, Grouping("custom", custom=custom), stream)

    def grouping(
        self, component: str, grouping: Grouping, stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Subscribe to a stream with any grouping."""
        if grouping.kind == "custom":
            if not callable(getattr(grouping.custom, "choose_tasks", None)):
                raise InvalidTopologyError(
                    f"component '{self._id}': a custom grouping needs a method choose_tasks(task, values)"
                )
            check_grouping(self._id, grouping.custom)
        if grouping.kind in ("fields", "partial_key") and not grouping.fields:
            raise InvalidTopologyError(
                f"component '{self._id}': {grouping.kind} grouping on '{component}' needs at least one field"
            )
        if stray := [name for name in grouping.fields if not isinstance(name, str)]:
            raise InvalidTopologyError(
                f"component '{self._id}': {grouping.kind} grouping on '{component}' takes names of fields, as in "
                f"{grouping.kind}_grouping('{component}', 'word'), not {show(stray[0])}"
            )
        mine = self._components[self._id]
        if any(s.component == component and s.stream == stream for s in mine.inputs):
            raise InvalidTopologyError(
                f"component '{self._id}' subscribes to stream '{stream}' of '{component}' twice; drop one"
            )
        self._components[self._id] = replace(
            mine, inputs=(*mine.inputs, Subscription(component, stream, grouping))
        )
        return self

    def add_shared_memory(self, region: SharedMemory) -> Declarer:
        """Declare memory that this component's executors share.

        The resource-aware scheduler counts it. Components that add regions of one name share one
        region. InvalidTopologyError when their amounts differ.
        """
        if not isinstance(region, SharedMemory):
            raise InvalidTopologyError(
                f"component '{self._id}': add_shared_memory needs a SharedMemory, not {show(region)}"
            )
        mine = self._components[self._id]
        regions = {
            own_region.name: own_region.amounts()
            for own_region in regions_of(mine.conf, f"component '{self._id}'")
        }
        if regions.setdefault(region.name, region.amounts()) != region.amounts():
            raise InvalidTopologyError(
                f"component '{self._id}': shared memory {show(region.name)} is added twice with different amounts"
            )
        conf = {**mine.conf, SHARED_MEMORY_KEY: regions}
        regions_of(conf, f"component '{self._id}'")
        self._components[self._id] = replace(mine, conf=conf)
        return self


def _conf(id: str, conf: Mapping[str, Any] | None) -> dict[str, Any]:
    if conf is not None and not isinstance(conf, Mapping):
        raise InvalidTopologyError(
            f"component '{id}': conf must be a mapping of keys to values, not {conf!r}"
        )
    return dict(conf or {})


def _streams(id: str, instance: Any, outputs: Outputs | None) -> dict[str, Stream]:
    declared = instance.outputs if outputs is None else outputs
    if isinstance(declared, str):
        raise InvalidTopologyError(
            f"component '{id}': outputs is the text '{declared}'; write a list of field names"
        )
    is_typed = isinstance(declared, Mapping) and all(
        isinstance(kind, str) for kind in declared.values()
    )
    # names of fields, or types by field
    if not isinstance(declared, Mapping) or (is_typed and DEFAULT_STREAM not in declared):
        declared = {DEFAULT_STREAM: declared} if declared else {}
    return {name: _stream(id, name, stream) for name, stream in declared.items()}


def _stream(id: str, name: str, declared: Any) -> Stream:
    stream = declared if isinstance(declared, Stream) else None
    if stream is None and isinstance(declared, Iterable) and not isinstance(declared, str):
        stream = Stream(declared if isinstance(declared, Mapping) else tuple(declared))
    if stream is None or not all(isinstance(f, str) and f for f in stream.fields):
        raise InvalidTopologyError(
            f"component '{id}', stream '{name}': fields must be a list of names, not {declared!r} (or types by name)"
        )
    for field, kind in stream.types.items():
        if kind != ANY:
            _check_type(f"component '{id}', stream '{name}', field '{field}'", kind)
    return stream


def _check_sink(id: str, bolt: Any, outputs: Outputs | None) -> None:
    if isinstance(bolt, TransactionalSink):
        if bolt.outputs or outputs:
            raise InvalidTopologyError(
                f"component '{id}' is a TransactionalSink and emits nothing: drop its outputs"
            )
        if bolt.blocking or isinstance(bolt, Stateful):
            raise InvalidTopologyError(
                f"component '{id}': a TransactionalSink has no state and no thread of its own; drop these"
            )
        if bolt.effects in (Effects.RUN, Effects.IDEMPOTENT):
            raise InvalidTopologyError(
                f"component '{id}': a TransactionalSink writes by epochs of a live worker and cannot run in a replay; "
                "use Effects.REDIRECT or Effects.MUTE"
            )


def _check_state(id: str, bolt: Any) -> None:
    for attribute in ("state_key_type", "state_type"):
        kind = getattr(bolt, attribute, "")
        if kind and isinstance(bolt, Stateful):
            declared = _check_type(f"component '{id}', {attribute}", kind)
            if attribute == "state_key_type" and (
                declared.name == "map" or any(part.parts for _, part in declared.parts)
            ):
                raise InvalidTopologyError(
                    f"component '{id}', {attribute}: state keys are text, bytes, numbers, true/false or "
                    f"tuples of them (struct<...>), not {declared}"
                )


def _check_type(where: str, kind: Any) -> ColumnType:
    try:
        return parse_type(kind)
    except ValueError as error:
        raise InvalidTopologyError(f"{where}: {error}") from error


def _check_batch_types(topology: Topology) -> None:
    """Refuse types of a ColumnBolt for a field that none of its inputs has."""
    for bolt in topology.bolts:
        declared = bolt.instance.types if isinstance(bolt.instance, ColumnBolt) else {}
        known_fields = {
            f
            for s in bolt.inputs
            for f in topology.components[s.component].streams[s.stream].fields
        }
        stray = sorted(set(declared) - known_fields)
        if stray:
            raise InvalidTopologyError(
                f"component '{bolt.id}': types names '{stray[0]}', which no input has; they have "
                f"{', '.join(sorted(known_fields)) or 'none'}"
            )


def _type_frames(topology: Topology) -> None:
    """Give functions of frames the types that all their inputs declare of a field: by its values a
    column of None has no type, and one of whole numbers is none of floats.
    """
    for bolt in topology.bolts:
        if not isinstance(bolt.instance, BatchFunctionBolt) or bolt.instance.frame == "rows":
            continue
        streams = [topology.components[s.component].streams[s.stream] for s in bolt.inputs]
        kinds: dict[str, set[str]] = {}
        for stream in streams:
            for name in stream.fields:
                kinds.setdefault(name, set()).add(stream.types.get(name, ANY))
        bolt.instance.types = {
            name: arrow_type(parse_type(kind))
            for name, (kind, *others) in kinds.items()
            if kind in EXACT and not others
        }


def _check_sink_fields(topology: Topology) -> None:
    """Refuse an input of a sink without a field that it writes, or of a ready bolt without one that
    it reads: each of its rows would fail.
    """
    for bolt in topology.bolts:
        instance = bolt.instance
        if not isinstance(instance, TransactionalSink | GatheringBolt):
            continue
        for source in bolt.inputs:
            fields = topology.components[source.component].streams[source.stream].fields
            if missing := [name for name in instance.input_fields if name not in fields]:
                verb = "writes" if isinstance(instance, TransactionalSink) else "reads"
                raise InvalidTopologyError(
                    f"component '{bolt.id}' {verb} the field '{missing[0]}', which stream '{source.stream}' of "
                    f"'{source.component}' does not have: it declares {', '.join(fields) or 'none'}"
                )


def _shown(thing: Any) -> str:
    return (
        f"the class {thing.__name__} (call it)"
        if isinstance(thing, type)
        else f"a {type(thing).__name__}"
    )
