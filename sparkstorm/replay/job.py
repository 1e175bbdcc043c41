"""Owns what every partition of a replay is told: the plan without code, the code as packed bytes, the switches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.api.components import Stateful
from sparkstorm.blobs.topology_code import open_topology, pack_topology
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.grouping.routes import is_single
from sparkstorm.model.topology import Topology
from sparkstorm.replay.chunks import KEPT
from sparkstorm.replay.lateness import needs_order
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.replay.shipped_modules import modules_file, names_by_value, pack_with_modules

STATE_MARK = "!state"
NewestTimes = Mapping[tuple[int, str, str], int]
"""By spout task, stream and field: the newest time among the rows of history."""


@dataclass(frozen=True, slots=True)
class Job:
    """Travels to every partition. `kept` are the streams whose rows go nowhere but to the results."""

    plan: Plan
    code: bytes
    key: str
    is_timed: bool
    skip_bad: bool
    kept: frozenset[Feed]
    kept_states: frozenset[str]
    columns: bool = True
    time_fields: Mapping[Feed, str] = field(default_factory=dict)  # the column of each input that is its virtual time
    newest_ms: NewestTimes | None = None  # the replay ends open, and event time has come so far in its sources
    quick: bool = True
    wanted: frozenset[str] = frozenset()  # names of the results that may be asked for
    sequence: frozenset[Feed] = frozenset()  # data whose partitions follow each other: clocks go on from one to the next
    to_sort: frozenset[Feed] = frozenset()  # data that is brought into the order of its event time over all partitions

    def open(self) -> tuple[Topology, Callable[[str], Any]]:
        """The topology with routing's groupings, and a maker of fresh instances."""
        return open_topology(self.code, self.key, modules_file(self.key))


@dataclass(frozen=True, slots=True)
class Switches:
    """How a replay is run."""

    time_fields: Mapping[Feed, str] = field(default_factory=dict)  # of every input, or of none
    skip_bad: bool = False
    columns: bool = True  # bolts that take batches get batches; else rows, as live
    outputs: Collection[str] | None = None  # which results are kept beyond what stages exchange; None: every one
    newest_ms: NewestTimes | None = None  # more is to come: windows stay open, and what all tasks keep is handed out
    quick: bool = True  # bolts without times run the quick way; else its plain twin
    is_sorted: bool = False  # rows are brought into the order of their event time
    of_tasks: frozenset[str] = frozenset()  # spouts of whose data each partition is what one task emits: it has its own clock


def make_job(plan: Plan, switches: Switches, by_value: Iterable[str] = (), *, is_local: bool = False) -> Job:
    """Pack the code once; InvalidTopologyError names a component that cannot be packed, or an unknown output.

    Local modules that the code imports are packed too, unless it runs in this process.
    """
    names = _wanted(plan, switches.outputs)
    wanted = {feed for name, feed in result_names(plan).items() if name in names}
    if is_local:
        code = pack_topology(plan.topology, {*by_value, *names_by_value(plan.topology)})
    else:
        code = pack_with_modules(plan.topology, by_value)
    kept = frozenset(
        Feed(bolt, stream)
        for stage in plan.stages
        for bolt in stage.bolts
        for stream, declared in plan.topology.components[bolt].streams.items()
        if Feed(bolt, stream) in wanted and not declared.direct and not _carriers(plan, stage, bolt, stream)
    )
    states = frozenset(c.id for c in plan.topology.bolts if isinstance(c.instance, Stateful) and c.id + STATE_MARK in names)
    bare = replace(plan, topology=Topology({c.id: replace(c, instance=None, inputs=()) for c in plan.topology}))
    feeds = [(stage, stage.feed) for stage in plan.stages if stage.feed is not None and stage.feed.spout not in switches.of_tasks]
    to_sort = frozenset(
        feed
        for stage, feed in feeds
        if switches.is_sorted
        and feed in switches.time_fields
        and needs_order(plan.topology, plan.conf, stage, switches.time_fields[feed])
    )
    sequence = to_sort if switches.is_sorted else frozenset(feed for _, feed in feeds)
    return Job(
        bare,
        code,
        hashlib.sha256(code).hexdigest(),
        bool(switches.time_fields),
        switches.skip_bad,
        kept,
        states,
        switches.columns,
        switches.time_fields,
        switches.newest_ms,
        switches.quick,
        frozenset(names),
        sequence,
        to_sort,
    )


def result_name(component: str, stream: str) -> str:
    """A result's key: the component alone for its default stream."""
    return component if stream == "default" else f"{component}:{stream}"


def result_names(plan: Plan) -> dict[str, Feed]:
    """Every stream a replay can return, by key; what redirected bolts would have got is there under their names too."""
    return {result_name(c.id, name): Feed(c.id, name) for c in plan.topology for name in c.streams} | dict(plan.redirected)


def targets_of(plan: Plan, component: str, stream: str) -> list[int]:
    """Targets whose rows together are every emission of a stream, each once."""
    carriers = _carriers(plan, plan.stage_of(component, stream), component, stream)
    return carriers or [KEPT]


def _carriers(plan: Plan, stage: Stage, component: str, stream: str) -> list[int]:
    """The tasks behind an exchange that get every emission once between them; none when nobody does."""
    direct = list(plan.deaf.get(Feed(component, stream), ()))
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
    states = [c.id + STATE_MARK for c in plan.topology.bolts if isinstance(c.instance, Stateful)]
    known = [*result_names(plan), *states]
    for output in outputs or ():
        if output not in known:
            raise InvalidTopologyError(f"output '{output}' is none of this replay's: {', '.join(sorted(known))}")
    return known if outputs is None else outputs
