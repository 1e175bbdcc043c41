"""Causes why a run makes no progress, in sentences for its console."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sparkstorm.client.handle import TopologyProgress
from sparkstorm.common.errors import StoreFullError, StoreUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import counted, numberless, shown
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.driver.console import held_lines

IDLE_S = 3.0  # shorter pauses are part of normal work
REPEAT_S = 30.0
# An older error may be over. A source that is away reports every tenth of its tries, some 50 s
# apart at the most (connectors/patience.py): half would miss it between two reports.
REPORTED_MS = 60_000
_SILENT_MS = 3_000
_PHASES = {
    "EMPTY": "has not been started yet",
    "WAITING_FOR_BLOB": "fetches the topology's code",
    "WAITING_FOR_WORKER_START": "starts: imports, then open() and prepare() of its components",
    "WAITING_FOR_RELAUNCH": "died and is started again after a pause",
    "KILL": "is being ended",
    "KILL_AND_RELAUNCH": "was silent for too long and is being replaced",
}


class Watched(Protocol):
    """A TopologyHandle, as far as causes are looked for in it."""

    def status(self) -> TopologyStatus | None: ...
    def slots(self) -> frozenset[WorkerSlot]: ...
    def problems(self) -> list[str]: ...
    def errors(self) -> list[Failure]: ...


class Waits:
    """Sentences on causes of a wait of some seconds; the same cause again only after half a
    minute.
    """

    def __init__(
        self,
        handle: Watched,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the clock of errors."""
        self._handle = handle
        self._say = say
        self._clock = clock
        self._now_s = now_s
        self._done: object = None
        self._moved_at = self._free_at = clock()
        self._said_at: dict[str, float] = {}
        # time of the newest beat, and when it was first seen
        self._beat_at: dict[WorkerSlot, tuple[int, float]] = {}

    def look(self, progress: TopologyProgress, beats: Sequence[WorkerBeat]) -> None:
        """Compare with the last look; StoreUnavailableError when ZooKeeper does not answer."""
        now = self._clock()
        done = (
            progress.executed,
            progress.emitted,
            progress.acked,
            progress.failed,
            progress.parked,
            progress.done,
        )
        if done != self._done:
            self._done = done
            self._moved_at = now
        self._note_beats(beats, now)
        blocked = _told(beats, "blocked")
        if not blocked:
            self._free_at = now
        if now - self._free_at >= IDLE_S:
            self._tell(blocked, now)
        elif now - self._moved_at >= IDLE_S and not progress.is_drained:
            self._tell(list(self._idle(progress, beats, now)), now)

    def _tell(self, causes: Sequence[str], now: float) -> None:
        for cause in causes:
            kind = numberless(cause)
            if now - self._said_at.get(kind, -REPEAT_S) >= REPEAT_S:
                self._said_at[kind] = now
                self._say(f"waiting: {cause}")

    def _idle(
        self, progress: TopologyProgress, beats: Sequence[WorkerBeat], now: float
    ) -> Iterator[str]:
        """Return the first cause found, from the cluster inwards: later ones would be its
        consequences.
        """
        wanted = self._handle.slots()
        if not wanted:
            problems = self._handle.problems()
            yield f"Nimbus has assigned no slots yet{': ' + '; '.join(problems) if problems else ''}"
        elif missing := [*self._missing(wanted, beats, now)]:
            yield from missing
        elif self._handle.status() is TopologyStatus.INACTIVE:
            yield "the topology is INACTIVE: its spouts rest until it is activated"
        elif silent := [*_silent(beats)]:
            yield from silent
        else:
            yield from _told(beats, "held_back") or [_open_work(progress) + self._last_error()]

    def _last_error(self) -> str:
        """Return the newest error of the last minute, which may be why there is nothing to do."""
        errors = self._handle.errors()
        if not errors or 1000 * self._now_s() - errors[-1].time_ms > REPORTED_MS:
            return ""
        component = errors[-1].component
        text = shown(errors[-1].text)  # of user code, which may write anything
        # Connectors name their component themselves.
        return f"; {text}" if component in text else f"; component '{component}': {text}"

    def _missing(
        self, wanted: frozenset[WorkerSlot], beats: Sequence[WorkerBeat], now: float
    ) -> Iterator[str]:
        beat_by_slot = {beat.slot: beat for beat in beats}
        for slot in sorted(wanted, key=str):
            beat = beat_by_slot.get(slot)
            if beat is None:
                yield f"worker {slot} has not been started yet"
            elif now - self._beat_at[slot][1] >= IDLE_S:
                yield f"slot {slot} has been silent for {now - self._beat_at[slot][1]:.0f} s; Spark has to start it again"
            elif beat.state in _PHASES:
                yield f"worker {slot} {_PHASES[beat.state]}"

    def _note_beats(self, beats: Sequence[WorkerBeat], now: float) -> None:
        for beat in beats:
            slot = beat.slot
            if self._beat_at.get(slot, (0, 0.0))[0] != beat.time_ms:
                self._beat_at[slot] = (beat.time_ms, now)


class Absence:
    """A store that is away, or full: reported when it goes and when it is back."""

    def __init__(self, say: Callable[[str], None], patience_s: float) -> None:
        self._say = say
        self._patience_s = patience_s
        self._since: float | None = None

    def bear(self, error: StoreUnavailableError | StoreFullError) -> None:
        """Go on waiting; raises the error when patience is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            limit = f" (at most {self._patience_s:g} s)" if math.isfinite(self._patience_s) else ""
            self._say(f"waiting for the stores{limit}: {error}")
        elif now - self._since > self._patience_s:
            raise error

    def end(self) -> None:
        """Note that the store answers."""
        if self._since is not None:
            self._say(f"the stores answer again after {time.monotonic() - self._since:.1f} s")
            self._since = None


def _told(beats: Sequence[WorkerBeat], name: str) -> list[str]:
    """Return the causes in the workers' heartbeats, each once; causes that differ in numbers only
    are one.
    """
    cause_by_kind: dict[str, str] = {}
    for beat in beats:
        for cause in beat.causes(name):
            cause_by_kind.setdefault(numberless(cause), cause)
    return list(cause_by_kind.values())


def _silent(beats: Sequence[WorkerBeat]) -> Iterator[str]:
    for beat in beats:
        silent_ms = beat.stats.get("silent_ms")
        if isinstance(silent_ms, int) and silent_ms >= _SILENT_MS:
            yield (
                f"worker {beat.slot} has been inside one call for {silent_ms // 1000} s; it is replaced as hung "
                "after supervisor.worker.timeout.secs"
            )


def _open_work(progress: TopologyProgress) -> str:
    if progress.held:
        return (
            "; ".join(held_lines(progress.held))
            + ": the run goes on until it acks or fails them, and no window fires past them"
        )
    if progress.pending:
        is_open = counted(progress.pending, "tree is open", "trees are open")
        return f"{is_open}: their acks, or topology.message.timeout.secs, are waited for"
    return (
        "the spouts have nothing to emit"
        if progress.is_settled
        else "tuples are under way: bolts work on them"
    )
