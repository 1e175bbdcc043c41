"""Deaths of workers within the time over which a topology is judged, from their heartbeats: how
often, why, and over which component's input. PURE.

A death is a fault of the component whose input the worker had announced (careful mode). The first
one has no component: the worker had many inputs in one epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkstorm.common.clock import time_of_day
from sparkstorm.common.model.assignment import FAILED
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.control_plane.insight.culprits import Culprit, Fault


def death_culprits(
    beats: Iterable[WorkerBeat], component_by_task: Mapping[int, str], window_ms: int
) -> tuple[Culprit, ...]:
    """Return a fault for each worker that died within the window, those with most deaths first."""
    deaths = []
    for beat in sorted(beats, key=lambda beat: (-_number(beat, "recent_deaths"), beat.slot)):
        if sentence := death_sentence(beat, window_ms):
            component = component_by_task.get(_number(beat, "last_death_task"), "")
            deaths.append(Culprit(Fault.DYING, component, sentence))
    return tuple(deaths)


def death_sentence(beat: WorkerBeat, window_ms: int) -> str:
    """Return how a worker has died lately; empty where it has not, or cannot start at all."""
    deaths, last_ms = _number(beat, "recent_deaths"), _number(beat, "last_death_ms")
    if not deaths or beat.state == FAILED or beat.time_ms - last_ms >= window_ms:
        return ""
    again = f", {deaths} times in the last ten minutes" if deaths > 1 else ""
    # until then it does a small part of its work, and rows behind it wait and are late
    careful = (
        "; until the input is found that it died of, it runs one input per commit"
        if _number(beat, "careful")
        else ""
    )
    return f"worker {beat.slot} died at {time_of_day(last_ms)}{again}: {beat.stats.get('last_end')}{careful}"


def _number(beat: WorkerBeat, name: str) -> int:
    """Return a count of a heartbeat, which is not signed: 0 for what is no number."""
    value = beat.stats.get(name)
    return value if type(value) is int else 0
