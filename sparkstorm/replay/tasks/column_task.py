"""One task of a ColumnBolt in a replay: executes whole batches, and row by row only a batch that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from sparkstorm.api.columns import ColumnBolt, batch_of, rows_of
from sparkstorm.api.combining import COMBINED_STREAM
from sparkstorm.errors import CodecError, InvalidTopologyError
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.replay.results.types import problem_with
from sparkstorm.replay.tasks.batches import BatchPartitioner, OutEdge
from sparkstorm.replay.tasks.task import ReplayTask

_source = attrgetter("source")


class ColumnTask(ReplayTask):
    """A ReplayTask whose bolt takes batches; `edges` are its output buffers, `batch_partitioners` partition batches among them."""

    edges: Sequence[OutEdge] = ()
    batch_partitioners: Mapping[str, BatchPartitioner] = {}

    @property
    def types(self) -> Mapping[str, Any]:
        """Return the Arrow types by field that the bolt declares."""
        assert isinstance(self._bolt, ColumnBolt)
        return self._bolt.types

    def run_batch(self, batch: pa.RecordBatch, source: Source, at_ms: int) -> None:
        """Execute one batch; when it raises, undo it and execute its rows."""
        assert isinstance(self._bolt, ColumnBolt)
        marks = [(len(edge.rows), len(edge.batches)) for edge in self.edges]
        log_mark, emitted = len(self.emitter.log), self.counts.emitted
        undo_mark = len(self.state.undo) if self.state is not None else 0
        self.emitter.roots = at_ms
        try:
            self._bolt.execute_batch(batch, source, _Columns(self))
            self.counts.executed += batch.num_rows
            self._attributes.look(batch.num_rows)
        except (Exception, SystemExit):
            self.emitter.roll_back(log_mark)
            for edge, (rows, batches) in zip(self.edges, marks, strict=True):  # the emitter's log does not list these rows
                del edge.rows[rows:], edge.batches[batches:]
            self.counts.emitted = emitted
            if self.state is not None:
                self.state.roll_back(undo_mark)
            super()._execute([Tuple(values, at_ms, source) for values in rows_of(batch)])

    def emit_batch(self, batch: pa.RecordBatch, stream: str) -> None:
        """Check and send an emitted batch; row by row on a stream without a batch partitioner."""
        route = self.emitter.routes.get(stream)
        if route is None or route.is_direct or batch.num_columns != route.width:
            self.emitter.emit(rows_of(batch)[0] if batch.num_rows else (), stream)  # raises the error that names what is wrong
            raise InvalidTopologyError(f"component '{self.component}': stream '{stream}' takes {route and route.width} columns")
        for field, column in zip(route.source.fields, batch.columns, strict=True):
            if problem := problem_with(column.type):
                raise CodecError(f"component '{self.component}', stream '{stream}', field '{field}': {problem}")
        if stream not in self.batch_partitioners:
            for values in rows_of(batch):
                self.emitter.emit(values, stream)
            return
        self.counts.emitted += batch.num_rows
        named = pa.RecordBatch.from_arrays(batch.columns, list(route.source.fields)) if batch.num_columns else batch
        self.batch_partitioners[stream].spread(named, int(self.now_ms()))

    def _execute(self, tuples: Sequence[Tuple]) -> None:
        """Execute rows between two ticks as batches of one source each; times do not matter inside a batch."""
        for source, group in groupby(tuples, key=_source):
            rows = list(group)
            if source.stream == COMBINED_STREAM:
                super()._execute(rows)
                continue
            try:
                columns = list(zip(*[t.values for t in rows], strict=True))
                batch = batch_of(source.fields, columns, self.types)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # no column holds these values together
                super()._execute(rows)
                continue
            self.run_batch(batch, source, int(rows[-1].roots))  # type: ignore[arg-type]


class _Columns:
    """BatchCollector."""

    def __init__(self, run: ColumnTask) -> None:
        self._run = run
        self.emit = run.emitter.emit
        self.emit_direct = run.emitter.emit_direct

    def emit_batch(self, batch: Any, stream: str = "default") -> None:
        """Send every row of a batch."""
        self._run.emit_batch(batch, stream)

    def report_error(self, error: BaseException | str) -> None:
        """Count the report."""
        self._run.counts.reports += 1
