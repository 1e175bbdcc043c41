"""Handle on one topology: its status, counts, errors, dead letters and logs, and the requests that
change it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkstorm.client.access import ClusterAccess, TopologyReader
from sparkstorm.client.dead_letters import StoredLetters
from sparkstorm.client.looks.stacks import Stacks
from sparkstorm.client.looks.stacks import look as look_at_stacks
from sparkstorm.client.looks.taps import Sample, samples
from sparkstorm.client.looks.traces import Trace, bits_for
from sparkstorm.client.looks.traces import look as look_at_traces
from sparkstorm.client.readings import StoreSource
from sparkstorm.client.request_client import Progress as Steps
from sparkstorm.client.savepoints import SavepointSource, write_in_time
from sparkstorm.client.worker_problems import worker_problems
from sparkstorm.common.errors import IllegalTransitionError, NotAliveError, StoreUnavailableError
from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.assignment import TaskInfo, TopologySummary, WorkerSlot
from sparkstorm.common.model.failure import Cause, Failure, FailureGroup, group_failures
from sparkstorm.common.model.heartbeats import TaskBeats, WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import LogLevel, RebalancePlan, topology_name
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.control_plane.insight.culprits import most_behind
from sparkstorm.control_plane.insight.health import Health
from sparkstorm.control_plane.insight.reading import JUDGED_MS
from sparkstorm.data_plane.transport.keys import tap_name
from sparkstorm.data_plane.transport.progress import Progress, TaskCounts, merge, percentile_ms

if TYPE_CHECKING:
    from sparkstorm.client.looks.journey import Journeys


@dataclass(frozen=True, slots=True)
class TopologyProgress:
    """Exact counts over all workers, as of their last commits; latencies in milliseconds, None
    before the first ack.
    """

    total: int
    done: int
    emitted: int
    executed: int
    pending: int
    acked: int
    failed: int
    parked: int
    p50_ms: float | None
    p99_ms: float | None
    is_settled: bool  # nothing is under way
    is_drained: bool  # nothing is under way, and all sources are exhausted
    # By component, where there are any: rows emitted to the stream `bad`; tuples that came too late
    # for their windows, and all that were executed; inputs that its code has neither acked nor
    # failed.
    bad: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    # dead letters that were put back and executed; they do not count as parked any more
    replayed: int = 0
    # of components with late tuples: which task sends rows farthest behind its newest one
    behind: Mapping[str, str] = field(default_factory=dict)


class TopologyHandle:
    """One topology by id; a handle on a former run of the same name changes nothing.

    Methods that change something raise ReadOnlyConnectionError when the connection may only read.
    """

    def __init__(self, topology_id: str, cluster: ClusterAccess, reader: TopologyReader) -> None:
        self.topology_id = topology_id
        self._cluster = cluster
        self._state = cluster.state
        self._reader = reader
        self._info_by_task: dict[int, TaskInfo] = {}
        self._blob_keys: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"TopologyHandle({self.topology_id!r})"

    @property
    def name(self) -> str:
        """Its name: the id without its two numbers."""
        return topology_name(self.topology_id)

    # -- looking -----------------------------------------------------------------------------------

    def status(self) -> TopologyStatus | None:
        """Return its life-cycle status; None when it is gone."""
        base = self._state.read_base(self.topology_id)
        return None if base is None else base.status

    def paused(self) -> str:
        """Return why Nimbus paused it (most inputs of a component fail); else empty."""
        base = self._state.read_base(self.topology_id)
        return "" if base is None else base.paused

    def summary(self) -> TopologySummary | None:
        """Return its status with the sizes of its assignment; None when it is gone."""
        return next(
            (
                summary
                for summary in self._cluster.summaries()
                if summary.topology_id == self.topology_id
            ),
            None,
        )

    def counts(self) -> dict[int, TaskCounts]:
        """Return exact counts by task."""
        return self._merged().counts_by_task

    def progress(self) -> TopologyProgress:
        """Return exact counts over all workers."""
        merged = self._merged()
        backlog = self._reader.backlog()
        counts = list(merged.counts_by_task.values())
        spouts = self._spout_counts(merged)
        is_settled = (
            not any(c.pending for c in spouts)
            and not any(c.is_waiting for c in counts)
            and not any(backlog.values())
        )
        executed = _by_component(counts, "executed")
        late = _by_component(counts, "late")
        is_drained = (
            is_settled
            and len(spouts) == self._spout_tasks() > 0
            and all(c.is_exhausted for c in spouts)
        )
        return TopologyProgress(
            sum(c.total for c in spouts),
            sum(c.done for c in spouts),
            sum(c.emitted for c in counts),
            sum(c.executed for c in counts),
            sum(c.pending for c in spouts),
            sum(c.acked for c in spouts),
            sum(c.failed for c in spouts),
            max(0, sum(c.parked - c.replayed for c in counts)),
            percentile_ms(merged.latency_buckets, 0.50),
            percentile_ms(merged.latency_buckets, 0.99),
            is_settled,
            is_drained,
            _by_component(counts, "bad"),
            {name: (count, executed[name]) for name, count in late.items()},
            _by_component(counts, "held"),
            sum(c.replayed for c in counts),
            {name: most_behind(name, merged) for name in late},
        )

    def health(self, seconds: float = JUDGED_MS / 1000) -> Health:
        """Return its health over the last seconds, 60 to 600, or since its launch."""
        reading = self.source(seconds).read()
        topology = reading.topologies.get(self.topology_id)
        if topology is None:
            raise NotAliveError(f"{self.topology_id} is gone")
        if topology.look is None:
            raise StoreUnavailableError(topology.problem)
        return topology.health(topology.look, reading.time_ms)

    def source(self, seconds: float = JUDGED_MS / 1000) -> StoreSource:
        """Return what a sampler (`insight.sampler.Sampler`) reads this topology from."""
        return self._cluster.source(self.topology_id, is_lasting=False, seconds=seconds)

    def progress_by_worker(self) -> dict[str, Progress]:
        """Return what each worker ("node:port") has committed."""
        return {owner: Progress.decode(data) for owner, data in self._reader.progress().items()}

    def key_values(self, component: str) -> Iterator[tuple[Any, Any]]:
        """Yield the committed state of a component, one task after the other."""
        for _, stored in self._source().stored(component):
            yield from stored.state.items()

    def state_frame(self, component: str, spark: Any = None) -> Any:
        """Return the committed state of a component: columns task, key and value, each task as of
        its last commit.

        A Spark DataFrame of the session given, else a pandas one, or an Arrow table where there is
        no pandas. ValueError names the components there are.
        """
        known_names = {info.component_id for info in self.tasks().values()}
        if component not in known_names:
            raise ValueError(
                f"{self.name} has no component '{component}', only {', '.join(sorted(known_names))}"
            )

        from sparkstorm.client.state_frames import state_frame  # needs the API

        return state_frame(self._source().stored(component), spark)

    frame = state_frame

    def tail(
        self, component: str, stream: str = DEFAULT_STREAM, seconds: float | None = None
    ) -> Generator[Sample | None]:
        """Yield samples of a stream's rows as they are committed, for so long or without an end;
        None when there are none now.

        Up to 50 of the newest rows of each worker, ten times a second. ValueError names the
        components and streams there are.
        """
        self._cluster.require_writer()
        outline = self._outline()
        streams = {
            name: part.streams
            for name, part in outline.components.items()
            if not name.startswith("__")
        }
        if component not in streams:
            raise ValueError(
                f"{self.name} has no component '{component}', only {', '.join(sorted(streams))}"
            )
        if stream not in streams[component]:
            names = (
                ", ".join(sorted(name for name in streams[component] if not name.startswith("__")))
                or "none"
            )
            raise ValueError(f"component '{component}' has no stream '{stream}'; it has {names}")
        return samples(self._reader, tap_name(component, stream), seconds)

    @property
    def journeys(self) -> Journeys:
        """Its messages: those that are open, and what the store keeps of one."""
        from sparkstorm.client.looks.journey import Journeys  # needs numpy

        outline = self._outline()
        return Journeys(
            self.topology_id, self._reader, self.tasks(), outline, lambda: iter(self.dead_letters)
        )

    def traces(self, seconds: float = 5.0, emitted_per_s: float | None = None) -> list[Trace]:
        """Return what happens to a sample of messages in so many seconds: the failed first, then
        the slowest.

        `emitted_per_s` of its spouts, as the read model has it, decides how large the sample may
        be.
        """
        self._cluster.require_writer()
        workers = map(str, self.slots())
        return look_at_traces(self._reader, seconds, bits_for(emitted_per_s), workers)

    def stacks(self, slot: str, seconds: float = 5.0) -> Stacks:
        """Return the stacks of the worker in a slot ("node:port"), sampled for so many seconds.

        NotAliveError names the workers there are; StoreUnavailableError when it does not answer.
        """
        self._cluster.require_writer()
        known_slots = sorted(map(str, self.slots()))
        if slot not in known_slots:
            raise NotAliveError(
                f"{self.topology_id} has no worker {slot:.80}, only {', '.join(known_slots) or 'none'}"
            )
        return look_at_stacks(self._reader, slot, seconds)

    def tasks(self) -> Mapping[int, TaskInfo]:
        """Return component and kind of every task."""
        if not self._info_by_task:
            table = self._state.read_tasks(self.topology_id)
            self._info_by_task = {} if table is None else dict(table.info_by_task)
        return self._info_by_task

    def beats(self) -> list[WorkerBeat]:
        """Return the heartbeats of its workers."""
        slots = self._state.worker_beat_slots(self.topology_id)
        return [
            beat
            for slot in slots
            if (beat := self._state.read_worker_beat(self.topology_id, slot)) is not None
        ]

    def losses(self) -> tuple[str, ...]:
        """Return what its stores have lost beyond their tails, the newest of each store last."""
        base = self._state.read_base(self.topology_id)
        cells = len(base.stores) if base else 1
        marks = self._state.read_store_marks(self.topology_id, cells)
        return tuple(loss for _, mark in sorted(marks.items()) for loss in mark.losses)

    def task_beats(self) -> TaskBeats:
        """Return what each task last reported: counts, latencies, what waits, its last error."""
        return self._state.read_task_beats(self.topology_id) or TaskBeats(self.topology_id)

    def slots(self) -> frozenset[WorkerSlot]:
        """Return the slots of its assignment; empty while it has none."""
        assignment = self._state.read_assignment(self.topology_id)
        return (
            frozenset() if assignment is None else frozenset(assignment.slot_by_executor.values())
        )

    def problems(self) -> list[str]:
        """Return its problems: Nimbus's, its workers', and which topologies may hold the slots that
        it lacks.
        """
        slots = self.slots()
        others = [] if slots else sorted({*self._state.topology_ids()} - {self.topology_id})
        held = [f"slots may be held by {', '.join(others)}"] if others else []
        return [
            *dict.fromkeys(
                self._cluster.service.problems_of(self.topology_id) + self.worker_problems()
            ),
            *held,
        ]

    def worker_problems(self) -> list[str]:
        """Return dead workers, deaths of the last minute and reasons why workers make no progress."""
        slots = self.slots()
        beats = [beat for beat in self.beats() if beat.slot in slots]
        return worker_problems(self.topology_id, beats, self._cluster.dead_workers.among(beats))

    def dead_slots(self, beats: Sequence[WorkerBeat]) -> frozenset[WorkerSlot]:
        """Return the slots of these heartbeats that send none any more."""
        return frozenset(slot for _, slot in self._cluster.dead_workers.among(beats))

    def errors(self, component: str | None = None) -> list[Failure]:
        """Return the last errors of every component, or of one; oldest first."""
        components = (
            self._state.error_components(self.topology_id) if component is None else [component]
        )
        errors = [
            error
            for name in components
            for error in self._state.read_errors(self.topology_id, name)
        ]
        return sorted(errors, key=lambda error: error.time_ms)

    def failures(
        self, component: str | None = None, counts: Mapping[Cause, int] | None = None
    ) -> list[FailureGroup]:
        """Return failed calls, time-outs, reports and deaths by cause, the most frequent first.

        Counts are exact: workers commit them with their epochs. Time-outs belong to the component
        of their spout. With `counts`, as a reader of the read model has them, they are not read
        again.
        """
        letters = (letter.failure for letter in self.dead_letters.read().values())
        groups = group_failures(
            self._merged().failures if counts is None else counts,
            [*self.errors(component), *letters],
        )
        return [group for group in groups if component in (None, group.cause.component)]

    @property
    def dead_letters(self) -> StoredLetters:
        """Inputs that its bolts have given up."""
        return StoredLetters(
            self.topology_id, self._reader, self.tasks, self.status, self._cluster.require_writer
        )

    @property
    def upgrade(self) -> Any:
        """Its gray upgrade (`sparkstorm.extensions.upgrade.handle.Upgrades`)."""
        upgrades, _ = extensions_at("handle")
        return upgrades(self.topology_id, self.name, self._cluster)

    @property
    def scaling(self) -> Any:
        """Its scaling by true rates (`sparkstorm.extensions.autoscale.handle.Scaling`)."""
        _, scaling = extensions_at("handle")
        return scaling(self.topology_id, self.name, self._cluster)

    def log_slots(self) -> list[str]:
        """Return the slots ("node:port") of workers whose last lines are kept."""
        return self._reader.log_slots()

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the kept parts of a worker's log after an id, with their ids."""
        return self._reader.log(slot, after)

    def conf(self) -> Mapping[str, Any]:
        """Return its own configuration as its submission or last rebalance left it; NotAliveError
        when it is gone.
        """
        return self._cluster.service.conf_of(self.topology_id)

    def blob_keys(self) -> frozenset[str]:
        """Return the keys of its code and configuration, as when first asked for."""
        if not self._blob_keys and (base := self._state.read_base(self.topology_id)):
            assignment = self._state.read_assignment(self.topology_id)
            own = assignment.blob_keys() if assignment else set()
            self._blob_keys = frozenset({base.code_key, base.conf_key} | own)
        return self._blob_keys

    def savepoint(
        self,
        folder: str | Path,
        patience_secs: float = 60.0,
        is_last: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Write states, windows and positions into a folder, from which a submission, a replay or a
        test begins.

        Spouts rest meanwhile; then they go on, unless `is_last`: the topology is killed.
        CheckpointError names what is still under way after `patience_secs`, and changes nothing.
        """
        status = self.status()
        if status not in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE):
            raise NotAliveError(
                f"{self.topology_id} is {status or 'gone'}: a savepoint needs one that is ACTIVE or INACTIVE"
            )
        self._cluster.require_writer()
        self.deactivate()
        try:
            write_in_time(lambda: self._written(Path(folder), overwrite), patience_secs)
        except BaseException:
            self._go_on(status)
            raise
        if is_last:
            self.kill(0)
        else:
            self._go_on(status)

    def _written(self, folder: Path, overwrite: bool) -> str:
        if (status := self.status()) in (None, TopologyStatus.KILLED):
            raise NotAliveError(
                f"{self.topology_id} is {status or 'gone'} since; no savepoint was written"
            )
        return self._source().write(folder, self.name, overwrite)

    def _go_on(self, status: TopologyStatus) -> None:
        if status is TopologyStatus.ACTIVE:
            with contextlib.suppress(NotAliveError, IllegalTransitionError):  # killed meanwhile
                self.activate()

    # -- changing ----------------------------------------------------------------------------------

    def kill(self, wait_secs: float | None = None) -> None:
        """Kill it after a wait (default: the message time-out)."""
        self._cluster.requests.kill(self.name, wait_secs, self.topology_id)

    def activate(self) -> None:
        """Let spouts emit."""
        self._cluster.requests.activate(self.name, self.topology_id)

    def deactivate(self) -> None:
        """Let spouts rest; what is under way is finished."""
        self._cluster.requests.deactivate(self.name, self.topology_id)

    def plan_rebalance(self, options: RebalanceOptions) -> RebalancePlan:
        """Return what a rebalance would do now."""
        return self._cluster.requests.plan_rebalance(self.name, options, self.topology_id)

    def rebalance(
        self,
        options: RebalanceOptions,
        wait_secs: float | None = None,
        progress: Steps | None = None,
    ) -> None:
        """Change its workers, executors, configuration or resources after a wait; return when the
        new assignment is out.
        """
        self._cluster.requests.rebalance(self.name, options, wait_secs, progress, self.topology_id)

    def restart(self, slot: WorkerSlot | None = None) -> None:
        """Restart the worker in a slot, or all its workers."""
        self._cluster.requests.restart_worker(self.name, slot, self.topology_id)

    def set_log_level(self, levels: Mapping[str, LogLevel]) -> None:
        """Set levels by logger ("" is the root logger) in all its workers; a level "" resets its
        logger.
        """
        self._cluster.requests.set_log_level(self.name, levels, self.topology_id)

    def update(
        self,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        by_value: Sequence[str] | None = None,
        progress: Steps | None = None,
    ) -> TopologyHandle:
        """Replace its code; with the same components and tasks streams and states go on."""
        self._cluster.requests.require(self.name, self.topology_id)
        new_id = self._cluster.replace_code(self.name, topology, conf, by_value, progress)
        return TopologyHandle(new_id, self._cluster, self._cluster.reader(new_id))

    def delete_data(self) -> None:
        """Delete everything it has in Redis but its dead letters, once it is gone.

        Its code goes too when `blob_keys` was asked for before.
        """
        self._cluster.require_writer()
        self._reader.delete()
        self._cluster.service.discard_blobs(self._blob_keys)

    def close(self) -> None:
        """Close its connection to Redis until the next use."""
        self._reader.close()

    # -- inside ------------------------------------------------------------------------------------

    def _outline(self) -> TopologyOutline:
        if (outline := self._state.read_outline(self.topology_id)) is None:
            raise NotAliveError(f"{self.topology_id} is gone")
        return outline

    def _source(self) -> SavepointSource:
        return SavepointSource(self.tasks(), self._reader)

    def _merged(self) -> Progress:
        return merge(self.progress_by_worker().values())

    def _spout_tasks(self) -> int:
        return sum(1 for info in self.tasks().values() if info.kind == "spout")

    def _spout_counts(self, merged: Progress) -> list[TaskCounts]:
        table = self.tasks()
        return [
            c
            for task, c in merged.counts_by_task.items()
            if task in table and table[task].kind == "spout"
        ]


def _by_component(counts: Sequence[TaskCounts], name: str) -> dict[str, int]:
    """Return the sums of one count, where they are not zero."""
    total_by_component = Counter[str]()
    for count in counts:
        total_by_component[count.component] += getattr(count, name)
    return dict(+total_by_component)
