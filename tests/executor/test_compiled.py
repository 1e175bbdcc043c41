"""The compiled core and its twins in Python do the same: emits, calls of bolts, state, folds of
edges.
"""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.builder import Declarer
from sparkstorm.api.functions import _emit_rows as emit_rows_plainly
from sparkstorm.api.functions import emit_rows, raise_inside
from sparkstorm.common.errors import CodecError, MalformedFrameError, SparkStormError
from sparkstorm.common.grouping import routes
from sparkstorm.common.grouping.routes import Target, own_targets
from sparkstorm.common.model import compiled, tuples
from sparkstorm.common.model.roots import tracked
from sparkstorm.common.model.topology import Grouping, Stream
from sparkstorm.common.model.tuples import Source, each_root
from sparkstorm.common.model.values.codec import SCALARS, Codec
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.data_plane.executor import emitter as emitters
from sparkstorm.data_plane.executor import manual_runner, output_clock
from sparkstorm.data_plane.executor import runner as runners
from sparkstorm.data_plane.executor import state as states
from sparkstorm.data_plane.executor.emitter import Emitter, build_routes, fast_emit
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.runner import BasicCollector, BasicRunner
from sparkstorm.data_plane.executor.state import Cells, MemoryState, noting
from sparkstorm.data_plane.task_kit.held import can_change, can_change_plainly
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.worker import epoch as epochs
from sparkstorm.data_plane.worker.epoch import Epoch, RandomIds
from sparkstorm.data_plane.worker.tasks import spout_collector
from sparkstorm.data_plane.worker.tasks.spout_collector import SpoutCollector
from tests.tiers import examples
from tests.transport.values import values

SOURCE = Path(compiled.__file__).with_name("_core.c")
# a bolt's subscription by one grouping to a stream
GROUPINGS: dict[str, Callable[[Declarer, str], Any]] = {
    "shuffle": lambda d, s: d.shuffle_grouping("spout", s),
    "local": lambda d, s: d.local_or_shuffle_grouping("spout", s),
    "fields": lambda d, s: d.fields_grouping("spout", "b", stream=s),
    "two fields": lambda d, s: d.fields_grouping("spout", "a", "b", stream=s),
    "load-aware": lambda d, s: d.load_aware_shuffle_grouping("spout", s),
    "key range": lambda d, s: d.key_range_grouping("spout", "b", ["k2", "m"], s),
    "partial key": lambda d, s: d.partial_key_grouping("spout", "a", stream=s),
    "two partial keys": lambda d, s: d.partial_key_grouping("spout", "b", "a", stream=s),
    "global": lambda d, s: d.global_grouping("spout", s),
    "all": lambda d, s: d.all_grouping("spout", s),
}


class _Streams(Spout):
    """Spout with a stream that has subscribers, one that has none, and a direct one."""

    outputs: Any = {  # noqa: RUF012
        "default": ("a", "b"),
        "side": ("a", "b"),
        "quiet": ("a", "b"),
        "bad": ("a", "b"),
        "told": Stream(("a", "b"), direct=True),
    }


@pytest.fixture(params=["plain", "compiled"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "compiled" and compiled.core is None:
        pytest.skip(compiled.description)
    use(request.param, monkeypatch)
    return str(request.param)


def use(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = compiled.core if which == "compiled" else None
    for module in (
        emitters,
        runners,
        routes,
        epochs,
        frames,
        states,
        output_clock,
        tuples,
        manual_runner,
        spout_collector,
    ):
        monkeypatch.setattr(module, "core", core)
    if core is None and compiled.core is not None:
        for name in ("add", "get", "put"):
            monkeypatch.setattr(MemoryState, name, vars(MemoryState)[name].plain)


def both(monkeypatch: pytest.MonkeyPatch, what: Callable[[], Any]) -> Iterator[Any]:
    if compiled.core is None:
        pytest.skip(compiled.description)
    for which in ("plain", "compiled"):
        with monkeypatch.context() as patch:
            use(which, patch)
            yield what()


def emitter_of(groupings: str, is_strict: bool = False) -> Emitter:
    """A spout's emitter to a bolt for each of these groupings, which are divided by `+`, on each of
    two streams.
    """
    builder = TopologyBuilder()
    builder.set_spout("spout", _Streams())
    tasks = {}
    for at, grouping in enumerate(groupings.split(" + ")):
        bolt = builder.set_bolt(f"bolt{at}", _Failing(), 3)
        for stream in ("default", "side"):
            GROUPINGS[grouping](bolt, stream)
        tasks[f"bolt{at}"] = [3 * at + 2, 3 * at + 3, 3 * at + 4]
    made = build_routes(
        builder.build(), "spout", 1, tasks, Codec(), 5, {}, own_targets(frozenset({3}))
    )
    return Emitter("spout", made, is_strict)


def value(random: random.Random) -> Any:
    return random.choice(
        [
            "w",
            f"k{random.randrange(5)}",
            random.randrange(9),
            2**70,
            2**9000,
            "\ud800",
            "\u4e2d",
            1.5,
            True,
            None,
            b"x",
            [1],
            {"a": 1},
            {1, 2},
            object(),
        ]
    )


def lists_of(emitter: Emitter) -> Any:
    """Rows by target, those without any last, and the log as numbers of targets."""
    lists = [target.rows for route in emitter.routes.values() for target in route.targets]
    lists.append(emitter.unread)
    number = {id(rows): at for at, rows in enumerate(lists)}
    return [[(values, roots, source.stream) for values, roots, source in rows] for rows in lists], [
        number[id(r)] for r in emitter.log
    ]


SEVERAL = [
    "fields + shuffle",
    "local + fields + global",
    "fields + all",
    "global + partial key",
    " + ".join(["shuffle"] * 9),
    " + ".join(["shuffle"] * 65),
    " + ".join(["all"] * 22),
]


@pytest.mark.parametrize("grouping", [*GROUPINGS, *SEVERAL])
@pytest.mark.parametrize("is_strict", [False, True])
def test_emits_are_those_of_the_plain_way(
    grouping: str, is_strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emitted() -> Any:
        emitter, chance, found = emitter_of(grouping, is_strict), random.Random(3), []
        emit = fast_emit(emitter)
        for root in range(400):
            emitter.roots = root if root % 3 else (root, 7)
            values: Any = [value(chance) for _ in range(2)]
            values = chance.choice(
                [values, tuple(values), tuple(values), values[:1], "ab", iter(values), ("w", 1)]
            )
            named = [{"stream": name} for name in (*emitter.routes, "other", None)]
            positional = [(name,) for name in ("default", "side", "quiet")]
            how: Any = chance.choice([{}, {}, {}, *named, *positional, {"streams": "side"}])
            try:
                emit(values, *how) if isinstance(how, tuple) else emit(values, **how)
            except (SparkStormError, TypeError) as error:
                found.append(re.sub("0x[0-9a-f]+", "", repr(error)))
        return lists_of(emitter), found, emitter.spreads[:], emitter.take_counts()

    plain, fast = both(monkeypatch, emitted)
    assert plain == fast
    assert any(plain[0][0]) and plain[1]
    result = {stream for rows in plain[0][0] for *_, stream in rows}
    assert result == {"default", "side", "quiet", "bad"}


@pytest.mark.parametrize("value", ["\ud800", 2**9000])
def test_a_value_that_no_other_process_can_read_is_refused_where_it_is_emitted(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emitted() -> str:
        emit = fast_emit(emitter_of("global", is_strict=False))
        with pytest.raises(CodecError) as caught:
            emit(("w", value))
        return str(caught.value)

    plain, fast = both(monkeypatch, emitted)
    assert plain == fast
    assert plain.startswith("component 'spout', stream 'default', field 'b': ")


def test_rows_that_can_be_changed_are_those_of_the_plain_way() -> None:
    chance = random.Random(7)
    kinds = [1, "w", None, 2.5, b"x", date(2026, 1, 2), Decimal("1.5"), uuid.UUID(int=7)]
    found = Counter[bool]()
    for _ in range(400):
        values = [chance.choice(kinds) for _ in range(5)] + chance.choice([[], [[1]], [{}]])
        rows: list[Any] = [(tuple(values), 0, None), (object(), 0, None), ((), 0, None)]
        assert can_change(rows) is can_change_plainly(rows)
        found[can_change(rows)] += 1
    assert min(found.values()) > 50


@pytest.mark.parametrize("lag_ms", [0, 3])
def test_clocks_and_late_rows_are_those_of_the_plain_way(
    lag_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times that rise, fall, repeat, are no time, and lie outside of what a clock takes."""
    settings = TimeSettings(None, "b", lag_ms, 2, None)
    source = Source("spout", 1, "default", ("a", "b"))
    mark = Source("spout", 1, "__watermark", ("stream", "at_ms"))

    def picked() -> Any:
        chance = random.Random(5)
        targets = [Target(n, [], False) for n in (2, 3)]
        late = [Target(n, [], False) for n in (2, 3)]
        output = OutputClock("default", "bolt", targets, {}, mark)
        output.watch(settings, source, late)
        pick = output.one(routes.pick_one(Grouping("fields", ("a",)), [0], targets, 0))
        number = {id(target.rows): at for at, target in enumerate([*targets, *late])}
        found, at_ms, clock = [], 10, output.clock
        assert clock is not None
        for _ in range(2_000):
            at_ms += chance.choice([0, 0, 1, 5, -1, -4, -30]) + chance.choice([0, 0, 30])
            odd = chance.choice(
                [None, "x", True, 1.5, -1, -7, 0, 2**53, 2**53 + 1, 2**70, -(2**70)]
            )
            time = (
                odd if chance.random() < 0.05 and (type(odd) is not int or odd != 2**53) else at_ms
            )
            found.append(
                (
                    number[id(pick((chance.choice("abc"), time)))],
                    clock.newest_ms,
                    clock.edge_ms,
                    clock.oldest_ms,
                )
            )
            if chance.random() < 0.01:
                clock.take_back(clock.newest_ms - 20)
        with pytest.raises(IndexError):
            pick(("a",))
        return found, clock.behind_ms

    plain, fast = both(monkeypatch, picked)
    assert plain == fast
    assert {number for number, *_ in plain[0]} == {0, 1, 2, 3}


def test_tuples_of_rows_and_their_values_are_those_of_the_plain_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source("s", 1, "default", ("a", "b"))
    rows: list[Any] = [((n, f"w{n}"), n, source) for n in range(5)]

    def made() -> Any:
        found: list[Any] = tuples.tuples_of(rows)
        with pytest.raises(TypeError):
            tuples.tuples_of([*rows, ((1,), 2)])  # type: ignore[list-item]
        return [
            (type(tup), tup.values, tup.roots, tup.source, tup["b"], tup[0], tup[-1], tup[:1])
            for tup in found
        ]

    plain, fast = both(monkeypatch, made)
    assert plain == fast and len(plain) == 5


class _Text(str):
    """Text, but not of the class of names."""


@pytest.mark.parametrize(
    "which", ["a", "b", "c", _Text("a"), 0, -2, 2, slice(1), slice(None), None, 1.0, True]
)
@pytest.mark.parametrize("values", [(1, 2), (1,), [1, 2], ()])
def test_values_are_read_as_plainly(values: Any, which: Any) -> None:
    tup = Tuple(values, 0, Source("s", 1, "default", ("a", "b")))

    def said(read: Callable[[], Any]) -> str:
        try:
            return repr(read())
        except Exception as error:
            return repr(error)

    assert said(lambda: tup[which]) == said(lambda: tuples._read_plainly(tup, which))


def test_tuples_are_copied_pickled_and_read_backwards() -> None:
    tup = Tuple((1, "x"), 7, Source("s", 1, "default", ("a", "b")))
    for copied in (copy.copy(tup), copy.deepcopy(tup), pickle.loads(pickle.dumps(tup))):
        assert (copied["b"], copied.roots, copied.source.component) == ("x", 7, "s")
    assert list(reversed(tup)) == ["x", 1] and list(tup) == [1, "x"]
    with pytest.raises(AttributeError):
        Tuple.__new__(Tuple)["a"]


@pytest.mark.parametrize("catches", ["nothing", "all", "and raises another"])
def test_an_error_of_emit_is_raised_at_the_yield(catches: str) -> None:
    def rows() -> Iterator[Any]:
        yield 1
        try:
            yield 2, 3
        except ValueError:
            if catches == "nothing":
                raise
            if catches == "and raises another":
                raise KeyError("another") from None
        yield 4

    def emit(row: Any) -> None:
        found.append(row)
        if len(row) == 2:
            raise ValueError("no pair")

    said = []
    for each in (emit_rows_plainly, emit_rows):
        found: list[Any] = []
        with pytest.raises((ValueError, KeyError)) as caught:
            each(rows(), emit, raise_inside)
        said.append((repr(caught.value), found))
    assert (
        said[0]
        == said[1]
        == (
            ("KeyError('another')" if "another" in catches else "ValueError('no pair')"),
            [(1,), (2, 3)],
        )
    )
    each(iter([1, (2,), (3, 4, 5)]), found.append, raise_inside)
    assert found[2:] == [(1,), (2,), (3, 4, 5)]


class _Failing(StatefulBolt):
    outputs = ("a", "b")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number, keeps, kept = tup.values
        self.state.add("sum", number)
        collector.emit((number, "x"))
        if keeps:
            kept.append(tup)
        if number % 4 == 3:
            raise ValueError(f"no {number}")


class _Typed(_Failing):
    """Bolt with declared types on two streams."""

    types: Any = {"word": "string", "n": "bigint", "rest": "any", "parts": "array<tinyint>"}  # noqa: RUF012
    outputs: Any = {"default": types, "side": types}  # noqa: RUF012


@pytest.mark.parametrize("stream", ["default", "side"])
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("w", 1, object, [1, None]), "field 'rest': a value of type type"),
        (("w", 2**70, 1, []), f"field 'n': {2**70} is no bigint, as the field is declared"),
        (["w", True, 1, []], "field 'n': True is no bigint"),
        ((1, 1, 1, []), "field 'word': 1 is no string"),
        (("w", 1, 1, (1, 300)), "field 'parts': [1, 300] is no array<tinyint>"),
        (("w", 1, 1), "emitted 3 values for 4 fields"),
        ("abcd", "emit needs a list of values"),
    ],
)
def test_values_of_other_types_than_declared_are_refused(
    row: Any, problem: str, stream: str, each_core: str
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", _Streams())
    builder.set_bolt("typed", _Typed(), inputs="spout")
    builder.set_bolt("end", _Failing()).global_grouping("typed", stream)
    made = build_routes(
        builder.build(), "typed", 2, {"end": [3]}, Codec(), 5, {}, own_targets(frozenset())
    )
    emitter = Emitter("typed", made, is_strict=False)
    emit = fast_emit(emitter)
    emit((None, None, 2**70, None), stream)
    emit(["w", np.int64(3), None, [1, None]], stream)
    with pytest.raises(SparkStormError, match=re.escape(problem)):
        emit(row, stream)
    (target,) = made[stream].targets
    result = [values for values, *_ in target.rows]
    assert result == [(None, None, 2**70, None), ("w", 3, None, [1, None])]


def test_failing_calls_leave_no_trace_and_kept_tuples_stay(each_core: str) -> None:
    emitter = emitter_of("fields")
    state = MemoryState(Codec())
    source = Source("s", 1, "default", ("n", "keeps", "kept"))
    kept: list[Tuple] = []
    bolt = _Failing()
    bolt.state = state
    runner = BasicRunner(bolt, emitter, state, BasicCollector(emitter, 2, lambda failure: None))
    rows = [((n, n % 2 == 0, kept), n + 100, source) for n in range(12)]
    failures = runner.execute_rows(rows)
    assert [place for place, _ in failures] == [3, 7, 11]
    assert all(
        "no " in failure.text and failure.cause.error == "ValueError" for _, failure in failures
    )
    done = [n for n in range(12) if n % 4 != 3]
    assert state.get("sum") == sum(done)
    assert sorted(row[0][0] for t in emitter.routes["default"].targets for row in t.rows) == done
    result = sorted(row[1] for t in emitter.routes["default"].targets for row in t.rows)
    assert result == [n + 100 for n in done]
    assert [(tup.values[0], tup.roots) for tup in kept] == [(n, n + 100) for n in range(0, 12, 2)]
    assert all(tup.source is source for tup in kept)


class _ByHand(Bolt):
    """Acks, fails, raises and keeps inputs, before or after it has emitted for them."""

    outputs = ("a", "b")

    def __init__(self, collector: ManualRunner, seed: int) -> None:
        self._collector = collector
        self._chance = random.Random(seed)
        self._kept: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        collector, chance = self._collector, self._chance
        for what in chance.choices(
            ["emit", "ack", "keep", "old", "fail", "raise", "renew"],
            [8, 8, 1, 1, 1, 1, 1],
            k=chance.randrange(1, 5),
        ):
            old = chance.choice(self._kept) if self._kept else tup
            match what:
                case "emit":
                    anchors: Any = chance.choice([tup, (tup,), (tup, old), ()])
                    values = chance.choice([(1, "x"), [2, {"x": [old.values]}]])
                    stream = chance.choice(["default", "side", "quiet", "other"])
                    calls: list[tuple[Any, Any]] = [
                        ((values, anchors), {}),
                        ((values,), {"anchors": anchors}),
                        ((values, anchors, stream), {}),
                        ((values, anchors), {"stream": stream}),
                        ((values,), {"stream": stream, "anchors": anchors}),
                    ]
                    args, names = chance.choice(calls)
                    collector.emit(*args, **names)
                case "keep":
                    self._kept.append(tup)
                case "raise":
                    raise ValueError(f"no {tup[0]}")
                case "renew":
                    collector.reset_timeout(tup)
                case "fail":
                    collector.fail(chance.choice([tup, old]), "bad")
                case _:
                    collector.ack(old if what == "old" else tup)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("as_rows", [False, True])
def test_bolts_that_ack_by_hand_do_the_same(
    seed: int, as_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("s", 1, "default", ("n",))

    def done() -> Any:
        emitter, reported = emitter_of("fields"), list[str]()
        runner = ManualRunner(
            None,  # type: ignore[arg-type]
            emitter,
            None,
            2,
            lambda failure: reported.append(failure.text),
            lambda: None,
        )
        runner.bolt = _ByHand(runner, seed)
        found = []
        for start in range(0, 1500, 50):
            rows: list[Any] = [((n,), n + 1000, source) for n in range(start, start + 50)]
            failures = runner.execute_rows(rows if as_rows else [Tuple(*row) for row in rows])
            unfinished = runner.take_unfinished()
            assert runner.take_unfinished() == []
            late, late_failures = runner.take_late()
            found.append(
                [
                    [(tup[0], failure.text, failure.kind) for tup, failure in failures],
                    [(tup[0], tup.roots) for tup in unfinished],
                    [tup[0] for tup in late],
                    [(tup[0], failure.text) for tup, failure in late_failures],
                    runner.held,
                    runner.outstanding,
                ]
            )
        return found, reported, lists_of(emitter), emitter.take_counts(), emitter.renewed

    plain, fast = both(monkeypatch, done)
    assert plain == fast
    runs, *_ = plain
    assert all(any(run[at] for run in runs) for at in range(5))


def test_a_tuple_that_user_code_keeps_is_used_for_no_other_row(each_core: str) -> None:
    source, kept = Source("s", 1, "default", ("n",)), list[Tuple]()
    emitter = emitter_of("fields")
    runner = ManualRunner(None, emitter, None, 2, print, lambda: None)  # type: ignore[arg-type]

    class Keeping(Bolt):
        def execute(self, tup: Tuple) -> None:
            if tup[0] % 3 == 0:
                kept.append(tup)
            runner.ack(tup)

    runner.bolt = Keeping()
    assert runner.execute_rows([((n,), n + 100, source) for n in range(10)]) == []
    assert [(tup[0], tup.roots) for tup in kept] == [(n, n + 100) for n in range(0, 10, 3)]
    assert (runner.outstanding, runner.held, runner.take_unfinished()) == (0, 0, [])
    assert runner.take_late() == ([], [])


@pytest.mark.parametrize("kinds", [["text"], ["text", "tuples"], ["text", "numbers", "odd"]])
def test_changes_of_a_state_are_those_of_the_plain_way(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that equal each other, of numpy's types, in tuples, put again after a deletion."""
    keys: dict[str, list[Any]] = {
        "text": ["a", "b", "c"],
        "numbers": [0, 1, True, 1.0, 2**62, b"a"],
        "tuples": [("a", 1), ("a", True), (), ("a", b"b")],
        "odd": [np.int64(1), np.float64(0.5), ("a", np.int64(1)), uuid.UUID(int=1)],
    }

    monkeypatch.setattr(states, "_LEAST_TO_KEEP", 0)

    def taken(keeps: bool = False) -> Any:
        state, chance, found = MemoryState(Codec()), random.Random(11), []
        turns = random.Random(5)
        for _ in range(40):
            for _ in range(chance.randrange(12)):
                key = chance.choice(keys[chance.choice(kinds)])
                match chance.randrange(4):
                    case 0:
                        state.put(key, chance.random())
                    case 1:
                        state.delete(key)
                    case _:
                        state.put(key, 0) if key not in state else state.add(key)
                if keeps and turns.randrange(3) == 0:
                    state.keep_changes()
                    assert state.undo == []
            assert state.has_changes == bool(state.undo or state._kept)
            pairs, deleted = state.take_changes()
            found.append([(type(key), key, value) for key, value in pairs] + [*map(repr, deleted)])
            assert state.undo == [] and not state.has_changes
        return found, state.snapshot()

    plain, fast = both(monkeypatch, taken)
    assert plain == fast and any(len(each) > 2 for each in plain[0])
    assert list(both(monkeypatch, lambda: taken(keeps=True))) == [plain, plain]


def test_changes_that_are_few_wait_for_more() -> None:
    state = MemoryState(Codec())
    for n in range(33):
        state.put(n % 2, n)
        state.keep_changes()
    assert len(state.undo) == 99 and state.has_changes
    state.put(0, 33)
    state.keep_changes()
    assert state.undo == [] and state.has_changes
    state.put(0, 34)
    state.roll_back(0)
    assert state.take_changes() == ([(0, 33), (1, 31)], []) and not state.has_changes
    state.put(0, 35)
    state.keep_changes()
    state.release()
    assert not state.has_changes


@pytest.mark.parametrize("count", [0, 1, 7, 9_000, 70_000])
@pytest.mark.parametrize("move", [compiled._move, compiled.move])
@pytest.mark.parametrize("empty", [list.clear, compiled.empty])
def test_lists_are_emptied_alike(
    count: int, move: Callable[[Any], Any], empty: Callable[[Any], Any]
) -> None:
    items = [object() for _ in range(3)]
    references = [sys.getrefcount(each) for each in items]
    rows: list[Any] = []
    for _ in range(3):
        rows += [items[n % 3] for n in range(count)]
        moved = move(rows)
        assert moved == [items[n % 3] for n in range(count)] and rows == []
        rows.append(items[0])
        moved.append(items[1])
        empty(moved)
        assert (moved, rows) == ([], [items[0]])
        empty(rows)
        del moved
    assert [sys.getrefcount(each) for each in items] == references


def test_an_emptied_list_keeps_its_memory_unless_it_is_large() -> None:
    if compiled.core is None:
        pytest.skip(compiled.description)
    for empty in (compiled.empty, compiled.move):
        rows, large = list(range(60_000)), list(range(70_000))
        sizes = sys.getsizeof(rows), sys.getsizeof(large)
        empty(rows), empty(large)
        assert sys.getsizeof(rows) == sizes[0] and sys.getsizeof(large) < 100


class Piece:
    """Stands for a batch among rows."""

    nbytes = 1 << 20


@pytest.mark.skipif(compiled.core is None, reason=compiled.description)
@settings(max_examples=examples(200), derandomize=True)
@given(st.lists(values | st.sampled_from([Piece(), object()]), max_size=40), st.integers(1, 20))
def test_rows_weigh_what_they_do_plainly(items: list[Any], most: int) -> None:
    rows = [(item if isinstance(item, Piece) else (item, "caf\u00e9"), 0, None) for item in items]
    assert compiled.core.weigh_rows(rows, most) == emitters.weigh_plainly(rows, most)
    log = [rows[: place + 1] for place in range(len(rows))]
    assert compiled.core.weigh_log(log, most) == emitters.weigh_log_plainly(log, most)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_spouts_messages_get_the_roots_of_the_plain_way(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of all kinds and none, values that are refused, turns that end or fail in a batch."""

    def emitted() -> Any:
        emitter, chance, ids = emitter_of("fields"), random.Random(size), RandomIds(7)
        collector = SpoutCollector(emitter, 1, ids.root, lambda failure: None, Codec(), print)
        collector.trees.size = size
        found: list[Any] = []
        for turn in range(60):
            for number in range(chance.randrange(7)):
                values = chance.choice([("w", number), ["w", 1.5], ("w",), ("w", object())])
                id_: Any = chance.choice([number, number, number, None, "x", True, 2**63, [number]])
                calls: list[Any] = [
                    *[((values, id_), {})] * 4,
                    ((values,), {"message_id": id_}),
                    ((values,), {"stream": "default", "message_id": id_}),
                    ((values, id_, "default"), {}),
                    ((values, id_, "other"), {}),
                    ((values, id_, "side"), {}),
                    ((values, id_), {"stream": "quiet"}),
                    ((values, id_), {"message_id": id_}),
                    ((values, id_, "side"), {"stream": "side"}),
                    ((values, id_), {"streams": "default"}),
                    ((), {}),
                ]
                args, names = chance.choice(calls)
                try:
                    collector.emit(*args, **names)
                    if chance.random() < 0.1:
                        collector.keep_position(number)
                except (SparkStormError, TypeError) as error:
                    found.append(re.sub("0x[0-9a-f]+|[A-Za-z]*[.]_?emit[a-z_]*", "", str(error)))
            if turn % 7 == 0:
                collector.trees.roll_back(len(collector.born) // 2)
            found += [[root, *of_batch] for root, of_batch in collector.trees.take()]
        return found, lists_of(emitter)

    plain, fast = both(monkeypatch, emitted)
    assert plain == fast and any(isinstance(each, list) for each in plain[0])


def test_values_of_one_source_are_executed_alike_and_leave_nothing_to_undo(each_core: str) -> None:
    emitter = emitter_of("fields")
    state = MemoryState(Codec())
    source = Source("s", 1, "default", ("n", "keeps", "kept"))
    kept: list[Tuple] = []
    bolt = _Failing()
    bolt.state = state
    runner = BasicRunner(bolt, emitter, state, BasicCollector(emitter, 2, lambda failure: None))
    for size in (5, 7):
        values = iter([(n, n % 2 == 0, kept) for n in range(size)])
        failures = runner.execute_values(values, source)
        assert [tup.values[0] for tup, _ in failures] == [n for n in range(size) if n % 4 == 3]
        assert all(
            "no 3" in failure.text and tup.source is source and tup.roots == 0
            for tup, failure in failures
        )
        assert next(values, None) is None and state.undo == []
    done = [n for size in (5, 7) for n in range(size) if n % 4 != 3]
    assert state.get("sum") == sum(done)
    result = sorted(row[0][0] for t in emitter.routes["default"].targets for row in t.rows)
    assert result == sorted(done)
    assert [tup.values[0] for tup in kept] == [0, 2, 4, 0, 2, 4, 6]
    assert all(tup.source is source for tup in kept)
    with pytest.raises(KeyboardInterrupt):
        runner.execute_values(_stopped(), source)


def test_values_that_nothing_keeps_are_given_in_one_tuple(each_core: str) -> None:
    places: list[int] = []
    kept: list[Any] = []

    class Looks(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            places.append(id(tup.values))
            if tup.values[0] >= 5:
                kept.append((tup.values, tup, iter(tup))[tup.values[0] % 3])

    emitter = emitter_of("global")
    runner = BasicRunner(Looks(), emitter, None, BasicCollector(emitter, 2, lambda failure: None))
    columns = range(11), range(100, 111)
    runner.execute_values(zip(*columns, strict=True), Source("s", 1, "default", ("n", "m")))
    # The core lets go of values before it asks for the next ones, so that a zip fills the same tuple.
    assert each_core == "plain" or len(set(places[:5])) == 1
    assert [tuple(each) for each in kept] == [(n, n + 100) for n in range(5, 11)]


def _stopped() -> Iterator[Any]:
    yield 1, False, []
    raise KeyboardInterrupt


def test_a_bolt_ends_its_process_as_ever(each_core: str) -> None:
    class Stops(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            raise KeyboardInterrupt

    emitter = emitter_of("global")
    runner = BasicRunner(Stops(), emitter, None, BasicCollector(emitter, 2, lambda failure: None))
    with pytest.raises(KeyboardInterrupt):
        runner.execute_rows([((1,), 0, Source("s", 1, "default", ("n",)))])


def test_reads_and_writes_of_a_state_are_those_of_the_plain_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and keys of all kinds, strict or not, in calls of every form, and rolled back."""
    keys = ["a", "b", ("t", 1), ("t", [1]), 3, True, 1.5, float("nan"), b"x", None, [1], object()]

    def done(is_strict: bool) -> Any:
        state, chance, found = MemoryState(Codec(), is_strict), random.Random(6), []
        used = dict[Any, None]()
        calls: list[Callable[[Any, Any], Any]] = [
            lambda key, value: state.put(key, value),
            lambda key, value: state.put(key, value=value),
            lambda key, value: state.get(key),
            lambda key, value: state.get(key, value),
            lambda key, value: state.get(key, default=value),
            lambda key, value: state.put(key),  # type: ignore[call-arg]
            lambda key, value: state.get(),  # type: ignore[call-arg]
            lambda key, value: MemoryState.put("no state", key, value),  # type: ignore[arg-type]
        ]
        for turn in range(1200):
            call, key, each = chance.choice(calls), chance.choice(keys), value(chance)
            try:
                if turn % 7:
                    found.append(call(key, each))
                else:
                    with noting(state, used):
                        found.append(call(key, each))
            except (SparkStormError, TypeError, AttributeError) as error:
                found.append(type(error))
            if turn % 100 == 99:
                state.roll_back(len(state.undo) // 6 * 3)
        kept = state.get("list", [])
        kept.append("not in the state")
        return found, state.snapshot(), len(state.undo), list(used), state.take_changes()

    for is_strict in (False, True):
        plain, fast = both(monkeypatch, partial(done, is_strict))
        assert re.sub("0x[0-9a-f]+", "", repr(plain)) == re.sub("0x[0-9a-f]+", "", repr(fast))
        assert len(plain[1]) > 4


def test_sums_in_a_state_are_those_of_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def added() -> Any:
        state, chance, found, used = MemoryState(Codec()), random.Random(4), [], dict[Any, None]()
        state.put("text", "t")
        for turn in range(600):
            key = chance.choice(["a", "b", ("t", 1), 3, "text", [1], True])
            amounts: Any = chance.choice([(), (1,), (2**62,), (1.5,), (True,), ("x",), (None,)])
            try:
                if turn % 5:
                    found.append(state.add(key, *amounts))
                else:
                    with noting(state, used):
                        found.append(state.add(key, *amounts, **({} if amounts else {"amount": 2})))
            except (SparkStormError, TypeError) as error:
                found.append(repr(error))
            if turn == 300:
                state.roll_back(30)
        return found, state.snapshot(), len(state.undo), list(used), state.take_changes()

    plain, fast = both(monkeypatch, added)
    assert repr(plain) == repr(fast)


def _folded_by_hand(
    state: MemoryState,
    rows: list[Any],
    begin: int,
    cells: Cells,
    initial: Any,
    fold: Any,
    logs: Any,
    marks: list[int],
    begun: list[Any],
) -> int:
    """Fold row by row with the state's own reads and writes, as `MemoryState.fold_cells` does at
    once.
    """
    for at, (row, roots, source) in enumerate(rows[begin:], begin):
        time, parts = row[cells.time_at], [row[n] for n in cells.key_at]
        if (
            source is not rows[begin][2]
            or type(time) is not int
            or not cells.floor <= time <= cells.last
            or not set(map(type, parts)) <= SCALARS
        ):
            return at
        place = ("a", time - time % cells.length, *parts)
        marks[:] = at, *map(len, logs), len(state.undo)
        is_new = place not in state
        if is_new:
            state._check_key(place)
        former = initial() if is_new else state.get(place)
        value = fold(former, Tuple(row, roots, source))
        if is_new or value is not former or repr(value) != repr(state.get(place)):
            state.put(place, value)
        if is_new:
            begun.append(place)
    return len(rows)


def _random_rows(chance: random.Random, odd: bool, source: Source, other: Source) -> list[Any]:
    """Return rows of a key, a value and a time; odd ones have keys and values of all kinds, and
    rarely a second source.
    """
    keys = [1, "a", None, 1.5, True, float("nan"), [1], "b", 7] if odd else [1, "a", 2]
    values = [0, 1, 2**70, "raise", object()] if odd else [0, 1, 2]
    rows: list[Any] = [
        (
            (chance.choice(keys), chance.choice(values), chance.randrange(-1 if odd else 40, 100)),
            5,
            source,
        )
        for _ in range(chance.randrange(1, 9))
    ]
    if odd and chance.random() < 0.2:
        rows.append(((1, 1, chance.choice([50, "late", True, 2**64])), 5, other))
    return rows


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("empty", [0, []], ids=["number", "list"])
@pytest.mark.skipif(compiled.core is None, reason=compiled.description)
def test_rows_are_folded_into_cells_as_one_by_one(empty: Any, is_strict: bool) -> None:
    source, other = (Source("spout", task, "default", ("key", "value", "at")) for task in (1, 2))

    def folded(fold_cells: Any) -> Any:
        state = MemoryState(Codec(), is_strict)
        chance = random.Random(7)
        kept = list[Tuple]()
        found = list[Any]()
        logs = list[Any](), list[Any]()

        def fold(accumulator: Any, tup: Tuple) -> Any:
            value = tup.values[1]
            if value == 0:
                kept.append(tup)
            for log in logs:
                log.append(value)
            if value == "raise":
                raise ValueError(value)
            if value == 1 and empty == []:
                return accumulator
            return accumulator + (value if empty == 0 else [value])

        for _ in range(300):
            odd = chance.random() < 0.3
            rows = _random_rows(chance, odd, source, other)
            key_at = chance.choice([(0,), (), (0, 1)])
            cells = Cells(2, key_at, 10, 0 if odd else 40, 99)
            marks = [0, 0, 0, 0]
            begun: list[Any] = []
            begin = chance.randrange(len(rows))
            try:
                end = fold_cells(state, rows, begin, cells, lambda: empty, fold, logs, marks, begun)
                found.append((end, begun))
            except (SparkStormError, TypeError, ValueError) as error:
                found.append((f"{type(error).__name__}: {error}", marks, begun))
                state.roll_back(marks[3])
                for log, length in zip(logs, marks[1:3], strict=True):
                    del log[length:]
        return (
            found,
            state.snapshot(),
            len(state.undo),
            [(tup.values, tup.roots, tup.source) for tup in kept],
        )

    plain, fast = (
        re.sub(" at 0x[0-9a-f]+", "", repr(folded(each)))
        for each in (_folded_by_hand, MemoryState.fold_cells)
    )
    assert plain == fast and "Error" in plain


def test_edges_are_folded(each_core: str) -> None:
    epoch, values = Epoch(RandomIds(1), is_tracking=True), dict[int, int]()
    chance = random.Random(2)
    for _ in range(50):
        roots = [chance.randrange(1, 12) for _ in range(chance.randrange(9))]
        edge = chance.randrange(1 << 63)
        distinct = dict.fromkeys(roots)
        epoch.consume(chance.choice([distinct, list(distinct), tuple(distinct)]), edge)
        for root in distinct:
            values[root] = values.get(root, 0) ^ edge
    assert epoch.value_by_root == values


def test_last_rows_of_tracked_roots_are_found(each_core: str) -> None:
    chance = random.Random(4)
    kinds = [0, 5, 1 << 62, *(kind << 61 | batch << 10 for kind in (1, 3) for batch in range(3))]

    def root() -> int:
        kind = chance.choice(kinds)
        return kind and kind + chance.randrange(3)

    for _ in range(200):
        runs: list[Any] = [
            root() if chance.random() < 0.8 else (root(), root() or 7)
            for _ in range(chance.randrange(12))
        ]
        lengths = [chance.randint(1, 3) for _ in runs]
        by_row = [each for each, length in zip(runs, lengths, strict=True) for _ in range(length)]
        last = {
            tracked(one): place
            for place, each in enumerate(by_row)
            for one in each_root(each)
            if one
        }
        found = frames.RootRuns(chance.choice([runs, tuple(runs)]), lengths)
        assert found.distinct() == last
        assert found.ends() == sorted(last.items(), key=lambda end: end[1])


def test_blocks_have_the_bytes_of_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded() -> Any:
        chance = random.Random(6)
        found = []
        sources = [Source("s", task, "default", ("a", "b")) for task in (1, 2)]
        for most in (1, 1, 2):
            for count in (1, 2, 30):
                roots: list[Any] = [chance.choice([0, 5, 6, (5, 7)]) for _ in range(count)]
                rows = [
                    ((chance.random(), "x"), root, sources[chance.randrange(most)])
                    for root in roots
                ]
                found.append(frames.encode_rows(Codec(), "default", 9, rows, lambda roots: 3))
        with pytest.raises(ValueError, match="zip"):
            frames.encode_rows(
                Codec(), "default", 9, [((1,), 0, sources[0]), ((1, 2), 0, sources[0])]
            )
        return found

    plain, fast = both(monkeypatch, encoded)
    assert plain == fast


@pytest.mark.parametrize("tasks", [1, 2, 200, 256, 257, 700])
def test_large_blocks_have_the_bytes_of_the_plain_way_and_read_the_same(
    monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    def encoded() -> Any:
        chance, found = random.Random(tasks), []
        # two objects for each task, as a restored one makes
        sources = [[Source("s", task, "default", ("a",)) for _ in "ab"] for task in range(tasks)]
        for stay in (0.0, 0.1, 0.3, 0.7, 0.99):
            root, rows, drawn = 0, list[Any](), list[Any]()
            for place in range(2000):
                if chance.random() >= stay:
                    kind = chance.choice([1 << 61, 3 << 61 >> 1, 5])
                    root = chance.choice([0, kind + chance.randrange(200_000)])
                task = chance.randrange(tasks)
                rows.append(((place,), root, chance.choice(sources[task])))

            def draw(roots: Any, into: list[Any] = drawn) -> int:
                into.append(dict(roots.items()))
                return 3

            data = frames.encode_rows(Codec(), "default", 9, rows, draw)
            frame = frames.decode(Codec(), data)
            assert isinstance(frame, frames.RowFrame) and frame.root_runs is not None
            assert frame.roots == [root for _, root, _ in rows]
            senders = frame.senders * (2000 // len(frame.senders))
            assert senders == [source.task for _, _, source in rows]
            runs = frame.root_runs
            found.append((data, drawn, list(drawn[0]), runs.roots, runs.lengths, runs.ends()))
            assert list(runs.distinct().items()) == list(drawn[0].items())  # type: ignore[attr-defined]
        return found

    plain, fast = both(monkeypatch, encoded)
    assert plain == fast


def test_damaged_columns_of_roots_are_left_to_the_plain_way(each_core: str) -> None:
    def column(code: str, *numbers: int) -> bytes:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)

    good: tuple[Any, ...] = (column("Q", 5, 6), column("I", 1, 2), None, 3)
    runs, by_row = frames._row_roots(*good)
    assert (runs.roots, runs.lengths, by_row) == ([5, 6], [1, 2], [5, 6, 6])
    for place, bad in [
        (0, column("Q", 5)), (0, column("q", 5, -6)), (0, column("Q", 5, 1 << 63)), (0, b"abc"), (0, "ab"), (0, None),
        (1, column("I", 1, 3)), (1, column("I", 3, 0)), (1, column("I", 3)), (1, b"\0\0\0"), (1, b""), (1, None),
        (1, column("I", 1 << 31, 1 << 31)), (3, 2), (3, 4),
    ]:  # fmt: skip
        arguments = [*good]
        arguments[place] = bad
        with pytest.raises((MalformedFrameError, TypeError)):
            frames._row_roots(*arguments)


@pytest.mark.skipif(not SOURCE.exists(), reason="a wheel has no sources")
def test_the_core_says_its_version() -> None:
    assert f"#define CORE_VERSION {compiled.VERSION} " in SOURCE.read_text()


def test_it_can_be_left_out() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "sparkstorm.cli", "--version"],
        env={**os.environ, "SPARKSTORM_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "plain Python (SPARKSTORM_PURE is set)" in said.stdout
