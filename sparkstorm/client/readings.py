"""Readings of a cluster's stores for a sampler: the same few reads for any number of readers, over
ZooKeeper and Redis or their twins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sparkstorm.client.service import NimbusService
from sparkstorm.client.worker_problems import (
    FEWEST_BEATS,
    DeadWorkers,
    Worker,
    problems_about,
    worker_problems,
)
from sparkstorm.common.clock import Clock
from sparkstorm.common.config import Conf, merge, secret_keys
from sparkstorm.common.errors import (
    NotAliveError,
    SparkStormError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import Assignment, SupervisorInfo, TopologyBase
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import TaskBeat, WorkerBeat, gather
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.settings import SupervisorSettings
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.control_plane.insight.reading import JUDGED_MS, StoreReading, TopologyReading
from sparkstorm.control_plane.scheduling.settings import ChoiceSettings
from sparkstorm.data_plane.transport.progress import EARLIER_MS, Progress

_LEAST_MS = 4_000
_Placed = tuple[Assignment | None, tuple[WorkerBeat, ...]]
_ERRORS_EVERY = 5
"""Readings between two looks at the errors: they are a node in ZooKeeper each, and change
seldom.
"""


class CountsReader(Protocol):
    """Part of a topology's reader that a reading needs."""

    is_one_moment: bool
    """Whether the last counts were of one moment."""

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]: ...
    def earlier(self) -> dict[str, list[bytes]]: ...
    def count_dead_letters(self) -> int: ...


class StoreSource:
    """Source of a sampler over the stores of one cluster; `reader` gives the reader of a topology's
    data.

    With `only`, it reads that topology (its id) and no other. `dead_workers` finds dead workers at
    the first reading, for which it may wait a moment; without it they are found by readings that go
    on.
    """

    def __init__(
        self,
        state: StormState,
        service: NimbusService,
        reader: Callable[[str], CountsReader],
        conf: Mapping[str, Any],
        clock: Clock,
        is_read_only: bool = False,
        only: str | None = None,
        dead_workers: DeadWorkers | None = None,
        window_ms: int = JUDGED_MS,
    ) -> None:
        self._window_ms = window_ms
        self._only = only
        self._dead_workers = dead_workers
        self._state = state
        self._service = service
        self._reader = reader
        self._conf = conf
        self._clock = clock
        self._is_read_only = is_read_only
        beat_ms = SupervisorSettings.of(conf).worker_heartbeat_ms
        self._silence_ms = max(_LEAST_MS, FEWEST_BEATS * beat_ms)
        # time of the last heartbeat, and when it was first seen here
        self._changed: dict[Worker, tuple[int, int]] = {}
        self._outlines: dict[str, TopologyOutline] = {}
        self._confs: dict[str, tuple[str, Mapping[str, Any]]] = {}  # with its key
        self._errors: dict[str, tuple[Failure, ...]] = {}
        # of each topology, with the minute in which they were read
        self._earlier: dict[str, tuple[int, Mapping[str, Sequence[Progress]]]] = {}
        self._number = 0

    def read(self) -> StoreReading:
        """Read everything once; StoreUnavailableError when ZooKeeper does not answer."""
        now_ms = self._clock.now_ms()
        state = self._state
        problems = self._service.problems()
        bases = {}
        placed: dict[str, _Placed] = {}
        topology_ids = state.topology_ids()
        for topology_id in topology_ids if self._only is None else {*topology_ids} & {self._only}:
            # Nimbus's problems name it
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError):
                if (base := state.read_base(topology_id)) is not None:
                    placed[topology_id] = self._placed(topology_id)
                    bases[topology_id] = base
        supervisors = [
            state.read_supervisor(supervisor_id) for supervisor_id in state.supervisor_ids()
        ]
        dead = self._dead([beat for _, beats in placed.values() for beat in beats], now_ms)
        readings = {}
        for topology_id, base in bases.items():
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError, NotAliveError):
                others = sorted({*topology_ids} - {topology_id})
                if (
                    reading := self._topology(
                        base, placed[topology_id], problems, dead, others, now_ms
                    )
                ) is not None:
                    readings[topology_id] = reading
        for gone in self._outlines.keys() - bases.keys():
            for cache in (self._outlines, self._confs, self._errors, self._earlier):
                cache.pop(gone, None)
        self._number += 1
        requests, _ = state.open_requests()
        return StoreReading(
            now_ms,
            readings,
            tuple(
                supervisor for supervisor in supervisors if isinstance(supervisor, SupervisorInfo)
            ),
            tuple(state.read_drivers()),
            state.read_leader(),
            dict(state.read_host_marks()),
            {about: (sentence,) for about, sentence in problems.items()},
            tuple(requests),
            self._is_read_only,
        )

    def _placed(self, topology_id: str) -> _Placed:
        assignment = self._state.read_assignment(topology_id)
        slots = set(assignment.slot_by_executor.values()) if assignment else set()
        beats = [self._state.read_worker_beat(topology_id, slot) for slot in sorted(slots)]
        return assignment, tuple(beat for beat in beats if beat is not None)

    def _topology(
        self,
        base: TopologyBase,
        placed: _Placed,
        problems: Mapping[str, str],
        all_dead: frozenset[Worker],
        others: list[str],
        now_ms: int,
    ) -> TopologyReading | None:
        topology_id = base.topology_id
        state = self._state
        if topology_id not in self._outlines:
            outline = state.read_outline(topology_id)
            if outline is None:
                return None  # it is being submitted
            self._outlines[topology_id] = outline
        assignment, beats = placed
        dead = frozenset(worker for worker in all_dead if worker[0] == topology_id)
        by_task = gather(
            topology_id, beats, self._outlines[topology_id].component_by_task, now_ms
        ).by_task
        look, letters, problem = self._look(topology_id, by_task, now_ms)
        sentences = problems_about(problems, topology_id, base.stores, assignment)
        sentences += worker_problems(topology_id, beats, dead, self._window_ms)
        if not assignment and others:
            sentences.append(f"slots may be held by {', '.join(others)}")
        conf = self._conf_of(base)
        return TopologyReading(
            base,
            self._outlines[topology_id],
            assignment,
            beats,
            by_task,
            frozenset(slot for _, slot in dead),
            look,
            letters,
            self._errors_of(topology_id),
            tuple(dict.fromkeys(sentences)),
            self._wanted(base, conf),
            conf,
            problem,
            self._window_ms,
        )

    def _look(
        self, topology_id: str, by_task: Mapping[int, TaskBeat], now_ms: int
    ) -> tuple[StoreSnapshot | None, int | None, str]:
        """Return what Redis holds; None and the reason when it does not answer."""
        try:
            reader = self._reader(topology_id)
            progress, backlog = reader.progress_and_backlog()
            letters = reader.count_dead_letters()
            waited = {task: beat.queued_ms for task, beat in by_task.items() if beat.queued_ms}
            return (
                StoreSnapshot(
                    {owner: Progress.decode(data) for owner, data in progress.items()},
                    backlog,
                    waited,
                    reader.is_one_moment,
                    now_ms,
                    self._earlier_of(topology_id, reader, now_ms // EARLIER_MS),
                ),
                letters,
                "",
            )
        except (StoreUnavailableError, StoreInconsistentError) as error:
            return None, None, str(error)

    def _earlier_of(
        self, topology_id: str, reader: CountsReader, minute: int
    ) -> Mapping[str, Sequence[Progress]]:
        earlier = self._earlier.get(topology_id)
        if earlier is None or earlier[0] != minute:
            records_by_owner = {
                owner: [Progress.decode(record) for record in records]
                for owner, records in reader.earlier().items()
            }
            earlier = self._earlier[topology_id] = (minute, records_by_owner)
        return earlier[1]

    def _dead(self, beats: Iterable[WorkerBeat], now_ms: int) -> frozenset[Worker]:
        """Return the workers whose heartbeats have not changed here for too long; no other host's
        clock is asked.
        """
        if self._dead_workers is not None:
            return self._dead_workers.among(beats)
        dead = set()
        for beat in beats:
            worker = (beat.topology_id, beat.slot)
            last_ms, since_ms = self._changed.get(worker, (-1, now_ms))
            if last_ms != beat.time_ms:
                since_ms = now_ms
            self._changed[worker] = (beat.time_ms, since_ms)
            if now_ms - since_ms > self._silence_ms:
                dead.add(worker)
        return frozenset(dead)

    def _errors_of(self, topology_id: str) -> tuple[Failure, ...]:
        if topology_id not in self._errors or self._number % _ERRORS_EVERY == 0:
            components = self._state.error_components(topology_id)
            errors = [
                error for name in components for error in self._state.read_errors(topology_id, name)
            ]
            self._errors[topology_id] = tuple(sorted(errors, key=lambda error: -error.time_ms))
        return self._errors[topology_id]

    def _conf_of(self, base: TopologyBase) -> Mapping[str, Any]:
        """Return its configuration without secrets; empty where it cannot be read."""
        known_conf = self._confs.get(base.topology_id)
        if known_conf is None or known_conf[0] != base.conf_key:
            own: Mapping[str, Any] = {}
            if not self._is_read_only:
                with contextlib.suppress(SparkStormError):
                    full_conf = {
                        **Conf.as_dict(merge(self._conf)),
                        **self._service.conf_of(base.topology_id),
                    }
                    own = {
                        name: value
                        for name, value in sorted(full_conf.items())
                        if name not in secret_keys()
                    }
            known_conf = self._confs[base.topology_id] = (base.conf_key, own)
        return known_conf[1]

    def _wanted(self, base: TopologyBase, conf: Mapping[str, Any]) -> int | None:
        """Return its requested number of workers; None where its scheduler decides, or may: a
        viewer cannot read.
        """
        if not conf:
            return None
        chosen = ChoiceSettings.of_partial(dict(conf))
        scheduler = chosen.topology or chosen.cluster or ""
        if scheduler == "resource-aware" or "." in scheduler:
            return None
        return min(base.num_workers, sum(base.executors_by_component.values()))
