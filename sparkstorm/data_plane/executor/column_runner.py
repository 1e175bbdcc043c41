"""Runner of a ColumnBolt: rows and pieces of one channel as Arrow batches, and what it emits as
batches into row lists.

Law: a batch is an optimisation: the same rows give the same results one by one, and a batch that
fails is undone and executed so, so that one bad row costs its own tree only. What a batch emits
descends from all of its rows (decision 8); left out is a column of indices from the bolt: one that
aggregates has none to return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, groupby
from typing import Any

import numpy as np

from sparkstorm.api.columns import ColumnBolt, batch_of, check_batch, holds_all, rows_of
from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import CodecError, InvalidTopologyError
from sparkstorm.common.grouping.routes import Rows, place_of
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.topology import Grouping
from sparkstorm.common.model.tuples import Roots, union_roots
from sparkstorm.data_plane.executor.emitter import Emitter, Route, RouteSubscription
from sparkstorm.data_plane.executor.pieces import is_piece, joined, unfold
from sparkstorm.data_plane.executor.runner import BasicCollector, BasicRunner, Row
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, raise_out_of_memory
from sparkstorm.data_plane.transport.batch_columns import plain_batch

# Rows of one batch, as many as an epoch's budget has. Half of it pays Arrow's price per call twice.
MOST_ROWS = 1 << 16
# Below it a bolt that takes rows too gets rows: making a batch costs more than so few calls. Not
# measured.
_FEW_ROWS = 32
Divide = Callable[[Any], list[tuple[Rows, Any]]]
"""Batch to pieces, each with the list of rows that it goes to."""


class ColumnRunner(BasicRunner):
    """Runner of a ColumnBolt over batches; one that fails is undone, and its rows are executed one
    by one.
    """

    def __init__(
        self,
        bolt: ColumnBolt,
        emitter: Emitter,
        state: MemoryState | None,
        collector: BasicCollector,
    ) -> None:
        super().__init__(bolt, emitter, state, collector)
        self._column_bolt = bolt
        self._columns = self.make_collector(emitter, collector)
        self._takes_rows = type(bolt).execute is not ColumnBolt.execute

    def make_collector(self, emitter: Emitter, collector: BasicCollector) -> Any:
        """Return the bolt's BatchCollector."""
        return BatchColumns(emitter, collector)

    def execute_columns(self, rows: Sequence[Any]) -> list[tuple[Row, Failure]]:
        """Execute rows and pieces of one channel; return the failed rows, which leave no other
        trace, and why.
        """
        failures: list[tuple[Row, Failure]] = []
        for singles in self.left_over(rows):
            failures += [(singles[index], failure) for index, failure in self.execute_rows(singles)]
        return failures

    def left_over(self, rows: Sequence[Any]) -> Iterator[list[Row]]:
        """Execute rows and pieces of one channel as batches; yield, in their places, rows to be
        executed one by one.
        """
        for is_batch, group in groupby(rows, key=is_piece):
            part = list(group)
            if not is_batch:
                if not self._run(part, self._from_rows):
                    yield part
                continue
            for _, several in groupby(part, key=lambda piece: piece[0].schema):
                pieces = list(several)
                if not self._run(pieces, lambda taken: joined([piece[0] for piece in taken])):
                    yield unfold(pieces)

    def _run(self, part: list[Any], make: Callable[[list[Any]], Any]) -> bool:
        """Execute elements as one batch; False when nothing of it is left, since it failed or has
        few rows.
        """
        if len(part) < _FEW_ROWS and self._takes_rows and not is_piece(part[0]):
            return False
        emitter = self._emitter
        state = self._state
        mark = len(emitter.log)
        undo_mark = 0 if state is None else len(state.undo)
        try:
            batch = make(part)
            emitter.roots = self.roots_of(part)
            self._column_bolt.execute_batch(batch, part[0][2], self._columns)
            return True
        except USER_ERRORS as error:
            # of a column that holds no such values together, or the user's
            raise_out_of_memory(error)
            emitter.roll_back(mark)
            if state is not None:
                state.roll_back(undo_mark)
            return False

    def roots_of(self, part: list[Any]) -> Roots:
        """Return the roots of what a batch of these elements emits: those of all of them."""
        return _union(part)

    def _from_rows(self, part: list[Any]) -> Any:
        columns = list(zip(*[row[0] for row in part], strict=True))
        return batch_of(part[0][2].fields, columns, self._column_bolt.types)


class BatchEmitter:
    """Emitter of batches of one task: as pieces where types and groupings allow it, else row by
    row.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._divide_by_stream: dict[str, list[Divide] | None] = {}

    def emit_batch(self, batch: Any, stream: str = "default") -> None:
        """Send every row of a batch."""
        check_batch(batch)
        emitter = self._emitter
        route = emitter.routes.get(stream)
        if route is None or route.is_direct or batch.num_columns != route.width:
            # raises the error that names what is wrong
            emitter.emit(rows_of(batch)[0] if batch.num_rows else (), stream)
            raise InvalidTopologyError(
                f"component '{emitter.component}': stream '{stream}' takes {route and route.width} columns"
            )
        if not batch.num_rows:
            return
        plain = self.plain(batch, route)
        if stream not in self._divide_by_stream:
            self._divide_by_stream[stream] = dividers_of(route)
        dividers = self._divide_by_stream[stream]
        is_typed = all(holds_all(kind, batch.column(n)) for n, kind, _ in route.declared)
        if plain is None or dividers is None or not emitter.takes_pieces or not is_typed:
            for values in self._rows(batch, route):
                emitter.emit(values, stream)
            return
        pieces = [piece for divide in dividers for piece in divide(plain)]
        emitter.put_pieces(route, pieces or [(emitter.unread, plain)], plain.num_rows)

    def _rows(self, batch: Any, route: Route) -> list[tuple[Any, ...]]:
        """Return a batch as rows; CodecError names the field of a column whose values no tuple
        carries.
        """
        try:
            return rows_of(batch)
        except CodecError:
            for field, column in zip(route.source.fields, batch.columns, strict=True):
                try:
                    plain_values(column)
                except CodecError as error:
                    where = f"component '{self._emitter.component}', stream '{route.source.stream}', field '{field}'"
                    raise CodecError(f"{where}: {error}") from error
            raise

    def plain(self, batch: Any, route: Route) -> Any:
        """Return a batch as it is sent, under the names of the stream's fields; None when it has to
        go row by row.
        """
        try:
            return plain_batch(batch, route.source.fields)
        except ValueError as error:  # ArrowInvalid
            raise CodecError(
                f"component '{self._emitter.component}', stream '{route.source.stream}': {error}"
            ) from error


class BatchColumns(BatchEmitter):
    """BatchCollector."""

    def __init__(self, emitter: Emitter, collector: BasicCollector) -> None:
        super().__init__(emitter)
        self.emit = collector.emit
        self.emit_direct = collector.emit_direct
        self.report_error = collector.report_error


def _union(part: list[Any]) -> Roots:
    """Roots of all rows: what a batch emits descends from each of them."""
    roots = [row[1] for row in part]
    if set(map(type, roots)) == {int}:
        distinct = dict.fromkeys(roots)
        distinct.pop(0, None)
        return tuple(distinct) if len(distinct) > 1 else next(iter(distinct), 0)
    return union_roots(
        dict.fromkeys(roots) if int in map(type, roots) else {id(r): r for r in roots}.values()
    )


def dividers_of(route: Route) -> list[Divide] | None:
    """Return the dividers of batches for the subscribers of a route; None when one of them has to
    see every row.
    """
    dividers = [_divider(subscription, route.where) for subscription in route.subscriptions]
    return None if None in dividers else dividers  # type: ignore[return-value]


def _divider(to: RouteSubscription, where: str) -> Divide | None:
    lists = [target.rows for target in to.targets]
    if to.has_clock:
        return None
    match to.grouping.kind:
        case "all":
            return lambda batch: [(rows, batch) for rows in lists]
        case "global":
            return lambda batch: [(lists[0], batch)]
        case "fields" if len(lists) == 1:
            return lambda batch: [(lists[0], batch)]
        case "fields" | "key_range":
            return _ByKey(to.positions, lists, to.grouping, where)
        case "load_aware_shuffle" if to.ring is not None:
            by_load = to.ring.turns
            return lambda batch: [(next(by_load), batch)]
        case "shuffle" | "none" | "local_or_shuffle":
            is_local = to.grouping.kind == "local_or_shuffle"
            preferred = [
                target.rows for target in to.targets if target.is_local and is_local
            ] or lists
            start = to.seed % len(preferred)
            turns = cycle([*preferred[start:], *preferred[:start]])
            return lambda batch: [(next(turns), batch)]
    return None


class _ByKey:
    """Fields or key-range grouping of a batch: the same task as each row by itself; rows of one
    task keep their order.
    """

    def __init__(
        self, positions: Sequence[int], lists: Sequence[Rows], grouping: Grouping, where: str
    ) -> None:
        self._positions = positions
        self._lists = lists
        self._is_hashed = grouping.kind == "fields" and core is not None
        self._place = place_of(grouping, len(lists), where)
        # short numbers are sorted in one pass
        self._kind = np.int16 if len(lists) < 1 << 15 else np.int32

    def __call__(self, batch: Any) -> list[tuple[Rows, Any]]:
        import pyarrow as pa

        places = self._places(batch)
        # Stable: rows of one task keep their order.
        order = np.argsort(places, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(np.bincount(places, minlength=len(self._lists)))))
        return [
            (rows, batch.take(pa.array(order[start:stop])))
            for rows, start, stop in zip(
                self._lists, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
            )
            if stop > start
        ]

    def _places(self, batch: Any) -> np.ndarray[Any, Any]:
        import pyarrow as pa

        columns = [batch.column(position) for position in self._positions]
        first = columns[0]
        kind = first.type
        is_extended = isinstance(kind, pa.BaseExtensionType)  # which Arrow does not encode
        if is_extended:
            first = first.storage
        if len(columns) == 1 and not pa.types.is_nested(first.type):
            encoded = first.dictionary_encode(null_encoding="encode")
            words = encoded.dictionary
            if is_extended:
                words = pa.ExtensionArray.from_storage(kind, words)
            places = self._places_of(plain_values(words))
            row_places: np.ndarray[Any, Any] = places[encoded.indices.to_numpy()]
            return row_places
        keys = rows_of(batch.select(list(self._positions)))
        return self._places_of(keys if len(columns) > 1 else [key for (key,) in keys])

    def _places_of(self, keys: list[Any]) -> np.ndarray[Any, Any]:
        if self._is_hashed:
            packed = core.places(keys, len(self._lists))
            return np.frombuffer(packed, np.int32).astype(self._kind)
        return np.fromiter(map(self._place, keys), self._kind, len(keys))
