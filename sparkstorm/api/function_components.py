"""Classes of the function form, and the check of a decorated function when it is added to a
topology.
"""

from __future__ import annotations

import copy
import dis
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt, check_capacity
from sparkstorm.api.collector import BasicOutputCollector, SpoutOutputCollector
from sparkstorm.api.columns import WHOLE, BatchCollector, ColumnBolt, arrow_type, rows_of
from sparkstorm.api.components import BasicBolt, Conf, Outputs, ReplayableSpout, StatefulBolt
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.functions import (
    ONE_VALUE,
    Declaration,
    WindowShape,
    declaration_of,
    emit_rows,
    raise_inside,
    row_of,
)
from sparkstorm.api.value_columns import is_value_type, plain_values
from sparkstorm.api.windows import Count, FoldingBolt, Window, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.declared_values import declared_fields

_PARAMETERS = {
    "bolt": ("tup", "state"),
    "windowed": ("window",),
    "fold": ("accumulator", "tup"),
    "spout": (),
}
_YIELDING = ("bolt", "windowed")
_OF_ASYNC = ("capacity", "timeout", "ordered")
_OF_STATE = (
    "key",
    "state_keyed_by_grouping",
    "state_key_type",
    "state_type",
    "state_version",
    "migrate_state",
)
# Instructions that put exactly one value on the stack, of any kind
_COLLECTIONS = ("BUILD_LIST", "LIST_EXTEND", "BUILD_MAP", "BUILD_CONST_KEY_MAP")
_ONE_VALUE = (
    *_COLLECTIONS,
    "BUILD_SET",
    "BUILD_STRING",
    "FORMAT_VALUE",
    "FORMAT_SIMPLE",
    "LOAD_SMALL_INT",
)


class _OfFunction:
    """Base of bolts made of functions: the function, whether it yields, and the options as
    attributes.
    """

    def __init__(
        self, function: Callable[..., Any], outputs: Any, options: Mapping[str, Any]
    ) -> None:
        vars(self).update(options)
        self.outputs = outputs
        self.function = function
        self._yields = inspect.isgeneratorfunction(function)


class FunctionBolt(_OfFunction, BasicBolt):
    """A function of a tuple as a bolt."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what the function yields for a tuple."""
        rows = self.function(tup)
        if self._yields:
            emit_rows(rows, collector.emit, raise_inside)


class StatefulFunctionBolt(_OfFunction, StatefulBolt):
    """A function of a tuple and the state as a bolt."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what the function yields for a tuple."""
        rows = self.function(tup, self.state)
        if self._yields:
            emit_rows(rows, collector.emit, raise_inside)


class AsyncFunctionBolt(_OfFunction, AsyncBolt):
    """A coroutine function, or an async generator, of a tuple as a bolt."""

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what the function yields for a tuple."""
        rows = self.function(tup)
        if not inspect.isasyncgen(rows):
            await rows
            return
        async for row in rows:
            collector.emit(row_of(row))


class BatchFunctionBolt(_OfFunction, ColumnBolt):
    """A function of several tuples of one source as a bolt: of a list, an Arrow batch or a pandas
    frame.
    """

    batch: int
    frame: str = "rows"

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Refuse frames of pandas where it is not installed, and read the declared types."""
        if self.frame == "pandas":
            require_pandas(f"component '{context.component_id}': frame=\"pandas\"")
        types = self.outputs if isinstance(self.outputs, Mapping) else {}
        declared = declared_fields(tuple(types), types)
        self._whole = {place: kind for place, kind, _ in declared if kind.name in WHOLE}

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        """Emit what the function yields for each `batch` rows."""
        for start in range(0, batch.num_rows, self.batch):
            part = batch.slice(start, self.batch)
            result = self.function(self._given(part, source))
            if not self._yields:
                continue
            if self.frame == "rows":
                emit_rows(result, collector.emit, raise_inside)
            else:
                for frame in result:
                    self._emit_frame(frame, collector)

    def _given(self, part: Any, source: Source) -> Any:
        if self.frame == "arrow":
            return part
        if self.frame == "pandas":
            import pandas  # type: ignore[import-untyped]

            frame = part.to_pandas()
            for name, column in zip(part.schema.names, part.columns, strict=True):
                if is_value_type(column.type):  # of which pandas takes the stored text
                    frame[name] = pandas.Series(plain_values(column), dtype=object)
                elif column.null_count and _is_large(column):
                    frame[name] = pandas.Series(column.to_pylist(), dtype="Int64")
            return frame
        return [Tuple(values, 0, source) for values in rows_of(part)]

    def _emit_frame(self, frame: Any, collector: BatchCollector) -> None:
        """Emit a frame that has a column for each field, in any order."""
        import pyarrow as pa

        if self.frame == "pandas" and hasattr(frame, "itertuples"):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        if not isinstance(frame, pa.Table | pa.RecordBatch):
            wanted = "a pandas.DataFrame" if self.frame == "pandas" else "a RecordBatch or Table"
            raise TypeError(f"{_named(self.function)} yields {show(frame)}; yield {wanted}")
        names = frame.schema.names
        missing = next((name for name in self.outputs if name not in names), None)
        if missing is not None:
            raise ValueError(
                f"{_named(self.function)} yields a frame without the field '{missing}'; it has {', '.join(names) or 'no columns'}"
            )
        frame = self._with_whole(frame.select(list(self.outputs)))
        for batch in frame.to_batches() if isinstance(frame, pa.Table) else [frame]:
            collector.emit_batch(batch)

    def _with_whole(self, frame: Any) -> Any:
        """Return a frame whose whole numbers are no floats: pandas has these where None is next to
        a number.
        """
        import pyarrow as pa

        for place, kind in self._whole.items():
            if pa.types.is_floating(frame.schema.types[place]):
                with suppress(pa.ArrowInvalid):  # a fraction, which the emission refuses by name
                    column = frame.column(place).cast(arrow_type(kind))
                    frame = frame.set_column(place, frame.schema.names[place], column)
        return frame


def _is_large(column: Any) -> bool:
    """Return whether a column has whole numbers beyond those that a float has exactly, which pandas
    would make of them next to None.
    """
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        return False
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        return True
    return False


def require_pandas(what: str) -> None:
    """Raise InvalidTopologyError where pandas cannot be imported; `what` needs it."""
    try:
        importlib.import_module("pandas")
    except ImportError as error:
        raise InvalidTopologyError(
            f"{what} needs pandas on the hosts of workers: pip install pandas ({error})"
        ) from error


class WindowFunctionBolt(_OfFunction, WindowedBolt):
    """A function of a window as a bolt."""

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Emit what the function yields for a window."""
        rows = self.function(window)
        if self._yields:
            emit_rows(rows, collector.emit, raise_inside)


class FoldFunctionBolt(FoldingBolt):
    """A function of an accumulator and a tuple as a bolt."""

    def __init__(
        self, function: Callable[..., Any], outputs: Outputs, initial: Any, has_time: bool
    ) -> None:
        self.outputs = outputs
        self._function = function
        self._initial = initial if callable(initial) else partial(copy.deepcopy, initial)
        self._has_time = has_time

    def initial(self) -> Any:
        """Return the accumulator of an empty window."""
        return self._initial()

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Return the accumulator with one more tuple."""
        return self._function(accumulator, tup)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Emit the window's row."""
        time = (window.last_ms,) if self._has_time else ()
        collector.emit((*window.key, window.value, *time))


class MergingFunctionBolt(FoldFunctionBolt):
    """A FoldFunctionBolt whose accumulators can be put together."""

    def __init__(self, merge: Callable[[Any, Any], Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._merge = merge

    def merge(self, one: Any, other: Any) -> Any:
        """Return two accumulators put together."""
        return self._merge(one, other)


class FunctionSpout(ReplayableSpout):
    """A function that returns rows as a spout; the position is the index of the next row of this
    task.
    """

    def __init__(self, function: Callable[[], Sequence[Any]], outputs: Outputs) -> None:
        self.outputs = outputs
        self._function = function

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Call the function; this task emits every n-th row."""
        self._rows = self._function()
        if not isinstance(self._rows, Sequence) or isinstance(self._rows, str | bytes):
            raise InvalidTopologyError(
                f"component '{context.component_id}': {_named(self._function)} must return a list of rows, not {show(self._rows)}"
            )
        self._collector = collector
        self._next, self._stride = context.task_index, len(context.peers)

    def next_tuple(self) -> None:
        """Emit one row under its index."""
        if self._next < len(self._rows):
            index = self._next
            self._next += self._stride
            self._collector.emit(row_of(self._rows[index]), index)

    def is_exhausted(self) -> bool:
        """Return whether every row of this task was emitted."""
        return self._next >= len(self._rows)

    def extent(self) -> tuple[int, int]:
        """Return the number of rows of this task, and how many of them it has emitted."""
        return len(
            range(self._next % self._stride, len(self._rows), self._stride)
        ), self._next // self._stride

    def snapshot(self) -> Any:
        """Return the index of the next row."""
        return self._next

    def restore(self, position: Any) -> None:
        """Go on from an index."""
        self._next = position


def component_of(id: str, thing: Any, kinds: Sequence[str], outputs: Outputs | None = None) -> Any:
    """Return the instance that a decorated function stands for, or `thing` itself when it is no
    function.

    InvalidTopologyError names the component, the function and its line, and what to write.
    """
    declared = declaration_of(thing)
    if declared is None:
        if isinstance(thing, FunctionType | MethodType):
            word = f"@{kinds[0]}"
            raise InvalidTopologyError(
                f"component '{id}': {_named(thing)} has no decorator; write {word}(\"field\", ...) above it"
            )
        return thing
    return made_of(id, thing, declared, kinds, outputs)


def made_of(
    id: str, thing: Any, declared: Declaration, kinds: Sequence[str], outputs: Outputs | None = None
) -> Any:
    """Return the component of a function under a declaration."""
    where = f"component '{id}': {_named(thing)}"
    if declared.kind not in kinds:
        setter = "set_spout" if declared.kind == "spout" else "set_bolt"
        raise InvalidTopologyError(
            f"{where} is declared with @{declared.kind}; add it with {setter}"
        )
    if outputs is not None:
        raise InvalidTopologyError(
            f"{where} names its fields in its decorator; drop outputs={show(outputs)}"
        )
    _check_function(where, thing, declared)
    fields = _outputs(where, declared)
    if declared.kind == "spout":
        return FunctionSpout(thing, fields)
    if declared.kind == "bolt":
        return _bolt(where, thing, declared, fields)
    return _timed(where, thing, declared, fields)


def _bolt(where: str, function: Any, declared: Declaration, outputs: Outputs) -> Any:
    _check_rows(where, function, outputs, declared.options.get("frame", "rows") == "rows")
    has_state = len(inspect.signature(function, follow_wrapped=False).parameters) == 2
    if has_state:
        made: Any = StatefulFunctionBolt
        options = {**declared.options, "key_fields": declared.key}
    else:
        _refuse_options(where, declared, _OF_STATE, "keeps no state", "add a second parameter")
        options = dict(declared.options)
        made = FunctionBolt
    if _is_async(function):
        if has_state or "batch" in options:
            what = "state" if has_state else "batches"
            raise InvalidTopologyError(
                f"{where} is async, which has no {what}; await in one bolt, and keep it in the next"
            )
        made = AsyncFunctionBolt
        options.pop("blocking", None)  # it has a thread in any case
        check_capacity(where, options.get("capacity", 1), options.get("timeout"))
    else:
        _refuse_options(where, declared, _OF_ASYNC, "is not async", "write async def")
    if "batch" in options:
        if has_state or options.get("blocking"):
            what = "state, its second parameter" if has_state else "thread"
            raise InvalidTopologyError(f"{where} takes batches, which have no {what}; drop batch")
        made = BatchFunctionBolt
        _check_batch(where, options)
    else:
        _refuse_options(where, declared, ("frame",), "takes one tuple", "give batch")
    return made(function, outputs, options)


def _refuse_options(
    where: str, declared: Declaration, names: Sequence[str], why: str, remedy: str
) -> None:
    """Refuse options that a function of another form has."""
    for name in names:
        value = declared.key if name == "key" else declared.options.get(name)
        if value or (name == "ordered" and value is not None):
            raise InvalidTopologyError(
                f"{where} {why}, so '{name}' has no meaning; {remedy}, or drop it"
            )


def _check_batch(where: str, options: Mapping[str, Any]) -> None:
    batch = options["batch"]
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidTopologyError(
            f"{where}: batch is {show(batch)}; write a whole number of at least 1"
        )
    frame = options.get("frame", "rows")
    if frame not in ("rows", "arrow", "pandas"):
        raise InvalidTopologyError(
            f"{where}: frame is {show(frame)}; it is 'rows', 'arrow' or 'pandas'"
        )


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _timed(where: str, function: Any, declared: Declaration, outputs: Outputs) -> Any:
    options = declared.options
    shape = options["window"]
    time = options["time"]
    if not isinstance(shape, WindowShape):
        raise InvalidTopologyError(
            f"{where}: window must be tumbling(...), sliding(...), session(...) or local_day(...), not {show(shape)}"
        )
    made: WindowedBolt
    if declared.kind == "windowed":
        _check_rows(where, function, outputs)
        made = WindowFunctionBolt(function, outputs, {})
    else:
        made = _fold(where, function, declared, outputs, shape)
    made.with_key(*declared.key)
    for value, setter in (
        (time, made.with_timestamp_field),
        (options["lag"], made.with_lag),
        (options["lateness"], made.with_allowed_lateness),
        (options["late_stream"], made.with_late_tuple_stream),
    ):
        if value is not None:
            setter(value)
    return shape.applied_to(made)


def _fold(
    where: str, function: Any, declared: Declaration, outputs: Outputs, shape: WindowShape
) -> FoldFunctionBolt:
    options = declared.options
    least = len(declared.key) + 1
    most = len(declared.key) + 1 + (not isinstance(shape.length, Count))
    if not outputs:
        time = (options["time"] or "last_ms",) if most > least else ()
        outputs = (*declared.key, function.__name__, *time)
    if not least <= len(outputs) <= most:
        parts = ", ".join(
            (
                *declared.key,
                "the accumulator",
                *(["the window's last millisecond"] if most > least else []),
            )
        )
        raise InvalidTopologyError(
            f"{where} declares {len(outputs)} fields for the values {parts}; declare {least} or {most}"
        )
    arguments = (function, outputs, options["initial"], len(outputs) == most > least)
    return (
        FoldFunctionBolt(*arguments)
        if options["merge"] is None
        else MergingFunctionBolt(options["merge"], *arguments)
    )


def _check_function(where: str, function: Any, declared: Declaration) -> None:
    """Refuse what cannot be called as the runtime does."""
    names = _PARAMETERS[declared.kind]
    remedy = f"def {getattr(function, '__name__', 'function')}({', '.join(names[:1] if declared.kind == 'bolt' else names)})"
    if not isinstance(function, FunctionType | MethodType):
        raise InvalidTopologyError(
            f"{where} is a {type(function).__name__}; @{declared.kind} decorates functions only"
        )
    outer = function.__qualname__.rpartition(".")[0]
    if isinstance(function, MethodType) or (outer and not outer.endswith("<locals>")):
        raise InvalidTopologyError(
            f"{where} is a method; decorate a function outside of any class, or derive from BasicBolt"
        )
    if _is_async(function) and declared.kind != "bolt":
        raise InvalidTopologyError(
            f"{where} is async, and the runtime does not await it; write a plain {remedy}"
        )
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    is_plain = all(p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
    counts = (1, 2) if declared.kind == "bolt" else (len(names),)
    if not is_plain or len(parameters) not in counts:
        both = f" or {remedy[:-1]}, state)" if declared.kind == "bolt" else ""
        shown = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
        raise InvalidTopologyError(
            f"{where} takes ({shown}); write {remedy}{both}, without defaults"
        )
    if declared.kind not in _YIELDING and inspect.isgeneratorfunction(function):
        wanted = (
            "the new accumulator"
            if declared.kind == "fold"
            else "all rows as a list, so that a restart can go on at an index"
        )
        raise InvalidTopologyError(f"{where} has a yield; return {wanted}")


def _outputs(where: str, declared: Declaration) -> Any:
    """Return field names, or types by field."""
    first = declared.outputs[0] if declared.outputs else None
    if isinstance(first, Mapping) and len(declared.outputs) == 1:
        if not all(isinstance(kind, str) for kind in first.values()):
            raise InvalidTopologyError(
                f"{where} emits to the default stream only; derive from BasicBolt for several streams"
            )
        return dict(first)
    stray = next((output for output in declared.outputs if not isinstance(output, str)), None)
    if stray is not None:
        raise InvalidTopologyError(
            f"{where}: fields are names, or one mapping of names to types, not {show(stray)}"
        )
    return tuple(declared.outputs)


def _check_rows(where: str, function: Any, outputs: Outputs, are_rows: bool = True) -> None:
    """Refuse yields without fields, fields without a yield, and rows that are seen to have another
    number of values, unless it yields frames.
    """
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    listed = ", ".join(outputs) or "none"
    if outputs and not yields:
        raise InvalidTopologyError(
            f"{where} declares the fields {listed}, but has no yield; write yield for each row"
        )
    if yields and not outputs:
        raise InvalidTopologyError(
            f"{where} yields rows, but declares no fields; name them in the decorator"
        )
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(function) if yields and are_rows else ():
        width = (
            _width(before) if instruction.opname == "YIELD_VALUE" and before is not None else None
        )
        if width is not None and width != len(outputs):
            line = instruction.positions.lineno if instruction.positions else None
            is_one = before is not None and before.opname in _COLLECTIONS
            remedy = ONE_VALUE if is_one else "yield as many values as there are fields"
            raise InvalidTopologyError(
                f"{where} yields {width} value{'s' * (width != 1)} in line {line}, but declares {len(outputs)} "
                f"({listed}); {remedy}"
            )
        before = instruction


def _width(before: dis.Instruction) -> int | None:
    """Return how many values a row has by the instruction that makes it; None where only a run can
    show it.
    """
    if before.opname == "BUILD_TUPLE":
        return before.arg
    if before.opname == "LOAD_CONST":
        return len(before.argval) if isinstance(before.argval, tuple) else 1
    return 1 if before.opname in _ONE_VALUE else None


def _named(thing: Any) -> str:
    """Return a function with the place of its first line."""
    code = getattr(thing, "__code__", None)
    where = (
        f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    )
    return f"function {getattr(thing, '__qualname__', type(thing).__name__)}{where}"
