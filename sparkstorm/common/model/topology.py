"""Topology as data: components, streams and groupings, and the check that they fit together."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

from sparkstorm.common.errors import InvalidTopologyError, show

DEFAULT_STREAM = "default"
BAD_STREAM = "bad"  # by convention: records that a source cannot turn into tuples
ACKER = "__acker"
MASTER = "__topology_master"
SYSTEM = "__system"  # the source of ticks, as in Storm; it has no task
TICK_STREAM = "__tick"
WATERMARK_STREAM = "__watermark"
# of failed windows and timers
WINDOW_STREAM = "__window"
TIMER_STREAM = "__timer"
MAX_NAME_CHARS = 150  # a worker's log is named after it, and file systems take 255
HOLD_STREAM = "__hold"
"""Stream of the places at which an input of the sender waits for its next try (output_clock.py)."""
LATE_PREFIX = "__late:"
"""Prefix of the stream's name under which rows that are late for their receiver are sent."""
AGAIN_PREFIX = "__again:"
"""The same of rows that a further try has emitted, to bolts without event time of their own."""


def stream_of(channel: str) -> str:
    """Return the stream of a channel, as frames name it."""
    return channel.removeprefix(LATE_PREFIX).removeprefix(AGAIN_PREFIX)


GroupingKind = Literal[
    "shuffle",
    "load_aware_shuffle",
    "fields",
    "partial_key",
    "key_range",
    "all",
    "global",
    "none",
    "direct",
    "local_or_shuffle",
    "custom",
]
ComponentKind = Literal["spout", "bolt", "system"]

# Sets have an order, but not one in which each two of them come one after the other; lists are more
# than one key.
_NO_BOUNDS = (set, frozenset, list, tuple)

# The rule of JStorm's Common.validate_ids: letters, digits and a few marks; '__' is kept for the
# system.
_ID = re.compile(r"[a-zA-Z0-9\-_/.$<>()#]+")
# A name is a folder's name as well: '..' would be the parent, a leading '-' an option of most
# commands.
_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9\-_.]*")


@dataclass(frozen=True, slots=True)
class Stream:
    """Declared output: field names in order, or types by field. A direct stream's producer names
    the receiving task.

    Types are those of Spark's SQL ("bigint", "array<string>"), or "any". A bolt's row with a value
    of another type fails its input.
    """

    fields: tuple[str, ...]
    direct: bool = False
    types: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __init__(self, fields: Sequence[str] | Mapping[str, str], direct: bool = False) -> None:
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "direct", direct)
        object.__setattr__(self, "types", dict(fields) if isinstance(fields, Mapping) else {})


@dataclass(frozen=True, slots=True)
class Grouping:
    """Choice of the receiving tasks: by `fields`, or by `custom`, user code or KeyRanges."""

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: Any = None


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of a sortable key between ascending bounds; a bound belongs to the range above it.

    The bounds are in the topology, so a key's task is the same live, after any crash and in a
    replay. Left out: bounds from a sample of the data, which would differ between runs.

    >>> ranges = KeyRanges((10, 100))
    >>> [ranges.place(amount, 3) for amount in (-5, 9, 10, 99, 100)]
    [0, 0, 1, 1, 2]
    """

    bounds: tuple[Any, ...]

    def __init__(self, bounds: Sequence[Any]) -> None:
        """Take the bounds; InvalidTopologyError when there are none, or they have no order or
        another one.
        """
        if isinstance(bounds, str | bytes) or not isinstance(bounds, Sequence) or not bounds:
            raise InvalidTopologyError(
                f"key_range needs a list of bounds, as in key_range('amount', [10, 100]), not {show(bounds)}"
            )
        for bound in bounds:
            if isinstance(bound, _NO_BOUNDS) or not _is_less(bound, bound, or_equal=True):
                raise InvalidTopologyError(
                    f"key_range cannot have the bound {show(bound)}: bounds are numbers, texts, bytes, dates or datetimes"
                )
        for low, high in pairwise(bounds):
            if not _is_less(low, high):
                raise InvalidTopologyError(
                    f"key_range needs bounds of one type in ascending order, but {show(low)} is followed by {show(high)}; sort "
                    "them, and drop those that are there twice"
                )
        object.__setattr__(self, "bounds", tuple(bounds))

    @property
    def count(self) -> int:
        """Number of ranges."""
        return len(self.bounds) + 1

    def place(self, key: Any, tasks: int) -> int:
        """Return which of so many tasks has a key's range, neighbouring ranges together; None is
        below everything, NaN above.

        InvalidTopologyError for a key that has no order with the bounds.
        """
        try:
            return 0 if key is None else bisect_right(self.bounds, key) * tasks // self.count
        except (TypeError, ArithmeticError):  # NaN signals when a Decimal is compared with it
            if _is_quiet_nan(key) and isinstance(self.bounds[0], int | float | Decimal):
                return len(self.bounds) * tasks // self.count
            bounds = show(list(self.bounds))
            raise InvalidTopologyError(
                f"key_range grouping has no place for the key {show(key)} among its bounds {bounds}; give bounds of its type"
            ) from None


def _is_quiet_nan(key: Any) -> bool:
    return key.is_qnan() if isinstance(key, Decimal) else isinstance(key, float) and key != key


def _is_less(low: Any, high: Any, or_equal: bool = False) -> bool:
    try:
        return bool(low <= high if or_equal else low < high)
    except (TypeError, ArithmeticError):  # no order; a Decimal that is NaN
        return False


@dataclass(frozen=True, slots=True)
class Subscription:
    """One input of a bolt: component, stream and grouping."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class Component:
    """A spout or bolt: the user's instance, parallelism (executors), tasks, conf, outputs and
    inputs.
    """

    id: str
    kind: ComponentKind
    instance: Any
    parallelism: int = 1
    num_tasks: int | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)
    inputs: tuple[Subscription, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Components by id: a plain value that runs live, in LocalCluster and over DataFrames."""

    components: Mapping[str, Component]

    def __iter__(self) -> Iterator[Component]:
        return iter(self.components.values())

    @property
    def spouts(self) -> tuple[Component, ...]:
        """The spouts."""
        return tuple(c for c in self if c.kind == "spout")

    @property
    def bolts(self) -> tuple[Component, ...]:
        """The bolts."""
        return tuple(c for c in self if c.kind == "bolt")

    def subscribers(self, component: str, stream: str) -> list[tuple[str, Grouping]]:
        """Return the subscribers of a stream, sorted by component id."""
        return [
            (c.id, s.grouping)
            for c in sorted(self, key=lambda c: c.id)
            for s in c.inputs
            if s.component == component and s.stream == stream
        ]

    def cycles(self) -> dict[str, int]:
        """Return each component's number of its strongly connected component (Tarjan)."""
        successors: dict[str, set[str]] = {c.id: set() for c in self}
        for component in self:
            for subscription in component.inputs:
                successors[subscription.component].add(component.id)
        return _strongly_connected({id: sorted(following) for id, following in successors.items()})


def validate_name(name: str) -> None:
    """Raise InvalidTopologyError unless a name passes JStorm's Common.charValidate and can be a
    folder's name.
    """
    if isinstance(name, str) and len(name) > MAX_NAME_CHARS:
        raise InvalidTopologyError(
            f"'{name[:40]}...' is not a valid topology name: it has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed"
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.isdigit() or name == "null":
        raise InvalidTopologyError(
            f"'{name}' is not a valid topology name: use letters, digits, '-', '_' and '.', begin with a letter, a digit or '_', "
            "and not digits alone"
        )


def validate(topology: Topology) -> None:
    """Check ids, sizes, inputs, fields and groupings; InvalidTopologyError names the mistake and
    what to write.
    """
    if not topology.spouts:
        raise InvalidTopologyError(
            "a topology needs at least one spout; add one with set_spout(...)"
        )
    for component in topology:
        _validate_id("component", component.id)
        for stream in component.streams:
            _validate_id(f"component '{component.id}': stream", stream)
        _validate_size(component)
        _validate_streams(component)
        for subscription in component.inputs:
            _validate_subscription(topology, component, subscription)
        if component.kind == "spout" and component.inputs:
            raise InvalidTopologyError(
                f"spout '{component.id}' may not declare inputs; make it a bolt or drop them"
            )


def _validate_id(what: str, name: str) -> None:
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise InvalidTopologyError(
            f"{what} id '{name}' is not valid: use letters, digits and any of - _ / . $ < > ( ) #"
        )
    if len(name) > MAX_NAME_CHARS:
        raise InvalidTopologyError(
            f"{what} id '{name[:40]}...' is not valid: it has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed"
        )
    if name.startswith("__"):
        raise InvalidTopologyError(
            f"{what} id '{name}' is reserved: ids that begin with '__' belong to the system"
        )


def _validate_size(component: Component) -> None:
    for what, value in (("parallelism", component.parallelism), ("num_tasks", component.num_tasks)):
        if value is None and what == "num_tasks":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidTopologyError(
                f"component '{component.id}': {what} must be a whole number of at least 1, not {value!r}"
            )
    if component.num_tasks is not None and component.num_tasks < component.parallelism:
        raise InvalidTopologyError(
            f"component '{component.id}': {component.parallelism} executors cannot share {component.num_tasks} tasks; "
            "raise num_tasks or lower the parallelism"
        )


def _validate_streams(component: Component) -> None:
    for name, stream in component.streams.items():
        twice = [f for f, n in Counter(stream.fields).items() if n > 1]
        if twice:
            raise InvalidTopologyError(
                f"component '{component.id}', stream '{name}': field '{twice[0]}' is declared twice; rename one"
            )


def _validate_subscription(
    topology: Topology, component: Component, subscription: Subscription
) -> None:
    where = f"component '{component.id}'"
    source = topology.components.get(subscription.component)
    if source is None:
        names = ", ".join(sorted(topology.components))
        raise InvalidTopologyError(
            f"{where} subscribes to unknown component '{subscription.component}'; there are {names}"
        )
    stream = source.streams.get(subscription.stream)
    if stream is None:
        names = ", ".join(sorted(source.streams)) or "none"
        raise InvalidTopologyError(
            f"{where} subscribes to stream '{subscription.stream}' of '{source.id}', which declares {names}"
        )
    missing = [f for f in subscription.grouping.fields if f not in stream.fields]
    if missing:
        raise InvalidTopologyError(
            f"{where} groups stream '{subscription.stream}' of '{source.id}' by unknown field '{missing[0]}'; "
            f"it declares {', '.join(stream.fields) or 'none'}"
        )
    ranges = subscription.grouping.custom
    if (
        isinstance(ranges, KeyRanges)
        and (component.num_tasks or component.parallelism) > ranges.count
    ):
        raise InvalidTopologyError(
            f"{where} has {component.num_tasks or component.parallelism} tasks for the {ranges.count} key ranges of its input from "
            f"'{source.id}', and some would get nothing; give more bounds or fewer tasks"
        )
    if (subscription.grouping.kind == "direct") != stream.direct:
        raise InvalidTopologyError(
            f"{where}: direct grouping and a direct stream go together, but stream '{subscription.stream}' of "
            f"'{source.id}' is {'direct' if stream.direct else 'not direct'} "
            f"and the grouping is {subscription.grouping.kind}"
        )


def _strongly_connected(successors: Mapping[str, Sequence[str]]) -> dict[str, int]:
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    group: dict[str, int] = {}
    stack: list[str] = []
    for root in sorted(successors):
        work = [(root, iter(successors[root]))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    _close_component(node, index[node], stack, group)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                work.append((following, iter(successors[following])))
            elif following not in group:
                low[node] = min(low[node], index[following])
    return group


def _close_component(node: str, number: int, stack: list[str], group: dict[str, int]) -> None:
    while True:
        member = stack.pop()
        group[member] = number
        if member == node:
            return
