"""The compiled core refuses arguments that do not fit together; `make asan` runs these under ASan
and UBSan (test_sanitized).
"""

from __future__ import annotations

import inspect
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from random import Random
from threading import get_ident
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Tuple
from sparkstorm.common.errors import InvalidTopologyError, MalformedFrameError
from sparkstorm.common.grouping import routes
from sparkstorm.common.model import compiled
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.unfolding import weigh_plain
from sparkstorm.common.windowing.watermarks import SourceClock
from sparkstorm.data_plane.acking.new_trees import NewTrees
from sparkstorm.data_plane.executor import runner as runners
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.executor.runner import BasicCollector, BasicRunner
from sparkstorm.data_plane.executor.state import Cells, MemoryState
from sparkstorm.data_plane.transport import frames
from tests.executor.test_compiled import emitter_of

core: Any = compiled.core
pytestmark = pytest.mark.skipif(core is None, reason=compiled.description)
SOURCE = Source("s", 1, "default", ("a", "b"))


@pytest.mark.parametrize(
    "kind", [int, object, Source, type("Half", (), {"__slots__": ("values",)})]
)
def test_rows_of_tuples_of_another_class_are_refused(kind: type) -> None:
    emitter = emitter_of("global")
    marks: list[Any] = [0, 0, 0]
    with pytest.raises((TypeError, AttributeError)):
        core.run_rows([((1,), 0, SOURCE)], 0, print, None, emitter, [], [], marks, kind)
    with pytest.raises((TypeError, AttributeError)):
        core.run_values(iter([(1,)]), SOURCE, print, None, emitter, [], [], marks, kind)
    with pytest.raises((TypeError, AttributeError)):
        core.fold_cells(
            [((1, 2), 0, SOURCE)],
            0,
            (0, (1,), 10, 0, 99),
            {},
            [],
            {1},
            int,
            print,
            print,
            print,
            None,
            kind,
            ([], []),
            [0, 0, 0, 0],
            [],
        )


@pytest.mark.parametrize("put", [None, (), (1, 2, 3), 5, ((), 0, SOURCE), (("x",), 0, SOURCE)])
def test_a_fold_may_change_the_list_of_rows(put: Any) -> None:
    state = MemoryState(Codec())
    rows: list[Any] = [(("k", n, 40 + n), 5, SOURCE) for n in range(5)]

    def fold(total: int, tup: Tuple) -> int:
        for at in range(len(rows)):
            rows[at] = put
        if put == ():
            rows.clear()
        return total + int(tup.values[1])

    begun: list[Any] = []
    cells = Cells(2, (0,), 10, 40, 99)
    marks = [0, 0, 0, 0]
    assert state.fold_cells(rows, 0, cells, lambda: 0, fold, ([], []), marks, begun) == 1
    assert list(state.items()) == [(("a", 40, "k"), 0)] and begun == [("a", 40, "k")]


class _Base:
    """An empty base of a lazy state."""

    name = "base"

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self) -> Iterator[Any]:
        return iter(())


class _Reading:
    """A key that reads its state while it is looked up: the state then drops the mapping in which the
    look-up goes on.
    """

    def __init__(
        self, state: MemoryState, key: str, error: type[BaseException] | None = None
    ) -> None:
        self.state, self.key, self.error = state, key, error
        self.compared = 0

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        self.compared += 1
        if self.error and self.compared == 1:
            raise self.error("not now")
        # The first look-up, whether the key is in memory, is Python's own.
        for n in range(60 if self.compared == 2 else 0):
            self.state.get(("read", n))
        return other == self.key


@pytest.mark.parametrize(
    ("change", "amount", "expected"),
    [("get", (), 10**12), ("add", (1,), 10**12 + 1), ("put", (5,), None)],
)
def test_a_key_may_read_its_state_while_it_is_looked_up(
    change: str, amount: tuple[int, ...], expected: int | None
) -> None:
    state = LazyState(Codec(), _Base(), 4)
    state.put("k", 10**12)
    state.take_changes()
    key = _Reading(state, "k")
    assert getattr(state, change)(key, *amount) == expected and key.compared >= 2


@pytest.mark.parametrize("change", ["get", "add", "put"])
def test_an_interrupt_within_a_look_up_is_not_lost(change: str) -> None:
    state = MemoryState(Codec())
    state.put("k", 1)
    amount = (5,) if change == "put" else ()
    with pytest.raises(KeyboardInterrupt):
        getattr(state, change)(_Reading(state, "k", KeyboardInterrupt), *amount)


@pytest.mark.parametrize("name", ["get", "add", "put"])
def test_a_method_of_a_state_has_the_name_the_signature_and_the_text_of_its_twin(name: str) -> None:
    method, twin = getattr(MemoryState, name), vars(MemoryState)[name].plain
    assert method.__name__ == name and method.__qualname__ == twin.__qualname__
    assert inspect.signature(method) == inspect.signature(twin)
    assert method.__doc__ == twin.__doc__ and inspect.getdoc(getattr(MemoryState(Codec()), name))


class _Counting(BasicBolt):
    outputs = ("a", "b")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup.values[0] == "bad":
            raise ValueError("a bad value")
        collector.emit((tup.values[0], "x"))


@pytest.mark.parametrize("which", ["plain", "compiled"])
def test_an_error_of_the_source_of_values_is_no_failure_of_an_input(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(*first: Any) -> Iterator[tuple[Any, ...]]:
        for value in first:
            yield (value,)
        raise OSError("the source broke")

    monkeypatch.setattr(runners, "core", core if which == "compiled" else None)
    for first in ((), (1, 2), (1, "bad"), ("bad", 2)):
        emitter = emitter_of("global")
        runner = BasicRunner(
            _Counting(), emitter, None, BasicCollector(emitter, 2, lambda failure: None)
        )
        with pytest.raises(OSError, match="the source broke"):
            runner.execute_values(values(*first), SOURCE)
        kept = [row[0][0] for target in emitter.routes["default"].targets for row in target.rows]
        assert kept == [value for value in first if value != "bad"]


def _outcome(values: Iterator[tuple[Any, ...]]) -> tuple[list[Any], list[Any], str]:
    """Return the rows that are kept, the failures, and the error of the values themselves."""
    emitter = emitter_of("global")
    runner = BasicRunner(
        _Counting(), emitter, None, BasicCollector(emitter, 2, lambda failure: None)
    )
    failures, error = list[Any](), ""
    try:
        failures = [
            (tup.values, failure.text) for tup, failure in runner.execute_values(values, SOURCE)
        ]
    except Exception as broken:
        error = f"{type(broken).__name__}: {broken}"
    return (
        [row[:2] for target in emitter.routes["default"].targets for row in target.rows],
        failures,
        error,
    )


@pytest.mark.parametrize("seed", range(40))
def test_values_and_errors_of_any_source_come_out_alike_in_both_tiers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    events = [random.choice([1, 2, "bad", None, "x"]) for _ in range(random.randrange(12))]
    error = random.choice(
        [None, OSError("broke"), ValueError("a bad value"), RuntimeError(), KeyError("k")]
    )

    def values() -> Iterator[tuple[Any, ...]]:
        for value in events:
            yield (value,)
        if error is not None:
            raise error

    outcomes = []
    for tier in (None, core):
        monkeypatch.setattr(runners, "core", tier)
        outcomes.append(_outcome(values()))
    assert outcomes[0] == outcomes[1]
    assert bool(outcomes[0][2]) == (error is not None)


@pytest.mark.parametrize(("data", "weight"), [
    (b"", 0), (b"\xc0" * 1000, 10_000), (b"\xe0" * 1000, 40_000), (b"\x91" * 100_000 + b"\x90", 8_800_088),
    (b"\xdb\xff\xff\xff", 0), (b"\xdb\xff\xff\xff\xff", 10), (b"\xdb\xff\xff\xff\xff\xff", 84), (b"\xda\xff", 0), (b"\xbf", 10),
    (b"\xc6\xff\xff\xff\xffab", 82), (b"\xdd\xff\xff\xff\xff", 88),
    (b"\xdf\xff\xff\xff\xff", 88), (b"\xdf\xff\xff\xff\xff\xc0\xc0", 272),
    (b"\xc9\xff\xff\xff\xff", 0),
    (b"\xc9\xff\xff\xff\xff\x06\xdd\xff\xff\xff\xff\xc0", 256 + 88 + 128 + 10), (b"\xd8", 0), (b"\xd8\x06", 256),
    (b"\xcb", 40), (b"\xcf\x01", 56), (b"\xd8\x06" * 1000, 256_000), (b"\xd4\x06\x9f", 344),
], ids=range(21))  # fmt: skip
def test_a_length_that_is_claimed_weighs_no_more_than_what_is_there(
    data: bytes, weight: int
) -> None:
    exact = bytes(bytearray(data))  # of its own memory, whose end the sanitizer knows
    assert core.weigh(exact, 1 << 60) == weight == weigh_plain(exact, 1 << 60)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (b"",),
        (b"", -1),
        (b"", 1 << 63),
        (b"", None),
        ("", 1),
        (None, 1),
        (memoryview(b"abcd")[::2], 1),
    ],
)
def test_what_is_no_bytes_and_no_limit_is_not_weighed(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        core.weigh(*arguments)


class Evil:
    """Answers the question for its size by a change of what holds it."""

    def __init__(self, change: Callable[[], Any]) -> None:
        self._change = change

    @property
    def nbytes(self) -> int:
        self._change()
        return 1


@pytest.mark.parametrize("weigh", ["weigh_rows", "weigh_log"])
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ([],),
        ([], 0),
        ([], -1),
        ((), 4),
        ([1], 4),
        ([()], 4),
        ([[]], 4),
        ([[1]], 4),
        ([[()]], 4),
    ],
)
def test_what_are_no_rows_weigh_nothing(weigh: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"weight|row"):
        getattr(core, weigh)(*arguments)


def test_rows_may_change_while_they_are_weighed() -> None:
    inner: list[Any] = []
    mapping: dict[Any, Any] = {}
    rows: list[Any] = []
    evil = Evil(lambda: [each.clear() for each in (inner, mapping, rows)])
    for value in (inner, mapping):
        inner[:] = [[evil, "x"] for _ in range(50)]
        mapping |= {n: [evil] for n in range(50)}
        rows[:] = [((value,), 0, SOURCE), *[((1,), 0, SOURCE)] * 9]
        assert core.weigh_rows(rows, 4) > 0
    with pytest.raises(ZeroDivisionError):
        core.weigh_rows([(Evil(lambda: 1 / 0), 0, SOURCE)], 4)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        core.weigh_rows([((loop,), 0, SOURCE)], 4)


@pytest.mark.parametrize("arguments", [
    (), ([1],), ([1], None), (None, [1]), ([1, 2], [1]), ([1], [-1]), ([1], ["1"]), (["1"], [1]), ([-1], [1]), ([1 << 63], [1]),
    ([(1, -1)], [1]), ([(1, "2")], [1]), ([1, 1], [sys.maxsize, 1]), ([1], [1 << 63]), ([1.5], [1]),
])  # fmt: skip
def test_runs_that_are_none_have_no_last_rows(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        core.last_rows(*arguments)


@pytest.mark.parametrize("roots", [[], (1, 2), None, [1, (2, 3)], [-1], [1 << 63], [1.0], [True]])
def test_roots_that_are_no_single_ones_are_left_to_the_plain_way(roots: Any) -> None:
    assert core.pack_roots(roots) is None


@pytest.mark.parametrize("asked", [
    (), ([(1,)], [1, 2], [SOURCE], b"", 0, 1), ([(1,)], [1], [SOURCE], b"\0\0", 0, 1), ([(1,)], [1], [SOURCE], b"", 0, 2),
    ([(1,)], [1], [SOURCE], b"", -1, 1), ([(1,)], [1], [SOURCE], b"", 1, 0), ([(1,)], [1], [SOURCE], b"\1", 0, 1),
    ([(1,)], [1], [SOURCE], [-1], 0, 1), ([(1,)], [1], [SOURCE], [1 << 70], 0, 1), ([(1,)], [1], [], b"", 0, 1),
    (((1,),), [1], [SOURCE], b"", 0, 1), ([(1,)], [1], [SOURCE], "", 0, 1), ([(1,)], [1], [SOURCE], b"", "0", 1),
])  # fmt: skip
def test_columns_that_do_not_fit_are_not_joined(asked: Any) -> None:
    with pytest.raises((TypeError, IndexError, OverflowError)):
        core.join(*asked)


@pytest.mark.parametrize(
    ("rows", "at", "most"),
    [
        ([[]], 0, 4),
        ((), 0, 4),
        (([], ()), 0, 4),
        (([],), 1, 4),
        (([],), -1, 4),
        (([],), 0, 0),
        (([],), 0, "4"),
        (([],), 0, 1 << 63),
    ],
)
def test_runs_over_what_is_no_list_are_refused(rows: Any, at: int, most: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        core.Pick(routes._IN_RUNS, at, rows, most)


@pytest.mark.parametrize("kind", [routes._BY_HASH, routes._BY_TWO])
@pytest.mark.parametrize("positions", [(), (-1,), ("a",), (1 << 70,), [0], None])
def test_positions_that_are_none_are_refused(kind: int, positions: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        core.Pick(kind, 0, ([], []), print, positions)


@pytest.mark.parametrize("kind", [routes._BY_HASH, routes._BY_TWO])
def test_pickers_of_keys_take_what_they_are_given(kind: int) -> None:
    """Too few values, none at all, and what the twin answers for a key that is left to it."""
    for answer, errors in (
        ((0, 5), IndexError),
        ((-1, 0), IndexError),
        ("no places", TypeError),
        (KeyError("no key"), KeyError),
    ):

        def choose(values: Any, answer: Any = answer) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        pick = core.Pick(kind, 0, ([], []), choose, (1,))
        with pytest.raises(IndexError):
            pick((1,))
        with pytest.raises(TypeError):
            pick([1, 2])
        if kind == routes._BY_TWO or isinstance(answer, BaseException):
            with pytest.raises(errors):
                pick((1, {1: 2}))
        else:
            assert pick((1, {1: 2})) is answer


def test_keys_that_change_while_they_are_hashed_are_an_error() -> None:
    class Emptying(dict[Any, Any]):
        def items(self) -> Any:
            keys.clear()
            return super().items()

    keys: list[Any] = [Emptying(), 1, 2]
    with pytest.raises(RuntimeError, match="changed"):
        core.places(keys, 3)


@pytest.mark.parametrize("arguments", [(), (b"", b""), (b"", b"", None), (b"", b"", 1 << 63)])
def test_columns_of_no_number_of_rows_are_not_unpacked(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        core.unpack_roots(*arguments)


class Changing:
    """A source whose task is what it is told, and that empties the rows that it is in."""

    def __init__(self, task: Any, rows: list[Any]) -> None:
        self._task, self._rows = task, rows

    @property
    def task(self) -> Any:
        self._rows.clear()
        if isinstance(self._task, BaseException):
            raise self._task
        return self._task


def test_rows_that_change_while_they_are_divided_are_divided_as_they_were() -> None:
    rows: list[Any] = []
    rows += [((n, "x"), 7, Changing(n, rows)) for n in range(300)]
    columns, roots, tasks, numbers = core.split(rows)
    assert (columns[0], roots, tasks) == ([*range(300)], [7] * 300, [*range(300)])
    assert len(columns[1]) == 300 and len(numbers) == 600 and rows == []


@pytest.mark.parametrize("task", ["3", None, 3.0, AttributeError("no task")])
def test_senders_that_are_no_tasks_are_left_to_the_plain_way(task: Any) -> None:
    rows: list[Any] = []
    rows.append(((1,), 0, Changing(task, rows)))
    assert core.split(rows) is None


def test_an_error_of_a_sender_is_raised() -> None:
    rows: list[Any] = []
    rows.append(((1,), 0, Changing(OSError("away"), rows)))
    with pytest.raises(OSError, match="away"):
        core.split(rows)


@pytest.mark.parametrize(
    "unit", [b"\xc0", b"\xe0", b"\x90", b"\x81\xe0", b"\xcd\xff\xff", b"\xa1a"], ids=bytes.hex
)
def test_a_frame_is_refused_without_the_memory_of_its_values(unit: bytes) -> None:
    count = (60 << 20) // len(unit)
    data = b"SF\x04\x01" + bytes(8) + b"\xdd" + count.to_bytes(4, "big") + unit * count
    tracemalloc.start()
    sentence = f"values of {len(data) - 12} bytes that would take more than 384 MiB of memory"
    with pytest.raises(MalformedFrameError, match=sentence):
        frames.decode(Codec(), data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_arguments_of_another_shape_are_refused() -> None:
    source, emitter = Source("s", 1, "default", ("n",)), Emitter("s", {}, False)
    emit: Any = (
        emitter,
        "roots",
        [],
        [],
        [],
        (lambda values: [],),
        source,
        1,
        "default",
        emitter.emit,
        Codec().rest,
        None,
        {},
    )
    clock = SourceClock(0, 0)
    row, acks = ((1,), 0, source), core.Ack(get_ident(), {}, [], {}, print)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: core.tuples(((), 0, source), Tuple),
        lambda: core.tuples([((), 0)], Tuple),
        lambda: core.tuples([None], Tuple),
        lambda: core.tuples([((), 0, source)], int),
        lambda: core.tuples([((), 0, source)]),
        lambda: core.emit_rows([1], print, print),
        lambda: core.emit_rows(iter([1]), print),
        lambda: core.emit_rows(iter([1]), None, print),
        lambda: core.Emit(*emit[:5], (print,) * 65, *emit[6:]),
        lambda: core.Emit(*emit[:4], (), *emit[5:]),
        lambda: core.Emit(*emit[:-1], ()),
        lambda: core.Emit(*emit[:-1]),
        lambda: core.StateMethod(3, MemoryState, print, None),
        lambda: core.StateMethod(0, object, print, None),
        lambda: core.places((1,), 2),
        lambda: core.places([1], 0),
        lambda: core.places([1], -1),
        lambda: core.places([object()], 2),
        lambda: core.TimedPick(print, 0, object(), 9, print),
        lambda: core.TimedPick(print, 0, clock, 9, print)([1]),
        lambda: core.TimedPick(print, 0, clock, 9, print)(),
        lambda: core.Reader()["a"],
        lambda: core.AnchoredEmit(1, emitter, "log of none", print, Tuple, print),
        lambda: core.AnchoredEmit(1, emitter, "roots", print, int, print),
        lambda: core.AnchoredEmit(1, emitter, "roots", print, print, print),
        lambda: core.Ack(1, [], [], {}, print),
        lambda: core.Ack(1, {}, (), {}, print),
        lambda: core.Ack(1, {}, [], None, print),
        lambda: core.run_tuples([], 0, print, acks, [], [], [], [], [], [0] * 5),
        lambda: core.run_tuples((), 0, print, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([], 0, print, {}, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([1], 0, print, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([((), 0)], 0, print, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([((), 0, 0)], 0, print, acks, [], [], [], [], [], [0] * 5, int),
        lambda: core.run_tuples([row], -1, print, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([row], "x", print, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.run_tuples([row], 0, None, acks, [], [], [], [], [], [0] * 5, Tuple),
        lambda: core.set_reading(Tuple, int, print),
        lambda: core.empty(()),
        lambda: core.move((1,)),
        lambda: core.last_values([], [], {}),
        lambda: core.last_values((), {str}, {}),
        lambda: core.last_values(["a", 1], {str}, {}),
        lambda: core.last_values([], {str}, None),
        lambda: core.last_values([], {str}),
        lambda: core.last_values([[], 1, 1], {list}, {}),
        lambda: core.SpoutEmit(emitter, "roots", object(), [], print, print),
        lambda: core.SpoutEmit(emitter, "roots", NewTrees(None), (), print, print),
        lambda: core.SpoutEmit(emitter, "log of none", NewTrees(None), [], print, print),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)):
            call()


@pytest.mark.parametrize("name", ["_root", "_start", "size"])
@pytest.mark.parametrize("odd", [None, "x", 2**70, -(2**70), -1, True])
def test_trees_of_odd_numbers_are_left_to_the_plain_way(name: str, odd: Any) -> None:
    trees, emitter = NewTrees(lambda: 5), Emitter("s", {}, False)
    trees.size = 3
    trees.next_root()
    plain, fast = list[Any](), list[Any]()
    emit = core.SpoutEmit(
        emitter, "roots", trees, trees.ids, fast.append, lambda *args: plain.append(args)
    )
    emit((1,), 7)
    assert (fast, plain, trees.ids) == ([(1,)], [], [7])
    setattr(trees, name, odd)
    emit((2,), 8)
    assert (fast, plain) == ([(1,)], [((2,), 8)])
    delattr(trees, name)
    emit((3,), 9)
    assert (fast, plain) == ([(1,)], [((2,), 8), ((3,), 9)])


@pytest.mark.parametrize("position", [1, -1, 2**40])
def test_a_time_outside_of_the_values_is_an_error(position: int) -> None:
    with pytest.raises(IndexError):
        core.TimedPick(lambda values: [], position, SourceClock(0, 0), 9, lambda rows, at_ms: rows)(
            (1,)
        )


def test_a_clock_whose_numbers_are_none_is_left_to_the_plain_way() -> None:
    clock = SourceClock(0, 0)
    pick = core.TimedPick(lambda values: [], 0, clock, 9, lambda rows, at_ms: ["closer", at_ms])
    for odd in (None, 2**80, "x", True):
        clock.newest_ms = odd  # type: ignore[assignment]
        assert pick((5,)) == ["closer", 5]
    del clock.newest_ms
    assert pick((5,)) == ["closer", 5]
    assert pick((2**80,)) == ["closer", 2**80]
    assert pick(("no time",)) == []


def test_marks_that_are_too_short_are_an_error() -> None:
    acks = core.Ack(get_ident(), {}, [], {}, print)
    for size in (0, 1, 4):
        with pytest.raises(IndexError):
            core.run_tuples(
                [((1,), 0, SOURCE)], 0, repr, acks, [], [], [], [], [], [0] * size, Tuple
            )


def test_calls_may_change_the_list_of_rows() -> None:
    rows: list[Any] = [((n,), n, SOURCE) for n in range(5)]
    outstanding, kept, marks = dict[int, Tuple](), list[Tuple](), [0] * 5
    acks = core.Ack(get_ident(), outstanding, [], {}, print)
    run = core.run_tuples
    assert run(rows, 0, lambda tup: rows.clear(), acks, [], [], [], [], kept, marks, Tuple) == 1
    assert marks == [1, 0, 0, 0, kept[0]] and list(outstanding.values()) == kept
    assert kept[0].values == (0,)


def test_runs_within_a_run_lose_no_input() -> None:
    """No runner does it; the input of the outer run is outstanding as ever, or acked."""
    outstanding, kept, marks = dict[int, Tuple](), list[Tuple](), [0] * 5
    acks = core.Ack(get_ident(), outstanding, [], {}, print)

    def execute(tup: Tuple) -> None:
        if tup[0] < 3:
            rows = [((tup[0] + 1,), 0, SOURCE)]
            core.run_tuples(rows, 0, execute, acks, [], [], [], [], kept, [0] * 5, Tuple)
        if tup[0] == 2:
            acks(tup)

    core.run_tuples([((0,), 0, SOURCE)], 0, execute, acks, [], [], [], [], kept, marks, Tuple)
    assert sorted(tup[0] for tup in outstanding.values()) == [0, 1, 3]
    assert sorted(tup[0] for tup in kept) == [0, 1, 3]


def test_a_picker_or_check_of_types_that_fails_leaves_no_row() -> None:
    def fails(values: Any) -> Any:
        raise KeyError("no task")

    source, emitter, rows = Source("s", 1, "default", ("n",)), Emitter("s", {}, False), list[Any]()

    def good(values: Any) -> Any:
        return rows

    for picks, holds in (
        ((good, fails), None),
        ((good, lambda values: ()), None),
        ((good,), fails),
    ):
        emit = core.Emit(
            emitter,
            "roots",
            emitter.log,
            emitter.spreads,
            emitter.unread,
            picks,
            source,
            1,
            "default",
            emitter.emit,
            Codec().rest,
            holds,
            {"odd": None},
        )
        with pytest.raises((KeyError, SystemError)):
            emit((1,))
        assert not rows and not emitter.log and not emitter.spreads
        with pytest.raises(InvalidTopologyError, match="undeclared stream 'odd'"):
            emit((1,), "odd")
