"""Owns back-filling: a replay of history that ends open and leaves a checkpoint from which the live topology goes on.

History is what the topology's own spouts emit up to an offset, each task in a partition of its own and in its order, so
that what is late is late here too; or frames, and then the caller says which positions follow from them. No window is fired
that a live run up to there would still hold: the marks of a source go no further than its slowest task has come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkstorm.api.components import Effects, ReplayableSpout, Stateful
from sparkstorm.checkpoint.files import POSITION, STATE, TIME, CheckpointWriter, Row
from sparkstorm.config import check, merge
from sparkstorm.errors import CheckpointError, InvalidTopologyError
from sparkstorm.model.codec import Codec
from sparkstorm.model.topology import Topology
from sparkstorm.replay.arrow_map import quoted
from sparkstorm.replay.chunks import KEPT_STATE, KEPT_TIME
from sparkstorm.replay.failures import check_frame, check_session, unwrapped
from sparkstorm.replay.inputs import EventTime, parse_name
from sparkstorm.replay.job import STATE_MARK, Job, Switches, make_job, result_name
from sparkstorm.replay.local import LocalResults, run_stages
from sparkstorm.replay.plan import Feed, Plan, make_plan
from sparkstorm.replay.replay import replay
from sparkstorm.replay.results import Replay
from sparkstorm.replay.sources import Extent, SpoutReader, clock_places, clocks_of, newest_by_channel
from sparkstorm.replay.spout_frames import SpoutFrames
from sparkstorm.windowing.marks import NEVER

Rows = Mapping[str, int]
"""By spout: how many rows of history each of its tasks reads; of spouts that are not named, all there are."""


def back_fill(
    topology: Topology,
    spark: SparkSession,
    checkpoint: str | Path,
    *,
    rows: Rows | None = None,
    inputs: Mapping[str, DataFrame] | None = None,
    positions: Mapping[str, Sequence[Any]] | None = None,
    conf: Mapping[str, Any] | None = None,
    name: str = "replay",
    event_time: EventTime | str | None = None,
    outputs: Collection[str] | None = None,
    effects: Mapping[str, Effects] | None = None,
    by_value: Iterable[str] = (),
    overwrite: bool = False,
    **options: Any,
) -> Replay:
    """Replay the history that the topology's spouts read, write a checkpoint behind it, and hand back the results.

    `rows` limits what is read. `inputs` stand for spouts as in `replay`; for each of those, `positions` are what its tasks
    would hand over behind that data (what `snapshot` returns, unless the spout says otherwise), in their order. An
    `event_time` given by its name leaves rows in their order. The rest, `options` too, is as in `replay`.
    """
    check_session("the session", spark)
    plan = _plan(topology, conf, name, effects)
    writer = _writer(plan, Path(checkpoint), overwrite)
    modules = list(by_value)
    time = EventTime(event_time, in_order=False) if isinstance(event_time, str) else event_time
    frames, extents = _given(plan, inputs or {}, positions or {})
    sources = SpoutFrames(spark, make_job(plan, Switches(), modules))
    reading = _reading(plan, extents, rows or {})
    for spout in reading:
        extents[spout], schemas = sources.measure(spout, (rows or {}).get(spout), clocks_of(plan, spout))
        frames |= {
            result_name(spout, stream): sources.frame(spout, stream, extents[spout], schema) for stream, schema in schemas.items()
        }
    wanted = None if outputs is None else [*outputs, *(id + STATE_MARK for id in _stateful(plan))]
    results = replay(
        topology,
        frames,
        conf=conf,
        name=name,
        event_time=time,
        outputs=wanted,
        effects=effects,
        by_value=modules,
        newest_ms=newest_by_channel(plan, extents),
        of_tasks=reading,
        **options,
    )
    counts = results.run()
    with writer, unwrapped():
        chunks = results.kept(KEPT_STATE, KEPT_TIME).select("kind", "target", "data").toLocalIterator()
        _write(writer, plan, extents, counts, ((c.kind, c.target, bytes(c.data)) for c in chunks))
    return results


def back_fill_locally(
    topology: Topology,
    checkpoint: Path,
    *,
    rows: Rows | None = None,
    conf: Mapping[str, Any] | None = None,
    name: str = "replay",
    event_time: EventTime | str | None = None,
    effects: Mapping[str, Effects] | None = None,
    overwrite: bool = False,
) -> LocalResults:
    """The local twin of `back_fill`, for unit tests: the same checkpoint without Spark."""
    plan = _plan(topology, conf, name, effects)
    writer = _writer(plan, checkpoint, overwrite)
    extents: dict[str, list[Extent]] = {}
    parts: dict[Feed, list[list[tuple[Any, ...]]]] = {}
    job = make_job(plan, Switches(), is_local=True)
    for spout in _reading(plan, extents, rows or {}):
        extents[spout] = []
        for index in range(len(plan.tasks(spout))):
            extent, by_stream = _read(plan, job, spout, index, (rows or {}).get(spout))
            extents[spout].append(extent)
            for stream, values in by_stream.items():
                parts.setdefault(Feed(spout, stream), []).append(values)
    time = EventTime(event_time, in_order=False) if isinstance(event_time, str) else event_time
    times = {feed: time.column(feed.spout, feed) for feed in parts} if time is not None else {}
    is_sorted = time is not None and time.in_order
    switches = Switches(times, newest_ms=newest_by_channel(plan, extents), is_sorted=is_sorted, of_tasks=frozenset(extents))
    job = make_job(plan, switches, is_local=True)
    results = LocalResults(states_by_task={component: {} for component in job.kept_states})
    chunks = run_stages(plan, job, parts, time, {}, results)
    with writer:
        _write(writer, plan, extents, results.counts, ((c.kind, c.target, c.data) for c in chunks))
    return results


def _plan(topology: Topology, conf: Mapping[str, Any] | None, name: str, effects: Mapping[str, Effects] | None) -> Plan:
    plan = make_plan(topology, merge(check(conf or {}, "the settings of the replay")).as_dict(), name, effects or {})
    for id, how in plan.not_run.items():
        if isinstance(topology.components[id].instance, Stateful):
            raise InvalidTopologyError(
                f"bolt '{id}' keeps state but does not run in this replay ({how.value}), so the checkpoint would "
                f"have nothing of it: set effects={{'{id}': Effects.RUN}} or Effects.IDEMPOTENT"
            )
    return plan


def _writer(plan: Plan, folder: Path, overwrite: bool) -> CheckpointWriter:
    return CheckpointWriter(folder, plan.name, plan.component_by_task, overwrite)


def _stateful(plan: Plan) -> list[str]:
    return [c.id for c in plan.topology.bolts if isinstance(c.instance, Stateful)]


def _reading(plan: Plan, given: Mapping[str, Any], rows: Rows) -> list[str]:
    """The spouts that are to read for themselves."""
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
    """The frames, and how far they go by the caller's word and their newest times."""
    extents: dict[str, list[Extent]] = {}
    newest: dict[str, dict[tuple[str, str], int]] = {}
    for name, frame in inputs.items():
        feed = parse_name(plan.topology, name)
        check_frame(f"input '{name}'", frame)
        times = newest.setdefault(feed.spout, {})
        for field in clocks_of(plan, feed.spout).get(feed.stream, {}):
            with unwrapped():
                found = frame.agg(sf.max(quoted(field))).collect()[0][0]
            times[feed.stream, field] = found if type(found) is int else NEVER
    for spout, times in newest.items():
        tasks, handed = len(plan.tasks(spout)), positions.get(spout)
        if handed is None or len(handed) != tasks:
            raise CheckpointError(
                f"spout '{spout}' has its history from a frame and {tasks} tasks: positions must say where each "
                f"of them goes on; there are {len(handed or ())}"
            )
        extents[spout] = [Extent(0, Codec().normalise(position), times, False) for position in handed]
    return dict(inputs), extents


def _read(plan: Plan, job: Job, spout: str, index: int, most: int | None) -> tuple[Extent, dict[str, list[tuple[Any, ...]]]]:
    """One task's history by stream, measured and read again as Spark does it."""
    with SpoutReader(job.plan, job.open()[1](spout), spout, index) as reader:
        extent = reader.measure(most, clocks_of(plan, spout), lambda row: None)
    found: dict[str, list[tuple[Any, ...]]] = {stream: [] for stream in job.plan.topology.components[spout].streams}
    with SpoutReader(job.plan, job.open()[1](spout), spout, index) as reader:
        for stream, values in reader.rows_until(extent):
            found[stream].append(values)
    return extent, found


def _write(
    writer: CheckpointWriter,
    plan: Plan,
    extents: Mapping[str, Sequence[Extent]],
    counts: Mapping[str, Mapping[str, int]],
    chunks: Iterable[tuple[int, int, bytes]],
) -> None:
    for id, count in counts.items():
        if count["waiting"]:
            raise CheckpointError(
                f"bolt '{id}' has {count['waiting']:,} inputs that it has neither acked nor failed: a checkpoint cannot hold them"
            )
    for spout, tasks in extents.items():
        writer.add(spout, "spout", _spout_rows(plan, spout, tasks))
    for id in _stateful(plan):
        writer.add(id, "bolt", ())
    codec = Codec()
    for kind, task, data in chunks:
        if kind in (KEPT_STATE, KEPT_TIME):
            keys, values = codec.unpack(data)[1]
            part = STATE if kind == KEPT_STATE else TIME
            writer.add(plan.component_by_task[task], "bolt", ((task, part, k, v) for k, v in zip(keys, values, strict=True)))
    writer.close()


def _spout_rows(plan: Plan, spout: str, extents: Sequence[Extent]) -> Iterator[Row]:
    for task, extent in zip(plan.tasks(spout), extents, strict=True):
        yield task, POSITION, None, extent.handed
        for place, newest_ms in clock_places(plan, spout, extent):
            yield task, TIME, place, newest_ms
