"""Inputs of a bolt: the argument `inputs=` of `set_bolt`, and the check that a key's tuples reach
one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from sparkstorm.api.components import Stateful
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.tasks import task_count
from sparkstorm.common.model.topology import (
    DEFAULT_STREAM,
    Component,
    Grouping,
    KeyRanges,
    Subscription,
    Topology,
)

GroupingName = Literal[
    "shuffle", "load_aware_shuffle", "all", "global", "none", "direct", "local_or_shuffle"
]
"""A grouping without parameters, by its name."""
Inputs = str | Sequence[str] | Mapping[str, Grouping | GroupingName]
"""Sources, each "component" or "component:stream": one, several, or with the grouping of each."""


def fields(*names: str) -> Grouping:
    """Group by fields: tuples with equal values in them go to the same task."""
    return Grouping("fields", names)


def partial_key(*names: str) -> Grouping:
    """Group by fields over two tasks: each tuple goes to the one that its sender has used less
    (Nasir et al., ICDE 2015).
    """
    return Grouping("partial_key", names)


def key_range(field: str, bounds: Sequence[Any]) -> Grouping:
    """Group by ranges of a field: bounds ascend, each begins a range, neighbouring ranges share a
    task.
    """
    return Grouping("key_range", (field,), KeyRanges(bounds))


def custom(grouping: Any) -> Grouping:
    """Group by user code: an object with `choose_tasks(task, values)`, which returns task ids, and
    optionally `prepare(tasks)`.
    """
    return Grouping("custom", custom=grouping)


def inputs_of(
    id: str, bolt: Any, inputs: Inputs | None, tasks: int = 1
) -> Iterator[tuple[str, str, Grouping]]:
    """Yield component, stream and grouping of each input; without a grouping it is the bolt's key,
    or shuffle. A state without a key over several tasks needs a grouping.
    """
    if inputs is None:
        return
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Mapping | Sequence) or not all(
        isinstance(source, str) for source in inputs
    ):
        raise InvalidTopologyError(
            f'component \'{id}\': inputs must name components, as in inputs="lines", inputs=["a", "b"] or '
            f'inputs={{"lines": fields("word")}}, not {show(inputs)}'
        )
    for source in inputs:
        component, colon, stream = source.partition(":")
        stream = stream if colon else DEFAULT_STREAM
        key = key_of_input(bolt, component, stream)
        default: Grouping | str = Grouping("fields", key) if key else "shuffle"
        is_one = key or tasks == 1 or isinstance(inputs, Mapping) or hasattr(bolt, "input_key")
        if not is_one and isinstance(bolt, Stateful):
            raise InvalidTopologyError(
                f"component '{id}' keeps a state without a key, of which each of its {tasks} tasks would keep a part: name "
                f'the key (key_fields, @bolt(key=...)) or the grouping (inputs={{"{source}": "shuffle"}}), or use one task'
            )
        yield (
            component,
            stream,
            _grouping(id, source, inputs[source] if isinstance(inputs, Mapping) else default),
        )


def key_of_input(bolt: Any, component: str, stream: str) -> tuple[str, ...]:
    """Return the fields of an input that must reach the same task; a JoinBolt has a key per
    input.
    """
    own = getattr(bolt, "input_key", None)
    return tuple(own(component, stream) if own is not None else getattr(bolt, "key_fields", ()))


def _grouping(id: str, source: str, grouping: Any) -> Grouping:
    if isinstance(grouping, Grouping):
        return grouping
    names = get_args(GroupingName)
    if grouping not in names:
        raise InvalidTopologyError(
            f"component '{id}': input '{source}' has the grouping {show(grouping)}; use fields(...), partial_key(...), "
            f"key_range(...), custom(...) or one of {', '.join(map(repr, names))}"
        )
    return Grouping(grouping)


def check_keys(topology: Topology) -> None:
    """Refuse inputs that scatter the tuples of a bolt's key over several tasks.

    The groupings `all`, `partial_key`, `direct` and `custom` are the user's choice.
    """
    for component in topology.bolts:
        if isinstance(component.instance, Stateful):
            _check_key(component)


def _check_key(component: Component) -> None:
    tasks = task_count(component, {})
    first: Subscription | None = None
    for source in component.inputs if tasks > 1 else ():
        key = key_of_input(component.instance, source.component, source.stream)
        if not key:
            continue
        where = f"component '{component.id}': tuples of one key ({', '.join(key)}) must reach the same of its {tasks} tasks, but"
        kind = source.grouping.kind
        stream = f"stream '{source.stream}' of '{source.component}'"
        names = ", ".join(f"'{name}'" for name in (source.component, *key))
        if kind in ("shuffle", "load_aware_shuffle", "none", "local_or_shuffle"):
            raise InvalidTopologyError(
                f"{where} {stream} comes by {kind} grouping; use fields_grouping({names}), or one task"
            )
        if kind in ("fields", "key_range") and not set(source.grouping.fields) <= set(key):
            raise InvalidTopologyError(
                f"{where} {stream} is grouped by {', '.join(source.grouping.fields)}; use fields_grouping({names}), or one task"
            )
        if kind not in ("fields", "key_range", "global"):
            continue
        if first is not None and _by(component, first) != _by(component, source):
            raise InvalidTopologyError(
                f"{where} {stream} and stream '{first.stream}' of '{first.component}' are grouped differently; "
                "group every input by the same fields in the same order, or use one task"
            )
        first = first or source


def _by(component: Component, source: Subscription) -> tuple[str, tuple[int, ...], Any]:
    """Return how an input is grouped: the places of its fields in its key, since the keys of a join
    have several names.
    """
    key = key_of_input(component.instance, source.component, source.stream)
    return (
        source.grouping.kind,
        tuple(key.index(name) for name in source.grouping.fields),
        source.grouping.custom,
    )
