"""Causes that make a live result depend on chance, by component: from the topology and from counts of the replay's tasks.

The promise (docs/architecture.md): per component and stream the same multiset of tuples, and the same state per key, when inputs of
bolts that keep something come by fields, global or all grouping, results do not depend on how senders interleave (or rows are
brought into the order of their event time in both runs), and time is event time. Every warning names its cause.

A bolt keeps something when it has a state or windows, and when the replay saw it hold inputs or change its attributes. Before a
component has run, its task numbers stand for what is not known: each task may send. PURE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import Stateful
from sparkstorm.model.settings import ComponentSettings, DeliverySettings
from sparkstorm.model.topology import Component, Topology
from sparkstorm.windowing.settings import settings_of

_DEPENDABLE = ("fields", "global", "all")
_CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "monotonic"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
_CHANCES = {"random", "secrets", "uuid1", "uuid4", "urandom", "default_rng"}


@dataclass(frozen=True, slots=True)
class ReplayWarning:
    """Where a replay may differ from the live run, and why."""

    component: str
    cause: str
    text: str

    def __str__(self) -> str:
        return f"component '{self.component}': {self.text}"


Counts = Mapping[str, Mapping[str, int]]
"""By component: what its tasks did, added up (replay/task.py); a component that has not run is missing."""


def warnings_of(
    topology: Topology,
    conf: Mapping[str, Any],
    tasks_by_component: Mapping[str, list[int]],
    is_timed: bool,
    counts: Counts | None = None,
) -> tuple[ReplayWarning, ...]:
    """Return every reason why the results may differ from those of a live run, as far as is known."""
    seen = _Seen(topology, tasks_by_component, counts or {})
    found: list[ReplayWarning] = []
    for bolt in topology.bolts:
        found += _of_groupings(bolt, seen)
        found += _of_order(bolt, seen)
        found += _of_tries(bolt, seen)
        found += _of_windows(topology, bolt, conf, seen)
        found += _of_time({**conf, **bolt.conf}, bolt, is_timed)
        found += _of_code(bolt)
        found += _of_guarantee({**conf, **bolt.conf}, bolt, seen)
    return (*found, *_of_sums(topology, seen))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A topology with what its tasks did."""

    topology: Topology
    tasks: Mapping[str, list[int]]
    counts: Counts

    def of(self, id: str, what: str) -> int:
        return self.counts.get(id, {}).get(what, 0)

    def kept(self, bolt: Component) -> str:
        """Return what a bolt keeps from one input to the next, in words; empty if nothing."""
        if isinstance(bolt.instance, Stateful):
            return "state"
        return "held inputs" if self.of(bolt.id, "held") else "attributes" if self.of(bolt.id, "changed") else ""

    def has_one_order(self, id: str) -> bool:
        """Return whether every task of a component gets its rows in an order that chance has no part in."""
        component = self.topology.components[id]
        if id not in self.counts:
            return len(component.inputs) < 2 and all(self._is_one_sender(s.component) for s in component.inputs)
        if self.of(id, "mixed"):
            return False
        return all(self.is_in_order(s.component) for s in component.inputs if not self._is_silent(s.component))

    def is_in_order(self, id: str) -> bool:
        """Return whether each task of a component emits the same rows in the same order in every run."""
        component = self.topology.components[id]
        if component.kind == "spout":
            return True
        is_divided_by_chance = len(self.tasks[id]) > 1 and any(s.grouping.kind not in _DEPENDABLE for s in component.inputs)
        return not is_divided_by_chance and not self.of(id, "recovered") and self.has_one_order(id)

    def _is_one_sender(self, id: str) -> bool:
        return len(self.tasks[id]) == 1 and self.is_in_order(id)

    def _is_silent(self, id: str) -> bool:
        return id in self.counts and not self.of(id, "emitted")


def keeps_anything(bolt: Component) -> bool:
    """Return whether a bolt has a state or windows."""
    return isinstance(bolt.instance, Stateful)


def _of_groupings(bolt: Component, seen: _Seen) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    if not kept or len(seen.tasks[bolt.id]) < 2:
        return
    for s in bolt.inputs:
        kind = s.grouping.kind
        if kind not in _DEPENDABLE:
            why = {
                "custom": "user code chooses the task, from more than the values perhaps",
                "direct": "the producer chooses the task, from more than the values perhaps",
            }.get(kind, f"which task gets a tuple is chance, and so are each task's {kept}")
            yield ReplayWarning(
                bolt.id,
                f"{kept} behind {kind} grouping",
                f"has {kept}, and its input from '{s.component}' comes by {kind} grouping: {why}",
            )


def _of_order(bolt: Component, seen: _Seen) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    is_free = getattr(bolt.instance, "order_insensitive", False) or _is_by_event_time(bolt)
    if kept and not is_free and not seen.has_one_order(bolt.id):
        yield ReplayWarning(
            bolt.id,
            "order of senders",
            f"has {kept} and several senders, or one that has, whose tuples a live run interleaves by chance; if "
            "its results do not depend on that order, declare order_insensitive = True",
        )
    if kept == "attributes" and isinstance(bolt.instance, ColumnBolt):
        yield ReplayWarning(
            bolt.id,
            "attributes and batches",
            "changes its attributes, and takes other batches here than in a live run, where each tuple is one",
        )


def _of_tries(bolt: Component, seen: _Seen) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    if seen.of(bolt.id, "recovered") or (kept in ("held inputs", "attributes") and seen.of(bolt.id, "failures")):
        yield ReplayWarning(
            bolt.id,
            "retries",
            "had inputs that failed, which a live run tries again later, after others; here they are tried again at once",
        )


def _is_by_event_time(bolt: Component) -> bool:
    """Windows over event time hold their tuples in an order of their own; which call comes first means nothing to them."""
    settings = settings_of(bolt, {})
    return settings is not None and settings.shape is not None and settings.is_event_time


def _of_windows(topology: Topology, bolt: Component, conf: Mapping[str, Any], seen: _Seen) -> Iterator[ReplayWarning]:
    settings = settings_of(bolt, conf)
    if settings is None:
        return
    if not settings.is_event_time and settings.shape is not None and settings.shape.kind != "count":
        yield ReplayWarning(
            bolt.id,
            "processing time",
            "has windows by the clock of the moment: live that is the machine's, here virtual time; give it a timestamp field",
        )
    if not settings.is_event_time:
        return
    if settings.lateness_ms:
        yield ReplayWarning(
            bolt.id,
            "updates",
            "allows lateness: whether a tardy tuple still finds its window open, or changes "
            "one that has fired, is chance in a live run",
        )
    senders = [s.component for s in bolt.inputs]
    if not all(seen.is_in_order(id) for id in senders):
        yield ReplayWarning(
            bolt.id,
            "late data",
            "gets its tuples from bolts that chance orders in a live run, and whether a "
            "tuple is late depends on what its sender sent before",
        )


def _of_time(conf: Mapping[str, Any], bolt: Component, is_timed: bool) -> Iterator[ReplayWarning]:
    if ComponentSettings.of(conf).tick_ms:
        text = "gets ticks, which come by the wall clock in a live run and by event time here"
        if not is_timed:
            text = "gets ticks in a live run, but none here: no event time is declared, so no time passes"
        yield ReplayWarning(bolt.id, "ticks", text)


def _of_guarantee(conf: Mapping[str, Any], bolt: Component, seen: _Seen) -> Iterator[ReplayWarning]:
    guarantee = DeliverySettings.of(conf).guarantee
    kept = seen.kept(bolt)
    if kept and guarantee != "exactly-once":
        yield ReplayWarning(bolt.id, "guarantee", f"has {kept}, and {guarantee} delivery may bring a live tuple twice or never")


def _of_sums(topology: Topology, seen: _Seen) -> Iterator[ReplayWarning]:
    """What the states that were left say: the order of floating-point sums shows in their last digits.

    A bolt with `order_insensitive` may get its data in another order than live even where that has only one.
    """
    for id in seen.counts:
        if seen.of(id, "floats") and (
            getattr(topology.components[id].instance, "order_insensitive", False) or not seen.has_one_order(id)
        ):
            yield ReplayWarning(
                id,
                "float sums",
                "keeps floating-point numbers, whose sums depend on the order of their terms in "
                "the last digits; compare within a tolerance, or add whole numbers",
            )


def _of_code(bolt: Component) -> Iterator[ReplayWarning]:
    names = {name for function in vars(type(bolt.instance)).values() for name in _names(getattr(function, "__code__", None))}
    clocks = sorted(f"{module}.{name}" for module, name in _CLOCKS if {module, name} <= names)
    if clocks:
        yield ReplayWarning(
            bolt.id, "wall clock", f"seems to read the wall clock ({clocks[0]}); context.now_ms() is event time in a replay"
        )
    chances = sorted(_CHANCES & names)
    if chances:
        yield ReplayWarning(bolt.id, "chance", f"seems to use chance ({chances[0]}); draw it from the tuple's values")


def _names(code: CodeType | None) -> Iterator[str]:
    if isinstance(code, CodeType):
        yield from code.co_names
        for inner in code.co_consts:
            yield from _names(inner)
