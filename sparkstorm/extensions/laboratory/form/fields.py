"""JSON of scheduling problems: strict parsing, the kinds of their fields, and the configuration
keys that schedulers read.
"""

import json
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from sparkstorm.common import config
from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.common.model.strict import (
    UnfitValueError,
    expected,
    named_errors,
    near_name,
    one_of,
    reader_of,
    whole,
)
from sparkstorm.common.model.topology import GroupingKind
from sparkstorm.control_plane.scheduling.records import InputView
from sparkstorm.control_plane.scheduling.resource.resources import named_twice

# of an integer; a float holds no more, and Python refuses to read more than 4,300
MOST_DIGITS = 300
MOST_LEVELS = 60  # of nested lists and objects: readers and writers recurse


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """A number literal that is not allowed, with the text of its error."""

    words: str


def parse(text: str | bytes) -> object:
    """Return the value of a JSON text; NaN, infinities, repeated names, huge numbers and deep
    nesting are errors.

    InvalidConfigError names the field, or the position in the text.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            decoded,
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidConfigError("not JSON: lists and objects are nested too deeply") from None
    except ValueError as error:
        raise InvalidConfigError(f"not JSON: {error}") from None
    with named_errors(InvalidConfigError, "problem"):
        _check(value, 0)
    return value


def _constant(word: str) -> _NoNumber:
    return _NoNumber(f"{word} is no number")


def _integer(digits: str) -> object:
    return (
        int(digits)
        if len(digits) <= MOST_DIGITS
        else _NoNumber(f"an integer of {len(digits):,} digits is too large")
    )


def _float(digits: str) -> object:
    number = float(digits)
    return number if math.isfinite(number) else _NoNumber(f"{digits:.20} is too large for a number")


def _check(value: object, level: int) -> None:
    """Raise UnfitValueError for the first number that is not allowed, and for nesting that is too
    deep.
    """
    if isinstance(value, _NoNumber):
        raise UnfitValueError(value.words)
    if not isinstance(value, (dict, list)):
        return
    if level >= MOST_LEVELS:
        raise UnfitValueError(f"more than {MOST_LEVELS} lists and objects in each other")
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list, _NoNumber)):
            try:
                _check(item, level + 1)
            except UnfitValueError as error:
                raise error.inside(name) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidConfigError(f"not JSON: {show(twice)} occurs twice in an object")
    return mapping


# -- kinds of fields -------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise expected("a text", value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e15:
        raise expected("a number that is not negative", value)
    return float(value)


# As Storm and the schedulers compare them: `LOCAL_OR_SHUFFLE` and `localOrShuffle` are one.
_GROUPINGS: dict[str, str] = {kind.replace("_", ""): kind for kind in get_args(GroupingKind)}
_GROUPINGS |= {"customobject": "custom", "customserialized": "custom"}  # in Storm's Thrift


def _grouping(value: object) -> str:
    word = _text(value).replace("_", "").replace("-", "").lower()
    if word not in _GROUPINGS:
        names = get_args(GroupingKind)
        error = expected(f"one of {', '.join(names)}", value)
        raise UnfitValueError(f"{error}{near_name(value, names)}")
    return _GROUPINGS[word]


Text = Annotated[str, _text]
Number = Annotated[float, _number]
Count = Annotated[int, whole()]
Positive = Annotated[int, whole(1)]
Bytes = Annotated[int, whole(0, 2**62)]
Port = Annotated[int, whole(0, 65_535)]  # small labels are allowed: slots are not sockets
Kind = Annotated[str, one_of(("spout", "bolt", "system"))]
ABSENT: Any = None  # the default of a field that may be absent, but not null


@dataclass(frozen=True, slots=True)
class Input:
    """One subscription of a component."""

    component: Text = field(metadata={"key": "from"})
    stream: Text = "default"
    grouping: Annotated[str, _grouping] = "shuffle"

    def view(self) -> InputView:
        """Return the subscription as schedulers see it."""
        return InputView(self.component, self.stream, self.grouping)


def no_repeated_inputs(inputs: Iterable[Input], component: int) -> None:
    """Raise UnfitValueError when a component reads a stream twice: its rows would count twice."""
    seen: set[tuple[str, str]] = set()
    for index, source in enumerate(inputs):
        if (source.component, source.stream) in seen:
            words = f"stream {show(source.stream)} of {show(source.component)} occurs twice"
            raise UnfitValueError(words, "components", component, "inputs", index)
        seen.add((source.component, source.stream))


def no_duplicates(names: Iterable[str], *path: str) -> None:
    """Raise UnfitValueError when a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UnfitValueError(f"{show(name)} occurs twice", *path)
        seen.add(name)


# -- configuration ---------------------------------------------------------------------------------


def _resources(value: object) -> Mapping[str, float]:
    resources: Mapping[str, float] = reader_of(Mapping[str, Number])(value)
    if same := named_twice(resources):
        raise UnfitValueError(f"{' and '.join(same)} are the same resource")
    return resources


Resources = Annotated[Mapping[str, float], _resources]


def _hosts_or_machines(value: object) -> object:
    """Read Storm's isolation, {topology: machines}, or JStorm's, a list of hosts."""
    return reader_of(Mapping[str, Positive] if isinstance(value, dict) else tuple[Text, ...])(value)


def _constraints(value: object) -> object:
    if isinstance(value, dict):
        return reader_of(Mapping[str, _Object])(value)
    pairs: tuple[tuple[str, ...], ...] = reader_of(tuple[tuple[Text, ...], ...])(value)
    for index, pair in enumerate(pairs):
        if len(pair) != 2:
            raise expected("two components", list(pair)).inside(index)
    return pairs


def _object(value: object) -> object:
    if not isinstance(value, dict):
        raise expected("an object", value)
    return value


_Object = Annotated[Mapping[str, Any], _object]
_HINTS: Mapping[str, Hashable] = {
    "topology.workers": Count,
    "topology.acker.executors": Count,
    "topology.priority": Count,
    "topology.isolate.machines": Count,
    "topology.spread.components": tuple[Text, ...],
    "topology.worker.max.heap.size.mb": Number,
    "topology.component.resources.onheap.memory.mb": Number,
    "topology.component.resources.offheap.memory.mb": Number,
    "topology.component.cpu.pcore.percent": Number,
    "topology.component.resources.map": Resources,
    "topology.acker.resources.onheap.memory.mb": Number,
    "topology.acker.resources.offheap.memory.mb": Number,
    "topology.acker.cpu.pcore.percent": Number,
    "topology.metrics.consumer.resources.onheap.memory.mb": Number,
    "topology.metrics.consumer.resources.offheap.memory.mb": Number,
    "topology.metrics.consumer.cpu.pcore.percent": Number,
    "topology.ras.one.executor.per.worker": bool,
    "topology.ras.one.component.per.worker": bool,
    "topology.ras.acker.executors.per.worker": Count,
    "topology.ras.order.executors.by.proximity.needs": bool,
    "topology.ras.constraint.max.state.search": Count,
    "topology.ras.constraints": Annotated[object, _constraints],
    "topology.scheduler.strategy": Text,
    "topology.scheduler.favored.nodes": tuple[Text, ...],
    "topology.scheduler.unfavored.nodes": tuple[Text, ...],
    "isolation.scheduler.machines": Annotated[object, _hosts_or_machines],
    "multitenant.scheduler.user.pools": Mapping[str, Count],
    "resource.aware.scheduler.user.pools": Mapping[str, Mapping[str, Number]],
    "resource.aware.scheduler.priority.strategy": Text,
    "resource.aware.scheduler.max.topology.scheduling.attempts": Positive,
    "resource.aware.scheduler.constraint.max.state.search": Count,
    "storm.worker.min.cpu.pcore.percent": Number,
    "nimbus.monitor.freq.secs": Positive,
    "blacklist.scheduler.tolerance.time.secs": Positive,
    "blacklist.scheduler.tolerance.count": Positive,
    "blacklist.scheduler.resume.time.secs": Positive,
    "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot": bool,
    "blacklist.scheduler.strategy": Text,
    "jstorm.reserve.workers": Count,
    "worker.memory.size": Bytes,
    "worker.cpu.slot.num": Count,
    "topology.master.worker.memory.size": Bytes,
}


def _settings(value: object) -> Mapping[str, Any]:
    """Read a configuration: known keys are checked, null ones left out, so that defaults apply."""
    given = reader_of(_Object)(value)
    for key in given.keys() - _READ:
        if (meant := _meant(key)) is not None:
            raise UnfitValueError(f"unknown key {show(key)}; did you mean {meant!r}?")
    settings = {key: setting for key, setting in given.items() if setting is not None}
    for key in settings.keys() & _HINTS.keys():
        try:
            reader_of(_HINTS[key])(settings[key])
        except UnfitValueError as error:
            raise error.inside(f"[{show(key)}]") from None
    return settings


_READ = _HINTS.keys() | {
    "default.scheduler.scope",
    "nimbus.even.rebalance.idle.supervisor.enabled",
    "nimbus.even.rebalance.idle.supervisor.min.stable.rounds",
    "nimbus.even.rebalance.max.free.per.topology",
    "storm.scheduler.allowed",
    "supervisor.monitor.frequency.secs",
    "task.on.differ.node",
    "topology.component.shared.memory",
    "topology.master.single.worker",
    "topology.scheduler",
    "use.old.assignment",
    "use.userdefine.assignment",
}
# Of 497 keys of Storm 2.8 that no scheduler of ours reads, the one that is most like one that they
# read has 0.88 (topology.ras.constraint.max.time.secs).
_MISSPELLED = 0.9


def _meant(key: str) -> str | None:
    """Return the key that a misspelled one means; None for one of ours, or of Storm's."""
    ours, storms = config.keys(), config.unsupported_keys()
    if len(key) > 100 or key in ours or key in storms:
        return None
    return next(iter(get_close_matches(key, _READ, 1, _MISSPELLED)), None)


# the configuration keys that no scheduler reads pass unread
Settings = Annotated[Mapping[str, Any], _settings]
