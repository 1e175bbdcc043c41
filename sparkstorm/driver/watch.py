"""Watch over a running topology: until its sources are drained, a worker gives up, or it is
stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Protocol

from sparkstorm.client.handle import TopologyHandle, TopologyProgress
from sparkstorm.client.logs import last_lines as published_lines
from sparkstorm.common.errors import (
    NotAliveError,
    StoreUnavailableError,
    TopologyPausedError,
    WorkerFailedError,
)
from sparkstorm.common.model.assignment import FAILED, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.control_plane.supervisor.slot import worker_log_name
from sparkstorm.control_plane.supervisor.worker_process import last_lines
from sparkstorm.driver.console import RunConsole, first_late_line
from sparkstorm.driver.dead_letter_file import DeadLetterFile
from sparkstorm.driver.waits import Absence, Waits

_TAIL_LINES = 20
DRAIN_S = 30.0
LOOK_EVERY_S = 0.1
# a row that kills takes four: one to raise suspicion, three to be parked
MAX_DEATHS_WITHOUT_PROGRESS = 6


class Logs(Protocol):
    """Logs of a topology's workers: a sentence on their place, and their last lines."""

    def place(self, slot: WorkerSlot) -> str: ...
    def tail(self, slot: WorkerSlot) -> list[str]: ...


class FileLogs:
    """Logs as files in a folder of this host."""

    def __init__(self, folder: Path, topology_id: str) -> None:
        self._folder = folder
        self._topology_id = topology_id

    def place(self, slot: WorkerSlot) -> str:
        """Return where a worker's log is."""
        return f"its log is {self._path(slot)}"

    def tail(self, slot: WorkerSlot) -> list[str]:
        """Return its last lines; empty when the file is on another host."""
        return last_lines(self._path(slot))

    def _path(self, slot: WorkerSlot) -> Path:
        return self._folder / worker_log_name(self._topology_id, slot)


class PublishedLogs:
    """Logs as their slots publish them."""

    def __init__(self, handle: TopologyHandle) -> None:
        self._handle = handle

    def place(self, slot: WorkerSlot) -> str:
        """Return the command that shows a worker's log."""
        return f"its log: sparkstorm logs {self._handle.name} --worker {slot}"

    def tail(self, slot: WorkerSlot) -> list[str]:
        """Return its last lines."""
        return published_lines(self._handle, str(slot), _TAIL_LINES)


class RunOutcome(Enum):
    """End of a watch."""

    DRAINED = "drained"
    STOPPED = "stopped"


class Watch:
    """Repeated look at a topology, several times a second; `run` returns how it ended, with the
    last progress seen.

    WorkerFailedError when a worker cannot be started, or keeps dying without getting anything done;
    NotAliveError when the topology is gone; StoreUnavailableError when Redis stays away for longer
    than `patience_s`; ZooKeeper, which data do not pass, may.
    """

    def __init__(
        self,
        handle: TopologyHandle,
        console: RunConsole,
        logs: Logs,
        line_every_s: float,
        patience_s: float,
        letters: DeadLetterFile | None = None,
    ) -> None:
        self._handle = handle
        self._console = console
        self._letters = letters
        self._line_every_s = line_every_s
        self._deaths = Deaths(handle.topology_id, logs, console.say)
        self._waits = Waits(handle, console.say)
        self._line_due = 0.0
        self._redis = Absence(console.say, patience_s)
        self._zookeeper = Absence(console.say, math.inf)
        self._parked = 0  # as of the last collection of dead letters
        self._has_said_parked = False
        self._has_said_late: set[str] = set()
        self._losses: tuple[str, ...] = ()

    def run(
        self, is_stopping: Callable[[], bool], check: Callable[[], None] = lambda: None
    ) -> tuple[RunOutcome, TopologyProgress]:
        """Until the end; `check` is called with every progress line and may raise to end the
        watch.
        """
        drained = 0
        deadline = None
        while True:
            progress = self._look(check)
            if progress is not None:
                drained = drained + 1 if progress.is_drained else 0
                # two looks: the first may have read one worker before and one after a hand-over
                if drained >= 2:
                    return RunOutcome.DRAINED, progress
                if deadline is None and is_stopping():
                    deadline = self._deactivate()
                elif deadline is not None and (progress.is_settled or time.monotonic() > deadline):
                    return RunOutcome.STOPPED, progress
            time.sleep(LOOK_EVERY_S / 2 if drained else LOOK_EVERY_S)

    def _deactivate(self) -> float | None:
        """Let spouts rest; returns when to stop at the latest, None when a store is away and it
        must be tried again.
        """
        try:
            self._handle.deactivate()
        except StoreUnavailableError as error:
            self._redis.bear(error)
            return None
        return time.monotonic() + DRAIN_S

    def _look(self, check: Callable[[], None]) -> TopologyProgress | None:
        """Progress now; None while Redis is away."""
        try:
            progress = self._handle.progress()
            self._collect(progress.parked + progress.replayed)
        except StoreUnavailableError as error:
            check()
            self._redis.bear(error)
            return None
        self._redis.end()
        if time.monotonic() >= self._line_due:
            check()
            self._line_due = time.monotonic() + self._line_every_s
            self._console.show(progress)
            self._look_at_workers(progress)
            self._look_at_late(progress)
        return progress

    def _look_at_workers(self, progress: TopologyProgress) -> None:
        try:
            if self._handle.status() is None:
                raise NotAliveError(
                    f"{self._handle.topology_id} is gone: it was killed or replaced while it was followed"
                )
            if sentence := self._handle.paused():
                raise TopologyPausedError(sentence)
            beats = self._handle.beats()
            self._deaths.look(beats, progress)
            self._waits.look(progress, beats)
            self._say_losses()
        except StoreUnavailableError as error:
            self._zookeeper.bear(error)
        else:
            self._zookeeper.end()

    def _look_at_late(self, progress: TopologyProgress) -> None:
        """Report each component when its first late tuples are seen: a run may go on for long."""
        for component in sorted(progress.late.keys() - self._has_said_late):
            self._has_said_late.add(component)
            self._console.say(first_late_line(component))

    def _say_losses(self) -> None:
        losses = self._handle.losses()
        for loss in losses:
            if loss not in self._losses:
                self._console.say(
                    f"{loss}; it goes on with what is left (topology.store.loss=continue)"
                )
        self._losses = losses

    def _collect(self, parked: int) -> None:
        """Write new dead letters; print where the first ones are: the run may go on for long."""
        if self._letters is None or parked in (0, self._parked):
            return
        self._letters.collect()
        if self._letters.is_whole:
            self._parked = parked
        if not self._has_said_parked and (causes := self._letters.groups.lines(1)):
            self._has_said_parked = True
            self._console.say(
                f"tuples are parked; they are written to {self._letters.path} as it happens. {causes[0]}"
            )


class Deaths:
    """Workers that fail or were replaced, by their heartbeats."""

    def __init__(self, topology_id: str, logs: Logs, say: Callable[[str], None]) -> None:
        self._topology_id = topology_id
        self._logs = logs
        self._say = say
        self._beat_by_slot: dict[WorkerSlot, WorkerBeat] = {}
        self._work: object = None
        self._read = 0  # most input that sources had read
        self._executed = 0  # when work was last done, or a worker replaced
        # how many workers had died at each slot when it last got on
        self._deaths_before: dict[WorkerSlot, int] = {}

    def look(self, beats: list[WorkerBeat], progress: TopologyProgress) -> None:
        """Report what changed; WorkerFailedError when it is no use to go on."""
        work = progress.acked, progress.failed, progress.parked
        # the next worker executes held inputs again
        again = sum(progress.held.values())
        has_executed = progress.executed > self._executed + again
        # what was read and not committed is gone with its worker, and the next one reads it again
        if work != self._work or has_executed or progress.done > self._read:
            self._work = work
            self._read = max(self._read, progress.done)
            self._executed = progress.executed
            self._deaths_before = {}
        for beat in beats:
            slot = beat.slot
            former = self._beat_by_slot.get(slot)
            if beat.state == FAILED:
                raise WorkerFailedError(
                    f"worker {slot} of {self._topology_id} cannot run: {beat.message}"
                )
            if former is not None and 0 != former.pid != beat.pid != 0:
                self._executed = max(self._executed, progress.executed)
                why = beat.stats.get("last_end") or "its slot was started again"
                log = self._logs.place(slot)
                self._say(
                    f"worker {slot} was replaced (process {former.pid} by {beat.pid}): {why}; {log}"
                )
            if former is None or beat.pid:
                self._beat_by_slot[slot] = beat
            self._check_deaths(slot, beat)

    def _check_deaths(self, slot: WorkerSlot, beat: WorkerBeat) -> None:
        said = beat.stats.get("deaths", 0)
        deaths = said if isinstance(said, int) else 0
        # a slot that was restarted counts anew
        before = min(deaths, self._deaths_before.get(slot, deaths))
        self._deaths_before[slot] = before
        if deaths - before >= MAX_DEATHS_WITHOUT_PROGRESS:
            tail = (
                "\n".join(f"  {line}" for line in self._logs.tail(slot))
                or "  (empty, or on the worker's own host)"
            )
            raise WorkerFailedError(
                f"worker {slot} of {self._topology_id} died {deaths - before} times without getting anything done; "
                f"{self._logs.place(slot)}, and ends so:\n{tail}"
            )
