"""Back-fill: a replay of history that writes a checkpoint from which the live topology continues.

History is read by the topology's own spouts up to an offset, one partition per task and in its
order, so the same rows are late as live. Or it is given as frames, with the positions that follow
them. A window that a live run would still hold at that point does not fire: a source's watermark is
that of its slowest task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkstorm.api.components import ReplayableSpout, Stateful
from sparkstorm.common.errors import CheckpointError, InvalidTopologyError
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.data_plane.checkpoint.files import POSITION, STATE, TIME, CheckpointWriter, Row
from sparkstorm.replay.arrow_map import quoted
from sparkstorm.replay.failures import check_frame, check_session, unwrapped
from sparkstorm.replay.inputs import parse_name, parse_states
from sparkstorm.replay.job import STATE_MARK, Job, OpenEnd, RunSettings, make_job, result_name
from sparkstorm.replay.local import LocalResults, run_stages
from sparkstorm.replay.options import OptionArguments, ReplayOptions, options_of
from sparkstorm.replay.plan import Feed, Plan
from sparkstorm.replay.replay import start
from sparkstorm.replay.results.frames import Replay
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.spout_history import (
    Extent,
    SpoutFrames,
    SpoutReader,
    clock_places,
    clocks_of,
    continued,
    newest_by_channel,
)
from sparkstorm.replay.tasks.chunks import KEPT_STATE, KEPT_TIME

Rows = Mapping[str, int]
"""By spout: how many rows of history each of its tasks reads; of spouts that are not named, all
there are.
"""


def back_fill(
    topology: Topology,
    spark: SparkSession,
    checkpoint: str | Path,
    options: ReplayOptions | None = None,
    *,
    rows: Rows | None = None,
    inputs: Mapping[str, DataFrame] | None = None,
    positions: Mapping[str, Sequence[Any]] | None = None,
    overwrite: bool = False,
    **arguments: Unpack[OptionArguments],
) -> Replay:
    """Replay the history that the topology's spouts read, write a checkpoint of its end, and return
    the results.

    `rows` limits what is read. `inputs` replace spouts as in `replay`; `positions` are then what
    each one's tasks would hand over at the end of that data, in their order. Options are those of
    `replay`; an `event_time` given by its name leaves rows in their order.
    """
    check_session("the session", spark)
    options = _modules_listed(options_of(options, arguments))
    plan = _plan(topology, options)
    writer = _writer(plan, Path(checkpoint), overwrite)
    frames, extents = _given(plan, inputs or {}, positions or {})
    sources = SpoutFrames(spark, make_job(plan, RunSettings(), options.by_value))
    reading = _reading(plan, extents, rows or {})
    # The history is read twice, to measure and to run. Keeping what was read would
    # need room for all of it; a source that changes in between ends the replay.
    for spout in reading:
        extents[spout], schemas = sources.measure(
            spout, (rows or {}).get(spout), clocks_of(plan, spout)
        )
        extents[spout] = continued(plan, spout, extents[spout])
        frames |= {
            result_name(spout, stream): sources.frame(spout, stream, extents[spout], schema)
            for stream, schema in schemas.items()
        }
    wanted = (
        None
        if options.outputs is None
        else [*options.outputs, *(id + STATE_MARK for id in plan.stateful())]
    )
    open_end = OpenEnd(newest_by_channel(plan, extents), frozenset(reading))
    results = start(
        topology,
        frames,
        replace(options, event_time=options.time(in_order=False), outputs=wanted),
        open_end,
    )
    counts = results.run()
    with writer, unwrapped():
        chunks = (
            results.kept(KEPT_STATE, KEPT_TIME).select("kind", "target", "data").toLocalIterator()
        )
        _write(writer, plan, extents, counts, ((c.kind, c.target, bytes(c.data)) for c in chunks))
    return results


def back_fill_locally(
    topology: Topology,
    checkpoint: Path,
    options: ReplayOptions | None = None,
    *,
    rows: Rows | None = None,
    overwrite: bool = False,
    **arguments: Unpack[OptionArguments],
) -> LocalResults:
    """Write the checkpoint of `back_fill` without Spark, for unit tests."""
    options = options_of(options, arguments)
    plan = _plan(topology, options)
    writer = _writer(plan, checkpoint, overwrite)
    extents: dict[str, list[Extent]] = {}
    parts: dict[Feed, list[list[tuple[Any, ...]]]] = {}
    job = make_job(plan, RunSettings(), is_local=True)
    for spout in _reading(plan, extents, rows or {}):
        extents[spout] = []
        for index in range(len(plan.tasks(spout))):
            extent, by_stream = _read(plan, job, spout, index, (rows or {}).get(spout))
            extents[spout].append(extent)
            for stream, values in by_stream.items():
                parts.setdefault(Feed(spout, stream), []).append(values)
        extents[spout] = continued(plan, spout, extents[spout])
    names = {feed: feed.spout for feed in parts}
    time = options.time(in_order=False)
    open_end = OpenEnd(newest_by_channel(plan, extents), frozenset(extents))
    job = make_job(
        plan, RunSettings.of(replace(options, outputs=None), names, time, open_end), is_local=True
    )
    results = LocalResults(states_by_task={component: {} for component in job.kept_states})
    chunks = run_stages(plan, job, parts, parse_states(topology, options.states), results)
    with writer:
        _write(writer, plan, extents, results.counts, ((c.kind, c.target, c.data) for c in chunks))
    return results


def _modules_listed(options: ReplayOptions) -> ReplayOptions:
    """Return the options with modules that can be read more than once."""
    return replace(options, by_value=list(options.by_value))


def _plan(topology: Topology, options: ReplayOptions) -> Plan:
    plan = options.plan(topology)
    for id, how in plan.not_run.items():
        if isinstance(topology.components[id].instance, Stateful):
            raise InvalidTopologyError(
                f"bolt '{id}' keeps state but does not run in this replay ({how.value}), so the checkpoint would "
                f"have nothing of it: set effects={{'{id}': Effects.RUN}} or Effects.IDEMPOTENT"
            )
    return plan


def _writer(plan: Plan, folder: Path, overwrite: bool) -> CheckpointWriter:
    return CheckpointWriter(folder, plan.name, plan.component_by_task, overwrite)


def _reading(plan: Plan, given: Mapping[str, Any], rows: Rows) -> list[str]:
    """Return the spouts that read their own history."""
    for id, most in rows.items():
        parse_name(plan.topology, id)
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise InvalidTopologyError(f"rows of spout '{id}': {most!r} is no number of rows")
    reading = [spout for spout in plan.topology.spouts if spout.id not in given]
    for spout in reading:
        if not isinstance(spout.instance, ReplayableSpout):
            raise InvalidTopologyError(
                f"spout '{spout.id}' has no position: derive it from ReplayableSpout, or give its "
                "history as a frame, with positions"
            )
    return [spout.id for spout in reading]


def _given(
    plan: Plan, inputs: Mapping[str, DataFrame], positions: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, DataFrame], dict[str, list[Extent]]]:
    """Return the given frames, and per spout the given positions with the newest times of the
    frame.
    """
    extents: dict[str, list[Extent]] = {}
    newest: dict[str, dict[tuple[str, str], int]] = {}
    for name, frame in inputs.items():
        feed = parse_name(plan.topology, name)
        check_frame(f"input '{name}'", frame)
        times = newest.setdefault(feed.spout, {})
        for field in clocks_of(plan, feed.spout).get(feed.stream, {}):
            with unwrapped():
                newest_ms = frame.agg(sf.max(quoted(field))).collect()[0][0]
            times[feed.stream, field] = newest_ms if type(newest_ms) is int else NEVER
    for spout, times in newest.items():
        tasks = len(plan.tasks(spout))
        handed = positions.get(spout)
        if handed is None or len(handed) != tasks:
            raise CheckpointError(
                f"spout '{spout}' has its history from a frame and {tasks} tasks: positions must say where each "
                f"of them goes on; there are {len(handed or ())}"
            )
        extents[spout] = [
            Extent(0, Codec().normalise(position), times, False) for position in handed
        ]
    return dict(inputs), extents


def _read(
    plan: Plan, job: Job, spout: str, index: int, most: int | None
) -> tuple[Extent, dict[str, list[tuple[Any, ...]]]]:
    """Return one task's extent and its rows by stream; it is read twice, as on Spark."""
    with SpoutReader(job.plan, job.open()[1](spout), spout, index) as reader:
        extent = reader.measure(most, clocks_of(plan, spout), lambda row: None)
    rows_by_stream: dict[str, list[tuple[Any, ...]]] = {
        stream: [] for stream in job.plan.topology.components[spout].streams
    }
    with SpoutReader(job.plan, job.open()[1](spout), spout, index) as reader:
        for stream, values in reader.rows_until(extent):
            rows_by_stream[stream].append(values)
    return extent, rows_by_stream


def _write(
    writer: CheckpointWriter,
    plan: Plan,
    extents: Mapping[str, Sequence[Extent]],
    counts: Mapping[str, Mapping[str, int]],
    chunks: Iterable[tuple[int, int, bytes]],
) -> None:
    for id, count in counts.items():
        # A live run holds such inputs in its store, which a checkpoint has no place for.
        if count["waiting"]:
            raise CheckpointError(
                f"bolt '{id}' has {counted(count['waiting'], 'input')} that it has neither acked nor failed: "
                "a checkpoint cannot hold them"
            )
    for spout, tasks in extents.items():
        writer.add(spout, "spout", _spout_rows(plan, spout, tasks))
    version_of = {c.id: getattr(c.instance, "state_version", 1) for c in plan.topology.bolts}
    for id in plan.stateful():
        writer.add(id, "bolt", (), version_of[id])
    codec = Codec()
    timed = set[int]()
    for kind, task, data in chunks:
        if kind in (KEPT_STATE, KEPT_TIME):
            keys, values = codec.unpack(data)[1]
            part = STATE if kind == KEPT_STATE else TIME
            id = plan.component_by_task[task]
            writer.add(
                id,
                "bolt",
                ((task, part, k, v) for k, v in zip(keys, values, strict=True)),
                version_of[id],
            )
            timed |= {task} if kind == KEPT_TIME else set()
    for task in plan.begin.keys() - timed:  # got no rows: its clocks are those that it began with
        id = plan.component_by_task[task]
        if id in version_of:
            writer.add(
                id,
                "bolt",
                ((task, TIME, k, v) for k, v in Begun.of(plan.begin[task]).time),
                version_of[id],
            )
    writer.close()


def _spout_rows(plan: Plan, spout: str, extents: Sequence[Extent]) -> Iterator[Row]:
    for task, extent in zip(plan.tasks(spout), extents, strict=True):
        yield task, POSITION, None, extent.handed
        for clock_place, newest_ms in clock_places(plan, spout, extent):
            yield task, TIME, clock_place, newest_ms
