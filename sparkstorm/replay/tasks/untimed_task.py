"""Fast path of a BasicBolt's task in a replay without times: rows are bare values.

Emitted rows are gathered in one list and partitioned among the subscribers' tasks after the batch. Tests compare it with
ReplayTask, which runs in all other cases: with times, with records put aside, with keys of effects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from sys import getrefcount
from typing import Any

from sparkstorm.api.components import BasicBolt
from sparkstorm.executor.emitter import Emitter, Route
from sparkstorm.executor.runner import BasicCollector, BasicRunner, FailedInput, ReportError
from sparkstorm.executor.state import MemoryState
from sparkstorm.executor.user_traceback import failure_of
from sparkstorm.grouping.hashing import stable_hash
from sparkstorm.grouping.routes import PickOne, Rows, Target, pick_one
from sparkstorm.model.topology import DEFAULT_STREAM, Grouping
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.model.values.codec import SCALARS
from sparkstorm.replay.tasks.batches import OutEdge
from sparkstorm.replay.tasks.task import ReplayTask, TaskMode

Values = tuple[Any, ...]
_CACHED_KEYS = 1 << 17


def may_be_untimed(bolt: Any, mode: TaskMode) -> bool:
    """Return whether a bolt's tasks can be untimed ones."""
    return isinstance(bolt, BasicBolt) and not (mode.is_timed or mode.skip_bad or mode.is_keyed)


def may_partition_in_bulk(route: Route, groupings: Iterable[Grouping]) -> bool:
    """Return whether a stream's rows can be partitioned after the batch: no custom and no direct grouping."""
    return route.source.stream == DEFAULT_STREAM and all(g.kind not in ("custom", "direct") for g in groupings)


class UntimedTask(ReplayTask):
    """A ReplayTask over bare rows; `partitioner` partitions the default stream's rows in bulk, if possible."""

    partitioner: RowPartitioner | None = None

    def run_rows(self, rows: Collection[Values], source: Source) -> None:
        """Execute the rows of one source in their order."""
        runner: UntimedRunner = self._runner
        for failure in runner.run_rows(rows, source):
            self._try_again(failure)
        self._attributes.look(len(rows))
        self.counts.executed += len(rows)

    def take_emitted(self) -> None:
        """Count emitted rows; they can no longer be undone."""
        self.divide()
        super().take_emitted()

    def divide(self) -> None:
        """Partition the gathered rows among the subscribers."""
        if self.partitioner is not None and (out := self._runner.out):
            self.counts.emitted += len(out)
            self.partitioner.divide(out)
            out.clear()

    def _make_runner(self) -> Any:
        assert isinstance(self._bolt, BasicBolt)
        width = self.partitioner.width if self.partitioner is not None else None
        collector = GatheringCollector(self.emitter, self.task, self._report, width)
        return UntimedRunner(self._bolt, self.emitter, self.state, collector)


class GatheringCollector(BasicCollector):
    """Collector that gathers rows of the default stream in `out`, with an emitter's checks, if their width is given."""

    __slots__ = ("out",)

    def __init__(self, emitter: Emitter, task: int, report: ReportError, width: int | None) -> None:
        super().__init__(emitter, task, report)
        self.out: list[Values] = []
        if width is not None:
            self.emit = _gathering_emit(emitter, self.out, width)


def _gathering_emit(emitter: Emitter, out: list[Values], width: int) -> Callable[..., None]:
    scalars, gather, plain, checked = SCALARS, out.append, emitter.emit, emitter.routes[DEFAULT_STREAM].checked

    def emit_one(values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row of one value: a fast path."""
        if stream == DEFAULT_STREAM and type(values) is tuple and len(values) == 1 and type(values[0]) in scalars:
            gather(values)
        else:
            emit(values, stream)

    def emit(values: Any, stream: str = DEFAULT_STREAM) -> None:
        if stream != DEFAULT_STREAM:
            plain(values, stream)
            return
        if type(values) is list:
            values = tuple(values)
        if type(values) is not tuple or len(values) != width:
            values = checked(values)
        else:
            for value in values:
                if type(value) not in scalars:
                    values = checked(values)
                    break
        gather(values)

    return emit_one if width == 1 else emit


class UntimedRunner(BasicRunner):
    """Runs a BasicBolt over bare rows."""

    def __init__(self, bolt: BasicBolt, emitter: Emitter, state: MemoryState | None, collector: GatheringCollector) -> None:
        super().__init__(bolt, emitter, state, collector)
        self.out = collector.out
        self._new = lru_cache(bare)

    def run(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute tuples that are tried again."""
        return [failure for tup in tuples for failure in self.run_rows([tup.values], tup.source)]

    def run_rows(self, rows: Iterable[Values], source: Source) -> list[FailedInput]:
        """Execute every row; return the failed ones, whose changes are undone."""
        failures: list[FailedInput] = []
        out, log, execute, collector, new = self.out, self._emitter.log, self.bolt.execute, self._collector, self._new(source)
        undo: list[Any] = self._state.undo if self._state is not None else []
        out_mark = log_mark = 0
        has_outputs, values, rest = bool(self._emitter.routes), None, iter(rows)
        self._emitter.roots = 0
        tup = new()
        ours_alone = getrefcount(tup)
        while True:
            try:
                if has_outputs:
                    for values in rest:
                        if getrefcount(tup) != ours_alone:  # the bolt has kept it; else it is as good as a new one
                            tup = new()
                        tup.values = values
                        out_mark, log_mark = len(out), len(log)
                        undo.clear()  # what is done needs no undoing; a short list stays in the cache
                        execute(tup, collector)
                else:
                    for values in rest:
                        if getrefcount(tup) != ours_alone:
                            tup = new()
                        tup.values = values
                        undo.clear()
                        execute(tup, collector)
                return failures
            except (Exception, SystemExit) as error:
                del out[out_mark:]
                self._emitter.roll_back(log_mark)
                if self._state is not None:
                    self._state.roll_back(0)
                assert values is not None
                failures.append((Tuple(values, 0, source), failure_of(error)))


def bare(source: Source) -> Callable[[], Tuple]:
    """Return a factory of tuples of one source without values, at half the cost of complete ones."""
    return type("Tuple", (Tuple,), {"__slots__": (), "__init__": object.__init__, "roots": 0, "source": source})


class RowPartitioner:
    """Partitions many rows of the default stream among its subscribers' tasks."""

    def __init__(self, route: Route, seed: int) -> None:
        self.width = route.width
        self._seed = seed
        self._divide: list[Callable[[Sequence[Values]], None]] = []

    def subscribe(self, grouping: Grouping, positions: Sequence[int], edges: Sequence[OutEdge]) -> None:
        """Add one subscriber's tasks, sorted; their edges then hold bare rows."""
        rows = [edge.rows for edge in edges]
        for edge in edges:
            edge.is_bare = True
        if grouping.kind == "all":
            self._divide.append(lambda out: _to_all(rows, out))
        elif grouping.kind == "global" or (grouping.kind == "fields" and len(rows) == 1):
            self._divide.append(rows[0].extend)
        elif grouping.kind == "fields" and len(positions) == 1:
            self._divide.append(_by_key(positions[0], rows))
        else:
            targets = [Target(edge.target, edge.rows, edge.is_local) for edge in edges]
            self._divide.append(_one_by_one(pick_one(grouping, positions, targets, self._seed)))

    def divide(self, out: Sequence[Values]) -> None:
        """Append every row to the edges of its target tasks."""
        for divide in self._divide:
            divide(out)


class _Homes(dict[Any, Callable[[Values], None]]):
    """Cache by key of the `append` method of the target's rows."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, key: Any) -> Callable[[Values], None]:
        append = self._rows[stable_hash(key) % len(self._rows)].append
        if len(self) >= _CACHED_KEYS:
            self.clear()
        self[key] = append
        return append


def _by_key(position: int, rows: Sequence[Rows]) -> Callable[[Sequence[Values]], None]:
    home_of = _Homes(rows).__getitem__

    def divide(out: Sequence[Values]) -> None:
        for values in out:
            try:
                home_of(values[position])(values)
            except TypeError:  # a list or mapping as key cannot be remembered
                rows[stable_hash(values[position]) % len(rows)].append(values)

    return divide


def _one_by_one(pick: PickOne) -> Callable[[Sequence[Values]], None]:
    def divide(out: Sequence[Values]) -> None:
        for values in out:
            pick(values).append(values)

    return divide


def _to_all(several: Sequence[Rows], out: Sequence[Values]) -> None:
    for rows in several:
        rows.extend(out)
