"""Owns replay(): a topology over the caller's DataFrames, as lazy DataFrames on the same Spark session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from sparkstorm.api.components import Effects
from sparkstorm.config import check, merge
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.topology import Topology
from sparkstorm.replay.failures import check_frame
from sparkstorm.replay.inputs import EventTime, parse_inputs, parse_name, parse_states
from sparkstorm.replay.job import NewestTimes, Switches, make_job
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.result_columns import declared_columns
from sparkstorm.replay.results import Replay
from sparkstorm.replay.spark import SparkStages


def replay(
    topology: Topology,
    inputs: Mapping[str, DataFrame],
    *,
    conf: Mapping[str, Any] | None = None,
    name: str = "replay",
    event_time: EventTime | str | None = None,
    states: Mapping[str, DataFrame] | None = None,
    types: Mapping[str, str] | None = None,
    outputs: Collection[str] | None = None,
    effects: Mapping[str, Effects] | None = None,
    skip_bad: bool = False,
    columns: bool = True,
    by_value: Iterable[str] = (),
    newest_ms: NewestTimes | None = None,
    of_tasks: Collection[str] = (),
) -> Replay:
    """Run a topology over history: spouts replaced by {"spout-id[:stream]": DataFrame}, bolts unchanged; lazily.

    `conf` and `name` as for the live run, so that tasks and shuffle starts are the same. `event_time` names the column
    that is the virtual time. `states` are first states (columns key, value and, from a former run, task). `types` are the
    columns of results ("word string, n bigint"), over what streams and states declare; other types are found by running.
    `outputs` restricts what is kept. `effects` overrides what bolts declare. Without `columns`, bolts that take batches get
    rows, as live. `by_value` names modules that must travel to the executors beside those of the components. The last two are
    for `back_fill`: `newest_ms` says that more is to come, and how far event time has come; `of_tasks` names spouts of whose
    data each partition is what one task has emitted, with a clock of its own.
    """
    plan = make_plan(topology, merge(check(conf or {}, "the settings of the replay")).as_dict(), name, effects or {})
    _check_frames(inputs, states or {})
    result_types = declared_columns(plan, types or {})
    feeds = parse_inputs(topology, inputs)
    names = {parse_name(topology, name): name for name in inputs}
    time = EventTime(event_time) if isinstance(event_time, str) else event_time
    times = {feed: time.column(names[feed], feed) for feed in feeds} if time is not None else {}
    is_sorted = time is not None and time.in_order
    job = make_job(
        plan, Switches(times, skip_bad, columns, outputs, newest_ms, is_sorted=is_sorted, of_tasks=frozenset(of_tasks)), by_value
    )
    if not feeds:
        raise InvalidTopologyError("a replay needs data for every spout")
    stages = SparkStages(next(iter(feeds.values())).sparkSession, plan, job)
    stages.give(feeds, parse_states(topology, states or {}), time, names)
    return Replay(plan, stages, result_types)


def _check_frames(inputs: Any, states: Any) -> None:
    for what, frames in (("inputs", inputs), ("states", states)):
        if not isinstance(frames, Mapping):
            raise InvalidTopologyError(f"{what} are a {type(frames).__name__}: write {{name: DataFrame}}")
        for name, frame in frames.items():
            check_frame(f"input '{name}'" if what == "inputs" else f"the initial state of '{name}'", frame)
