"""Owns what happens in one partition of a stage: its tasks are made, fed in order, drained into chunks, and ended.

The same code runs inside Spark and in the local twin; it knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import pyarrow as pa

from sparkstorm.api.columns import ColumnBolt, rows_of
from sparkstorm.api.combining import COMBINED_FIELDS, COMBINED_STREAM
from sparkstorm.api.windows import TimedBolt, WindowedBolt, check_bolt
from sparkstorm.errors import CodecError, ReplayFailedError
from sparkstorm.executor.emitter import Route
from sparkstorm.executor.watermark_routes import MARK_FIELDS
from sparkstorm.model.codec import Codec
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.settings import DeliverySettings
from sparkstorm.model.tasks import tasks_by_component
from sparkstorm.model.topology import DEFAULT_STREAM, LATE_PREFIX, WATERMARK_STREAM
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.replay.batches import Way, gathered, put_together, whole_batches
from sparkstorm.replay.chunks import (
    KEPT_STATE,
    KEPT_TIME,
    Beginning,
    Chunk,
    ChunkWriter,
    Row,
    batch_in,
    source_number,
    unpack_rows,
)
from sparkstorm.replay.column_task import ColumnRun
from sparkstorm.replay.evidence import Evidence, RowTimes
from sparkstorm.replay.job import Job
from sparkstorm.replay.lateness import Clocks, is_watched
from sparkstorm.replay.merge import tuples_of
from sparkstorm.replay.moments import Moments
from sparkstorm.replay.pace import Pace, TimedRows, size_of
from sparkstorm.replay.plan import Feed, Stage
from sparkstorm.replay.quick import QuickRun, may_be_quick
from sparkstorm.replay.task import BoltRun, Manner, ReplayContext
from sparkstorm.replay.ways import Ways
from sparkstorm.replay.window_task import Times, WindowRun
from sparkstorm.windowing.marks import NEVER

Report = Callable[[Evidence], None]
RunT = TypeVar("RunT", bound=BoltRun)
NO_TIME = "no event time"
_target = attrgetter("target")


def run_feed(
    job: Job, stage: Stage, partition: int, batches: Iterable[TimedRows | pa.RecordBatch], report: Report
) -> Iterator[Chunk]:
    """A spout's stream of data through the bolts of its stage; every batch is rows in their order, columns if untimed."""
    assert stage.feed is not None
    run = _PartitionRun(job, stage, partition)
    route = run.feed_route(stage.feed)
    run.prepare({})
    for batch in batches:
        yield from run.feed(route, batch)
    yield from run.end(report)


def run_exchange(job: Job, stage: Stage, chunks: Iterable[Chunk], report: Report) -> Iterator[Chunk]:
    """What other stages sent to the tasks of this one; chunks come sorted, task by task, each with a START."""
    for target, of_task in groupby(chunks, key=_target):
        first = job.plan.tasks(stage.bolts[0])[0]
        run = _PartitionRun(job, stage, target - first)
        yield from run.over(of_task)
        yield from run.end(report)


def run_divided(
    job: Job, stage: Stage, feed: Feed, partition: int, batches: Iterable[pa.RecordBatch], report: Report
) -> Iterator[Chunk]:
    """The rows of data that Spark has brought to one task of a bolt; in any order."""
    run = _PartitionRun(job, stage, partition)
    yield from run.over_data(feed, batches)
    yield from run.end(report)


class _PartitionRun:
    """The tasks of one partition and the rows between them."""

    def __init__(self, job: Job, stage: Stage, partition: int) -> None:
        self._job = job
        self._stage = stage
        self._partition = partition
        self._codec = Codec()
        self._topology, self._make_instance = job.open()
        self._tasks = tasks_by_component(job.plan.component_by_task)
        self._mine = {b: self._tasks[b][partition % stage.width :: stage.width] for b in stage.bolts}
        joined = stage.bolts if stage.feed else stage.bolts[1:]
        self._is_sequence = stage.feed in job.sequence and is_watched(self._topology, job.plan.conf, stage)
        most = 1 if self._is_sequence else None  # rows of several tasks have no order among them
        local = frozenset(t for b in joined for t in self._mine[b][:most])
        self._ways = Ways(job, self._topology, self._tasks, local, self._codec, self._make_instance)
        self._writer = ChunkWriter(self._codec, source_number(stage.number, partition), job.is_timed)
        self._sources: dict[tuple[int, str], Source] = {}
        self._pace = Pace()
        self._emitted = 0  # when the pace last learned
        self._timeless: list[tuple[int, bytes]] = []  # rows of data without a time, as dead letters by task
        self._runs = {task: self._make(b, task) for b in stage.bolts for task in self._mine[b]}

    # -- making ----------------------------------------------------------------------------------------------------

    def feed_route(self, feed: Feed) -> Route:
        """The route of the data's rows, as the spout task that stands for this partition would have it."""
        tasks = self._tasks[feed.spout]
        return self._ways.routes(feed.spout, tasks[self._partition % len(tasks)])[feed.stream]

    def _make(self, component: str, task: int) -> BoltRun:
        conf = {**self._job.plan.conf, **self._topology.components[component].conf}
        manner = Manner(self._job.is_timed, self._job.skip_bad, _retries(conf), component in self._job.plan.keyed)
        bolt, moments = self._make_instance(component), Moments(conf, manner.is_timed)
        is_quick = self._is_quick(bolt, manner)
        routes = self._ways.routes(component, task, is_quick)
        if isinstance(bolt, WindowedBolt | TimedBolt):
            return self._with_lanes(task, WindowRun(bolt, routes, self._codec, manner, moments, self._times(component, bolt)))
        if not (isinstance(bolt, ColumnBolt) and self._job.columns):
            if is_quick:
                return self._with_lanes(task, self._quick_run(bolt, routes, manner, moments))
            return self._with_lanes(task, BoltRun(bolt, routes, self._codec, manner, moments))
        run = ColumnRun(bolt, routes, self._codec, manner, moments)
        run.ways = self._ways.of(task)
        batch_routes = self._ways.batch_routes
        run.batch_routes = {stream: batch_routes[task, stream] for stream in routes if (task, stream) in batch_routes}
        return self._with_lanes(task, run)

    def _is_quick(self, bolt: Any, manner: Manner) -> bool:
        takes_batches = isinstance(bolt, ColumnBolt) and self._job.columns
        return self._job.quick and not takes_batches and may_be_quick(bolt, manner)

    def _quick_run(self, bolt: Any, routes: Mapping[str, Route], manner: Manner, moments: Moments) -> QuickRun:
        run = QuickRun(bolt, routes, self._codec, manner, moments)
        if DEFAULT_STREAM in routes:
            run.divider = self._ways.dividers.get(routes[DEFAULT_STREAM].source.task)
        return run

    def _with_lanes(self, task: int, run: RunT) -> RunT:
        run.emitter.lanes = self._ways.lanes[task]
        return run

    def _times(self, component: str, bolt: WindowedBolt | TimedBolt) -> Times:
        """Who tells a task of time: other tasks by marks, data by the time of its rows where that is the bolt's own."""
        settings = check_bolt(self._topology, self._topology.components[component], bolt, self._job.plan.conf)
        data = [
            (task, s.stream)
            for s in self._topology.components[component].inputs
            if self._job.time_fields.get(Feed(s.component, s.stream)) == settings.timestamp_field
            for task in self._tasks[s.component]
        ]
        newest = (
            {
                (task, stream): self._job.newest_ms.get((task, stream, settings.timestamp_field or ""), NEVER)
                for task, stream in data
            }
            if self._job.newest_ms is not None
            else {}
        )
        return Times(settings, self._ways.time_plan.inputs(component, self._tasks), data, self.source, newest)

    def prepare(self, states: Mapping[int, Iterable[Sequence[Any]]]) -> None:
        """Load states, then prepare every task, in the order of their ids."""
        plan, tasks = self._job.plan, tuple(sorted(self._runs))
        resources: dict[str, Any] = {}
        for task, run in self._runs.items():
            component = plan.component_by_task[task]
            if run.state is not None:
                run.state.load(states.get(task, ()))
            conf = {**plan.conf, **self._topology.components[component].conf}
            run.prepare(
                ReplayContext(f"{plan.name}-0-0", task, component, plan.component_by_task, tasks, conf, run.now_ms, resources)
            )

    def _with_times(self, source: Source, batch: TimedRows) -> Iterator[Row]:
        """The rows that have a time; another one is put aside, or ends the replay."""
        for values, at_ms in zip(*batch, strict=True):
            if at_ms is not None:
                yield values, at_ms
            elif self._job.skip_bad:
                letter = DeadLetter(
                    source.component,
                    source.task,
                    source.component,
                    source.task,
                    source.stream,
                    source.fields,
                    values,
                    0,
                    NO_TIME,
                    0,
                )
                self._timeless.append((source.task, letter.encode(self._codec)))
            else:
                raise ReplayFailedError(
                    f"input '{source.component}', stream '{source.stream}': {NO_TIME} in record "
                    f"{Tuple(values, 0, source)!r:.500}; skip_bad puts such records aside"
                )

    # -- running ---------------------------------------------------------------------------------------------------

    def over(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Start, load state, then feed the first bolt's task and pass on what comes of it."""
        head = self._mine[self._stage.bolts[0]][0]
        beginning = Beginning(self._codec, chunks)
        self.prepare({head: beginning.pairs()})
        for taken in self._feed_head(self._runs[head], beginning.rest()):
            self.pass_on(taken)
            yield from self.cut()

    def over_data(self, feed: Feed, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        """The same for rows that come as they are, without a state before them."""
        self.prepare({})
        source = self.source(self._tasks[feed.spout][0], feed.stream)
        run = self._runs[self._mine[self._stage.bolts[0]][0]]
        for taken in self._take_data(run, source, batches):
            self.pass_on(taken)
            yield from self.cut()

    def feed(self, route: Route, batch: TimedRows | pa.RecordBatch) -> Iterator[Chunk]:
        """Rows of data through the bolts of the stage, piece by piece; where there are none they are only divided."""
        for piece in self._pace.pieces(batch) if self._runs else (batch,):
            self.spread(route, piece)
            self.pass_on(size_of(piece))
            yield from self.cut()

    def spread(self, route: Route, batch: TimedRows | pa.RecordBatch) -> None:
        """Rows of data to those who listen."""
        if isinstance(batch, pa.RecordBatch):
            batch_route = self._ways.batch_routes.get((route.source.task, route.source.stream))
            if batch_route is not None:
                batch_route.spread(batch, 0)
                return
            batch = rows_of(batch), [0] * batch.num_rows
        rows = zip(*batch, strict=True) if None not in batch[1] else self._with_times(route.source, batch)
        pick = route.pick
        if pick is not None:
            for row in rows:
                pick(row[0]).append(row)
            return
        unused: list[Any] = []
        for values, at_ms in rows:
            route.spread(values, at_ms or 0, unused)
            unused.clear()

    def _feed_head(self, run: BoltRun, chunks: Iterator[Chunk]) -> Iterator[int]:
        """What other stages sent to the first bolt's task, in its order; yields after every go, how many rows it had."""
        chunks = self._noted(run, chunks)
        if isinstance(run, QuickRun):
            for chunk in chunks:
                for rows in self._pace.parts(list(unpack_rows(self._codec, chunk)[0])):
                    run.run_rows(rows, self.source(chunk.sender, chunk.stream))
                    yield len(rows)
        elif isinstance(run, ColumnRun) and not self._job.is_timed:
            for source, batch in whole_batches(self._batches(chunks, run.types)):
                if isinstance(batch, pa.RecordBatch):
                    run.run_batch(batch, source, 0)
                else:
                    run.run([Tuple(row, 0, source) for row in batch])
                yield batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch)
        else:
            clocks = Clocks(run.settings if isinstance(run, WindowRun) else None)
            timed = clocks.take_out(self._codec, chunks, self._job.plan.component_by_task)
            for tuples in tuples_of(self._codec, timed, partial(self._sources_of, clocks), self._job.is_timed):
                for part in self._pace.parts(tuples):
                    run.run(part)
                    yield len(part)

    def _noted(self, run: BoltRun, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The chunks, with who sent them noted."""
        for chunk in chunks:
            self._note(run, self.source(chunk.sender, chunk.stream))
            yield chunk

    def _note(self, run: BoltRun, source: Source) -> None:
        """Data comes from as many senders as its spout has tasks, in whatever partitions it lies here."""
        if source.stream != WATERMARK_STREAM:
            is_spout = self._topology.components[source.component].kind == "spout"
            run.got_from(source, len(self._tasks[source.component]) if is_spout else 1)

    def _take_data(self, run: BoltRun, source: Source, batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
        self._note(run, source)
        for batch in gathered(batches) if isinstance(run, ColumnRun) else batches:
            if isinstance(run, ColumnRun):
                run.run_batch(batch, source, 0)
                yield batch.num_rows
                continue
            for rows in self._pace.parts(rows_of(batch)):
                if isinstance(run, QuickRun):
                    run.run_rows(rows, source)
                else:
                    run.run([Tuple(values, 0, source) for values in rows])
                yield len(rows)

    def _batches(self, chunks: Iterator[Chunk], types: Mapping[str, Any]) -> Iterator[tuple[Source, pa.RecordBatch | list[Any]]]:
        for chunk in chunks:
            source = self.source(chunk.sender, chunk.stream)
            is_combined = chunk.stream == COMBINED_STREAM
            batch = None if is_combined else batch_in(self._codec, chunk, source, types)
            yield source, list(unpack_rows(self._codec, chunk)[0]) if batch is None else batch

    def pass_on(self, taken: int = 0) -> None:
        """Run what lies in local rows and batches, component by component in order; afterwards nothing does.

        `taken` is how many rows have brought it about.
        """
        for task, run in self._runs.items():
            if isinstance(run, ColumnRun) and not self._job.is_timed:
                self._pass_batches(task, run)
            if isinstance(run, QuickRun):
                self._pass_bare(task, run)
            elif tuples := self._gather(task):
                run.run(tuples)
        for run in self._runs.values():
            run.take_emitted()
            run.put_marks()
        emitted = sum(run.counts.emitted for run in self._runs.values())
        if taken:
            self._pace.learn(taken, emitted - self._emitted)
        self._emitted = emitted

    def _pass_batches(self, task: int, run: ColumnRun) -> None:
        for way in self._ways.inputs.get(task, ()):
            batches, way.batches[:] = list(way.batches), []
            if batches:
                self._note(run, way.source)
            for batch, at_ms in put_together(batches):
                run.run_batch(batch, way.source, at_ms)

    def _pass_bare(self, task: int, run: QuickRun) -> None:
        for way in self._ways.inputs.get(task, ()):
            if rows := way.take_bare():
                self._note(run, way.source)
                run.run_rows(rows, way.source)
        run.divide()

    def _gather(self, task: int) -> list[Tuple]:
        ways = [way for way in self._ways.inputs.get(task, ()) if way.rows or way.batches]
        for way in ways:
            self._note(self._runs[task], way.source)
        tuples = [Tuple(values, at_ms, way.source) for way in ways for values, at_ms in way.take_rows()]
        if self._job.is_timed:
            tuples.sort(key=attrgetter("roots"))
        return tuples

    def cut(self, whole: bool = False) -> Iterator[Chunk]:
        """Chunks of what has gathered for other stages and for the results; `whole`: everything, else what is worth it."""
        least = 1 if whole else self._writer.size.rows
        for ways in self._ways.by_ends.values():
            for way in ways:
                if way.combining is not None and (way.rows or way.batches):
                    way.combining.take_in(way)
            if any(len(way.rows) >= least or (way.batches and (whole or way.is_full)) or way.is_ripe(whole) for way in ways):
                for way in ways:  # together and in this order: marks stand behind the rows they speak of
                    yield from self._chunks_of(way)
        for task, letter in [*self._timeless, *((t, letter) for t, run in self._runs.items() for letter in run.take_dead())]:
            yield self._writer.dead(task, letter)
        self._timeless.clear()

    def _chunks_of(self, way: Way) -> Iterator[Chunk]:
        try:
            yield from self._writer.rows(way.target, way.source.task, way.source.channel, way.rows, way.is_bare)
        except CodecError as error:
            raise way.unpackable(self._codec, error) from error
        yield from self._writer.batches(way)
        if way.combining is not None:
            yield from self._writer.rows(way.target, way.source.task, COMBINED_STREAM, way.combining.take(), is_bare=True)

    def end(self, report: Report) -> Iterator[Chunk]:
        """Nothing more comes: end every task, hand out the rest and the states."""
        is_open = self._job.newest_ms is not None
        for run in self._runs.values():
            run.end(is_open)
            self.pass_on()
            run.put_marks(has_ended=not is_open)
        yield from self.cut(whole=True)
        yield from self._clocks() if self._is_sequence else ()
        for task, run in self._runs.items():
            if run.state is not None and run.component in self._job.kept_states:
                yield from self._writer.state(KEPT_STATE, task, run.state.every_pair())
            if is_open:
                yield from self._writer.state(KEPT_TIME, task, run.kept_time())
        report(self._evidence())

    def _evidence(self) -> Evidence:
        """Return what the tasks did, and the times of the rows that they and the data sent to bolts by event time."""
        evidence = Evidence()
        for run in self._runs.values():
            evidence.add_counts(run.component, run.counts.as_dict())
        for task, lanes in self._ways.lanes.items():
            for lane in lanes:
                if lane.clock is not None and lane.clock.newest_ms != NEVER:
                    output = self._job.plan.component_by_task[task], lane.stream, lane.subscriber
                    behind_mark_ms = self._runs[task].behind_mark_ms(lane) if task in self._runs else 0
                    evidence.add_times(output, self._partition, RowTimes.of(lane.clock, behind_mark_ms))
        return evidence

    def _clocks(self) -> Iterator[Chunk]:
        """Yield CLOCK chunks: the newest event time of this partition's rows, per receiving task that uses event time."""
        for task, lanes in self._ways.lanes.items():
            for lane in lanes:
                if lane.clock is not None and lane.clock.newest_ms != NEVER:
                    for target in lane.targets:
                        yield self._writer.clock(target.task, task, lane.stream, lane.clock.newest_ms)

    def _sources_of(self, clocks: Clocks, chunk: Chunk, values: Sequence[tuple[Any, ...]]) -> Iterable[Source]:
        return clocks.sources(self.source(chunk.sender, chunk.stream), chunk.source, values)

    def source(self, task: int, stream: str) -> Source:
        """Who sent a chunk, one object per task and stream."""
        known = self._sources.get((task, stream))
        if known is None:
            component, name = self._job.plan.component_by_task[task], stream.removeprefix(LATE_PREFIX)
            own = {WATERMARK_STREAM: MARK_FIELDS, COMBINED_STREAM: COMBINED_FIELDS}.get(name)
            fields = own if own is not None else self._topology.components[component].streams[name].fields
            known = self._sources[task, stream] = Source(component, task, name, fields, is_late=name != stream)
        return known


def _retries(conf: Mapping[str, Any]) -> int:
    """Exactly once tries again, as live; under the other guarantees that is the source's affair, and data has none."""
    return DeliverySettings.of(conf).retries
