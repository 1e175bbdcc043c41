"""Function form of components: what it runs as, how it is pickled, where its errors point, and
which mistakes are refused.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import operator
import pickle
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import cloudpickle
import pytest

from sparkstorm.api import (
    Count,
    Duration,
    Effects,
    InvalidTopologyError,
    KeyValueState,
    Topology,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
    fold,
    session,
    sliding,
    spout,
    tumbling,
    windowed,
)
from sparkstorm.data_plane.user_code.topology_code import open_topology, pack_topology
from sparkstorm.testing import FeederSpout, LocalCluster, complete_topology, find_nondeterminism

Pair = namedtuple("Pair", "word n")


@spout("line")
def lines() -> list[str]:
    return ["to be", "or not to be"]


@bolt("word")
def split(tup: Tuple) -> Iterator[str]:
    yield from tup["line"].split()


@bolt("word", "count", key="word")
def count(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
    yield tup["word"], state.add(tup["word"], 1)


def word_count(tasks: int = 2) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("lines", lines, tasks)
    builder.set_bolt("split", split, inputs="lines", parallelism=tasks)
    builder.set_bolt("count", count, inputs="split", parallelism=tasks)
    return builder.build()


def one(
    function: Callable[..., Any], outputs: tuple[str, ...] = ("value",), **options: Any
) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout(outputs))
    builder.set_bolt("bolt", function, inputs="source", **options)
    return builder.build()


def run(function: Callable[..., Any], *values: Any) -> Any:
    return complete_topology(
        one(function), {"source": [[value] for value in values]}, conf={"topology.max.retries": 0}
    )


# -- what a function runs as


@pytest.mark.parametrize("tasks", [1, 3])
def test_word_count_of_three_functions(tasks: int) -> None:
    done = complete_topology(word_count(tasks))
    assert done.state("count") == {"to": 2, "be": 2, "or": 1, "not": 1}
    result = sorted(done["count"])
    assert result == [("be", 1), ("be", 2), ("not", 1), ("or", 1), ("to", 1), ("to", 2)]
    assert done.dead_letters == []


def test_a_decorated_function_stays_a_function() -> None:
    assert list(split({"line": "a b"})) == ["a", "b"]  # type: ignore[arg-type]
    assert lines() == ["to be", "or not to be"]


def test_a_row_is_a_tuple_of_values_or_one_value() -> None:
    @bolt("value")
    def rows(tup: Tuple) -> Iterator[Any]:
        yield 1
        yield (2,)
        yield [3, 4]
        yield ((5, 6),)
        yield None
        yield "text"

    @bolt("word", "n")
    def pairs(tup: Tuple) -> Iterator[Any]:
        yield Pair("a", 1)

    assert run(rows, 0)["bolt"] == [(1,), (2,), ([3, 4],), ([5, 6],), (None,), ("text",)]
    assert run(pairs, 0)["bolt"] == [("a", 1)]


def test_a_function_without_outputs_yields_nothing() -> None:
    @bolt
    def keep(tup: Tuple, state: KeyValueState) -> int:
        state.add(tup[0], 1)
        return 7  # as in a class: nobody reads it

    @bolt(effects=Effects.MUTE, blocking=True, order_insensitive=True)
    def log(tup: Tuple) -> None:
        pass

    assert run(keep, "a", "b", "a").state("bolt") == {"a": 2, "b": 1}
    made = one(log).components["bolt"].instance
    assert (made.effects, made.blocking, made.order_insensitive) == (Effects.MUTE, True, True)


def test_types_of_fields_and_state_are_declared_as_in_a_class() -> None:
    @bolt(
        {"word": "string", "n": "bigint"}, key="value", state_type="bigint", state_key_type="string"
    )
    def typed(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
        yield "a", 1

    component = one(typed).components["bolt"]
    assert component.streams["default"].types == {"word": "string", "n": "bigint"}
    assert component.instance.state_type == "bigint"
    assert component.instance.state_key_type == "string"


def test_a_fold_emits_key_accumulator_and_last_millisecond() -> None:
    @fold(window=tumbling(seconds=10), key="word", time="at_ms", initial=0)
    def total(accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    topology = one(total, ("word", "at_ms"), parallelism=2)
    assert topology.components["bolt"].streams["default"].fields == ("word", "total", "at_ms")
    done = complete_topology(
        topology, {"source": [["a", 1], ["b", 2], ["a", 9_999], ["a", 10_000]]}
    )
    assert sorted(done["bolt"]) == [("a", 1, 19_999), ("a", 2, 9_999), ("b", 1, 9_999)]


def test_a_fold_may_name_its_fields_and_leave_the_time_out() -> None:
    @fold("n", window=tumbling(count=2), initial=0)
    def by_count(accumulator: int, tup: Tuple) -> int:
        return accumulator + int(tup[0])

    @fold(
        "word",
        "words",
        window=sliding(seconds=10, every=Duration.seconds(5)),
        key="word",
        time="at_ms",
        initial=list,
    )
    def sliding_list(accumulator: list[int], tup: Tuple) -> list[int]:
        accumulator.append(tup["at_ms"])
        return accumulator

    assert run(by_count, 1, 2, 3, 4)["bolt"] == [(3,), (7,)]
    done = complete_topology(
        one(sliding_list, ("word", "at_ms")), {"source": [["a", 6000], ["a", 7000]]}
    )
    assert done["bolt"] == [("a", [6000, 7000]), ("a", [6000, 7000])]


@pytest.mark.parametrize("initial", [[], list])
def test_an_accumulator_that_can_change_is_a_new_one_in_every_window(initial: Any) -> None:
    @fold(window=tumbling(ms=10), time="at_ms", initial=initial)
    def seen(accumulator: list[int], tup: Tuple) -> list[int]:
        accumulator.append(tup["at_ms"])
        return accumulator

    done = complete_topology(one(seen, ("at_ms",)), {"source": [[1], [11], [12]]})
    assert done["bolt"] == [([1], 9), ([11, 12], 19)]


def test_a_fold_over_sessions_merges() -> None:
    @fold(
        window=session(Duration.millis(10)),
        time="at_ms",
        initial=0,
        merge=operator.add,
        late_stream="late",
    )
    def visits(accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    done = complete_topology(one(visits, ("at_ms",)), {"source": [[1], [18], [40], [9]]}, conf={})
    assert len(done.values("bolt", "late")) + sum(n for n, _ in done["bolt"]) == 4

    @fold(window=session(seconds=1), time="at_ms", initial=0)
    def unmerged(accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    with pytest.raises(InvalidTopologyError, match="component 'bolt': sessions need merge"):
        one(unmerged, ("at_ms",))


def test_a_windowed_function_gets_each_window() -> None:
    @windowed("rank", "value", window=tumbling(Duration.millis(10)), time="at_ms")
    def top(window: Window) -> Iterator[Any]:
        yield from enumerate(sorted((tup["value"] for tup in window), reverse=True)[:2], 1)

    done = complete_topology(
        one(top, ("value", "at_ms")), {"source": [[3, 1], [9, 2], [4, 3], [5, 11]]}
    )
    assert done["bolt"] == [(1, 9), (2, 4), (1, 5)]


def test_a_spout_function_goes_on_behind_the_last_committed_row_when_its_worker_is_killed() -> None:
    @spout("word")
    def words() -> list[str]:
        return [f"word-{n % 7}" for n in range(500)]

    for kill_after in range(1, 40, 6):
        builder = TopologyBuilder()
        builder.set_spout("words", words, 2)
        builder.set_bolt("count", count, inputs="words", parallelism=2)
        with LocalCluster(seed=kill_after) as cluster:
            cluster.submit(builder.build(), {"topology.workers": 2})
            for _ in range(kill_after):
                cluster.simulation.run_round()
            cluster.kill_worker("words")
            cluster.kill_worker("count")
            cluster.run_until_idle()
            assert sum(cluster.state("count").values()) == 500, kill_after


def test_a_spout_function_that_returns_no_list_is_named() -> None:
    @spout("word")
    def word() -> str:
        return "abc"

    builder = TopologyBuilder()
    builder.set_spout("words", word)
    builder.set_bolt("count", count, inputs="words")
    sentence = r"component 'words': function .*word \(test_functions.py, line \d+\) must return"
    with pytest.raises(Exception, match=sentence):
        complete_topology(builder.build())


# -- errors


def line_of(function: Callable[..., Any], text: str) -> int:
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(
        n
        for n, line in enumerate(source, 1)
        if n > function.__code__.co_firstlineno and text in line
    )


def test_an_exception_fails_the_tuple_and_takes_back_its_rows_and_its_state() -> None:
    @bolt("word")
    def picky(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
        state.add("seen", 1)
        yield tup[0]
        if tup[0] == "bad":
            raise ValueError("cannot stand it")

    done = run(picky, "a", "bad", "b")
    (letter,) = done.dead_letters
    assert done["bolt"] == [("a",), ("b",)]
    assert done.state("bolt") == {"seen": 2}
    assert letter.values == ("bad",)
    line = line_of(picky, "raise ValueError")
    assert letter.reason == f"ValueError: cannot stand it (test_functions.py, line {line})"


def test_a_row_that_cannot_be_emitted_fails_the_tuple_at_its_yield() -> None:
    @bolt("word")
    def wrong(tup: Tuple) -> Iterator[Any]:
        row: Any = ("fine",)
        yield row
        row = (1, 2)
        yield row[:]

    @bolt("word")
    def unknown(tup: Tuple) -> Iterator[Any]:
        yield object()

    done = run(wrong, "a")
    (letter,) = done.dead_letters
    assert done["bolt"] == [] and letter.component == "bolt"
    assert letter.reason.endswith(f"(test_functions.py, line {line_of(wrong, 'yield row[:]')})")
    assert "emitted 2 values for 1 field (word)" in letter.reason
    (letter,) = run(unknown, "a").dead_letters
    assert "field 'word'" in letter.reason
    assert letter.reason.endswith(f"line {line_of(unknown, 'yield object')})")


def test_a_function_cannot_go_on_without_a_row_that_was_refused() -> None:
    @bolt("word")
    def stubborn(tup: Tuple) -> Iterator[Any]:
        try:
            yield object()
        except Exception:
            yield "instead"

    done = run(stubborn, "a")
    assert (done["bolt"], len(done.dead_letters)) == ([], 1)


# -- pickles

MODULE = """
from sparkstorm.api import TopologyBuilder, bolt, fold, spout, tumbling

SEPARATOR = ","

@spout("line")
def lines():
    return ["a,b", "a"]

@bolt("word")
def split(tup):
    yield from tup["line"].split(SEPARATOR)

@bolt("word", "n", key="word")
def count(tup, state):
    yield tup["word"], state.add(tup["word"], 1)

def build():
    builder = TopologyBuilder()
    builder.set_spout("lines", lines)
    builder.set_bolt("split", split, inputs="lines")
    builder.set_bolt("count", count, inputs="split", parallelism=2)
    return builder.build()
"""


@pytest.mark.parametrize("by_value", [True, False])
def test_functions_travel_by_value_and_by_import(
    by_value: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_of_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("made_of_functions")
    try:
        data = pack_topology(module.build(), ["made_of_functions"] if by_value else [])
        if by_value:
            del sys.modules["made_of_functions"]
            (tmp_path / "made_of_functions.py").unlink()
        else:
            assert pickle.loads(pickle.dumps(module.split)) is module.split
        _, make = open_topology(data, hashlib.sha256(data).hexdigest())
        result = [make(id).outputs for id in ("lines", "split", "count")]
        assert result == [("line",), ("word",), ("word", "n")]
        assert make("count").key_fields == ("word",)
        assert list(make("split").function({"line": "x,y"})) == ["x", "y"]
    finally:
        sys.modules.pop("made_of_functions", None)


def test_a_function_made_by_a_function_carries_its_settings() -> None:
    def splitter(separator: str) -> Callable[..., Any]:
        @bolt("word")
        def split_by(tup: Tuple) -> Iterator[str]:
            yield from tup[0].split(separator)

        return split_by

    assert run(splitter("-"), "a-b c")["bolt"] == [("a",), ("b c",)]
    again = pickle.loads(cloudpickle.dumps(splitter("-")))
    assert run(again, "a-b")["bolt"] == [("a",), ("b",)]


# -- mistakes


def again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy, which may be decorated differently."""
    return FunctionType(function.__code__, function.__globals__, function.__name__)


def returns_list(tup: Any) -> Any:
    return [tup]


def generates(tup: Any) -> Any:
    yield tup


def two(tup: Any) -> Any:
    yield "a", 1


def constant(tup: Any) -> Any:
    yield "a"


async def asynchronous(tup: Any) -> Any:
    return 1


def lists(tup: Any) -> Any:
    yield ["word", tup[0]]


def maps(tup: Any) -> Any:
    yield {"word": "word", "n": tup[0]}


class Holder:
    def method(self, tup: Any) -> Any:
        yield tup


def of(function: Callable[..., Any], *given: Any, **named: Any) -> Callable[[], Any]:
    """Return what decorates a function as a bolt."""
    return lambda: bolt(*given, **named)(function)


def generating(*given: Any, **named: Any) -> Callable[[], Any]:
    """Return what decorates a generator as a bolt."""
    return lambda: bolt(*given, **named)(again(generates))


def folding(function: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    """Return what decorates a function as a fold over windows of a second."""
    return lambda: fold(*given, window=tumbling(seconds=1), initial=0)(function)


def windowing(window: Any) -> Callable[[], Any]:
    return lambda: windowed("a", window=window())(again(generates))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        of(returns_list, "word"),
        "declares the fields word, but has no yield; write yield for each row",
    ),
    (generating(), "yields rows, but declares no fields; name them in the decorator"),
    (
        of(two, "word"),
        f"yields 2 values in line {two.__code__.co_firstlineno + 1}, but declares 1 (word); yield as many values as there",
    ),
    (of(constant, "word", "n"), "yields 1 value in line"),
    (
        of(lists, "word", "n"),
        "but declares 2 (word, n); a list or a dict is one value; yield a tuple for several",
    ),
    (
        of(maps, "word", "n"),
        "a list or a dict is one value; yield a tuple for several, as in `yield a, b`",
    ),
    (of(asynchronous, "word"), "declares the fields word, but has no yield"),
    (
        of(Holder.method, "word"),
        "is a method; decorate a function outside of any class, or derive from",
    ),
    (lambda: (bolt("word")(Holder.method), Holder().method)[1], "is a method"),
    (of(type("Mine", (), {}), "word"), "is a type; @bolt decorates functions only"),
    (
        lambda: generates_undecorated,
        'has no decorator; write @bolt("field", ...) above it',
    ),
    (
        lambda: bolt(lambda: None),
        "takes (); write def <lambda>(tup) or def <lambda>(tup, state), without defaults",
    ),
    (lambda: bolt(lambda tup, state, more: None), "takes (tup, state, more); write def"),
    (lambda: bolt(lambda tup, n=3: None), "takes (tup, n=3); write def"),
    (lambda: bolt(lambda *a: None), "takes (*a); write def"),
    (generating("v", key="v"), "keeps no state, so 'key' has no meaning; add a second"),
    (generating("v", state_type="bigint"), "'state_type' has no meaning"),
    (generating({"default": ["a"], "b": ["c"]}), "emits to the default stream only"),
    (generating(["word"]), "fields are names, or one mapping of names to types"),
    (generating({"word": "wrod"}), "component 'bolt', stream 'default', field 'word'"),
    (generating("v", effects="mute"), "effects is 'mute'; use one of Effects.RUN"),
    (
        lambda: spout("v")(lines_again),
        "is declared with @spout; add it with set_spout",
    ),
    (lambda: folding(generating_fold)(), "has a yield; return the new accumulator"),
    (
        folding(lambda tup: 1),
        "takes (tup); write def <lambda>(accumulator, tup), without defaults",
    ),
    (
        folding(lambda a, t: 1, "a", "b", "c"),
        "declares 3 fields for the values the accumulator, the window's last millisecond; declare 1 or 2",
    ),
    (
        windowing(lambda: Duration.seconds(1)),
        "window must be tumbling(...), sliding(...), session(...) or local_day(...), not Duration(ms=1000)",
    ),
    (windowing(tumbling), "must be a whole number of at least 1"),
    (
        windowing(lambda: sliding(count=3, every=Duration.seconds(1))),
        "both by count or both by time",
    ),
]


def lines_again() -> list[str]:
    return []


def generates_undecorated(tup: Any) -> Any:
    yield tup


def generating_fold(accumulator: Any, tup: Any) -> Any:
    yield accumulator


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_a_mistake_is_refused_with_component_function_and_line(
    make: Callable[[], Any], said: str
) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        one(make())
    assert said in str(refused.value) and "component 'bolt'" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_mistake_names_function_file_and_line() -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        one(bolt("word")(returns_list))
    line = returns_list.__code__.co_firstlineno
    assert str(refused.value) == (
        f"component 'bolt': function returns_list (test_functions.py, line {line}) declares the fields word, but has no yield; "
        "write yield for each row"
    )


def test_a_spout_function_must_not_be_a_generator_and_takes_nothing() -> None:
    for function, said in (
        (generates, "takes (tup)"),
        (lambda: (yield 1), "has a yield; return all rows as a list, so that"),
    ):
        with pytest.raises(InvalidTopologyError) as refused:
            TopologyBuilder().set_spout("words", spout("word")(again(function)))
        assert said in str(refused.value)
    with pytest.raises(InvalidTopologyError, match="is declared with @bolt; add it with set_bolt"):
        TopologyBuilder().set_spout("words", split)  # type: ignore[arg-type]
    sentence = r'has no decorator; write @spout\("field", ...\) above it'
    with pytest.raises(InvalidTopologyError, match=sentence):
        TopologyBuilder().set_spout("words", generates_undecorated)  # type: ignore[arg-type]


def test_what_cannot_be_decorated_is_no_component() -> None:
    sentence = "@bolt decorates functions, not a builtin_function_or_method"
    with pytest.raises(TypeError, match=sentence):
        bolt("word")(len)
    with pytest.raises(TypeError, match="no option 'any_order'; it has key, order_insensitive"):
        bolt("word", any_order=True)  # type: ignore[call-overload]
    partial = functools.partial(split)
    sentence = "component 'bolt': set_bolt needs an instance of Bolt or BasicBolt"
    with pytest.raises(InvalidTopologyError, match=sentence):
        one(partial)


def test_widths_that_only_a_run_can_tell_are_not_guessed() -> None:
    def nested(tup: Any) -> Any:
        def inner() -> Any:
            yield 1, 2, 3

        yield from (n for n, _, _ in inner())
        value = yield tup
        yield (*tup, value)[0]

    assert one(bolt("word")(nested)).components["bolt"].streams["default"].fields == ("word",)


def test_a_function_is_decorated_once() -> None:
    bolt("word")(bolt("word")(again(generates)))
    with pytest.raises(
        TypeError,
        match="generates is decorated twice; for variants write a function that returns a decorated",
    ):
        bolt("other")(bolt("word")(again(generates)))


def test_outputs_at_set_bolt_are_refused_for_a_function() -> None:
    sentence = r"component 'bolt': .* names its fields in its decorator; drop outputs="
    with pytest.raises(InvalidTopologyError, match=sentence):
        TopologyBuilder().set_bolt("bolt", split, outputs=["a", "b"])


def test_a_blocking_function_runs_on_a_thread_of_its_own() -> None:
    @bolt("thread", blocking=True)
    def asks(tup: Tuple, state: KeyValueState) -> Iterator[Any]:
        state.add("asked", 1)
        yield threading.current_thread() is threading.main_thread()

    done = run(asks, 1, 2)
    assert (done["bolt"], done.state("bolt")) == ([(False,), (False,)], {"asked": 2})


def test_a_function_that_reads_the_wall_clock_is_named() -> None:
    @bolt("now")
    def now(tup: Tuple) -> Iterator[float]:
        yield time.time()

    found = find_nondeterminism(one(now), {"source": [[1]]})
    assert [(each.component, each.asked) for each in found] == [("bolt", ("time.time",))]


def test_shapes_of_windows() -> None:
    assert tumbling(minutes=1.5) == tumbling(Duration.millis(90_000)) == tumbling(seconds=90)
    assert sliding(Count(10), every=Count(2)) == sliding(count=10, every=Count(2))
    assert session(minutes=30).is_session


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: bolt(cast(Any, 3)), r"bolt\(3\): outputs are names of fields"),
        (lambda: bolt("word", cast(Any, None)), r"bolt\(None\): outputs are names"),
        (lambda: spout(cast(Any, 3.5)), r"spout\(3.5\): outputs"),
    ],
)
def test_outputs_of_another_type_are_refused_where_they_are_declared(
    declare: Any, sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        declare()


def test_a_star_import_brings_no_name_that_bolts_of_users_have() -> None:
    names: dict[str, Any] = {}
    exec("from sparkstorm.api import *", names)
    assert "Count" not in names and "Duration" in names


def test_a_list_or_a_dict_in_a_variable_is_one_value_too() -> None:
    @bolt("word", "n")
    def rows(tup: Tuple) -> Iterator[Any]:
        yield from (["x", 1], {"word": "x"})

    (letter,) = run(rows, "a").dead_letters
    assert "emitted 1 value for 2 fields (word, n); a list or a dict is one value" in letter.reason


def test_a_builder_in_place_of_a_topology_is_named() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout(["line"]))
    with pytest.raises(TypeError, match=r"no topology yet: its `build\(\)` returns one"):
        complete_topology(builder)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="has no 'spouts': it is no topology yet"):
        complete_topology(builder, {"lines": [["a"]]})  # type: ignore[arg-type]
