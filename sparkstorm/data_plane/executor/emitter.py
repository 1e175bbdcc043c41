"""Emit path: from values in user code to rows per target task.

`log` remembers the row list of every row in the order of emission, so that a failed execute can be
undone by length.

Law: a call that fails leaves no row, no count and no change of a metric; counts are taken only when
nothing can be undone any more. Left out: a buffer per call that is appended when it has succeeded:
the usual call succeeds, and would pay for a second list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstorm.api.functions import ONE_VALUE
from sparkstorm.common.errors import CodecError, InvalidTopologyError, show
from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.grouping.routes import (
    MakeTarget,
    PickMany,
    PickOne,
    Rows,
    Target,
    always,
    is_single,
    pick_many,
    pick_one,
    ring_of,
)
from sparkstorm.common.model.compiled import core, empty
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.topology import BAD_STREAM, DEFAULT_STREAM, Grouping, Topology
from sparkstorm.common.model.tuples import Roots, Source
from sparkstorm.common.model.values.codec import Codec, is_plain
from sparkstorm.common.model.values.declared_values import declared_fields, row_check
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.executor.output_clock import OutputClock

# In strict mode, where component and field can be named; beyond it a commit would block the store.
MAX_ROWS_PER_TUPLE = 1_000_000
# Rows that are weighed to estimate all: the budget of an epoch is a rough one. Half of it errs more
# where few rows are large, double costs each turn twice as much.
_SAMPLE = 16
_MOST_PICKS = 64  # MOST_PICKS of the compiled core


@dataclass(frozen=True, slots=True)
class RouteSubscription:
    """One subscriber of a route: how tasks are picked, and whether event time needs every row."""

    grouping: Grouping
    positions: Sequence[int]
    targets: Sequence[Target]
    seed: int
    has_clock: bool
    ring: LoadRing | None


class Route:
    """One output stream of one task: its fields, its subscribers' tasks, and how to pick among
    them.
    """

    __slots__ = (
        "source",
        "width",
        "pick",
        "singles",
        "multis",
        "targets",
        "direct_rows",
        "direct_outputs",
        "is_direct",
        "subscriptions",
        "declared",
        "holds",
        "_codec",
    )

    def __init__(
        self, source: Source, codec: Codec, is_direct: bool, types: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self.width = len(source.fields)
        # the one picker of a stream with one subscriber: the fast path
        self.pick: PickOne | None = None
        self.singles: list[PickOne] = []
        self.multis: list[PickMany] = []
        self.targets: list[Target] = []
        self.direct_rows: dict[int, Rows] = {}
        self.direct_outputs: dict[int, OutputClock] = {}
        self.is_direct = is_direct
        self.subscriptions: list[RouteSubscription] = []
        # As a batch job writes them: a value of another type would end it after a quiet live run.
        self.declared = declared_fields(source.fields, types or {})
        self.holds = row_check(self.declared) if self.declared else None
        self._codec = codec

    @property
    def rest(self) -> Callable[[Any, int], Any]:
        """Return the check of values that are neither scalars nor plain containers."""
        return self._codec.rest

    @property
    def where(self) -> str:
        """Component and stream, for errors."""
        return f"component '{self.source.component}', stream '{self.source.stream}'"

    def subscribe(
        self,
        grouping: Grouping,
        targets: Sequence[Target],
        task: int,
        seed: int,
        output: OutputClock | None = None,
    ) -> None:
        """Add one subscriber component; with an `output`, one that receives watermarks."""
        self.targets += targets
        positions = [self.source.position(f) for f in grouping.fields]
        has_clock = output is not None and output.clock is not None
        ring = ring_of(grouping, targets, seed)
        self.subscriptions.append(
            RouteSubscription(grouping, positions, targets, seed, has_clock, ring)
        )
        if grouping.kind == "direct":
            self.direct_rows.update((t.task, t.rows) for t in targets)
            self.direct_outputs.update((t.task, output) for t in targets if output is not None)
        elif is_single(grouping):
            picker = pick_one(grouping, positions, targets, seed, ring, self.where)
            self.singles.append(picker if output is None else output.one(picker))
        elif grouping.kind == "all" and output is None and len(targets) <= _MOST_PICKS:
            # A picker for each task: the core takes no picker of several.
            self.singles += [always(target.rows) for target in targets]
        else:
            several = pick_many(grouping, task, targets)
            self.multis.append(several if output is None else output.many(several))
        is_plain = self.source.stream != BAD_STREAM  # whose rows are counted
        self.pick = (
            self.singles[0] if is_plain and len(self.singles) == 1 and not self.multis else None
        )

    def spread(self, values: tuple[Any, ...], roots: Roots, log: list[Rows]) -> int:
        """Append a row for every target of every subscriber; returns how many."""
        row = (values, roots, self.source)
        chosen = [pick(values) for pick in self.singles]
        for pick_several in self.multis:
            chosen += pick_several(values)
        for rows in chosen:
            rows.append(row)
        log += chosen
        return len(chosen)

    def checked(self, values: Any) -> tuple[Any, ...]:
        """Values as a tuple of the right width and of the codec's closed set; errors name
        component, stream and field.
        """
        where = self.where
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise InvalidTopologyError(f"{where}: emit needs a list of values, not {values!r:.80}")
        if len(values) != self.width:
            is_one = len(values) == 1 and isinstance(values[0], list | dict)
            raise InvalidTopologyError(
                f"{where}: emitted {counted(len(values), 'value')} for {counted(self.width, 'field')} "
                f"({', '.join(self.source.fields) or 'none'}){f'; {ONE_VALUE}' if is_one else ''}"
            )
        normal = []
        for field, value in zip(self.source.fields, values, strict=True):
            try:
                normal.append(self._codec.normalise(value))
            except CodecError as error:
                raise CodecError(f"{where}, field '{field}': {error}") from error
        for place, kind, holds in self.declared:
            if not holds(normal[place]):
                raise CodecError(
                    f"{where}, field '{self.source.fields[place]}': {show(normal[place])} is no {kind}, "
                    "as the field is declared; emit one, or declare another type ('any' for several)"
                )
        return tuple(normal)


class Emitter:
    """A task's output streams; `roots` is what new rows descend from."""

    __slots__ = (
        "renewed",
        "routes",
        "log",
        "unread",
        "roots",
        "is_strict",
        "component",
        "spreads",
        "timed_outputs",
        "changes",
        "changed",
    )
    takes_pieces = True  # False where an observer needs every emitted row
    roots_slot = "roots"  # where the compiled core reads them

    def __init__(self, component: str, routes: Mapping[str, Route], is_strict: bool) -> None:
        self.component = component
        self.routes = routes
        self.log: list[Rows] = []
        # rows of streams without subscribers, so that `log` has a list for every row
        self.unread: Rows = []
        # place in log, what to add to its length for (emitted, transferred), and how many rows of
        # these are of the stream `bad`
        self.spreads: list[tuple[int, int, int, int]] = []
        # changes of user metrics: each has its place in `log` too, so that a failed call takes them
        # back as it does rows
        self.changes: list[tuple[MetricValue, float]] = []
        self.changed = 0  # changes that were made final
        self.roots: Roots = 0
        self.renewed: list[Roots] = []  # of inputs whose time-out a bolt has reset
        # outputs to subscribers that receive watermarks
        self.timed_outputs: Sequence[OutputClock] = ()
        self.is_strict = is_strict  # check every value, not only those of unusual types

    def emit(self, values: Any, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""
        route = self.routes.get(stream)
        if route is None or route.is_direct:
            raise self._no_route(stream)
        # This is called for every row without the core.
        if type(values) is list:
            values = tuple(values)
        if type(values) is not tuple or len(values) != route.width or self.is_strict:
            values = route.checked(values)
            if len(self.log) >= MAX_ROWS_PER_TUPLE:
                raise InvalidTopologyError(
                    f"component '{self.component}' emitted more than {MAX_ROWS_PER_TUPLE:,} rows for the inputs of one turn"
                )
        elif not all(map(is_plain, values)) or (
            route.holds is not None and not route.holds(values)
        ):
            values = route.checked(values)
        pick = route.pick
        if pick is None:
            position = len(self.log)
            count = route.spread(values, self.roots, self.log)
            if not count:
                # A row that goes nowhere needs a place in `log` too, or a failed call would take
                # back the one before it.
                self.unread.append((values, self.roots, route.source))
                self.log.append(self.unread)
            self.spreads.append(
                (position, 1 - (count or 1), 0 if count else -1, int(stream == BAD_STREAM))
            )
        else:
            rows = pick(values)
            rows.append((values, self.roots, route.source))
            self.log.append(rows)

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""
        route = self.routes.get(stream)
        if route is None or not route.is_direct:
            raise self._no_route(stream)
        rows = self._direct_rows(route, task)
        values = route.checked(values)
        # Late rows of a direct stream go another way too: the sender decides (decision 11).
        if task in route.direct_outputs:
            rows = route.direct_outputs[task].divert(rows, values)
        rows.append((values, self.roots, route.source))
        self.log.append(rows)

    def put_pieces(self, route: Route, pieces: Sequence[tuple[Rows, Any]], rows: int) -> None:
        """Send pieces of a batch of so many rows, each to its list; those of a stream without
        subscribers to `unread`.
        """
        sent = sum(piece.num_rows for target, piece in pieces if target is not self.unread)
        is_bad = route.source.stream == BAD_STREAM
        self.spreads.append(
            (len(self.log), rows - len(pieces), sent - len(pieces), rows if is_bad else 0)
        )
        for target, piece in pieces:
            target.append((piece, self.roots, route.source))
            self.log.append(target)

    def note(self, value: MetricValue, amount: float) -> None:
        """Change a metric of user code, once what the call emits is final."""
        self.spreads.append((len(self.log), -1, -1, 0))
        self.changes.append((value, amount))
        self.log.append(self.changes)

    @property
    def emitted(self) -> int:
        """Return how many rows, or pieces of batches, `log` has."""
        return len(self.log) - len(self.changes)

    def check(self, values: Any, stream: str, task: int | None) -> tuple[Any, ...]:
        """Values as emit (task None) or emit_direct would send them, or the error that it would
        raise; changes nothing.
        """
        route = self.routes.get(stream)
        if route is None or route.is_direct != (task is not None):
            raise self._no_route(stream)
        if task is not None:
            self._direct_rows(route, task)
        return route.checked(values)

    def take_counts(self) -> tuple[int, int, int]:
        """(emitted, transferred, emitted to the stream `bad`) since the last call; what was emitted
        can no longer be taken back.
        """
        for output in self.timed_outputs:
            output.settle(self.log)
        emitted = transferred = len(self.log)
        bad = 0
        for _, more_emitted, more_transferred, more_bad in self.spreads:
            emitted += more_emitted
            transferred += more_transferred
            bad += more_bad
        if self.changes:
            for value, amount in self.changes:
                value.add(amount)
            self.changed += len(self.changes)
            self.changes.clear()
        empty(self.log)
        self.unread.clear()
        self.spreads.clear()
        return emitted, transferred, bad

    def weight(self) -> int:
        """About how many bytes the rows of `log` take, by a sample: what leaves an epoch is counted
        again, exactly.
        """
        return _weigh_log(self.log, _SAMPLE)

    def roll_back(self, mark: int) -> None:
        """Take back every row emitted since `log` had this length."""
        log = self.log
        while len(log) > mark:
            log.pop().pop()
        while self.spreads and self.spreads[-1][0] >= mark:
            self.spreads.pop()
        for output in self.timed_outputs:
            # A clock that was set by a row which is gone would make the next one late.
            output.recount()

    def _direct_rows(self, route: Route, task: int) -> Rows:
        rows = route.direct_rows.get(task)
        if rows is None:
            raise InvalidTopologyError(
                f"component '{self.component}': task {task!r} does not listen to direct stream "
                f"'{route.source.stream}'; {sorted(route.direct_rows)} do"
            )
        return rows

    def _no_route(self, stream: str) -> InvalidTopologyError:
        if stream in self.routes and not stream.startswith("__"):
            return InvalidTopologyError(
                f"component '{self.component}': stream '{stream}' is "
                + (
                    "direct: use emit_direct"
                    if self.routes[stream].is_direct
                    else "not direct: use emit"
                )
            )
        names = (
            ", ".join(sorted(name for name in self.routes if not name.startswith("__"))) or "none"
        )
        return InvalidTopologyError(
            f"component '{self.component}' emitted to undeclared stream '{stream}'; it declares {names}"
        )


def weigh(rows: Sequence[Any]) -> int:
    """Return about how many bytes these rows take, by a sample."""
    if core is not None and type(rows) is list:
        weight: int = core.weigh_rows(rows, _SAMPLE)
        return weight
    return weigh_plainly(rows, _SAMPLE)


def weigh_plainly(rows: Sequence[Any], most: int) -> int:
    """Return the same by a sample of `most` rows. Twin of the core's."""
    sample = rows[:: -(-len(rows) // most)] if rows else ()
    return sum(_size(row[0]) for row in sample) * len(rows) // (len(sample) or 1)


def weigh_log_plainly(log: Sequence[Rows], most: int) -> int:
    """Return about how many bytes the last rows of these lists take, by a sample of `most`. Twin of
    the core's.
    """
    sample = log[:: -(-len(log) // most)] if log else ()
    return sum(_size(rows[-1][0]) for rows in sample) * len(log) // (len(sample) or 1)


_weigh_log: Callable[[list[Rows], int], int] = weigh_log_plainly if core is None else core.weigh_log


def _size(value: Any) -> int:
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) + 2
    if kind is list or kind is tuple:
        return 2 + sum(map(_size, value))
    if kind is dict:
        return 2 + sum(map(_size, value.values()))
    return int(getattr(value, "nbytes", 8))  # of a piece of a batch


def fast_emit(emitter: Emitter) -> Callable[..., None]:
    """Return `emitter.emit`, with the usual case in the compiled core: streams whose pickers choose
    one task each.

    The core calls `emitter.emit` for every other case, so that checks and errors exist once.
    """
    if core is None or emitter.is_strict:
        return emitter.emit
    others = {
        stream: _core_emit(emitter, stream, {})
        for stream in emitter.routes
        if stream not in (DEFAULT_STREAM, BAD_STREAM)  # rows of `bad` are counted
    }
    return _core_emit(emitter, DEFAULT_STREAM, others)


def _core_emit(
    emitter: Emitter, stream: str, others: Mapping[str, Callable[..., None]]
) -> Callable[..., None]:
    """Return the core's emission to a stream; all to one with direct or custom groupings, or many
    tasks, is left to `emitter.emit`.
    """
    route = emitter.routes.get(stream)
    if route and (route.is_direct or route.multis or len(route.singles) > _MOST_PICKS):
        route = None
    made: Callable[..., None] = core.Emit(
        emitter,
        emitter.roots_slot,
        emitter.log,
        emitter.spreads,
        emitter.unread,
        tuple(route.singles) if route else (),
        route.source if route else None,
        route.width if route else -1,
        stream,
        emitter.emit,
        route.rest if route else None,
        route.holds if route else None,
        others,
    )
    return made


def build_routes(
    topology: Topology,
    component: str,
    task: int,
    tasks_of: Mapping[str, Sequence[int]],
    codec: Codec,
    seed: int,
    timed_outputs: Mapping[tuple[str, str], OutputClock],
    make_target: MakeTarget,
) -> dict[str, Route]:
    """Routes of a task by stream, with a row list for every target task of every subscriber."""
    routes = {}
    made = topology.components[component]
    for name, stream in made.streams.items():
        # A source has records that are not of its types, which it puts aside.
        types = stream.types if made.kind == "bolt" else {}
        source = Source(component, task, name, stream.fields)
        route = routes[name] = Route(source, codec, stream.direct, types)
        for subscriber, grouping in topology.subscribers(component, name):
            output = timed_outputs.get((name, subscriber))
            targets = (
                output.targets
                if output
                else [make_target(name, t) for t in tasks_of.get(subscriber, ())]
            )
            route.subscribe(grouping, targets, task, seed, output)
    return routes
