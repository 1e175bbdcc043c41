"""Problems of workers, from their heartbeats: dead ones, loops of restarts, and reasons why workers
make no progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from sparkstorm.common.clock import Clock, SystemClock, time_of_day
from sparkstorm.common.model.assignment import FAILED, Assignment, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import numberless
from sparkstorm.common.model.requests import topology_name
from sparkstorm.control_plane.insight.deaths import death_sentence
from sparkstorm.control_plane.insight.reading import JUDGED_MS

Worker: TypeAlias = tuple[str, WorkerSlot]
DEAD = "DEAD"
"""State shown of a worker whose slot sends no heartbeats any more, instead of the last one that it
sent.
"""
# missing heartbeats of a dead slot; half would name a slot whose host was busy for a moment
FEWEST_BEATS = 4
_LEAST_MS = 4_000
_STUCK_MS = 4_000


class DeadWorkers:
    """Finder of workers whose heartbeats are old and do not change; `read` reads one heartbeat
    again.

    An old time alone may come from a host's clock: if there is one, the old heartbeats are read
    again after `wait` (seconds) of one and a half of their periods, `beat_ms`. There is one wait
    for all, and none for those that were dead before. A clock that is ahead delays the verdict by
    as much.
    """

    def __init__(
        self,
        read: Callable[[str, WorkerSlot], WorkerBeat | None],
        beat_ms: int,
        clock: Clock | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = read
        self._beat_ms = beat_ms
        self._wait = wait
        self._clock = clock or SystemClock()
        self._found: dict[Worker, int] = {}  # times of the last heartbeats of dead ones

    def among(self, beats: Iterable[WorkerBeat]) -> frozenset[Worker]:
        """Return the dead ones, as (topology id, slot), of heartbeats that were just read."""
        limit_ms = self._clock.now_ms() - max(_LEAST_MS, FEWEST_BEATS * self._beat_ms)
        old = {
            (beat.topology_id, beat.slot): beat.time_ms
            for beat in beats
            if beat.time_ms <= limit_ms
        }
        new = {
            worker: time_ms for worker, time_ms in old.items() if self._found.get(worker) != time_ms
        }
        if new:
            self._wait(1.5 * self._beat_ms / 1000)
            for worker, time_ms in new.items():
                again = self._read(*worker)
                if again is not None and again.time_ms == time_ms:
                    self._found[worker] = time_ms
        return frozenset(
            worker for worker, time_ms in old.items() if self._found.get(worker) == time_ms
        )


def problems_about(
    problems: Mapping[str, str],
    topology_id: str,
    stores: Iterable[str],
    assignment: Assignment | None,
) -> list[str]:
    """Return those of Nimbus's problems by subject that concern a topology, whose data are in these
    stores, the most general first.
    """
    nodes = {slot.node for slot in assignment.slot_by_executor.values()} if assignment else set()
    hosts = (
        sorted({assignment.host_by_node.get(node, node) for node in nodes}) if assignment else []
    )
    subjects = (
        "turn",
        "scheduler",
        *dict.fromkeys(("redis", *(f"redis {store}".rstrip() for store in stores))),
        *(f"host {host}" for host in hosts),
        topology_id,
        topology_name(topology_id),
    )
    return [problems[about] for about in subjects if about in problems]


def worker_problems(
    topology_id: str,
    beats: Sequence[WorkerBeat],
    dead: frozenset[Worker],
    window_ms: int = JUDGED_MS,
) -> list[str]:
    """Return a sentence for each problem of now, and for deaths within the window; those of several
    workers that differ in numbers only are one.
    """
    problems: dict[str, str] = {}
    for beat in sorted(beats, key=lambda beat: (beat.node, beat.port)):
        if (topology_id, slot := beat.slot) in dead:
            problems[str(slot)] = (
                f"worker {slot} is dead: its slot has sent no heartbeat since {time_of_day(beat.time_ms)} "
                f"(it was {beat.state} then)"
            )
            continue
        for sentence in _of_worker(topology_id, beat, window_ms):
            problems.setdefault(sentence, sentence)
        for cause in beat.causes("blocked"):
            problems.setdefault(numberless(cause), f"work stands still: {cause}")
    return list(problems.values())


def _of_worker(topology_id: str, beat: WorkerBeat, window_ms: int) -> Iterator[str]:
    slot = beat.slot
    stuck_ms = _number(beat.stats.get("silent_ms"))
    message = beat.message.partition("\n")[0]
    if beat.state == FAILED:
        yield f"worker {slot} of {topology_id} cannot start: {message or 'no last words'}"
    elif death := death_sentence(beat, window_ms):
        yield death
    elif message:
        yield f"worker {slot}: {message}"
    if stuck_ms >= _STUCK_MS:
        yield f"worker {slot} has been inside one call since {time_of_day(beat.time_ms - stuck_ms)}"


def _number(value: object) -> int:
    return value if type(value) is int else 0
