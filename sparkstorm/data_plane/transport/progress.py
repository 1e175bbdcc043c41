"""Exact counts that a worker commits with each epoch: they are part of the commit, so they survive
crashes.

Law: a count moves with the data that it counts, in the same commit, so counts of a drained topology
add up to the last tuple. Left out: Storm's way, which counts one tuple in twenty
(`topology.stats.sample.rate`) in the worker's memory and begins at zero after a crash; and
increments per field in Redis, which would be a command for each. A worker writes its record as a
whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import Any

import ormsgpack

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.failure import Cause, Failure, FailureKind
from sparkstorm.common.model.heartbeats import COUNTS
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.common.model.values.metric_values import merged as added_metrics

BUSY, COMMIT, READ, IDLE, PENDING, BACKLOG, STORE, INACTIVE = range(8)
STATES = ("busy", "commit", "read", "idle", "pending", "backlog", "store", "inactive")
"""Names of a loop's states, in the order of their numbers and in which they are stored.

busy: spouts and bolts run. commit: blocks, journals and counts are written, or a sink's target is
waited for. read: input is decoded. idle: nothing has come. The others are pauses by cause:
topology.max.spout.pending, full receivers, a full store, an inactive topology (Flink's
backPressuredTime, Storm's skipped-max-spout-ms, skipped-backpressure-ms and skipped-inactive-ms).
"""
PAUSES = STATES[PENDING:]
# Of one worker, which writes them with every commit.
# The sentence of an error may hold a value of the tuple, so that each failure is a cause of its
# own. Each commit writes all of them: 64 are some kB, and more than can be read.
MOST_CAUSES = 64
OTHER_CAUSES = Cause("(other components)", "other causes", "")
INHERITED = "inherited"
"""Owner of the record with which the counts of a hot deploy's new topology begin; no worker
("node:port") has this name.
"""
EARLIER_MS = 60_000
"""Time between two of an owner's earlier records: the first commit of each minute keeps the record
of the commit before it, so that a reader who looks once knows what the last minutes have added.
"""
MOST_EARLIER = 12  # the window of ten minutes, one that begins within a minute, and one to spare
# In the record of one task: older versions have not written the last ones.
_FEWEST_COUNTS = 16
# Sixteen would double what a commit writes and merging adds up, four would make a bucket 19 % wide:
# more than the change that a benchmark has to show.
_PER_OCTAVE = 8  # latency buckets per doubling: 9 % wide
# Up to 2^20 ms, which is 17 minutes; time-outs of trees are tens of seconds as a rule. The last
# bucket takes what is longer.
BUCKETS = 20 * _PER_OCTAVE  # the last one


@dataclass(slots=True)
class TaskCounts:
    """One task's counts since the topology began (Storm's built-in metrics, unsampled), and a
    spout's gauges.
    """

    component: str
    token: int = 0
    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    parked: int = 0
    late: int = 0  # tuples that came too late for their windows
    pending: int = 0
    is_exhausted: bool = False
    is_waiting: bool = False
    total: int = 0  # extent that a spout reports: what it has to emit in all (0: unknown)
    done: int = 0
    retried: int = 0  # tries that failed and are made again
    bad: int = 0  # rows emitted to the stream `bad`
    held: int = 0  # inputs that a bolt's code has neither acked nor failed
    # dead letters that were put back and executed; one that is given up again is parked again
    replayed: int = 0
    busy_us: int = 0  # in its code; a blocking component's on its own thread
    pending_us: int = 0  # held back: as many trees are open as topology.max.spout.pending allows
    backlog_us: int = 0  # held back: too much waits for a task that it feeds
    store_us: int = 0  # held back: the store is nearly full
    # held back: the topology is inactive, or its component is paused by failures
    inactive_us: int = 0

    def add_times(self, busy_us: int, paused_us: Mapping[int, int]) -> None:
        """Count time in its code, and pauses by the numbers of their causes (`PAUSES`)."""
        self.busy_us += busy_us
        for cause, took_us in paused_us.items():
            name = f"{STATES[cause]}_us"
            # By name, for the names of the causes are those of the fields: a match over five of
            # them would be a third place that lists them.
            setattr(self, name, getattr(self, name) + took_us)

    def add_emitted(self, emitted: int, transferred: int, bad: int) -> None:
        """Count what an emitter has taken."""
        self.emitted += emitted
        self.transferred += transferred
        self.bad += bad


@dataclass(slots=True)
class EdgeCounts:
    """Rows and entries from a component's stream to a component, since the topology began."""

    sent: int = 0  # rows that a commit has written for it, and rows handed over within a worker
    # rows that its tasks have taken in, also those that they hold, try again or have parked
    consumed: int = 0
    entries: int = 0  # written to Redis
    bytes: int = 0  # of these entries
    # by how much a row was behind the newest one that the same task had sent, at the most, and the
    # task; where the receiver uses the rows' time
    behind_ms: int = 0
    behind_task: int = 0

    def add(self, other: EdgeCounts) -> None:
        """Add what another worker has counted."""
        self.sent += other.sent
        self.consumed += other.consumed
        self.entries += other.entries
        self.bytes += other.bytes
        self.note_behind(other.behind_ms, other.behind_task)

    def note_behind(self, behind_ms: int, task: int) -> None:
        """Take in by how much a row of a task was behind its newest one."""
        if behind_ms > self.behind_ms:
            self.behind_ms = behind_ms
            self.behind_task = task


Edge = tuple[str, str, str]
"""Component and stream of the sender, component of the receiver."""


@dataclass(slots=True)
class Progress:
    """Counts of one worker by task, and its complete latencies in buckets."""

    counts_by_task: dict[int, TaskCounts] = field(default_factory=dict)
    latency_buckets: dict[int, int] = field(default_factory=dict)
    quarantined: int = 0
    started_ms: int = 0
    now_ms: int = 0
    # failed calls, reports and time-outs by cause
    failures: dict[Cause, int] = field(default_factory=dict)
    loop_us: list[int] = field(default_factory=lambda: [0] * len(STATES))  # by state (`STATES`)
    commits: int = 0
    commit_bytes: int = 0  # of entries, acker messages and journals
    edges: dict[Edge, EdgeCounts] = field(default_factory=dict)
    # of user code, by name
    metrics_by_task: dict[int, dict[str, MetricValue]] = field(default_factory=dict)

    def count_failure(self, failure: Failure, count: int = 1) -> None:
        """Count failures of one cause; what was given up has been counted when it failed."""
        # The call that used up the last try was counted as failed already.
        if failure.kind is FailureKind.PARKED:
            return
        cause = failure.cause
        # The first causes stay and later ones are added up, so that a count never falls.
        if cause not in self.failures and len(self.failures) >= MOST_CAUSES:
            cause = OTHER_CAUSES
        self.failures[cause] = self.failures.get(cause, 0) + count

    def add_latencies(self, count_by_latency: Mapping[int, int]) -> None:
        """Count trees by their complete latency in milliseconds."""
        buckets = self.latency_buckets
        for latency, count in count_by_latency.items():
            bucket = latency_bucket(latency)
            buckets[bucket] = buckets.get(bucket, 0) + count

    def encode(self) -> bytes:
        """Bytes for the commit."""
        tasks = {task: _values(counts) for task, counts in self.counts_by_task.items()}
        failures = [
            [cause.component, cause.error, cause.place, count]
            for cause, count in self.failures.items()
        ]
        # Positions and not names: it is written with every commit. What is new goes to the end, so
        # that an older record is one that lacks it.
        return ormsgpack.packb(
            [
                tasks,
                self.latency_buckets,
                self.quarantined,
                self.started_ms,
                self.now_ms,
                failures,
                [self.loop_us, self.commits, self.commit_bytes],
                [[*edge, *_edge_values(counts)] for edge, counts in self.edges.items()],
                {
                    task: {name: value.as_list() for name, value in values.items()}
                    for task, values in self.metrics_by_task.items()
                    if values
                },
            ],
            option=ormsgpack.OPT_NON_STR_KEYS,
        )

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """Read a stored record; StoreInconsistentError when it is not one."""
        try:
            # Checked as everything that is read from a store: a viewer of a foreign Redis would
            # otherwise show a bare traceback.
            parts = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)
            tasks, buckets, quarantined, started_ms, now_ms, failures, *later = parts
            counts = {int(t): _counts(values) for t, values in tasks.items()}
            if any(type(number) is not int for pair in buckets.items() for number in pair):
                raise ValueError("its latencies are no numbers")
            if any([type(part) for part in row] != [str, str, str, int] for row in failures):
                raise ValueError("its failures are no counts by cause")
            causes = {Cause(*row[:3]): row[3] for row in failures}
            progress = cls(
                counts, dict(buckets), int(quarantined), int(started_ms), int(now_ms), causes
            )
            # Counts must go on over an update of SparkStorm, so records of older versions are read.
            if later:  # an older version has written none of these
                progress._take_loop(*later)
            return progress
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise StoreInconsistentError(
                f"a progress record is not one of ours: {error}"
            ) from error

    def _take_loop(self, loop: Any, edges: Any, metrics: Any = None) -> None:
        loop_us, commits, commit_bytes = loop
        if [type(spent_us) for spent_us in loop_us] != [int] * len(STATES) or [
            type(commits),
            type(commit_bytes),
        ] != [int, int]:
            raise ValueError("its times are no numbers")
        if any(
            len(row) < _FEWEST_OF_EDGE or [type(part) for part in row] != _EDGE_KINDS[: len(row)]
            for row in edges
        ):
            raise ValueError("its edges are no counts by stream and receiver")
        self.loop_us = list(loop_us)
        self.commits = commits
        self.commit_bytes = commit_bytes
        self.edges = {(row[0], row[1], row[2]): EdgeCounts(*row[3:]) for row in edges}
        for task, values in (metrics or {}).items():
            if type(task) is not int or any(type(name) is not str for name in values):
                raise ValueError("its metrics have no names by task")
            self.metrics_by_task[task] = {
                name: MetricValue.of_list(parts) for name, parts in values.items()
            }


_NAMES = tuple(TaskCounts.__slots__)
_values = attrgetter(*_NAMES)
_KINDS = [type(value) for value in astuple(TaskCounts(""))]
_edge_values = attrgetter(*EdgeCounts.__slots__)
_EDGE_KINDS = [str, str, str, *[int] * len(EdgeCounts.__slots__)]
_FEWEST_OF_EDGE = 7  # older versions have written these
_SUMMED = (
    *COUNTS,
    "busy_us",
    *(f"{cause}_us" for cause in PAUSES),
)


def _counts(values: list[Any]) -> TaskCounts:
    # Each field must have the type of a fresh record's: True where a number belongs would be added
    # up as 1.
    if len(values) < _FEWEST_COUNTS or [type(value) for value in values] != _KINDS[: len(values)]:
        raise ValueError(f"{values!r:.80} are no counts of a task")
    return TaskCounts(*values)


def latency_bucket(latency: int, last: int = BUCKETS) -> int:
    """Return the bucket of a latency: logarithmic, 9 % wide; those above the last one are in it."""
    return min(last, int(math.log2(latency + 1) * _PER_OCTAVE)) if latency > 0 else 0


def bucket_bound_ms(bucket: int) -> float:
    """Return the upper bound of a bucket, which is the lower one of the next."""
    return float(2 ** ((bucket + 1) / _PER_OCTAVE) - 1)


def percentile_ms(buckets: Mapping[int, int], share: float) -> float | None:
    """Upper bound of the bucket below which this share of the latencies lies; None without any."""
    total = sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= share * total:
            return bucket_bound_ms(bucket)
    return None


def merge(records: Iterable[Progress]) -> Progress:
    """All owners' progress as one; gauges are taken from each task's newest owner, counts are
    summed.
    """
    merged = Progress()
    metrics = dict[int, list[tuple[int, dict[str, MetricValue]]]]()
    for record in records:
        for task, values in record.metrics_by_task.items():
            # A gauge has no sum: the value of the owner with the newest token is the present one.
            token = record.counts_by_task[task].token if task in record.counts_by_task else 0
            metrics.setdefault(task, []).append((token, values))
        for task, counts in record.counts_by_task.items():
            # A task that moved has counts under its former and its present owner; both happened.
            so_far = merged.counts_by_task.get(task)
            merged.counts_by_task[task] = counts if so_far is None else _added(so_far, counts)
        for bucket, count in record.latency_buckets.items():
            merged.latency_buckets[bucket] = merged.latency_buckets.get(bucket, 0) + count
        merged.quarantined += record.quarantined
        for cause, count in record.failures.items():
            merged.failures[cause] = merged.failures.get(cause, 0) + count
        merged.now_ms = max(merged.now_ms, record.now_ms)
        merged.loop_us = [
            mine + its for mine, its in zip(merged.loop_us, record.loop_us, strict=True)
        ]
        merged.commits += record.commits
        merged.commit_bytes += record.commit_bytes
        for edge, flow in record.edges.items():
            merged.edges.setdefault(edge, EdgeCounts()).add(flow)
    for task, several in metrics.items():
        several.sort(key=lambda item: item[0])
        merged.metrics_by_task[task] = added_metrics(values for _, values in several)
    return merged


def under_way(records: Iterable[Progress]) -> Progress:
    """Return what a successor inherits, as counts of its own to begin with: rows that wait are
    sent, open trees are emitted, held inputs are executed, dead letters are parked.

    From zero a successor would consume more than was sent to it, ack more than it has emitted, and
    replay more than it has parked.
    """
    merged = merge(records)
    remaining = Progress(quarantined=merged.quarantined)
    for task, counts in merged.counts_by_task.items():
        remaining.counts_by_task[task] = TaskCounts(
            counts.component,
            emitted=counts.pending,
            executed=counts.held,
            parked=max(0, counts.parked - counts.replayed),
        )
    for edge, flow in merged.edges.items():
        waiting = flow.sent - flow.consumed
        # Of several stores each has its own part: here a row may be sent that is consumed there.
        remaining.edges[edge] = EdgeCounts(sent=max(0, waiting), consumed=max(0, -waiting))
    return remaining


def _added(one: TaskCounts, other: TaskCounts) -> TaskCounts:
    # Only a task's present owner has its present gauges; the record of a former one stays as it was
    # when it died.
    newest = one if one.token >= other.token else other
    values: dict[str, Any] = {name: getattr(newest, name) for name in _NAMES}
    for name in _SUMMED:
        values[name] = getattr(one, name) + getattr(other, name)
    return TaskCounts(**values)
