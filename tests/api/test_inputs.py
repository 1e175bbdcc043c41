"""`inputs=` of set_bolt: the same subscriptions as the grouping methods, and a bolt's key as the
grouping of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    InvalidTopologyError,
    KeyValueState,
    Spout,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
    custom,
    fields,
    fold,
    key_range,
    partial_key,
    tumbling,
)
from sparkstorm.common.model.topology import Subscription


class Words(Spout):
    outputs = {  # noqa: RUF012
        "default": ("word", "at_ms"),
        "odd": ("word", "at_ms"),
        "to": Stream(("word",), direct=True),
    }


class Last(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None: ...


class Keep(StatefulBolt):
    key_fields = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None: ...


class Sums(FoldingBolt):
    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None: ...


class Everywhere:
    def choose_tasks(self, task: int, values: tuple[Any, ...]) -> list[int]:
        return []


@bolt("word", key="word")
def keyed(tup: Tuple, state: KeyValueState) -> Iterator[str]:
    yield tup["word"]


@fold(window=tumbling(seconds=1), key=["word"], time="at_ms", initial=0)
def folded(total: int, tup: Tuple) -> int:
    return total


def subscribed(make: Callable[[TopologyBuilder], Any]) -> tuple[Subscription, ...]:
    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    builder.set_spout("more", Words())
    make(builder)
    return builder.build().components["last"].inputs


EVERYWHERE = Everywhere()
# inputs, and the calls of grouping methods that say the same
SAME: list[tuple[Any, list[tuple[Any, ...]]]] = [
    ("words", [("shuffle", "words")]),
    (["words", "more:odd"], [("shuffle", "words"), ("shuffle", "more", "odd")]),
    ({"words": fields("word", "at_ms")}, [("fields", "words", "word", "at_ms")]),
    ({"words": custom(EVERYWHERE)}, [("custom", "words", EVERYWHERE)]),
    ({"words:odd": key_range("word", ["m"])}, [("key_range", "words", "word", ["m"], "odd")]),
    ({"words": "load_aware_shuffle"}, [("load_aware_shuffle", "words")]),
    ({"words": "shuffle"}, [("shuffle", "words")]),
    ({"words": "all", "more": "global"}, [("all", "words"), ("global", "more")]),
    (
        {"words": "none", "more": "local_or_shuffle"},
        [("none", "words"), ("local_or_shuffle", "more")],
    ),
    ({"words:to": "direct"}, [("direct", "words", "to")]),
]


def by_methods(builder: TopologyBuilder, calls: list[tuple[Any, ...]]) -> None:
    declarer = builder.set_bolt("last", Last())
    for name, *given in calls:
        getattr(declarer, f"{name}_grouping")(*given)


@pytest.mark.parametrize(("inputs", "calls"), SAME)
def test_inputs_are_what_the_grouping_methods_make(inputs: Any, calls: Any) -> None:
    wanted = subscribed(lambda b: by_methods(b, calls))
    assert subscribed(lambda b: b.set_bolt("last", Last(), inputs=inputs)) == wanted


def test_a_partial_key_of_a_stream_is_what_its_grouping_method_makes() -> None:
    def declare(builder: TopologyBuilder) -> None:
        builder.set_bolt("last", Last()).partial_key_grouping("words", "word", stream="odd")

    inputs = {"words:odd": partial_key("word")}
    assert subscribed(lambda b: b.set_bolt("last", Last(), inputs=inputs)) == subscribed(declare)


def test_inputs_and_methods_add_up() -> None:
    found = subscribed(lambda b: b.set_bolt("last", Last(), inputs="words").all_grouping("more"))
    result = [(s.component, s.grouping.kind) for s in found]
    assert result == [("words", "shuffle"), ("more", "all")]


def by_key() -> dict[str, Any]:
    sums = Sums().with_tumbling_window(Duration.seconds(1)).with_key("word")
    return {"function": keyed, "fold": folded, "stateful class": Keep(), "windowed class": sums}


@pytest.mark.parametrize("form", by_key())
def test_a_keyed_bolt_subscribes_by_its_key(form: str) -> None:
    found = subscribed(
        lambda b: b.set_bolt("last", by_key()[form], 3, inputs=["words", "more:odd"])
    )
    assert [(s.grouping.kind, s.grouping.fields) for s in found] == [("fields", ("word",))] * 2


@pytest.mark.parametrize("form", by_key())
@pytest.mark.parametrize(
    "grouping", ["shuffle", "load_aware_shuffle", fields("at_ms"), key_range("at_ms", [5, 9])]
)
def test_a_grouping_that_scatters_the_key_is_refused(form: str, grouping: Any) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        subscribed(lambda b: b.set_bolt("last", by_key()[form], 3, inputs={"words": grouping}))
    came = f"comes by {grouping} grouping" if isinstance(grouping, str) else "is grouped by at_ms"
    assert str(refused.value) == (
        "component 'last': tuples of one key (word) must reach the same of its 3 tasks, but stream 'default' of 'words' "
        f"{came}; use fields_grouping('words', 'word'), or one task"
    )


def three_by_key(form: str, inputs: Any, builder: TopologyBuilder) -> Any:
    return builder.set_bolt("last", by_key()[form], 3, inputs=inputs)


@pytest.mark.parametrize("form", by_key())
def test_ranges_of_a_key_keep_it_together_but_differ_from_its_hash_and_from_other_ranges(
    form: str,
) -> None:
    of_words, more = key_range("word", ["h", "p"]), "words:odd"
    assert subscribed(partial(three_by_key, form, {"words": of_words, more: of_words}))
    for other in (fields("word"), key_range("word", ["g", "p"])):
        sentence = "are grouped differently; group every input by the same fields"
        with pytest.raises(InvalidTopologyError, match=sentence):
            subscribed(partial(three_by_key, form, {"words": of_words, more: other}))


def test_one_task_takes_a_key_by_any_grouping() -> None:
    assert subscribed(lambda b: b.set_bolt("last", keyed, inputs={"words": "shuffle"}))


REFUSED: dict[str, tuple[Any, str]] = {
    "a number": (3, "component 'last': inputs must name components"),
    "numbers": ([3], "inputs must name components"),
    "a grouping": (fields("word"), "inputs must name components"),
    "an unknown grouping": (
        {"words": "fields"},
        "input 'words' has the grouping 'fields'; use fields(...), partial_key(...), key_range(...), custom",
    ),
    "no grouping": ({"words": None}, "input 'words' has the grouping None; use fields"),
    "an unknown stream": (
        "words:even",
        "subscribes to stream 'even' of 'words', which declares default, odd, to",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_inputs_are_refused(case: str) -> None:
    inputs, said = REFUSED[case]
    with pytest.raises(InvalidTopologyError) as refused:
        subscribed(lambda b: b.set_bolt("last", Last(), inputs=inputs))
    assert said in str(refused.value)


def test_a_state_without_a_key_over_several_tasks_needs_a_grouping() -> None:
    class Counted(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.add("all")

    sentence = r"'last' keeps a state without a key, .* 2 tasks"
    with pytest.raises(InvalidTopologyError, match=sentence):
        subscribed(lambda b: b.set_bolt("last", Counted(), 2, inputs="words"))
    subscribed(lambda b: b.set_bolt("last", Counted(), inputs="words"))
    subscribed(lambda b: b.set_bolt("last", Counted(), 2, inputs={"words": "shuffle"}))
