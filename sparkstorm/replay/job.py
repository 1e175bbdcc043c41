"""Job description sent to every partition of a replay: the plan, the packed code with its local
modules, the settings.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.grouping.routes import is_single
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.value_types import check_serializers, top_module
from sparkstorm.common.settings import FileSettings, SubmissionSettings
from sparkstorm.data_plane.executor.watermark_routes import TimePlan
from sparkstorm.data_plane.user_code.attachments import read_attachments
from sparkstorm.data_plane.user_code.local_modules import named_in, pack_sources, remove_sources
from sparkstorm.data_plane.user_code.topology_code import (
    classes_in,
    modules_of,
    open_topology,
    pack_topology,
)
from sparkstorm.replay.inputs import EventTime
from sparkstorm.replay.options import ReplayOptions
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.replay.tasks.chunks import KEPT

STATE_MARK = "!state"
NewestTimes = Mapping[tuple[int, str, str], int]
"""By spout task, stream and field: the newest time among the rows of history."""


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """State of a back-fill's sources: more follows, and how far event time has come."""

    newest_ms: NewestTimes
    # spouts of whose data each partition is what one task has emitted, with its own clock
    of_tasks: frozenset[str]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Options of a replay as its partitions need them."""

    time_fields: Mapping[Feed, str] = field(default_factory=dict)  # of every input, or of none
    skip_bad: bool = False
    columns: bool = True  # bolts that take batches get batches; else rows, as live
    # which results are kept beyond what stages exchange; None: every one
    outputs: Collection[str] | None = None
    # more input follows: windows stay open, and all task states are written
    open_end: OpenEnd | None = None
    shortcuts: bool = True  # combiners, where possible
    is_sorted: bool = False  # rows are brought into the order of their event time

    @staticmethod
    def of(
        options: ReplayOptions,
        names: Mapping[Feed, str],
        time: EventTime | None,
        open_end: OpenEnd | None = None,
        shortcuts: bool = True,
    ) -> RunSettings:
        """Return the settings for inputs of these names; `time` is the options' event time."""
        return RunSettings(
            {} if time is None else {feed: time.column(name, feed) for feed, name in names.items()},
            options.skip_bad,
            options.columns,
            options.outputs,
            open_end,
            shortcuts,
            time is not None and time.in_order,
        )

    @property
    def is_timed(self) -> bool:
        """Return whether rows have a virtual time."""
        return bool(self.time_fields)


@dataclass(frozen=True, slots=True)
class Job:
    """Job description sent to every partition. `kept`: streams whose rows go to the results
    only.
    """

    # Without instances and inputs, which the code has: pickled twice, they would double what Spark
    # sends with every task, and executors would open the second copy without the packed modules.
    plan: Plan
    code: bytes
    key: str
    settings: RunSettings
    kept: frozenset[Feed]
    wanted: frozenset[str]  # names of the results that may be asked for
    # data whose partitions follow each other: clocks continue from one to the next
    sequence: frozenset[Feed]
    # data that is brought into the order of its event time over all partitions
    to_sort: frozenset[Feed]

    @property
    def kept_states(self) -> list[str]:
        """Return the bolts whose final states are results."""
        return sorted(
            name.removesuffix(STATE_MARK) for name in self.wanted if name.endswith(STATE_MARK)
        )

    def open(self) -> tuple[Topology, Callable[[str], Any]]:
        """Return the topology with the groupings used for routing, and a factory of component
        instances.
        """
        return open_topology(self.code, self.key, modules_file(self.key))


def make_job(
    plan: Plan, settings: RunSettings, by_value: Iterable[str] = (), *, is_local: bool = False
) -> Job:
    """Pack the code once; InvalidTopologyError names a component that cannot be packed, or an
    unknown output.

    Local modules that the code imports are packed too, unless it runs in this process.
    """
    names = _wanted(plan, settings.outputs)
    wanted = {feed for name, feed in result_names(plan).items() if name in names}
    if is_local:
        code = pack_topology(plan.topology, {*by_value, *modules_of(plan.topology)})
    else:
        code = pack_with_modules(plan.topology, by_value, plan.conf)
    # A stream that a later stage reads whole is read from its chunks, and not kept a second time.
    kept_feeds = frozenset(
        Feed(bolt, stream)
        for stage in plan.stages
        for bolt in stage.bolts
        for stream, declared in plan.topology.components[bolt].streams.items()
        if Feed(bolt, stream) in wanted
        and not declared.direct
        and not _full_copies(plan, stage, bolt, stream)
    )
    bare = replace(
        plan, topology=Topology({c.id: replace(c, instance=None, inputs=()) for c in plan.topology})
    )
    sequence, to_sort = _histories(plan, settings)
    return Job(
        bare,
        code,
        hashlib.sha256(code).hexdigest(),
        settings,
        kept_feeds,
        frozenset(names),
        sequence,
        to_sort,
    )


def _histories(plan: Plan, settings: RunSettings) -> tuple[frozenset[Feed], frozenset[Feed]]:
    """Return the data that is one history over all partitions, and that which must be sorted to be
    one.
    """
    # What one task of a spout emits has that task's clock, as live: nothing goes on from partition
    # to partition.
    of_tasks = frozenset() if settings.open_end is None else settings.open_end.of_tasks
    feeds = [
        (stage, stage.feed)
        for stage in plan.stages
        if stage.feed is not None and stage.feed.spout not in of_tasks
    ]
    if not settings.is_sorted:
        return frozenset(feed for _, feed in feeds), frozenset()
    # Sorting over all partitions is a shuffle of all rows, so it is left out where sorting within
    # them decides lateness just as well.
    to_sort = frozenset(
        feed
        for stage, feed in feeds
        if feed in settings.time_fields
        and needs_order(plan.topology, plan.conf, stage, settings.time_fields[feed])
    )
    return to_sort, to_sort


def result_name(component: str, stream: str) -> str:
    """Return a result's name: the component's id for its default stream."""
    return component if stream == "default" else f"{component}:{stream}"


def result_names(plan: Plan) -> dict[str, Feed]:
    """Return every stream that a replay can return by name, with the inputs of redirected bolts
    under names of their own.
    """
    return {
        result_name(c.id, name): Feed(c.id, name) for c in plan.topology for name in c.streams
    } | dict(plan.redirected)


def targets_of(plan: Plan, component: str, stream: str) -> list[int]:
    """Return targets whose rows together hold every emission of a stream exactly once."""
    copies = _full_copies(plan, plan.stage_of(component, stream), component, stream)
    return copies or [KEPT]


def _full_copies(plan: Plan, stage: Stage, component: str, stream: str) -> list[int]:
    """Return tasks of a later stage that together get every emission exactly once; empty if there
    are none.
    """
    direct = list(plan.direct_targets_not_run.get(Feed(component, stream), ()))
    for subscriber, grouping in plan.topology.subscribers(component, stream):
        if stage.has(subscriber):
            continue
        tasks = plan.tasks(subscriber)
        if is_single(grouping):
            return tasks
        if grouping.kind == "all":
            return tasks[:1]
        direct += tasks if grouping.kind == "direct" else []
    return direct


def _wanted(plan: Plan, outputs: Collection[str] | None) -> Collection[str]:
    known_names = [*result_names(plan), *(id + STATE_MARK for id in plan.stateful())]
    for output in outputs or ():
        if output not in known_names:
            raise InvalidTopologyError(
                f"output '{output}' is none of this replay's: {', '.join(sorted(known_names))}"
            )
    return known_names if outputs is None else outputs


def needs_order(topology: Topology, conf: Mapping[str, Any], stage: Stage, time_field: str) -> bool:
    """Return whether a row of a data stage can be late although the data is sorted by this field
    within its partitions.

    None can if every subscriber by event time uses this field of the data itself.
    """
    spout = stage.feed.spout if stage.feed else ""
    return any(watched != (spout, time_field) for watched in _watched(topology, conf, stage))


def is_watched(topology: Topology, conf: Mapping[str, Any], stage: Stage) -> bool:
    """Return whether any subscriber of a stage's rows uses event time."""
    return any(True for _ in _watched(topology, conf, stage))


def _watched(
    topology: Topology, conf: Mapping[str, Any], stage: Stage
) -> Iterator[tuple[str, str | None]]:
    """Yield senders of a stage, each with the time field of a subscriber by event time."""
    times = TimePlan(topology, conf)
    streams = [
        (bolt, stream) for bolt in stage.bolts for stream in topology.components[bolt].streams
    ]
    for component, stream in [
        *streams,
        *([(stage.feed.spout, stage.feed.stream)] if stage.feed else []),
    ]:
        for listener in times.listeners(component, stream):
            settings = times.settings.get(listener)
            if settings is not None and settings.is_event_time:
                yield component, settings.timestamp_field


_PREFIX = "sparkstorm-modules-"


def pack_with_modules(
    topology: Topology, by_value: Iterable[str], conf: Mapping[str, Any]
) -> bytes:
    """Pack a topology, these modules by value, as sources all local modules that its code names or
    imports, and its files.
    """
    modules = sorted({*by_value, *modules_of(topology)})
    check_serializers(SubmissionSettings.of(conf).serializers, modules)
    named = {
        *named_in(pack_topology(topology, modules)),
        *map(top_module, classes_in(topology, conf)),
    }
    sent = FileSettings.of(conf)
    attachments = read_attachments(sent.files, sent.archives)
    return pack_topology(topology, modules, pack_sources(sorted({*modules, *named})), attachments)


def modules_file(key: str) -> Path | None:
    """Return where this Python worker is to put the modules of a topology; None on the driver, or
    if they are there already.

    A worker runs tasks of many replays: the modules of the last one are forgotten, since the
    driver's may have changed.
    """
    if TaskContext.get() is None:
        return None
    file = Path(SparkFiles.getRootDirectory()) / f"{_PREFIX}{key[:32]}-{os.getpid()}.zip"
    # Only this replay's file: a Python worker that runs tasks of two replays in turn reads it anew.
    former = [path for path in sys.path if Path(path).name.startswith(_PREFIX)]
    if str(file) in former:
        return None
    for path in former:
        remove_sources(Path(path))
    return file
