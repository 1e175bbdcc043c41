"""Runner of a ColumnBolt in a replay: the live one, with virtual time in the place of roots, and batches of any type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkstorm.api.value_columns import is_value_type
from sparkstorm.errors import CodecError
from sparkstorm.executor.column_runner import BatchColumns, ColumnRunner
from sparkstorm.executor.emitter import Emitter, Route
from sparkstorm.executor.runner import BasicCollector
from sparkstorm.model.tuples import Roots
from sparkstorm.replay.results.types import problem_with


class ReplayColumns(ColumnRunner):
    """A ColumnRunner whose batches are emitted at the time of their last row."""

    def make_collector(self, emitter: Emitter, collector: BasicCollector) -> Any:
        """Return the bolt's BatchCollector."""
        return _AnyColumns(emitter, collector)

    def roots_of(self, part: list[Any]) -> Roots:
        """Return the time of the last of these elements."""
        roots: Roots = part[-1][1]
        return roots


class _AnyColumns(BatchColumns):
    """A BatchCollector whose batches travel by Arrow's own messages, hence with columns of any type that tuples carry."""

    def plain(self, batch: Any, route: Route) -> Any:
        if any(is_value_type(column.type) for column in batch.columns):
            return None
        for field, column in zip(route.source.fields, batch.columns, strict=True):
            if problem := problem_with(column.type):
                raise CodecError(
                    f"component '{route.source.component}', stream '{route.source.stream}', field '{field}': {problem}"
                )
        return pa.RecordBatch.from_arrays(batch.columns, list(route.source.fields)) if batch.num_columns else None
