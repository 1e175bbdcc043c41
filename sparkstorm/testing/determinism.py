"""check_deterministic: find components whose results depend on the wall clock or unseeded random numbers.

A sample runs through the topology twice, in simulated clusters of the same seed. A component is reported if its inputs
are equal in both runs and its output or state is not. It is also reported if it calls a function for time or random
numbers, however that was imported, because two runs may agree by chance.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from sparkstorm.errors import SparkStormError
from sparkstorm.model.topology import Topology
from sparkstorm.testing.complete import Completed, Rows, complete_topology

Sources = Mapping[str, Rows | Mapping[str, Rows]]

_PASSED_THROUGH = ("sparkstorm.api", "sparkstorm.connectors", "sparkstorm.testing", "sparkstorm.windowing")
_CLOCKS = (
    time.time,
    time.time_ns,
    time.monotonic,
    time.monotonic_ns,
    time.perf_counter,
    time.perf_counter_ns,
    time.localtime,
    time.gmtime,
    time.ctime,
)
_NAME_BY_FUNCTION: dict[Any, str] = {
    **{function: f"time.{function.__name__}" for function in _CLOCKS},
    os.urandom: "os.urandom",
    hash: "hash",
}
_NOW = frozenset({"now", "utcnow", "today"})
_SHARED_RANDOM: Any = random.random.__self__  # type: ignore[attr-defined]  # what random.random() and its like draw from


class NondeterminismError(SparkStormError):
    """Results of components depend on more than their input; the text lists every finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Component whose results differed (with an example), or that called functions for time or random numbers (by name)."""

    component: str
    asked: tuple[str, ...] = ()
    example: str = ""

    def __str__(self) -> str:
        asked = f"asks for {', '.join(self.asked)}" if self.asked else ""
        differs = f"gave different results in two runs over the same input: {self.example}" if self.example else ""
        return f"component '{self.component}' {' and '.join(part for part in (asked, differs) if part)}"


def find_nondeterminism(
    topology: Topology, sources: Sources | None = None, *, conf: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Run a sample (rows by spout) twice and return the components whose results depend on more than it, with the reason.

    A component that differs only because one of its inputs does is not reported. Time from `context.now_ms`, ticks and
    windows is simulated and equal in both runs. `hash` is reported because hashes of text differ between processes.
    """
    asked: dict[str, set[str]] = {}
    with _listening(asked):
        runs = [complete_topology(topology, sources, conf=conf) for _ in range(2)]
    differing = {component.id: _difference(topology, component.id, *runs) for component in topology}
    found = []
    for component in topology:
        is_behind = any(differing[each.component] for each in component.inputs if each.component != component.id)
        example = "" if is_behind else differing[component.id]
        if example or component.id in asked:
            found.append(Finding(component.id, tuple(sorted(asked.get(component.id, ()))), example))
    return found


def check_deterministic(topology: Topology, sources: Sources | None = None, *, conf: Mapping[str, Any] | None = None) -> None:
    """Raise NondeterminismError if `find_nondeterminism` finds anything: one line for a test."""
    findings = find_nondeterminism(topology, sources, conf=conf)
    if findings:
        raise NondeterminismError("; ".join(map(str, findings)))


def _difference(topology: Topology, component: str, one: Completed, other: Completed) -> str:
    """Return a difference between two runs as text; empty if they agree."""
    for stream, declared in topology.components[component].streams.items():
        if not declared.direct:
            first, second = (Counter(map(repr, run.values(component, stream))) for run in (one, other))
            for extra in (*(first - second), *(second - first)):
                return f"{extra[:200]} on stream '{stream}' in one of them"
    first_state, second_state = one.state_by_task(component), other.state_by_task(component)
    for task, key in {(task, key): None for run in (first_state, second_state) for task, state in run.items() for key in state}:
        mine, its = (repr(run.get(task, {}).get(key)) for run in (first_state, second_state))
        if mine != its:
            return f"state {key!r} is {mine[:80]} and {its[:80]}"
    return ""


@contextmanager
def _listening(asked: dict[str, set[str]]) -> Iterator[None]:
    """Record by component the calls for time and random numbers, in this thread and those started meanwhile."""

    def listen(frame: FrameType, event: str, argument: Any) -> None:
        what = _asked_for(frame, event, argument)
        component = _component_at(frame if event == "c_call" else frame.f_back) if what else None
        if component:
            asked.setdefault(component, set()).add(what)

    former: Callable[..., Any] | None = sys.getprofile()
    threading.setprofile(listen)
    sys.setprofile(listen)
    try:
        yield
    finally:
        sys.setprofile(former)
        threading.setprofile(None)


def _asked_for(frame: FrameType, event: str, argument: Any) -> str:
    """Return the name of a called function for time or random numbers; empty for any other call."""
    if event == "call":
        is_unseeded = frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None
        return "random.Random() without a seed" if is_unseeded else ""
    if event != "c_call":
        return ""
    owner = getattr(argument, "__self__", None)
    if owner is _SHARED_RANDOM:
        return "random (unseeded)"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and argument.__name__ in _NOW:
        return f"datetime.{owner.__name__}.{argument.__name__}"
    try:
        return _NAME_BY_FUNCTION.get(argument, "")
    except TypeError:  # a method of an object without a hash
        return ""


def _component_at(frame: FrameType | None) -> str | None:
    """Return the component whose code runs in this frame; None for code of SparkStorm."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "sparkstorm.blobs.topology_code":
            return None  # unpickling
        if module.startswith(("sparkstorm.executor.", "sparkstorm.worker.")):
            mine = frame.f_locals.get("self")
            emitter = getattr(mine, "emitter", None) or getattr(mine, "_emitter", None)
            name = frame.f_locals.get("component") if emitter is None else emitter.component
            return name if isinstance(name, str) else None
        if module.startswith("sparkstorm.") and not module.startswith(_PASSED_THROUGH):
            return None
        frame = frame.f_back
    return None
