"""Sequences of rounds with events between them: nodes lost and back, topologies submitted and killed,
rates that change. PURE.

One scheduler object answers all rounds, so what it remembers is kept: the blacklist's missing nodes,
the traffic scheduler's plans. Time is simulated: topologies grow older, and measurements are means of
the rates over their window, as on a cluster. Left out: what a move costs a topology, such as replayed
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TypeAlias

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.records import Conf, SupervisorView, TopologyView
from sparkstorm.control_plane.scheduling.view import Assignments
from sparkstorm.extensions.laboratory.arguments import check_conf, is_amount
from sparkstorm.extensions.laboratory.costs import costs
from sparkstorm.extensions.laboratory.plugged import scheduler_named
from sparkstorm.extensions.laboratory.scene import Row, Scene, check_scene, moved

_UNMEASURED_MS = 60_000  # after a start; as for running topologies (measured/measuring.py)


@dataclass(frozen=True, slots=True)
class Lost:
    """A supervisor is gone, with all that ran on it."""

    node: str


@dataclass(frozen=True, slots=True)
class Back:
    """A supervisor that was lost is there again, empty."""

    node: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """A new topology; with measurements, those that it has from its first minute on."""

    topology: TopologyView


@dataclass(frozen=True, slots=True)
class Killed:
    """A topology is gone."""

    topology_id: str


@dataclass(frozen=True, slots=True)
class Rates:
    """From now on all rates and the CPU of a topology are so many times those of its beginning."""

    topology_id: str
    factor: float


Event: TypeAlias = Lost | Back | Submitted | Killed | Rates


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster after one round."""

    at_s: float
    events: tuple[Event, ...]
    scene: Scene
    row: Row


@dataclass(slots=True)
class _Life:
    """One topology: its measurements at a factor of 1, its factors by time, and its placement."""

    began_ms: int
    measured: Measurements | None
    factors: list[tuple[int, float]] = field(default_factory=list)
    placed_ms: int = 0

    def at(self, now_ms: int) -> Measurements | None:
        """Return what is measured now: means over the window."""
        if self.measured is None or now_ms - self.began_ms < _UNMEASURED_MS:
            return None
        began = max(self.began_ms, now_ms - max(1, self.measured.window_ms))
        ends = [start for start, _ in self.factors[1:]] + [now_ms]
        total = sum(
            factor * max(0, min(end, now_ms) - max(start, began))
            for (start, factor), end in zip(self.factors, ends, strict=True)
        )
        mean = total / (now_ms - began)
        return _scaled(self.measured, mean, now_ms - began, now_ms - self.placed_ms)


def _scaled(measured: Measurements, by: float, window_ms: int, settled_ms: int) -> Measurements:
    return replace(
        measured,
        flows=tuple(
            replace(flow, rows_per_s=flow.rows_per_s * by, bytes_per_s=flow.bytes_per_s * by)
            for flow in measured.flows
        ),
        tasks={
            task: replace(
                load,
                emitted_per_s=load.emitted_per_s * by,
                executed_per_s=load.executed_per_s * by,
                busy=min(1.0, load.busy * by),
                cpu=load.cpu * by,
            )
            for task, load in measured.tasks.items()
        },
        window_ms=window_ms,
        settled_ms=settled_ms,
        written_per_s=measured.written_per_s * by,
    )


def play(
    scene: Scene,
    scheduler: str,
    events: Mapping[float, Event | Sequence[Event]],
    until_s: float,
    conf: Conf | None = None,
    inner: str = "default",
    every_s: float = 10.0,
) -> list[Moment]:
    """Return the cluster after each round, one every `every_s` seconds from 0 to `until_s`; events
    are by the second at which they happen, and are seen by the next round.

    A moment's row has the events, executors `moved`, `placed` and `unplaced`, and the scene's costs
    at its rates. Topologies of the scene have run for as long as their `uptime_ms` says.
    InvalidConfigError names an event that cannot be: a node that is not there, a topology twice.
    """
    check_scene(scene)
    for name, seconds in (("until_s", until_s), ("every_s", every_s)):
        if not is_amount(seconds) or (name == "every_s" and not seconds):
            raise InvalidConfigError(f"{name}: a number of seconds is needed, not {show(seconds)}")
    if not isinstance(events, Mapping):
        raise InvalidConfigError(
            f"events: a mapping by second is needed, such as {{30: Lost(node)}}, not {show(events)}"
        )
    times = _times(until_s, every_s)
    for at_s, several in events.items():
        if not is_amount(at_s):
            raise InvalidConfigError(f"events: {show(at_s)} is no second of the sequence")
        if at_s > times[-1]:
            raise InvalidConfigError(
                f"events: {show(at_s)} is behind the last round, at {times[-1]:g} s: raise until_s"
            )
        for event in _several(several):
            _check_event(event, at_s)
    return list(_Play(scene, scheduler, conf, inner).rounds(events, times))


def _times(until_s: float, every_s: float) -> list[float]:
    """Return the seconds of the rounds, by the decimals as they are written: as floats 0.3 / 0.1 is
    below 3, and 3 * 0.1 above 0.3.
    """
    period = Fraction(str(every_s))
    return [float(number * period) for number in range(Fraction(str(until_s)) // period + 1)]


def _several(events: Event | Sequence[Event]) -> Sequence[Event]:
    # A text is a sequence, but no event.
    return events if isinstance(events, Sequence) and not isinstance(events, str) else (events,)


def _check_event(event: object, at_s: float) -> None:
    """Refuse what is no event, and one whose subject is of another type."""
    if not isinstance(event, Event):
        raise InvalidConfigError(
            f"events: {show(event)} at {at_s:g} s is no Lost, Back, Submitted, Killed or Rates"
        )
    kind: type = TopologyView if isinstance(event, Submitted) else str
    subject = getattr(event, fields(event)[0].name)
    if not isinstance(subject, kind):
        what = "a TopologyView" if kind is TopologyView else "an id"
        raise InvalidConfigError(
            f"events: {type(event).__name__} at {at_s:g} s is of {what}, not {show(subject)}"
        )


class _Play:
    """One sequence: the scheduler, the cluster, and the lives of its topologies."""

    def __init__(self, scene: Scene, scheduler: str, conf: Conf | None, inner: str) -> None:
        self._scene = scene
        check_conf(conf)
        self._scheduler = scheduler_named(scheduler, {**scene.conf, **(conf or {})}, inner)
        self._nodes: dict[str, SupervisorView] = {node.id: node for node in scene.supervisors}
        self._lives: dict[str, _Life] = {}
        for topology in scene.topologies:
            self._begin(topology, -topology.uptime_ms)

    def _begin(self, topology: TopologyView, began_ms: int) -> None:
        life = _Life(began_ms, topology.measured, [(began_ms, 1.0)])
        if topology.measured is not None:
            life.placed_ms = -topology.measured.settled_ms if began_ms < 0 else began_ms
        self._lives[topology.id] = life

    def rounds(
        self, events: Mapping[float, Event | Sequence[Event]], times: Iterable[float]
    ) -> Iterable[Moment]:
        """Yield the cluster after each round."""
        waiting = sorted(events)
        for now_s in times:
            happened: list[Event] = []
            while waiting and waiting[0] <= now_s:
                at_s = waiting.pop(0)
                for event in _several(events[at_s]):
                    self._apply(event, round(1000 * at_s))
                    happened.append(event)
            yield self._round(now_s, tuple(happened))

    def _round(self, now_s: float, happened: tuple[Event, ...]) -> Moment:
        now_ms = round(1000 * now_s)
        seen = self._at(now_ms, {name: life.at(now_ms) for name, life in self._lives.items()})
        after = seen.answered(self._scheduler)
        changes = moved(seen, after)
        for name in {change["topology"] for change in changes}:
            self._lives[name].placed_ms = now_ms
        # A rebalance that was requested has been answered.
        self._scene = replace(self._scene, assignments=after.assignments, previous={})
        # The costs are those of the rates now, which the measurements follow over their window.
        rates = {
            name: _scaled(life.measured, life.factors[-1][1], 0, 0) if life.measured else None
            for name, life in self._lives.items()
        }
        now = replace(self._at(now_ms, rates), reason_by_topology=after.reason_by_topology)
        row: Row = {
            "at_s": now_s,
            "events": ", ".join(map(_words, happened)),
            "moved": sum(change["before"] is not None for change in changes),
            "placed": sum(change["before"] is None for change in changes),
            "unplaced": sum(row["unplaced"] for row in after.unplaced()),
        }
        return Moment(now_s, happened, now, row | costs(now))

    def _at(self, now_ms: int, measured: Mapping[str, Measurements | None]) -> Scene:
        topologies = tuple(
            replace(
                topology,
                uptime_ms=now_ms - self._lives[topology.id].began_ms,
                measured=measured[topology.id],
            )
            for topology in self._scene.topologies
        )
        return replace(self._scene, topologies=topologies)

    def _apply(self, event: Event, at_ms: int) -> None:
        scene = self._scene
        if isinstance(event, Lost):
            self._scene = scene.without(event.node)
        elif isinstance(event, Back):
            if event.node not in self._nodes or event.node in {
                node.id for node in scene.supervisors
            }:
                raise InvalidConfigError(f"{show(event.node)} was not lost: it cannot come back")
            self._scene = replace(scene, supervisors=(*scene.supervisors, self._nodes[event.node]))
        elif isinstance(event, Submitted):
            if event.topology.id in self._lives:
                raise InvalidConfigError(f"there is already a topology {show(event.topology.id)}")
            self._begin(event.topology, at_ms)
            self._scene = replace(scene, topologies=(*scene.topologies, event.topology))
        else:
            self._check(event.topology_id)
            if isinstance(event, Rates):
                if not is_amount(event.factor):
                    factor = show(event.factor)
                    raise InvalidConfigError(
                        f"rates of {event.topology_id}: a factor of 0 or more is needed, not {factor}"
                    )
                self._lives[event.topology_id].factors.append((at_ms, event.factor))
                return
            del self._lives[event.topology_id]
            others: Assignments = {
                name: rows for name, rows in scene.assignments.items() if name != event.topology_id
            }
            left = tuple(
                topology for topology in scene.topologies if topology.id != event.topology_id
            )
            self._scene = replace(scene, topologies=left, assignments=others)

    def _check(self, topology_id: str) -> None:
        if topology_id not in self._lives:
            names = ", ".join(sorted(self._lives)) or "none"
            raise InvalidConfigError(f"there is no topology {show(topology_id)}, only {names}")


def _words(event: Event) -> str:
    if isinstance(event, Submitted):
        return f"submitted {event.topology.id}"
    if isinstance(event, Rates):
        return f"rates of {event.topology_id} x {event.factor:g}"
    subject = event.topology_id if isinstance(event, Killed) else event.node
    return f"{type(event).__name__.lower()} {subject}"
