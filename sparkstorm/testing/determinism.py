"""Search for components whose results depend on more than their input: the wall clock, or unseeded
chance.

A sample runs through the topology twice, in simulated clusters of the same seed or in local
replays. A component whose results differ though its inputs agree is named. A component that asks
the machine for time or chance is named as well, however the function was imported: two runs may
agree by luck.
"""

from __future__ import annotations

import datetime
import gc
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
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparkstorm.api.components import Effects
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.testing.complete import Rows, complete_topology

if TYPE_CHECKING:
    from sparkstorm.replay import EventTime, LocalResults

Sources = Mapping[str, Rows | Mapping[str, Rows]]

_PASSED_THROUGH = (
    "sparkstorm.api",
    "sparkstorm.connectors",
    "sparkstorm.testing",
    "sparkstorm.common.windowing",
    "sparkstorm.replay.tasks.attributes",  # it wraps execute
)
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
    """Component whose results differed (with an example), the functions for time or random numbers
    that it called, and an example of a value of its tuples that it changed in place.
    """

    component: str
    asked: tuple[str, ...] = ()
    example: str = ""
    changed: str = ""

    def __str__(self) -> str:
        asked = f"asks for {', '.join(self.asked)}" if self.asked else ""
        differs = (
            f"gave different results in two runs over the same input: {self.example}"
            if self.example
            else ""
        )
        changed = (
            f"changes values of its tuples in place, which its retries and others may see: {self.changed}"
            if self.changed
            else ""
        )
        parts = [part for part in (asked, differs, changed) if part]
        return f"component '{self.component}' {' and '.join(parts)}"


class _Sample(Protocol):
    """Results of one run."""

    def values(self, component: str, stream: str) -> list[tuple[Any, ...]]:
        """Return what a component emitted on a stream."""

    def state_by_task(self, component: str) -> Mapping[int, Mapping[Any, Any]]:
        """Return the state of each task at the end."""


@dataclass(frozen=True, slots=True)
class _Replayed:
    """Results of a local replay."""

    results: LocalResults

    def values(self, component: str, stream: str) -> list[tuple[Any, ...]]:
        return self.results.outputs.get(
            component if stream == "default" else f"{component}:{stream}", []
        )

    def state_by_task(self, component: str) -> Mapping[int, Mapping[Any, Any]]:
        return self.results.states_by_task.get(component, {})


def find_nondeterminism(
    topology: Topology,
    sources: Sources | None = None,
    *,
    conf: Mapping[str, Any] | None = None,
    via: Literal["live", "replay"] = "live",
    event_time: EventTime | str | None = None,
) -> list[Finding]:
    """Run a sample (rows by spout) twice and return the components that do not follow from it
    alone, with the cause.

    `via`: as a live topology under one seed, or as a local replay (with its event time). A
    component that differs only because one before it does is not named. Time from `context.now_ms`,
    ticks and windows is the same in both runs. `hash` is noted, since hashes of text differ between
    processes.
    """
    asked: dict[str, set[str]] = {}
    changed: dict[str, str] = {}
    with _listening(asked, changed):
        runs = [_run(topology, sources or {}, conf, via, event_time, number) for number in range(2)]
    differing = {component.id: _difference(topology, component.id, *runs) for component in topology}
    findings = []
    for component in topology:
        is_behind = any(
            differing[source.component]
            for source in component.inputs
            if source.component != component.id
        )
        example = "" if is_behind else differing[component.id]
        names = tuple(sorted(asked.get(component.id, ())))
        if example or names or component.id in changed:
            findings.append(Finding(component.id, names, example, changed.get(component.id, "")))
    return findings


def check_deterministic(
    topology: Topology,
    sources: Sources | None = None,
    *,
    conf: Mapping[str, Any] | None = None,
    via: Literal["live", "replay"] = "live",
    event_time: EventTime | str | None = None,
) -> None:
    """Raise NondeterminismError unless `find_nondeterminism` finds nothing."""
    findings = find_nondeterminism(topology, sources, conf=conf, via=via, event_time=event_time)
    if findings:
        raise NondeterminismError("; ".join(map(str, findings)))


def _run(
    topology: Topology,
    sources: Sources,
    conf: Mapping[str, Any] | None,
    via: Literal["live", "replay"],
    event_time: EventTime | str | None,
    number: int,
) -> _Sample:
    if via == "live":
        return complete_topology(topology, sources, conf=conf)
    from sparkstorm.replay import replay_locally  # brings PySpark along

    rows: dict[str, Rows] = {}
    for spout, given in sources.items():
        rows |= (
            {f"{spout}:{stream}": rows_of_stream for stream, rows_of_stream in given.items()}
            if isinstance(given, Mapping)
            else {spout: given}
        )
    effects = {bolt.id: Effects.RUN for bolt in topology.bolts}
    state = random.getstate()
    # a replay runs a copy of the code, with the shared generator as it was then
    random.seed(number)
    try:
        return _Replayed(
            replay_locally(
                topology,
                rows,
                shortcuts=False,
                conf=conf,
                event_time=event_time,
                effects=effects,
                skip_bad=True,
            )
        )
    finally:
        random.setstate(state)


def _difference(topology: Topology, component: str, one: _Sample, other: _Sample) -> str:
    """Return one difference between two runs; empty when they agree."""
    for stream, declared in topology.components[component].streams.items():
        if not declared.direct:
            first, second = (
                Counter(map(repr, run.values(component, stream))) for run in (one, other)
            )
            for extra in (*(first - second), *(second - first)):
                return f"{extra[:200]} on stream '{stream}' in one of them"
    first_state = one.state_by_task(component)
    second_state = other.state_by_task(component)
    for task, key in {
        (task, key): None
        for run in (first_state, second_state)
        for task, state in run.items()
        for key in state
    }:
        mine, its = (repr(run.get(task, {}).get(key)) for run in (first_state, second_state))
        if mine != its:
            return f"state {key!r} is {mine[:80]} and {its[:80]}"
    return ""


@contextmanager
def _listening(asked: dict[str, set[str]], changed: dict[str, str]) -> Iterator[None]:
    """Record by component the calls for time and random numbers, and changes of a tuple's values in
    place, in this thread and those started meanwhile.
    """
    before: dict[int, tuple[Tuple, str]] = {}  # of calls of `execute` that have not returned

    def listen(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name in ("execute", "fold") and event in ("call", "return"):
            held = before.pop(id(frame), None)
            if event == "call" and (tup := _tuple_in(frame)) is not None:
                before[id(frame)] = tup, repr(tup.values)
            now = "" if held is None or event == "call" else repr(held[0].values)
            if held is not None and now not in ("", held[1]) and (id_ := _component_at(frame)):
                changed.setdefault(id_, f"{held[1][:80]} became {now[:80]}")
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


def _tuple_in(frame: FrameType) -> Tuple | None:
    """Return the tuple among a call's arguments."""
    code = frame.f_code
    arguments = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount])
    return next((argument for argument in arguments if isinstance(argument, Tuple)), None)


def _asked_for(frame: FrameType, event: str, argument: Any) -> str:
    """Return the name of a called function for time or random numbers; empty for any other call."""
    if event == "call":
        is_unseeded = (
            frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None
        )
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
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    first = frame
    while frame is not None:
        if frame.f_code in callbacks:
            # the garbage collector interrupts any running code, and libraries time it
            return None
        module = str(frame.f_globals.get("__name__", ""))
        if module == "sparkstorm.data_plane.user_code.topology_code":
            return None  # unpickling
        if module.startswith(("sparkstorm.data_plane.executor.", "sparkstorm.data_plane.worker.")):
            mine = frame.f_locals.get("self")
            emitter = getattr(mine, "emitter", None) or getattr(mine, "_emitter", None)
            name = frame.f_locals.get("component") if emitter is None else emitter.component
            if isinstance(name, str):
                return name
            if frame is first:
                return None  # the engine itself asks
            # without the compiled core a plain function calls user code: its caller has the emitter
        elif module.startswith("sparkstorm.") and not module.startswith(_PASSED_THROUGH):
            return None
        frame = frame.f_back
    return None
