"""Owns the limits of "live equals replay": what in a topology makes a live result depend on chance, by component.

The promise (docs/architecture.md): per component and stream the same multiset of tuples, and the same state per key, when
stateful inputs come by fields, global or all grouping, results do not depend on how senders interleave (or rows are
brought into the order of their event time in both runs), and time is event time. Every warning names its cause. PURE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from sparkstorm.api.components import Stateful
from sparkstorm.model.topology import Component, Topology
from sparkstorm.windowing.settings import settings_of

_DEPENDABLE = ("fields", "global", "all")
_CLOCKS = {("time", "time"), ("time", "time_ns"), ("time", "monotonic"), ("datetime", "now"), ("datetime", "utcnow"),
           ("datetime", "today"), ("date", "today")}
_CHANCES = {"random", "secrets", "uuid1", "uuid4", "urandom", "default_rng"}


@dataclass(frozen=True, slots=True)
class ReplayWarning:
    """Where a replay may differ from the live run, and why."""

    component: str
    cause: str
    text: str

    def __str__(self) -> str:
        return f"component '{self.component}': {self.text}"


def warnings_of(topology: Topology, conf: Mapping[str, Any], tasks_by_component: Mapping[str, list[int]],
                is_timed: bool) -> tuple[ReplayWarning, ...]:
    """Every reason why the results may differ from those of a live run."""
    found: list[ReplayWarning] = []
    for bolt in topology.bolts:
        found += _of_groupings(bolt)
        found += _of_order(topology, bolt, tasks_by_component)
        found += _of_windows(topology, bolt, conf, tasks_by_component)
        found += _of_time({**conf, **bolt.conf}, bolt, is_timed)
        found += _of_code(bolt)
        found += _of_guarantee({**conf, **bolt.conf}, bolt)
    return tuple(found)


def keeps_anything(bolt: Component) -> bool:
    """Whether a bolt's output may depend on earlier input: it has a state, or holds inputs back."""
    return isinstance(bolt.instance, Stateful)


def _of_groupings(bolt: Component) -> Iterator[ReplayWarning]:
    for s in bolt.inputs:
        kind = s.grouping.kind
        if keeps_anything(bolt) and kind not in _DEPENDABLE:
            why = {"custom": "user code chooses the task, from more than the values perhaps",
                   "direct": "the producer chooses the task, from more than the values perhaps"}.get(
                       kind, "which task gets a tuple is chance, and so is what each task's state holds")
            yield ReplayWarning(bolt.id, f"state behind {kind} grouping",
                                f"has state, and its input from '{s.component}' comes by {kind} grouping: {why}")


def _of_order(topology: Topology, bolt: Component, tasks: Mapping[str, list[int]]) -> Iterator[ReplayWarning]:
    is_free = getattr(bolt.instance, "any_order", False) or _is_by_event_time(bolt)
    if keeps_anything(bolt) and not is_free and not _has_one_order(topology, bolt, tasks):
        yield ReplayWarning(bolt.id, "order of senders",
                            "has state and several senders, whose tuples a live run interleaves by chance; if its results do "
                            "not depend on that order, declare any_order = True")


def _is_ordered(topology: Topology, id: str, tasks: Mapping[str, list[int]]) -> bool:
    """Whether a component emits in an order that chance has no part in: one task, fed in such an order itself."""
    if len(tasks[id]) > 1:
        return False
    return _has_one_order(topology, topology.components[id], tasks)


def _has_one_order(topology: Topology, component: Component, tasks: Mapping[str, list[int]]) -> bool:
    return len(component.inputs) < 2 and all(_is_ordered(topology, s.component, tasks) for s in component.inputs)


def _is_by_event_time(bolt: Component) -> bool:
    """Windows over event time hold their tuples in an order of their own; which call comes first means nothing to them."""
    settings = settings_of(bolt, {})
    return settings is not None and settings.shape is not None and settings.is_event_time


def _of_windows(topology: Topology, bolt: Component, conf: Mapping[str, Any],
                tasks: Mapping[str, list[int]]) -> Iterator[ReplayWarning]:
    settings = settings_of(bolt, conf)
    if settings is None:
        return
    if not settings.is_event_time and settings.shape is not None and settings.shape.kind != "count":
        yield ReplayWarning(bolt.id, "processing time", "has windows by the clock of the moment: live that is the machine's, "
                                                        "here virtual time; give it a timestamp field")
    if not settings.is_event_time:
        return
    if settings.lateness_ms:
        yield ReplayWarning(bolt.id, "updates", "allows lateness: whether a tardy tuple still finds its window open, or changes "
                                                "one that has fired, is chance in a live run")
    senders = {s.component for s in bolt.inputs}
    if not all(topology.components[id].kind == "spout" or _is_ordered(topology, id, tasks) for id in senders):
        yield ReplayWarning(bolt.id, "late data", "gets its tuples from bolts that chance orders in a live run, and whether a "
                                                  "tuple is late depends on what its sender sent before")


def _of_time(conf: Mapping[str, Any], bolt: Component, is_timed: bool) -> Iterator[ReplayWarning]:
    if conf.get("topology.tick.tuple.freq.secs"):
        text = "gets ticks, which come by the wall clock in a live run and by event time here"
        if not is_timed:
            text = "gets ticks in a live run, but none here: no event time is declared, so no time passes"
        yield ReplayWarning(bolt.id, "ticks", text)


def _of_guarantee(conf: Mapping[str, Any], bolt: Component) -> Iterator[ReplayWarning]:
    guarantee = conf.get("topology.delivery.guarantee") or "exactly-once"
    if keeps_anything(bolt) and guarantee != "exactly-once":
        yield ReplayWarning(bolt.id, "guarantee", f"has state, and {guarantee} delivery may bring a live tuple twice or never")


def sums_among(topology: Topology, counts: Mapping[str, Mapping[str, int]],
               tasks_by_component: Mapping[str, list[int]]) -> tuple[ReplayWarning, ...]:
    """What the states that were left say: the order of floating-point sums shows in their last digits.

    A bolt with `any_order` may get its data in another order than live even where that has only one.
    """
    text = ("keeps floating-point numbers, whose sums depend on the order of their terms in the last digits; compare within "
            "a tolerance, or add whole numbers")
    return tuple(ReplayWarning(id, "float sums", text) for id, of in counts.items()
                 if of.get("floats") and (getattr(topology.components[id].instance, "any_order", False)
                                          or not _has_one_order(topology, topology.components[id], tasks_by_component)))


def _of_code(bolt: Component) -> Iterator[ReplayWarning]:
    names = {name for function in vars(type(bolt.instance)).values() for name in _names(getattr(function, "__code__", None))}
    clocks = sorted(f"{module}.{name}" for module, name in _CLOCKS if {module, name} <= names)
    if clocks:
        yield ReplayWarning(bolt.id, "wall clock", f"seems to read the wall clock ({clocks[0]}); context.now_ms() is event "
                                                   "time in a replay")
    chances = sorted(_CHANCES & names)
    if chances:
        yield ReplayWarning(bolt.id, "chance", f"seems to use chance ({chances[0]}); draw it from the tuple's values")


def _names(code: CodeType | None) -> Iterator[str]:
    if isinstance(code, CodeType):
        yield from code.co_names
        for inner in code.co_consts:
            yield from _names(inner)

