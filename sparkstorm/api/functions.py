"""Function form of components: `@bolt`, `@windowed`, `@fold` and `@spout` declare what a plain
function is in a topology.

A decorated function stays the function it was, so it can be called in a test and is pickled like
any other function. `TopologyBuilder` checks it and wraps it in the class of its kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar, overload

from sparkstorm.api.components import Effects
from sparkstorm.api.state import KeyValueState
from sparkstorm.api.windows import Count, Duration, WindowedBolt
from sparkstorm.common.model.compiled import core

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Kind = Literal["bolt", "windowed", "fold", "spout"]
Fields = str | Sequence[str]
"""One field, or several."""

_MARK = "__sparkstorm__"


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of a decorated function: its kind of component, its output fields and its
    options.
    """

    kind: Kind
    outputs: tuple[Any, ...]
    key: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Windows of a length, every `slide` (None: one after the other), or sessions with `length` as
    their gap.
    """

    length: Count | Duration
    slide: Count | Duration | None = None
    is_session: bool = False

    def applied_to(self, bolt: WindowedBolt) -> Any:
        """Return the bolt over these windows."""
        if self.is_session:
            assert not isinstance(self.length, Count)
            return bolt.with_session_window(self.length)
        return bolt.with_window(self.length, self.slide)


def tumbling(
    length: Count | Duration | None = None,
    *,
    seconds: float = 0,
    minutes: float = 0,
    ms: int = 0,
    count: int = 0,
) -> WindowShape:
    """Return windows that follow each other: `tumbling(seconds=10)`, `tumbling(count=100)`."""
    return WindowShape(length or (Count(count) if count else _duration(seconds, minutes, ms)))


def sliding(
    length: Count | Duration | None = None,
    *,
    every: Count | Duration,
    seconds: float = 0,
    minutes: float = 0,
    ms: int = 0,
    count: int = 0,
) -> WindowShape:
    """Return windows that end at every multiple of `every`: `sliding(minutes=1,
    every=Duration.seconds(10))`.
    """
    return WindowShape(
        length or (Count(count) if count else _duration(seconds, minutes, ms)), every
    )


def session(
    gap: Duration | None = None, *, seconds: float = 0, minutes: float = 0, ms: int = 0
) -> WindowShape:
    """Return windows of tuples of one key with less than the gap between neighbours:
    `session(minutes=30)`.
    """
    return WindowShape(gap or _duration(seconds, minutes, ms), is_session=True)


def _duration(seconds: float, minutes: float, ms: int) -> Duration:
    return Duration(ms + round(1000 * (seconds + 60 * minutes)))


@overload
def bolt(function: FunctionT, /) -> FunctionT: ...


@overload
def bolt(
    *outputs: str | Mapping[str, str],
    key: Fields = (),
    order_insensitive: bool = False,
    effects: Effects | None = None,
    blocking: bool = False,
    capacity: int | None = None,
    timeout: Duration | None = None,
    ordered: bool = True,
    batch: int | None = None,
    frame: Literal["rows", "arrow", "pandas"] = "rows",
    state_keyed_by_grouping: bool = False,
    state_key_type: str = "",
    state_type: str = "",
    state_version: int = 1,
    migrate_state: Callable[[KeyValueState, int], None] | None = None,
) -> Callable[[FunctionT], FunctionT]: ...


def bolt(*outputs: Any, key: Fields = (), **options: Any) -> Any:
    """Declare a bolt: a function of one tuple, or of a tuple and the task's key-value state.

    An `async def` is an AsyncBolt, whose options are `capacity`, `timeout` and `ordered`. With
    `batch` the function gets up to so many tuples at once, as a list, a `pyarrow.RecordBatch`
    (`frame="arrow"`) or a `pandas.DataFrame` (`frame="pandas"`), and yields rows, or frames with a
    column for each field (ColumnBolt): for models that predict many rows faster than one.

    `outputs` names the fields of the rows that the function yields: a tuple of values, or one value
    where there is one field. Rows are anchored to the input, which is acked when the function ends
    and failed when it raises. Types of fields are given as one mapping: `@bolt({"word": "string",
    "count": "bigint"})`. A function without outputs yields nothing.

    `key` names the fields whose equal values must reach the same task; `inputs=` of `set_bolt` then
    groups by them. The other options are the class attributes of BasicBolt and StatefulBolt;
    `migrate_state` is a function of the state and the version of the code that wrote it.

    >>> @bolt("word")
    ... def split(tup):
    ...     yield from tup["line"].split()
    >>> @bolt("word", "count", key="word")
    ... def count(tup, state):
    ...     yield tup["word"], state.add(tup["word"], 1)
    """
    if len(outputs) == 1 and callable(outputs[0]):
        return _marked(outputs[0], Declaration("bolt", ()))  # @bolt without parentheses
    unknown = sorted(options.keys() - _BOLT_OPTIONS)
    if unknown:
        raise TypeError(
            f"bolt() has no option '{unknown[0]}'; it has key, {', '.join(_BOLT_OPTIONS)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    return _decorator(Declaration("bolt", outputs, _names(key), given))


_BOLT_OPTIONS = (
    "order_insensitive",
    "effects",
    "blocking",
    "capacity",
    "timeout",
    "ordered",
    "batch",
    "frame",
    "state_keyed_by_grouping",
    "state_key_type",
    "state_type",
    "state_version",
    "migrate_state",
)


def windowed(
    *outputs: str | Mapping[str, str],
    window: WindowShape,
    key: Fields = (),
    time: str | None = None,
    lag: Duration | None = None,
    lateness: Duration | None = None,
    late_stream: str | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Declare a windowed bolt: a function of one Window that yields rows, called once per window
    and key.

    `time` names the field with the event time in milliseconds; without it windows go by the clock.
    The other options are `with_lag`, `with_allowed_lateness` and `with_late_tuple_stream` of
    WindowedBolt.
    """
    options = {
        "window": window,
        "time": time,
        "lag": lag,
        "lateness": lateness,
        "late_stream": late_stream,
    }
    return _decorator(Declaration("windowed", outputs, _names(key), options))


def fold(
    *outputs: str | Mapping[str, str],
    window: WindowShape,
    initial: Any,
    key: Fields = (),
    time: str | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
    lag: Duration | None = None,
    lateness: Duration | None = None,
    late_stream: str | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Declare a folding bolt: a function (accumulator, tuple) -> accumulator, kept per window and
    key.

    A window emits the values of its key, the accumulator and, unless windows are by count, its last
    millisecond. Without `outputs` the fields are those of the key, the function's name, and `time`
    (or "last_ms"). `initial` is the first accumulator, or a function that makes it. Sessions need
    `merge`, which puts two accumulators together. Other options: `windowed`.

    >>> @fold(window=tumbling(seconds=10), key="word", time="at_ms", initial=0)
    ... def count(total, tup):
    ...     return total + 1
    """
    options = {
        "window": window,
        "time": time,
        "lag": lag,
        "lateness": lateness,
        "late_stream": late_stream,
    }
    return _decorator(
        Declaration("fold", outputs, _names(key), {**options, "initial": initial, "merge": merge})
    )


def spout(*outputs: str | Mapping[str, str]) -> Callable[[FunctionT], FunctionT]:
    """Declare a finite spout: a function without parameters that returns its rows as a list.

    Each task calls it when it opens and emits every n-th row, tracked. The position is an index, so
    it must return the same rows at every call; rows may be added at the end.

    >>> @spout("line")
    ... def lines():
    ...     return ["to be", "or not to be"]
    """
    return _decorator(Declaration("spout", outputs))


def declaration_of(thing: Any) -> Declaration | None:
    """Return the declaration that a decorator has left on a function; None for anything else."""
    declaration = getattr(thing, _MARK, None)
    return declaration if isinstance(declaration, Declaration) else None


ONE_VALUE = "a list or a dict is one value; yield a tuple for several, as in `yield a, b`"
"""Remedy for a row of one value where there are several fields."""


def row_of(value: Any) -> Any:
    """Return a yielded value as a row: a tuple is one, anything else is the only value of one."""
    return value if isinstance(value, tuple) else (value,)


def _emit_rows(
    rows: Any, emit: Callable[[Any], None], raise_inside: Callable[[Any, Exception], NoReturn]
) -> None:
    """Emit every row that a generator yields; an error of `emit` is raised at the `yield` of the
    row. Twin of the core's.
    """
    for row in rows:
        try:
            emit(row if isinstance(row, tuple) else (row,))
        except Exception as error:
            raise_inside(rows, error)


emit_rows: Callable[[Any, Callable[[Any], None], Callable[[Any, Exception], NoReturn]], None]
emit_rows = _emit_rows if core is None else core.emit_rows


def raise_inside(rows: Any, error: Exception) -> NoReturn:
    """Raise an error at the `yield` where a generator waits."""
    with contextlib.suppress(StopIteration):
        rows.throw(error)
    raise error  # the function has caught it, but its tuple cannot succeed without the row


def _decorator(declared: Declaration) -> Callable[[FunctionT], FunctionT]:
    for output in declared.outputs:
        # the build refuses a list, and names the function and its line
        if not isinstance(output, Iterable):
            raise TypeError(
                f"{declared.kind}({output!r:.40}): outputs are names of fields as texts, or one mapping of names to types"
            )
    return lambda function: _marked(function, declared)


def _marked(function: FunctionT, declared: Declaration) -> FunctionT:
    # both components would get the last declaration
    if (declaration_of(function) or declared) != declared:
        name = getattr(function, "__name__", function)
        raise TypeError(
            f"{name} is decorated twice; for variants write a function that returns a decorated function"
        )
    try:
        setattr(function, _MARK, declared)
    except (AttributeError, TypeError):
        raise TypeError(
            f"@{declared.kind} decorates functions, not a {type(function).__name__}"
        ) from None
    return function


def _names(key: Fields) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
