"""One partition of a stage: creates its tasks, executes their rows in order, writes chunks, ends
the tasks.

The same code runs on Spark and in a local replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, groupby, islice, repeat
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from sparkstorm.api.columns import ColumnBolt, rows_of, values_of
from sparkstorm.api.combining import COMBINED_STREAM
from sparkstorm.api.windows import TimedBolt, WindowedBolt, check_bolt
from sparkstorm.common.errors import CodecError, ReplayFailedError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import WATERMARK_STREAM
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.value_types import register
from sparkstorm.common.settings import ComponentSettings, DeliverySettings, SubmissionSettings
from sparkstorm.common.windowing.watermarks import NEVER, Channel, SourceClock
from sparkstorm.data_plane.executor.column_runner import Divide, dividers_of
from sparkstorm.data_plane.executor.emitter import Route
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.pieces import count_rows, unfold
from sparkstorm.data_plane.executor.runner import RetryPolicy
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.task_kit.held import Originals
from sparkstorm.data_plane.task_kit.task_parts import REPLAY_STREAMS
from sparkstorm.replay.evidence import Evidence, RowTimes
from sparkstorm.replay.job import Job, is_watched
from sparkstorm.replay.plan import Feed, Stage
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.tasks.batches import (
    OutEdge,
    Sizer,
    TimedRows,
    gathered,
    size_of,
    whole_pieces,
    with_own_values,
)
from sparkstorm.replay.tasks.chunk_reader import PartitionClocks, rows_by_time, state_and_rest
from sparkstorm.replay.tasks.chunks import (
    KEPT_STATE,
    KEPT_TIME,
    ChunkWriter,
    EdgeChunk,
    Row,
    piece_in,
    rows_in,
    source_number,
    unpack_rows,
)
from sparkstorm.replay.tasks.out_edges import OutEdges
from sparkstorm.replay.tasks.task import ReplayTask, TaskMode
from sparkstorm.replay.tasks.window_task import TimeInputs, WindowTask

Report = Callable[[Evidence], None]
NO_TIME = "no event time"
_target = attrgetter("target")


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage as each of its partitions runs it; chunks of its output come out.

    `packs_state`: whether final states leave as bytes; else as columns, which do not leave the
    process.
    """

    job: Job
    stage: Stage
    report: Report
    packs_state: bool = True

    def over_data(
        self, partition: int, batches: Iterable[TimedRows | pa.RecordBatch]
    ) -> Iterator[EdgeChunk]:
        """Run a spout's data through the bolts of its stage; batches are rows in order, Arrow
        batches in a replay without times.
        """
        tasks = _Partition(self, partition)
        return tasks.execute(tasks.spread_data(batches))

    def over_chunks(self, chunks: Iterable[EdgeChunk]) -> Iterator[EdgeChunk]:
        """Run the tasks of a stage over chunks of other stages; chunks come sorted, task by task,
        each with a START.
        """
        first = self.job.plan.tasks(self.stage.bolts[0])[0]
        for target, of_task in groupby(chunks, key=_target):
            tasks = _Partition(self, target - first)
            yield from tasks.execute(tasks.take_chunks(of_task))

    def over_divided(
        self, feed: Feed, partition: int, batches: Iterable[TimedRows | pa.RecordBatch]
    ) -> Iterator[EdgeChunk]:
        """Run one task of a bolt over rows of data that Spark's shuffle has brought to it: in the
        order of their times, if any.
        """
        tasks = _Partition(self, partition)
        return tasks.execute(tasks.take_data(feed, batches))


class _Partition:
    """The tasks of one partition and the rows between them."""

    def __init__(self, run: StageRun, partition: int) -> None:
        job = run.job
        stage = run.stage
        self._stage_run = run
        self._job = job
        self._stage = stage
        self._settings = job.settings
        self._partition = partition
        self._topology, make_instance = job.open()
        # Behind it, since the classes may be of modules that come with the topology. In every
        # partition: Spark's Python workers are forked, and may have run another job before.
        register(SubmissionSettings.of(job.plan.conf).serializers)
        self._codec = Codec()
        self._parts = replace(job.plan, topology=self._topology).parts(self._codec, REPLAY_STREAMS)
        self._tasks = self._parts.tasks
        self.source = self._parts.source
        # Tasks are dealt to partitions as executors are to workers, so
        # that `local or shuffle` means the same as live.
        self._mine = {
            b: self._tasks[b][partition % stage.width :: stage.width] for b in stage.bolts
        }
        joined = stage.bolts if stage.feed else stage.bolts[1:]
        self._is_sequence = stage.feed in job.sequence and is_watched(
            self._topology, job.plan.conf, stage
        )
        # Rows of several tasks have no order among them: where the history is one sequence, one
        # task has all.
        most = 1 if self._is_sequence else None
        local = frozenset(t for b in joined for t in self._mine[b][:most])
        self._edges = OutEdges(job, self._parts, local, make_instance)
        self._number = source_number(stage.number, partition)
        self._writer = ChunkWriter(self._codec, self._number, self._settings.is_timed)
        self._sizer = Sizer()
        self._emitted = 0  # when the batch size was last adapted
        # rows of data without a time, as dead letters by task
        self._timeless: list[tuple[int, bytes]] = []
        self._runs = {
            task: self._make(b, task, make_instance(b))
            for b in stage.bolts
            for task in self._mine[b]
        }
        self._unopened = self._outputs_of_data() if self._settings.is_timed and stage.feed else []

    # -- making ------------------------------------------------------------------------------------

    def _feed_route(self, feed: Feed) -> Route:
        """Return the route of the data's rows, from the spout task that this partition replaces."""
        tasks = self._tasks[feed.spout]
        task = tasks[self._partition % len(tasks)]
        # Rows with times are no batches, and lists without any need no look at each row.
        route = self._edges.outputs(feed.spout, task, not self._settings.is_timed).routes[
            feed.stream
        ]
        has_own_clock = self._settings.open_end is not None and feed not in self._job.sequence
        # One history goes on from the newest clock of all tasks of its spout; a
        # partition that is one task's rows goes on from that task's.
        begun = [
            Begun.of(self._job.plan.begin.get(seed_task, ())).clocks
            for seed_task in ([task] if has_own_clock else tasks)
        ]
        for output in self._edges.timed_outputs[task]:
            output.restore(
                max(clocks.get((output.stream, output.subscriber), NEVER) for clocks in begun)
            )
        return route

    def _make(self, component: str, task: int, bolt: Any) -> ReplayTask:
        conf = self._parts.conf(component)
        is_keyed = component in self._job.plan.idempotent
        takes_batches = isinstance(bolt, ColumnBolt) and self._settings.columns
        # as live under exactly-once; under other guarantees the source retries, so that there are
        # none here
        policy = RetryPolicy(DeliverySettings.of(conf).retries, is_parking=self._settings.skip_bad)
        tick_ms = ComponentSettings.of(conf).tick_ms
        mode = TaskMode(self._settings.is_timed, policy, is_keyed, takes_batches, tick_ms)
        outputs = self._edges.outputs(component, task, takes_batches)
        if isinstance(bolt, WindowedBolt | TimedBolt):
            return WindowTask(bolt, outputs, self._codec, mode, self._times(component, bolt))
        return ReplayTask(bolt, outputs, self._codec, mode)

    def _outputs_of_data(self) -> list[OutputClock]:
        """Return the outputs by event time of the tasks that this partition's data begin."""
        plain = [task for task, run in self._runs.items() if not isinstance(run, WindowTask)]
        return [
            output
            for task in plain
            for output in self._edges.timed_outputs[task]
            if output.clock is not None
        ]

    def _times(self, component: str, bolt: WindowedBolt | TimedBolt) -> TimeInputs:
        """Return a task's time inputs: watermarks of other tasks, or row times of data if their
        column is the bolt's time field.
        """
        settings = check_bolt(
            self._topology, self._topology.components[component], bolt, self._job.plan.conf
        )
        data = [
            (task, s.stream)
            for s in self._topology.components[component].inputs
            if self._settings.time_fields.get(Feed(s.component, s.stream))
            == settings.timestamp_field
            for task in self._tasks[s.component]
        ]
        newest: dict[Channel, int] = {}
        if (end := self._settings.open_end) is not None:
            field = settings.timestamp_field or ""
            newest = {
                (task, stream): end.newest_ms.get((task, stream, field), NEVER)
                for task, stream in data
            }
        return TimeInputs(
            settings,
            self._parts.time_plan.inputs(component, self._tasks),
            data,
            self.source,
            newest,
        )

    def _prepare(self, head: int | None = None, pairs: Iterable[Any] = ()) -> None:
        """Prepare every task, in the order of their ids; the task `head` has these pairs as its
        initial state.
        """
        for task, run in self._runs.items():
            begun = Begun.of(self._job.plan.begin.get(task, ()))
            if task == head:
                begun.state = chain(begun.state, pairs)
            run.begin(begun, self._parts, self._runs)

    def _with_times(self, source: Source, batch: TimedRows) -> Iterator[Row]:
        """Yield the rows that have a time; one without is put aside, or ends the replay."""
        for values, at_ms in zip(*batch, strict=True):
            if at_ms is not None:
                yield values, at_ms, source
            elif self._settings.skip_bad:
                failure = Failure(FailureKind.FAILED, NO_TIME, source.component, source.task)
                letter = DeadLetter.of(Tuple(values, 0, source), failure, 0)
                self._timeless.append((source.task, letter.encode(self._codec)))
            else:
                raise ReplayFailedError(
                    f"input '{source.component}', stream '{source.stream}': {NO_TIME} in record "
                    f"{Tuple(values, 0, source)!r:.500}; skip_bad puts such records aside"
                )

    # -- running -----------------------------------------------------------------------------------

    def execute(self, parts: Iterable[int]) -> Iterator[EdgeChunk]:
        """Run all tasks to their ends; `parts` takes in input and yields the number of rows after
        every part of it.
        """
        for taken in parts:
            self._run_local(taken)
            yield from self._cut()
        yield from self._end()

    def take_chunks(self, chunks: Iterator[EdgeChunk]) -> Iterator[int]:
        """Load the initial state, then run the first bolt's task over chunks of other stages."""
        head = self._mine[self._stage.bolts[0]][0]
        pairs, rest = state_and_rest(self._codec, chunks)
        self._prepare(head, pairs)
        yield from self._feed_head(self._runs[head], rest)

    def take_data(self, feed: Feed, batches: Iterable[TimedRows | pa.RecordBatch]) -> Iterator[int]:
        """Run the first bolt's task over batches of data, without an initial state."""
        self._prepare()
        source = self.source(self._tasks[feed.spout][0], feed.stream)
        run = self._runs[self._mine[self._stage.bolts[0]][0]]
        self._note(run, source)
        yield from (self._take_timed if self._settings.is_timed else self._take_columns)(
            run, source, batches
        )

    def spread_data(self, batches: Iterable[TimedRows | pa.RecordBatch]) -> Iterator[int]:
        """Route rows of data to the bolts of the stage, part by part; a stage without bolts only
        partitions them.
        """
        assert self._stage.feed is not None
        route = self._feed_route(self._stage.feed)
        dividers = dividers_of(route)
        self._prepare()
        for batch in batches:
            # Rows that are only divided among tasks make as
            # many as they are: no need to take few of them.
            for piece in self._sizer.pieces(batch) if self._runs else (batch,):
                self._spread(route, dividers, piece)
                yield size_of(piece)

    def _spread(
        self, route: Route, dividers: list[Divide] | None, batch: TimedRows | pa.RecordBatch
    ) -> None:
        """Route rows of data to their subscribers."""
        if isinstance(batch, pa.RecordBatch):
            # Arrow alone cuts the batch among tasks. Partial key and custom
            # groupings have no dividers: they look at one row after the other.
            if dividers is not None and batch.num_rows and batch.num_columns:
                for rows, piece in (divided for divide in dividers for divided in divide(batch)):
                    rows.append((piece, 0, route.source))
                return
            batch = rows_of(batch), [0] * batch.num_rows
        source = route.source
        timed = (
            zip(*batch, repeat(source)) if None not in batch[1] else self._with_times(source, batch)
        )
        # One subscriber with one task a row is the usual
        # case: no list of targets is made for each row.
        pick = route.pick
        if pick is not None:
            for row in timed:
                pick(row[0]).append(row)
            return
        unused: list[Any] = []
        for values, at_ms, _ in timed:
            route.spread(values, at_ms or 0, unused)
            unused.clear()

    def _feed_head(self, run: ReplayTask, chunks: Iterator[EdgeChunk]) -> Iterator[int]:
        """Run the first bolt's task over chunks of other stages, in order; yield the number of rows
        after every batch.
        """
        chunks = self._with_senders_noted(run, chunks)
        if self._settings.is_timed or isinstance(run, WindowTask):
            clocks = PartitionClocks(run.settings if isinstance(run, WindowTask) else None)
            others = clocks.take_out(self._codec, chunks, self._job.plan.component_by_task)
            sources_of = partial(self._sources_of, clocks)
            lists = rows_by_time(self._codec, others, sources_of)
        elif run.takes_pieces:
            lists = whole_pieces(self._piece(chunk, run.types) for chunk in chunks)
        else:
            lists = iter(())
            for chunk in chunks:
                yield from self._run_values(
                    run,
                    lambda: unpack_rows(self._codec, chunk)[0],  # noqa: B023
                    chunk.rows,
                    self.source(chunk.sender, chunk.stream),
                )
        for rows in lists:
            yield from self._run_parts(run, rows)

    def _run_parts(self, run: ReplayTask, rows: list[Any]) -> Iterator[int]:
        for part in self._sizer.parts(rows):
            run.execute(part)
            yield count_rows(part) if run.takes_pieces else len(part)

    def _piece(self, chunk: EdgeChunk, types: Mapping[str, Any]) -> list[Any]:
        source = self.source(chunk.sender, chunk.stream)
        return (rows_in if chunk.stream == COMBINED_STREAM else partial(piece_in, types=types))(
            self._codec, chunk, source
        )

    def _with_senders_noted(
        self, run: ReplayTask, chunks: Iterable[EdgeChunk]
    ) -> Iterator[EdgeChunk]:
        """Yield the chunks and note their senders."""
        for chunk in chunks:
            self._note(run, self.source(chunk.sender, chunk.stream))
            yield chunk

    def _note(self, run: ReplayTask, source: Source) -> None:
        """Note the sender of rows; data counts as sent by all tasks of its spout, however it is
        partitioned here.
        """
        if source.stream != WATERMARK_STREAM:
            is_spout = self._topology.components[source.component].kind == "spout"
            run.note_sender(source, len(self._tasks[source.component]) if is_spout else 1)

    def _take_timed(
        self, run: ReplayTask, source: Source, batches: Iterable[TimedRows]
    ) -> Iterator[int]:
        for batch in batches:
            values, times = batch
            timed = (
                zip(values, times, repeat(source))
                if None not in times
                else self._with_times(source, batch)
            )
            yield from self._run_parts(run, list(timed))

    def _take_columns(
        self, run: ReplayTask, source: Source, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[int]:
        for batch in gathered(batches) if run.takes_pieces else batches:
            if run.takes_pieces:
                yield from self._run_parts(run, [(batch, 0, source)])
            else:
                yield from self._run_values(run, partial(values_of, batch), batch.num_rows, source)

    def _run_values(
        self, run: ReplayTask, read: Callable[[], Iterable[Any]], rows: int, source: Source
    ) -> Iterator[int]:
        values = list(read())
        # Read again where a row fails: its lists and mappings may have been changed.
        again = cache(lambda: list(read()))
        originals = Originals(lambda: values, lambda index: again()[index])
        rest = iter(values)
        for count in map(len, self._sizer.parts(range(rows))):
            # The usual part is all of a batch: an iterator around it would be a call for each row.
            part = rest if count == rows else islice(rest, count)
            run.run_values(part, count, source, originals)
            yield count

    def _run_local(self, taken: int = 0) -> None:
        """Run local rows and batches until none are left, component by component in order.

        `taken`: the number of input rows that caused them.
        """
        # In the order of the plan, senders before receivers: one pass leaves no row behind.
        for task, run in self._runs.items():
            if rows := self._gather(task, run):
                run.execute(rows)
        for run in self._runs.values():
            run.take_emitted()
            run.put_marks()
        emitted = sum(run.counts.emitted for run in self._runs.values())
        if taken:
            self._sizer.learn(taken, emitted - self._emitted)
        self._emitted = emitted

    def _gather(self, task: int, run: ReplayTask) -> list[Any]:
        rows: list[Any] = []
        for edge in self._edges.inputs.get(task, ()):
            if edge.rows:
                self._note(run, edge.source)
                is_unfolded = edge.may_hold_pieces and not run.takes_pieces
                taken = unfold(edge.rows) if is_unfolded else edge.rows
                rows += with_own_values(self._codec, taken) if edge.is_shared else taken
                edge.rows.clear()
        if self._settings.is_timed:
            rows.sort(key=itemgetter(1))
        return rows

    def _cut(self, whole: bool = False) -> Iterator[EdgeChunk]:
        """Flush output buffers for other stages and results as chunks: all of them if `whole`, else
        only full ones.
        """
        if self._unopened:
            yield from self._opening_marks()
        for edges in self._edges.by_ends.values():
            for edge in edges:
                if edge.combiner is not None and edge.may_hold_pieces:
                    edge.rows[:] = edge.combiner.take_in(edge.rows)
            if any(edge.is_due(self._writer.sizer.rows, whole) for edge in edges):
                # Together and in this order: marks leave after the rows that they follow.
                for edge in edges:
                    yield from self._chunks_of(edge)
        for task, letter in [
            *self._timeless,
            *((t, letter) for t, run in self._runs.items() for letter in run.take_dead()),
        ]:
            yield self._writer.dead(task, letter)
        self._timeless.clear()

    def _opening_marks(self) -> Iterator[EdgeChunk]:
        """Yield a mark for the time before a task's first row, which its receivers read before all
        rows.

        Tasks of data follow each other in history: the last one begins where the others have ended.
        Without this mark a window would wait for the first mark of every task, and hold all of
        history but the last task's part.
        """
        waiting = self._unopened
        self._unopened = [
            output
            for output in waiting
            if output.clock is not None and output.clock.newest_ms == NEVER
        ]
        for output in waiting:
            if output.clock is None or output.clock.newest_ms == NEVER:
                continue
            values = (output.stream, output.clock.opening_mark_ms())
            source = output.mark_source
            for target in output.targets:
                if not target.is_local:
                    yield from self._writer.rows(
                        target.task, source.task, source.channel, [(values, 0, source)]
                    )

    def _chunks_of(self, edge: OutEdge) -> Iterator[EdgeChunk]:
        if edge.combiner is not None:
            yield from self._writer.rows(
                edge.target, edge.source.task, COMBINED_STREAM, edge.combiner.take()
            )
        try:
            yield from self._writer.edge(edge)
        except CodecError as error:
            raise edge.packing_error(self._codec, error) from error

    def _end(self) -> Iterator[EdgeChunk]:
        """End every task, flush all output and the final states, and report."""
        is_open = self._settings.open_end is not None
        for run in self._runs.values():
            run.end(is_open)
            # A task's last windows fire before its downstream tasks end, and these get the rows.
            self._run_local()
            run.put_marks(has_ended=not is_open)
        yield from self._cut(whole=True)
        for task, output, clock in self._clocks() if self._is_sequence else ():
            for target in output.targets:
                yield self._writer.clock(target.task, task, output.stream, clock.newest_ms)
        for task, run in self._runs.items():
            if run.state is not None and run.component in self._job.kept_states:
                yield from self._state_of(task, run.component, run.state)
            if is_open:
                yield from self._writer.state(KEPT_TIME, task, run.kept_time())
            run.release()
        evidence = self._evidence()
        if self._stage_run.packs_state:
            yield self._writer.report(evidence.as_list())
        self._stage_run.report(evidence)

    def _state_of(self, task: int, component: str, state: MemoryState) -> Iterator[EdgeChunk]:
        if not self._stage_run.packs_state:
            yield from self._writer.columns(task, *state.columns())
            return
        try:
            yield from self._writer.state(KEPT_STATE, task, state.every_pair())
        # Numbers and text are looked at here only: checking
        # them at each `put` is what skip_bad pays for.
        except CodecError as error:
            raise ReplayFailedError(
                f"state of component '{component}' (task {task}): {error}; skip_bad names the records that put it"
            ) from error

    def _evidence(self) -> Evidence:
        """Return what the tasks did, and the times of the rows that they and the data sent to bolts
        by event time.
        """
        evidence = Evidence()
        for run in self._runs.values():
            evidence.add_counts(run.component, self._number, run.counts.as_dict())
            # Counters that other threads have changed since their last call ended.
            run.metrics.take_others()
            evidence.add_metrics(run.component, self._number, run.metrics.values)
        for task, output, clock in self._clocks():
            channel = self._job.plan.component_by_task[task], output.stream, output.subscriber
            behind_mark_ms = self._runs[task].behind_mark_ms(output) if task in self._runs else 0
            evidence.add_times(channel, self._partition, RowTimes.of(clock, behind_mark_ms))
        return evidence

    def _clocks(self) -> Iterator[tuple[int, OutputClock, SourceClock]]:
        """Yield the outputs to tasks that use event time, with their senders and clocks, if rows
        were sent.
        """
        for task, timed_outputs in self._edges.timed_outputs.items():
            for output in timed_outputs:
                if output.clock is not None and output.clock.newest_ms != NEVER:
                    yield task, output, output.clock

    def _sources_of(
        self, clocks: PartitionClocks, chunk: EdgeChunk, values: Sequence[tuple[Any, ...]]
    ) -> Iterable[Source]:
        return clocks.sources(self.source(chunk.sender, chunk.stream), chunk.source, values)
