"""StatefulProcessor of Spark's `transformWithState` as a bolt: live, per event, and in a replay.

The processor is the class that a Spark team has, unchanged (`init`, `handleInputRows`,
`handleExpiredTimer`, `handleInitialState`, `close`). Its named states are entries of the task's
keyed state and its timers those of a TimedBolt, so both are in the commit of the rows that changed
them. Spark calls `handleInputRows` with the rows of a micro-batch; here a call has one row.

Left out: a map's entries as entries of the state. Its iterators would read the states of all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, Self

from sparkstorm.api import (
    BasicOutputCollector,
    Conf,
    InvalidTopologyError,
    KeyValueState,
    TimedBolt,
    Timer,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.function_components import require_pandas
from sparkstorm.common.errors import show
from sparkstorm.common.model.names import read_names
from sparkstorm.common.model.values.codec import plain_scalar
from sparkstorm.common.model.values.column_types import ColumnType, parse_columns, parse_type

TimeMode = Literal["None", "ProcessingTime", "EventTime"]
_MODES = ("None", "ProcessingTime", "EventTime")
# Names of states that a processor cannot take: its timers, and whether its initial state was given
_TIMERS = "\0timers"
_BEGUN = "\0begun"
_OF_THE_CLOCK = (
    "has timers, and states with a time to live, by the clock: live that of the worker, here the time of the row that is "
    "executed (0 without an event time)"
)


class ProcessorBolt(TimedBolt):
    """Bolt that runs a `pyspark.sql.streaming.StatefulProcessor` (PySpark 4.0 or newer).

    `key` names the fields of `groupBy`, `outputs` the fields of its rows: names, types by name, or
    a StructType. `time_mode` is Spark's: timers by the watermark need `with_timestamp_field`, and
    `with_lag` is the delay of `withWatermark`; states with a time to live need "ProcessingTime".
    `initial_state` has a Row, or a mapping by field, for each key. `frames` is for processors of
    `transformWithStateInPandas`: rows and the initial state are frames. A Row goes by its names: a
    field that it lacks is None.

    When a call raises, what it did is undone, and the row is tried again. With event time, rows and
    timers come in the order of time, not by micro-batch: the processor's watermark is the time of
    the row or timer, and a timer that is not after it expires next.

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", "n bigint")
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         before = self.count.get()[0] if self.count.exists() else 0
    ...         self.count.update((before + len(list(rows)),))
    ...         yield Row(word=key[0], n=self.count.get()[0])
    ...     def close(self):
    ...         pass
    >>> ProcessorBolt(Count(), key="word", outputs=["word", "n"]).outputs
    ('word', 'n')
    """

    wraps = "_processor"

    def __init__(
        self,
        processor: Any,
        *,
        key: str | Sequence[str],
        outputs: Any,
        time_mode: TimeMode = "None",
        initial_state: Mapping[Any, Any] | None = None,
        frames: bool = False,
    ) -> None:
        for name in ("init", "handleInputRows"):
            if isinstance(processor, type) or not callable(getattr(processor, name, None)):
                raise InvalidTopologyError(
                    f"ProcessorBolt: {show(processor)} is no instance with a method {name}; give an instance of a StatefulProcessor"
                )
        if not isinstance(initial_state, Mapping | None):
            raise InvalidTopologyError(
                f"ProcessorBolt: initial_state is {show(initial_state)}; write a Row, or a mapping by field, for each key"
            )
        if time_mode not in _MODES:
            raise InvalidTopologyError(
                f"ProcessorBolt has no time_mode {show(time_mode)}; it has {', '.join(_MODES)}"
            )
        self._processor = processor
        self.key_fields = read_names("ProcessorBolt", "key", key)
        if not self.key_fields:
            raise InvalidTopologyError(
                "ProcessorBolt: key is empty; name the fields of groupBy, whose equal values share their states"
            )
        self.outputs = _outputs(outputs)
        self._mode = time_mode
        if time_mode == "ProcessingTime":
            self.follows_the_clock = _OF_THE_CLOCK
        self._initial = {
            _initial_key(self.key_fields, name): _initial_row(name, row)
            for name, row in (initial_state or {}).items()
        }
        self._frames = frames
        self._time_field: str | None = None

    def with_timestamp_field(self, field: str) -> Self:
        """Take event time from this field, in whole milliseconds from 0 on."""
        self._time_field = field
        return super().with_timestamp_field(field)

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Find Spark's classes."""
        try:
            from pyspark.sql import Row
            from pyspark.sql.streaming import stateful_processor
        except ImportError as error:
            raise InvalidTopologyError(
                f"component '{context.component_id}': ProcessorBolt needs PySpark 4.0 or newer ({error})"
            ) from error
        if self._mode == "EventTime" and self._time_field is None:
            raise InvalidTopologyError(
                f"component '{context.component_id}': timers by event time need .with_timestamp_field(...)"
            )
        if self._frames:
            require_pandas(f"component '{context.component_id}': frames=True")
        self._row = Row
        self._spark = stateful_processor
        self._now_ms = context.now_ms

    def init_state(self, state: KeyValueState) -> None:
        """Give the processor its handle."""
        super().init_state(state)
        self._handle = _Handle(state, self._mode, self._now_ms, self.timers)
        self._processor.init(self._handle)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Have the processor handle one row."""
        key = tuple([tup[name] for name in self.key_fields])
        self._handle.key = key
        times = self._times(-1 if self._time_field is None else tup[self._time_field])
        if key in self._initial and not self._handle.has(_BEGUN):
            self._handle.put(_BEGUN, True)
            initial = self._as_given(self._initial[key])
            self._emit(self._processor.handleInitialState(key, initial, times), collector)
        rows = iter([self._given(tup.as_dict())])
        self._emit(self._processor.handleInputRows(key, rows, times), collector)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Have the processor handle an expired timer."""
        *key, at_ms = timer.name
        self._handle.key = tuple(key)
        self._handle.drop_timer(at_ms)
        expired = self._spark.ExpiredTimerInfo(at_ms)
        rows = self._processor.handleExpiredTimer(self._handle.key, self._times(at_ms), expired)
        self._emit(rows, collector)

    def cleanup(self) -> None:
        """Close the processor."""
        close = getattr(self._processor, "close", None)
        if close is not None:
            close()

    def _times(self, event_ms: int) -> Any:
        if self._mode == "EventTime":
            return self._spark.TimerValues(-1, event_ms)
        return self._spark.TimerValues(self._now_ms() if self._mode == "ProcessingTime" else -1, -1)

    def _as_given(self, initial: Any) -> Any:
        """Return an initial state in the form that the processor takes."""
        if self._frames and isinstance(initial, self._row):
            initial = initial.asDict()
        return self._given(initial) if isinstance(initial, Mapping) else initial

    def _given(self, row: Mapping[str, Any]) -> Any:
        """Return a row as a Row or a frame, whichever the processor takes."""
        if not self._frames:
            return self._row(**row)
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame([row])

    def _emit(self, rows: Iterable[Any] | None, collector: BasicOutputCollector) -> None:
        for row in rows or ():
            if hasattr(row, "itertuples"):
                for values in row[list(self.outputs)].itertuples(index=False, name=None):
                    collector.emit(values)
                continue
            names = getattr(row, "__fields__", None)
            if names:  # by name, as Spark does
                row = [row[name] if name in names else None for name in self.outputs]
            if not isinstance(row, tuple | list):
                raise TypeError(
                    f"the processor yields {show(row)}; yield a Row, or a tuple of values"
                )
            collector.emit(tuple(row))


class _Handle:
    """StatefulProcessorHandle over the state and the timers of a task."""

    def __init__(
        self, state: KeyValueState, mode: TimeMode, now_ms: Callable[[], int], timers: Any
    ) -> None:
        self.key: tuple[Any, ...] = ()
        self.now_ms = now_ms
        self._state = state
        self._mode = mode
        self._timers = timers
        self._names: set[str] = set()

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> _ValueState:
        return _ValueState(self, stateName, self._life(stateName, ttlDurationMs), schema)

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> _ListState:
        return _ListState(self, stateName, self._life(stateName, ttlDurationMs), schema)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> _MapState:
        life = self._life(stateName, ttlDurationMs)
        return _MapState(self, stateName, life, userKeySchema, valueSchema)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the key; several of one time are one."""
        at_ms = plain_scalar(expiryTimestampMs)  # of a frame it is numpy's
        times = self._times()
        if at_ms not in times:
            self.put(_TIMERS, sorted([*times, at_ms]))
        self._setter()((*self.key, at_ms), at_ms)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the key if it is set."""
        name = (*self.key, plain_scalar(expiryTimestampMs))
        if self._setter() == self._timers.set_event_timer:
            self._timers.cancel_event_timer(name)
        else:
            self._timers.cancel_processing_timer(name)
        self.drop_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the times of the key's timers, in order."""
        self._setter()
        return iter(self._times())

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state of all keys; the task's whole state is read, so call it in `init`."""
        self._names.discard(stateName)
        for key in [key for key in self._state if key[-1] == stateName]:
            self._state.delete(key)

    def has(self, name: str) -> bool:
        """Return whether a state of the key is there."""
        return (*self.key, name) in self._state

    def get(self, name: str) -> Any:
        """Return what is under a name of the key; None if nothing is."""
        return self._state.get((*self.key, name))

    def put(self, name: str, value: Any) -> None:
        """Put a value under a name of the key; an empty list deletes it."""
        if value == []:
            self._state.delete((*self.key, name))
        else:
            self._state.put((*self.key, name), value)

    def drop_timer(self, at_ms: int) -> None:
        """Forget a timer that is due, or was deleted."""
        self.put(_TIMERS, [other for other in self._times() if other != at_ms])

    def _times(self) -> list[int]:
        return self.get(_TIMERS) or []

    def _setter(self) -> Callable[[Any, int], None]:
        if self._mode == "None":
            raise ValueError(
                'timers need time_mode="ProcessingTime" or time_mode="EventTime" of ProcessorBolt'
            )
        setter: Callable[[Any, int], None] = (
            self._timers.set_event_timer
            if self._mode == "EventTime"
            else self._timers.set_processing_timer
        )
        return setter

    def _life(self, name: str, ttl_ms: int | None) -> int | None:
        if name.startswith("\0"):
            raise ValueError(f"{name!r} is no name of a state")
        # as Spark does: two variables of one name would read each other's elements
        if name in self._names:
            raise ValueError(f"there are two states '{name}'; give each another name")
        self._names.add(name)
        is_life = isinstance(ttl_ms, int) and ttl_ms > 0 and self._mode == "ProcessingTime"
        if ttl_ms is not None and not is_life:
            raise ValueError(
                f"state '{name}': ttlDurationMs is {show(ttl_ms)}; it is a whole number above 0, of time_mode=\"ProcessingTime\""
            )
        return ttl_ms


class _State:
    """Elements of one name and the current key: a list of values for each schema, and the time at
    which the element ends (or None).
    """

    def __init__(self, handle: _Handle, name: str, ttl_ms: int | None, *schemas: Any) -> None:
        self._handle = handle
        self._name = name
        self._ttl_ms = ttl_ms
        self._rows = [_RowForm(schema) for schema in schemas]

    def exists(self) -> bool:
        """Return whether the key has a value that has not ended."""
        return bool(self._elements())

    def clear(self) -> None:
        """Delete the key's value."""
        self._write([])

    def _elements(self) -> list[Any]:
        elements: list[Any] = self._handle.get(self._name) or []
        if self._ttl_ms is None:
            return elements
        now_ms = self._handle.now_ms()
        # one without an end is of code that had no time to live
        return [element for element in elements if element[-1] is None or element[-1] > now_ms]

    def _read(self) -> list[list[tuple[Any, ...]]]:
        """Return the rows of the elements."""
        return [
            [form.row(part) for form, part in zip(self._rows, element, strict=False)]
            for element in self._elements()
        ]

    def _new(self, *rows: Any) -> list[Any]:
        """Return rows as an element."""
        parts = [form.plain(row) for form, row in zip(self._rows, rows, strict=True)]
        return [*parts, None if self._ttl_ms is None else self._handle.now_ms() + self._ttl_ms]

    def _write(self, elements: list[Any]) -> None:
        self._handle.put(self._name, elements)


class _ValueState(_State):
    def get(self) -> tuple[Any, ...] | None:
        """Return the value as a tuple; None if there is none."""
        rows = self._read()
        return rows[0][0] if rows else None

    def update(self, newValue: Sequence[Any]) -> None:
        """Set the value."""
        self._write([self._new(newValue)])


class _ListState(_State):
    def get(self) -> Iterator[tuple[Any, ...]]:
        """Return the elements, each as a tuple."""
        return iter([value for (value,) in self._read()])

    def put(self, newState: Iterable[Sequence[Any]]) -> None:
        """Set all elements."""
        self._write([self._new(value) for value in newState])

    def appendValue(self, newState: Sequence[Any]) -> None:
        """Add an element."""
        self.appendList([newState])

    def appendList(self, newState: Iterable[Sequence[Any]]) -> None:
        """Add elements."""
        new = [self._new(value) for value in newState]
        self._write([*self._elements(), *new])


class _MapState(_State):
    def getValue(self, key: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the value under a key; None if there is none."""
        of_key, of_value = self._rows
        wanted = of_key.plain(key)
        there = (value for known, value, _ in self._elements() if known == wanted)
        value = next(there, None)
        return None if value is None else of_value.row(value)

    def containsKey(self, key: Sequence[Any]) -> bool:
        """Return whether there is a value under a key."""
        return self.getValue(key) is not None

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:
        """Set the value under a key."""
        new = self._new(key, value)
        elements = [new if old[0] == new[0] else old for old in self._elements()]
        self._write(elements if new in elements else [*elements, new])

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Return keys and values."""
        return iter([(key, value) for key, value in self._read()])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Return the keys."""
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Return the values."""
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: Sequence[Any]) -> None:
        """Delete the value under a key if it is there."""
        plain = self._rows[0].plain(key)
        self._write([old for old in self._elements() if old[0] != plain])


class _RowForm:
    """Rows of a schema as lists, which a state keeps, and back: a struct within one is a Row."""

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, str) and not hasattr(schema, "simpleString"):
            raise ValueError(
                f"a state has the schema {show(schema)}; write 'n int', or a StructType"
            )
        text = schema if isinstance(schema, str) else schema.simpleString()
        try:
            is_struct = text.strip().lower().startswith("struct<")
            columns = parse_type(text).parts if is_struct else parse_columns(text)
        except ValueError:  # of Spark's types that no tuple carries: rows within stay lists
            columns = ()
        self._kinds = [kind for _, kind in columns]
        self._has_structs = any("struct<" in str(kind) for kind in self._kinds)

    def plain(self, row: Any) -> list[Any]:
        """Return the values of a Row or a tuple."""
        if not isinstance(row, tuple | list):
            raise TypeError(f"a state takes a tuple of its fields, not {show(row)}")
        return [
            _plain(value, kind)
            for value, kind in zip_longest(row, self._kinds[: len(row)], fillvalue=None)
        ]

    def row(self, values: list[Any]) -> tuple[Any, ...]:
        """Return the values of a state as Spark gives them."""
        if not self._has_structs:
            return tuple(values)
        return tuple([_row(value, kind) for value, kind in zip(values, self._kinds, strict=False)])


def _plain(value: Any, kind: ColumnType | None) -> Any:
    """Return a value with its structs as lists, in the order of their fields."""
    parts = () if kind is None else kind.parts
    if isinstance(value, Mapping):
        if kind is not None and kind.name == "struct":
            return [_plain(value.get(name), part) for name, part in parts]
        of_value = parts[-1][1] if parts else None
        return {key: _plain(item, of_value) for key, item in value.items()}
    if not isinstance(value, tuple | list):
        return value
    if kind is None or kind.name != "struct":
        of_element = parts[0][1] if parts else None
        return [_plain(item, of_element) for item in value]
    if len(value) != len(parts):
        raise ValueError(f"a state has {show(value)} for {kind}; give {len(parts)} values")
    # by position, as Spark does with a Row too
    return [_plain(item, part) for item, (_, part) in zip(value, parts, strict=True)]


def _row(value: Any, kind: ColumnType) -> Any:
    """Return a value with its structs as Rows."""
    if value is None or not kind.parts:
        return value
    if kind.name == "map":
        return {key: _row(item, kind.parts[1][1]) for key, item in value.items()}
    if kind.name == "array":
        return [_row(item, kind.parts[0][1]) for item in value]
    from pyspark.sql import Row

    names = [name for name, _ in kind.parts]
    values = [_row(item, part) for item, (_, part) in zip(value, kind.parts, strict=False)]
    return Row(*names)(*values)


def _initial_key(fields: Sequence[str], name: Any) -> tuple[Any, ...]:
    """Return the values of the key's fields of an initial state."""
    key = tuple(name) if isinstance(name, tuple) else (name,)
    if len(key) != len(fields):
        raise InvalidTopologyError(
            f"ProcessorBolt: initial_state has the key {show(name)}; write a tuple of {', '.join(fields)}"
        )
    return key


def _initial_row(name: Any, row: Any) -> Any:
    is_mapping = isinstance(row, Mapping) and all(isinstance(field, str) for field in row)
    # a Row is a tuple that knows its fields; a frame is given as it is
    if not is_mapping and not hasattr(row, "__fields__") and not hasattr(row, "itertuples"):
        raise InvalidTopologyError(
            f"ProcessorBolt: initial_state of {show(name)} is {show(row)}; write a Row, or a mapping by field"
        )
    return row


def _outputs(outputs: Any) -> Any:
    """Return field names, or types by name; of a StructType, too."""
    fields = getattr(outputs, "fields", None)
    if fields is not None and not isinstance(outputs, Mapping):
        return {field.name: field.dataType.simpleString() for field in fields}
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise InvalidTopologyError(
            f"ProcessorBolt: outputs is {show(outputs)}; write a list of field names, types by name, or a StructType"
        )
    return tuple(outputs)
