"""Tuple as user code sees it, and its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.topology import AGAIN_PREFIX, LATE_PREFIX, stream_of

Roots = int | tuple[int, ...]
"""Roots of a tuple: 0 for an untracked one, one 63-bit id, or several (multi-anchored)."""


class Source:
    """Producer of a tuple: component, task and stream, with the stream's declared fields.

    `channel` is the stream's name in frames.
    """

    __slots__ = (
        "component",
        "task",
        "stream",
        "fields",
        "position_by_field",
        "is_late",
        "is_again",
        "channel",
    )

    def __init__(
        self,
        component: str,
        task: int,
        channel: str,
        fields: tuple[str, ...],
        is_late: bool = False,
    ) -> None:
        stream = stream_of(channel)
        self.component = component
        self.task = task
        self.stream = stream
        self.fields = fields
        self.is_late = is_late or channel.startswith(LATE_PREFIX)
        self.is_again = channel.startswith(AGAIN_PREFIX)
        self.channel = LATE_PREFIX + stream if is_late else channel
        self.position_by_field: Mapping[str, int] = {name: i for i, name in enumerate(fields)}

    def beside(self, channel: str) -> Source:
        """Return the source of another channel of the same task."""
        return Source(self.component, self.task, channel, self.fields)

    def position(self, field: str) -> int:
        """Return the position of a field; KeyError for an unknown one."""
        try:
            return self.position_by_field[field]
        except KeyError:
            raise KeyError(
                f"stream '{self.stream}' of component '{self.component}' has no field '{field}'; "
                f"it declares {', '.join(self.fields) or 'none'}"
            ) from None


class ValueReader:
    """Values of a tuple by name or place. Twin of the core's, which is in its place where there is
    one.
    """

    __slots__ = ()
    values: tuple[Any, ...]
    source: Source

    def __getitem__(self, which: str | int) -> Any:
        if type(which) is str:
            return self.values[self.source.position(which)]
        return self.values[which]  # type: ignore[index]


_read_plainly = ValueReader.__getitem__
if core is not None:
    ValueReader = core.Reader  # type: ignore[misc]


class Tuple(ValueReader):
    """List of named values; it must not be changed.

    `tup["word"]` and `tup[0]` read a value, `tup.values` all (the fastest way). `roots` is for
    acking.
    """

    __slots__ = ("values", "roots", "source")

    def __init__(self, values: tuple[Any, ...], roots: Roots, source: Source) -> None:
        self.values = values
        self.roots = roots
        self.source = source

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the values."""
        return self.source.fields

    @property
    def component(self) -> str:
        """Component that emitted it."""
        return self.source.component

    @property
    def task(self) -> int:
        """Task that emitted it."""
        return self.source.task

    @property
    def stream(self) -> str:
        """Stream that carried it."""
        return self.source.stream

    @property
    def is_tick(self) -> bool:
        """Whether it is a tick (`topology.tick.tuple.freq.secs`)."""
        return self.source.stream == "__tick"

    def as_dict(self) -> dict[str, Any]:
        """Return the values by field name."""
        return dict(zip(self.source.fields, self.values, strict=True))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}" for name, value in zip(self.fields, self.values, strict=False)
        )
        return f"Tuple({self.component}#{self.task}/{self.stream}: {shown})"


if core is not None:
    core.set_reading(Tuple, Source, _read_plainly)


def tuples_of(rows: Sequence[tuple[tuple[Any, ...], Roots, Source]]) -> list[Tuple]:
    """Return a tuple of each row (values, roots, source)."""
    if core is not None and type(rows) is list:
        tuples: list[Tuple] = core.tuples(rows, Tuple)
        return tuples
    return [Tuple(*row) for row in rows]


def each_root(roots: Roots) -> tuple[int, ...]:
    return roots if isinstance(roots, tuple) else (roots,)


def union_roots(roots: Iterable[Roots]) -> Roots:
    """Return the roots of a tuple that is anchored to tuples with these roots."""
    distinct: dict[int, None] = {}
    for of_anchor in roots:
        for root in each_root(of_anchor):
            if root:
                distinct[root] = None
    return tuple(distinct) if len(distinct) > 1 else next(iter(distinct), 0)
