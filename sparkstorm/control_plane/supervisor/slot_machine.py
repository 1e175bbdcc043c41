"""State machine of one slot: `step(state, seen, now) -> (state, actions)` (after the Slot of Storm
2).

PURE: no clock, no process, no store. Laws: one child at most; a child is never started before the
former one is dead; a wish that changes while a child lives ends that child softly, then hard; a
child that dies or falls silent is started again at once the first time and after growing pauses
when it keeps dying young; every wait has an end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from sparkstorm.common.config import Conf
from sparkstorm.common.model.assignment import FAILED
from sparkstorm.common.model.worker_messages import ExitCode
from sparkstorm.common.model.worker_spec import PlacedExecutor
from sparkstorm.common.settings import WorkerTimers


class Phase(StrEnum):
    """Phase of a slot."""

    EMPTY = "EMPTY"
    WAITING_FOR_BLOB = "WAITING_FOR_BLOB"
    WAITING_FOR_WORKER_START = "WAITING_FOR_WORKER_START"
    RUNNING = "RUNNING"
    KILL = "KILL"
    KILL_AND_RELAUNCH = "KILL_AND_RELAUNCH"
    WAITING_FOR_RELAUNCH = "WAITING_FOR_RELAUNCH"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class LocalAssignment:
    """Part of this slot in a topology's assignment; a new version that leaves the part alone is no
    change.
    """

    topology_id: str
    code_key: str
    conf_key: str
    executors: tuple[PlacedExecutor, ...]
    version: int = field(default=0, compare=False)
    turn: int = 0  # counts versions of blobs with which workers are to start anew

    @property
    def tasks(self) -> frozenset[int]:
        """Tasks of its executors."""
        return frozenset(task for placed in self.executors for task in placed.executor.tasks)


class BlobView(StrEnum):
    """Presence of the assigned topology's code and configuration on this host."""

    MISSING = "MISSING"
    READY = "READY"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ChildView:
    """The child as the slot sees it: `heard_ms` is its last sign of life, `moved_ms` its last sign
    of progress. Both begin with its start. A process whose loop stays in one call is alive without
    progress.
    """

    heard_ms: int
    ready: bool = False
    exit_code: int | None = None
    moved_ms: int = -1  # before the first: heard_ms

    @property
    def stuck_since_ms(self) -> int:
        """Time of the last sign of progress."""
        return self.heard_ms if self.moved_ms < 0 else self.moved_ms


@dataclass(frozen=True, slots=True)
class Observation:
    """Input of a step."""

    wanted: LocalAssignment | None = None
    blob: BlobView = BlobView.MISSING
    child: ChildView | None = None
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Storm's supervisor timers; the last ones are ours."""

    start_timeout_ms: int = 120_000  # supervisor.worker.start.timeout.secs
    worker_timeout_ms: int = 30_000  # supervisor.worker.timeout.secs
    progress_timeout_ms: int = 30_000  # topology.worker.progress.timeout.secs
    soft_kill_ms: int = 3_000  # supervisor.worker.shutdown.sleep.secs
    stacks_ms: int = 250  # for a hung child to write its stacks
    blob_retry_ms: int = 3_000
    young_ms: int = 5_000  # a child that dies younger than this pauses its successor
    first_pause_ms: int = 250
    longest_pause_ms: int = 30_000
    failed_starts: int = 3  # after so many in a row the slot reports FAILED


def timing_of(conf: Conf) -> Timing:
    """The machine's timers, from the settings of the supervisor and the topology."""
    timers = WorkerTimers.of(conf)
    return Timing(
        start_timeout_ms=timers.start_timeout_ms,
        worker_timeout_ms=timers.timeout_ms,
        progress_timeout_ms=timers.progress_ms,
        soft_kill_ms=timers.soft_kill_ms,
        failed_starts=timers.failed_starts,
    )


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot between two steps. `since_ms`: entered the phase; `due_ms`: when the phase's own wait
    ends.
    """

    phase: Phase = Phase.EMPTY
    since_ms: int = 0
    due_ms: int = 0
    assignment: LocalAssignment | None = None
    young_deaths: int = 0
    failed_starts: int = 0

    def reported(self, timing: Timing) -> str:
        """The word for the worker's beat."""
        failing = self.failed_starts >= timing.failed_starts
        waits = self.phase in (Phase.WAITING_FOR_RELAUNCH, Phase.WAITING_FOR_WORKER_START)
        return FAILED if failing and waits else self.phase.value


@dataclass(frozen=True, slots=True)
class FetchBlob:
    """Bring the code and conf of that assignment to this machine."""

    assignment: LocalAssignment


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a worker for that assignment; the former child is dead."""

    assignment: LocalAssignment


@dataclass(frozen=True, slots=True)
class StopChild:
    """Ask the child to end after its epoch."""


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Ask a silent child where it hangs; its kill follows."""


@dataclass(frozen=True, slots=True)
class KillChild:
    """SIGKILL."""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """Removal of a dead child; `blameless` when the slot ended it without a fault of the child."""

    exit_code: int
    blameless: bool
    started: bool


SlotAction: TypeAlias = FetchBlob | StartChild | StopChild | DumpStacks | KillChild | WorkerExited
Step: TypeAlias = tuple[SlotState, list[SlotAction]]


def step(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    """One transition at most; call it again until nothing changes."""
    if seen.wanted is not None and seen.wanted == state.assignment:
        state = replace(state, assignment=seen.wanted)  # perhaps a newer version of the same part
    return _STEP_BY_PHASE[state.phase](state, seen, now_ms, timing)


def settle(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    """Step until the next transition needs a new observation: an action was asked for, or nothing
    changes.
    """
    while True:
        following, actions = step(state, seen, now_ms, timing)
        if actions or following == state:
            return following, actions
        state = following


def pause_ms(young_deaths: int, timing: Timing) -> int:
    """Return the pause before the next start: none after the first early death, then doubling up to
    the longest.
    """
    if young_deaths <= 1:
        return 0
    return min(timing.longest_pause_ms, timing.first_pause_ms << min(young_deaths - 2, 20))


def _enter(state: SlotState, phase: Phase, now_ms: int, due_ms: int = 0) -> SlotState:
    return replace(state, phase=phase, since_ms=now_ms, due_ms=due_ms)


def _empty_at(now_ms: int) -> SlotState:
    return SlotState(Phase.EMPTY, since_ms=now_ms)


def _is_unwanted(state: SlotState, seen: Observation) -> bool:
    return seen.stop or seen.wanted != state.assignment


def _step_empty(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    if seen.stop:
        return _enter(state, Phase.STOPPED, now_ms), []
    if seen.wanted is None:
        return state, []
    fetching = SlotState(Phase.WAITING_FOR_BLOB, now_ms, now_ms + timing.blob_retry_ms, seen.wanted)
    return fetching, [FetchBlob(seen.wanted)]


def _step_waiting_for_blob(
    state: SlotState, seen: Observation, now_ms: int, timing: Timing
) -> Step:
    if _is_unwanted(state, seen):
        return _empty_at(now_ms), []
    assert state.assignment is not None
    if seen.blob is BlobView.READY:
        return _start(state, now_ms)
    if seen.blob is BlobView.FAILED and now_ms >= state.due_ms:
        return replace(state, due_ms=now_ms + timing.blob_retry_ms), [FetchBlob(state.assignment)]
    return state, []


def _start(state: SlotState, now_ms: int) -> Step:
    assert state.assignment is not None
    return _enter(state, Phase.WAITING_FOR_WORKER_START, now_ms), [StartChild(state.assignment)]


def _step_waiting_for_start(
    state: SlotState, seen: Observation, now_ms: int, timing: Timing
) -> Step:
    child = seen.child
    if child is None:  # it could not even be spawned
        return _relaunch(replace(state, failed_starts=state.failed_starts + 1), now_ms, timing), []
    if child.ready:  # also one that has died since: its death counts against the row it was at
        return replace(_enter(state, Phase.RUNNING, now_ms), failed_starts=0), []
    if child.exit_code is not None:
        failed = replace(state, failed_starts=state.failed_starts + 1)
        return _follow(failed, child.exit_code, now_ms, timing), [
            WorkerExited(child.exit_code, blameless=False, started=False)
        ]
    if _is_unwanted(state, seen):
        return _enter(state, Phase.KILL, now_ms, now_ms + timing.soft_kill_ms), [StopChild()]
    if now_ms - child.stuck_since_ms >= max(timing.start_timeout_ms, timing.worker_timeout_ms):
        failed = replace(state, failed_starts=state.failed_starts + 1)
        return _enter(failed, Phase.KILL_AND_RELAUNCH, now_ms, now_ms + timing.stacks_ms), [
            DumpStacks()
        ]
    return state, []


def _step_running(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    child = seen.child
    assert child is not None
    if child.exit_code is not None:
        return _follow(state, child.exit_code, now_ms, timing), [
            WorkerExited(child.exit_code, blameless=False, started=True)
        ]
    if _is_unwanted(state, seen):
        return _enter(state, Phase.KILL, now_ms, now_ms + timing.soft_kill_ms), [StopChild()]
    is_silent = now_ms - child.heard_ms >= timing.worker_timeout_ms
    if is_silent or now_ms - child.stuck_since_ms >= timing.progress_timeout_ms:
        return _enter(state, Phase.KILL_AND_RELAUNCH, now_ms, now_ms + timing.stacks_ms), [
            DumpStacks()
        ]
    return state, []


def _follow(state: SlotState, exit_code: int, now_ms: int, timing: Timing) -> SlotState:
    """The state after a death: FAILED at once when the data in Redis are damaged, since a fresh
    child reads the same; after some in a row that a mistake of the job has caused, as for starts.
    """
    if exit_code != ExitCode.DAMAGED:
        following = _relaunch(state, now_ms, timing)
        is_mistaken = exit_code == ExitCode.MISTAKEN and state.phase is Phase.RUNNING
        return (
            replace(following, failed_starts=following.young_deaths) if is_mistaken else following
        )
    waiting = _enter(state, Phase.WAITING_FOR_RELAUNCH, now_ms, now_ms + timing.longest_pause_ms)
    return replace(waiting, failed_starts=max(state.failed_starts, timing.failed_starts))


def _relaunch(state: SlotState, now_ms: int, timing: Timing) -> SlotState:
    """Wait before the next start, longer each time a child died young."""
    is_young = state.phase is not Phase.RUNNING or now_ms - state.since_ms < timing.young_ms
    deaths = state.young_deaths + 1 if is_young else 1
    waiting = _enter(state, Phase.WAITING_FOR_RELAUNCH, now_ms, now_ms + pause_ms(deaths, timing))
    return replace(waiting, young_deaths=deaths)


def _step_waiting_for_relaunch(
    state: SlotState, seen: Observation, now_ms: int, timing: Timing
) -> Step:
    if _is_unwanted(state, seen):
        return _empty_at(now_ms), []
    return _start(state, now_ms) if now_ms >= state.due_ms else (state, [])


def _step_kill(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    if seen.child is None or seen.child.exit_code is not None:
        code = 0 if seen.child is None or seen.child.exit_code is None else seen.child.exit_code
        return _empty_at(now_ms), [WorkerExited(code, blameless=True, started=True)]
    if now_ms >= state.due_ms:
        # SIGKILL needs no patience, but a process in the kernel's hands may take it late: ask
        # again, never give up.
        return replace(state, due_ms=now_ms + timing.soft_kill_ms), [KillChild()]
    return state, []


def _step_kill_and_relaunch(
    state: SlotState, seen: Observation, now_ms: int, timing: Timing
) -> Step:
    child = seen.child
    assert child is not None
    if child.exit_code is not None:
        return _relaunch(state, now_ms, timing), [
            WorkerExited(child.exit_code, blameless=False, started=child.ready)
        ]
    if now_ms >= state.due_ms:
        return replace(state, due_ms=now_ms + timing.soft_kill_ms), [KillChild()]
    return state, []


def _step_stopped(state: SlotState, seen: Observation, now_ms: int, timing: Timing) -> Step:
    return state, []


_STEP_BY_PHASE: dict[Phase, Callable[[SlotState, Observation, int, Timing], Step]] = {
    Phase.EMPTY: _step_empty,
    Phase.WAITING_FOR_BLOB: _step_waiting_for_blob,
    Phase.WAITING_FOR_WORKER_START: _step_waiting_for_start,
    Phase.RUNNING: _step_running,
    Phase.KILL: _step_kill,
    Phase.KILL_AND_RELAUNCH: _step_kill_and_relaunch,
    Phase.WAITING_FOR_RELAUNCH: _step_waiting_for_relaunch,
    Phase.STOPPED: _step_stopped,
}
