"""Metrics of user code: a change is undone with the call that made it and is part of the commit,
like emits and state.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue

MOST_METRICS = 64
"""Of one task: every commit of its worker has all of them."""
SAMPLED_MS = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,299}")
Note = Callable[[MetricValue, float], None]


class _Metric:
    __slots__ = ("_note", "_value")

    def __init__(self, value: MetricValue, note: Note) -> None:
        self._value = value
        self._note = note

    def _grow(self, amount: int) -> None:
        if type(amount) is not int or not 0 <= amount < 2**63:
            raise ValueError(
                f"a counter grows by a whole number, not by {amount!r:.40}; what may fall is a gauge"
            )
        self._note(self._value, amount)


class Counter(_Metric):
    """A count that only grows."""

    __slots__ = ()

    def inc(self, amount: int = 1) -> None:
        """Add to it."""
        self._grow(amount)


class Meter(_Metric):
    """Storm's name for a counter; rates are taken from counts by their readers."""

    __slots__ = ()

    def mark(self, amount: int = 1) -> None:
        """Add to it."""
        self._grow(amount)


class Gauge(_Metric):
    """A value of a moment."""

    __slots__ = ()

    def set(self, value: float) -> None:
        """Replace it."""
        self._note(self._value, _number(value))


class Histogram(_Metric):
    """A distribution of values, in buckets 9 % wide."""

    __slots__ = ()

    def update(self, value: float) -> None:
        """Add one value."""
        self._note(self._value, _number(value))


class TaskMetrics:
    """Metrics of one task by name. Unbound, as in a test, they are counted at once.

    Bound to a task, a change made by the task's own thread belongs to the call under way; one by
    another thread is counted with the next commit.
    """

    def __init__(
        self,
        component: str = "",
        values: dict[str, MetricValue] | None = None,
        thread: Callable[[], int] = lambda: 0,
    ) -> None:
        """`thread` returns the number of the thread that calls it."""
        self.component = component
        self._thread = thread
        self.values: dict[str, MetricValue] = {} if values is None else values
        self._made: dict[str, type] = {}
        self._takers: dict[int, Note] = {}  # by thread
        self._others: deque[tuple[MetricValue, float]] = deque()
        self._sampled: list[_Sampled] = []

    def bind(self, take: Note) -> None:
        """Have changes by this thread go through `take`."""
        self._takers[self._thread()] = take

    def take_others(self) -> int:
        """Count what other threads have noted since the last call; return how many changes."""
        count = len(self._others)
        for _ in range(count):
            value, amount = self._others.popleft()
            value.add(amount)
        return count

    def counter(self, name: str) -> Counter:
        """Return the counter of this name."""
        return Counter(self._value(name, Counter, MetricKind.COUNTER), self._note)

    def meter(self, name: str) -> Meter:
        """Return the counter of this name, with Storm's method."""
        return Meter(self._value(name, Meter, MetricKind.COUNTER), self._note)

    def gauge(self, name: str) -> Gauge:
        """Return the gauge of this name."""
        return Gauge(self._value(name, Gauge, MetricKind.GAUGE), self._note)

    def histogram(self, name: str) -> Histogram:
        """Return the histogram of this name."""
        return Histogram(self._value(name, Histogram, MetricKind.HISTOGRAM), self._note)

    def sample_by(self, name: str, ask: Callable[[], Any], period_ms: int = SAMPLED_MS) -> None:
        """Have a function asked for a number, or numbers by name, once in a period."""
        if not callable(ask):
            raise InvalidConfigError(
                f"component '{self.component}': metric {name!r:.100} needs a function, not {ask!r:.80}"
            )
        self._value(name, _Sampled, MetricKind.GAUGE)
        self._sampled.append(_Sampled(name, ask, max(1, period_ms)))

    def sample(self, now_ms: int, report: Callable[[BaseException], None]) -> int:
        """Ask the functions that are due; return how many values are new. One that raises is
        reported and asked no more.
        """
        num_changed = 0
        for sampled in [sampled for sampled in self._sampled if now_ms >= sampled.due_ms]:
            sampled.due_ms = now_ms + sampled.period_ms
            try:
                answer = sampled.ask()
                numbers = (
                    {f"{sampled.name}.{key}": value for key, value in answer.items()}
                    if isinstance(answer, Mapping)
                    else {sampled.name: answer}
                )
                for name, value in numbers.items():
                    if value is not None:
                        gauge = self._value(name, _Sampled, MetricKind.GAUGE)
                        num_changed += gauge.value != value
                        gauge.add(_number(value))
            except Exception as error:
                self._sampled.remove(sampled)
                report(error)
        return num_changed

    def _value(self, name: str, made: type, kind: MetricKind) -> MetricValue:
        where = f"component '{self.component}': metric {name!r:.120}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidConfigError(
                f"{where}: a name has up to 300 letters, digits and _ . : / -, and begins with a letter or _"
            )
        if self._made.setdefault(name, made) is not made:
            raise InvalidConfigError(
                f"{where} is a {self._made[name].__name__.strip('_').lower()} already, not a {made.__name__.strip('_').lower()}"
            )
        if name not in self.values or self.values[name].kind is not kind:
            if len(self.values) >= MOST_METRICS and name not in self.values:
                raise InvalidConfigError(
                    f"{where}: a task has at most {MOST_METRICS} metrics, since every commit has all of them"
                )
            self.values[name] = MetricValue(kind)
        return self.values[name]

    def _note(self, value: MetricValue, amount: float) -> None:
        take = self._takers.get(self._thread())
        if take is not None:
            take(value, amount)
        elif self._takers:
            self._others.append((value, amount))
        else:
            value.add(amount)


class _Sampled:
    """A function that is asked once in a period."""

    def __init__(self, name: str, ask: Callable[[], Any], period_ms: int) -> None:
        self.name = name
        self.ask = ask
        self.period_ms = period_ms
        self.due_ms = 0


def _number(value: Any) -> float:
    """Return a number as a record keeps it; ValueError for what is none."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, int | float) or hasattr(value, "__float__"):
        number = float(value)
        if math.isfinite(number):
            return number
    raise ValueError(f"a metric takes a finite number, not {value!r:.40}")
