"""Readings of a cluster's stores for a sampler: the same few reads whoever looks, over ZooKeeper and Redis or their twins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sparkstorm.client.worker_problems import FEWEST_BEATS, Worker, worker_problems
from sparkstorm.clock import Clock
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.config import Conf, merge, secret_keys
from sparkstorm.errors import NotAliveError, SparkStormError, StoreInconsistentError, StoreUnavailableError, TamperedBlobError
from sparkstorm.insight.health import Look
from sparkstorm.insight.reading import Reading, TopologyReading
from sparkstorm.model.assignment import Assignment, SupervisorInfo, TopologyBase, WorkerBeat, WorkerSlot
from sparkstorm.model.failure import Failure
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.nimbus.service import NimbusService
from sparkstorm.scheduling.settings import ChoiceSettings
from sparkstorm.settings import SupervisorSettings
from sparkstorm.worker.progress import Progress

_LEAST_MS = 4_000
_ERRORS_EVERY = 5
"""Readings between two looks at the errors: they are a node in ZooKeeper each, and change seldom."""


class Reader(Protocol):
    """Part of a topology's reader that a reading needs."""

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]: ...
    def count_dead_letters(self) -> int: ...


class StoreSource:
    """Source of a sampler over the stores of one cluster; `reader` gives the reader of a topology's data."""

    def __init__(
        self,
        state: StormState,
        service: NimbusService,
        reader: Callable[[str], Reader],
        conf: Mapping[str, Any],
        clock: Clock,
        is_read_only: bool = False,
    ) -> None:
        self._state, self._service, self._reader = state, service, reader
        self._conf, self._clock, self._is_read_only = conf, clock, is_read_only
        beat_ms = SupervisorSettings.of(conf).worker_heartbeat_ms
        self._silence_ms = max(_LEAST_MS, FEWEST_BEATS * beat_ms)
        self._changed: dict[Worker, tuple[int, int]] = {}  # time of the last heartbeat, and when it was first seen here
        self._outlines: dict[str, TopologyOutline] = {}
        self._confs: dict[str, tuple[str, Mapping[str, Any]]] = {}  # with its key
        self._errors: dict[str, tuple[Failure, ...]] = {}
        self._number = 0

    def read(self) -> Reading:
        """Read everything once; StoreUnavailableError when ZooKeeper does not answer."""
        now_ms, state = self._clock.now_ms(), self._state
        problems = self._service.problems()
        bases = {}
        for topology_id in state.topology_ids():
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError):  # Nimbus's problems name it
                if (base := state.read_base(topology_id)) is not None:
                    bases[topology_id] = base
        supervisors = [state.read_supervisor(each) for each in state.supervisor_ids()]
        found = {}
        for topology_id, base in bases.items():
            with contextlib.suppress(StoreInconsistentError, TamperedBlobError, NotAliveError):
                if (reading := self._topology(base, problems, now_ms)) is not None:
                    found[topology_id] = reading
        for gone in self._outlines.keys() - bases.keys():
            for kept in (self._outlines, self._confs, self._errors):
                kept.pop(gone, None)
        self._number += 1
        requests, _ = state.open_requests()
        return Reading(
            now_ms,
            found,
            tuple(each for each in supervisors if isinstance(each, SupervisorInfo)),
            tuple(state.read_drivers()),
            state.read_leader(),
            dict(state.read_host_marks()),
            {about: (sentence,) for about, sentence in problems.items()},
            tuple(requests),
            self._is_read_only,
        )

    def _topology(self, base: TopologyBase, problems: Mapping[str, str], now_ms: int) -> TopologyReading | None:
        topology_id, state = base.topology_id, self._state
        if topology_id not in self._outlines:
            outline = state.read_outline(topology_id)
            if outline is None:
                return None  # it is being submitted
            self._outlines[topology_id] = outline
        assignment = state.read_assignment(topology_id)
        placed = set(assignment.slot_by_executor.values()) if assignment else set()
        beats = [state.read_worker_beat(topology_id, slot) for slot in sorted(placed)]
        known = tuple(each for each in beats if each is not None)
        dead = self._dead(known, now_ms)
        look, letters, problem = self._look(topology_id)
        conf = self._conf_of(base)
        return TopologyReading(
            base,
            self._outlines[topology_id],
            assignment,
            known,
            frozenset(slot for _, slot in dead),
            look,
            letters,
            self._errors_of(topology_id),
            self._problems(base, problems, assignment, known, dead),
            self._wanted(base, conf),
            conf,
            problem,
        )

    def _look(self, topology_id: str) -> tuple[Look | None, int | None, str]:
        """Return what Redis holds; None and why when it does not answer."""
        try:
            reader = self._reader(topology_id)
            progress, backlog = reader.progress_and_backlog()
            letters = reader.count_dead_letters()
            return Look({owner: Progress.decode(data) for owner, data in progress.items()}, backlog), letters, ""
        except (StoreUnavailableError, StoreInconsistentError) as error:
            return None, None, str(error)

    def _dead(self, beats: tuple[WorkerBeat, ...], now_ms: int) -> frozenset[Worker]:
        """Return the workers whose heartbeats have not changed here for too long; no other host's clock is asked."""
        found = set()
        for beat in beats:
            worker = (beat.topology_id, WorkerSlot(beat.node, beat.port))
            last_ms, since_ms = self._changed.get(worker, (-1, now_ms))
            if last_ms != beat.time_ms:
                since_ms = now_ms
            self._changed[worker] = (beat.time_ms, since_ms)
            if now_ms - since_ms > self._silence_ms:
                found.add(worker)
        return frozenset(found)

    def _problems(
        self,
        base: TopologyBase,
        problems: Mapping[str, str],
        assignment: Assignment | None,
        beats: tuple[WorkerBeat, ...],
        dead: frozenset[Worker],
    ) -> tuple[str, ...]:
        hosts = sorted(set(assignment.host_by_node.values())) if assignment else []
        subjects = ("turn", "scheduler", "redis", *(f"host {host}" for host in hosts), base.topology_id, base.name)
        found = [problems[about] for about in subjects if about in problems]
        return tuple(dict.fromkeys([*found, *worker_problems(base.topology_id, beats, dead)]))

    def _errors_of(self, topology_id: str) -> tuple[Failure, ...]:
        if topology_id not in self._errors or self._number % _ERRORS_EVERY == 0:
            components = self._state.error_components(topology_id)
            found = [error for name in components for error in self._state.read_errors(topology_id, name)[-1:]]
            self._errors[topology_id] = tuple(sorted(found, key=lambda each: -each.time_ms))
        return self._errors[topology_id]

    def _conf_of(self, base: TopologyBase) -> Mapping[str, Any]:
        """Return its configuration without secrets; empty where it cannot be read."""
        known = self._confs.get(base.topology_id)
        if known is None or known[0] != base.conf_key:
            own: Mapping[str, Any] = {}
            if not self._is_read_only:
                with contextlib.suppress(SparkStormError):
                    whole = {**Conf.as_dict(merge(self._conf)), **self._service.conf_of(base.topology_id)}
                    own = {name: value for name, value in sorted(whole.items()) if name not in secret_keys()}
            known = self._confs[base.topology_id] = (base.conf_key, own)
        return known[1]

    def _wanted(self, base: TopologyBase, conf: Mapping[str, Any]) -> int | None:
        """Return how many workers it wants; None where its scheduler decides, or may: a viewer cannot read."""
        if not conf:
            return None
        chosen = ChoiceSettings.of_partial(dict(conf))
        scheduler = chosen.topology or chosen.cluster or ""
        if scheduler == "resource-aware" or "." in scheduler:
            return None
        return min(base.num_workers, sum(base.executors_by_component.values()))
