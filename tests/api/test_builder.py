"""Checks that the builder makes what was said, and that every mistake is named with its remedy."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import sparkstorm.api.builder as builder_module
import sparkstorm.api.storm_names as storm_names
from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Duration,
    FoldingBolt,
    Spout,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    Tuple,
    Window,
)
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Grouping, KeyRanges, Subscription


class Lines(Spout):
    outputs = ("line", "number")


class Split(BasicBolt):
    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


class Keep(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


class Join(Bolt):
    outputs: Mapping[str, Sequence[str] | Stream] = {
        "default": ["a", "b"],
        "late": ("a",),
        "to": Stream(["a"], direct=True),
    }

    def execute(self, tup: Tuple) -> None:
        pass


class Sums(FoldingBolt):
    """A window per word."""

    outputs = ("word", "sum")
    key_fields: Sequence[str] = ("word",)

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        pass


def sums() -> Sums:
    return Sums().with_tumbling_window(Duration(10))


def words() -> TopologyBuilder:
    made = base()
    made.set_bolt("words", Split(), outputs=["word", "place"]).shuffle_grouping("lines")
    return made


def base() -> TopologyBuilder:
    made = TopologyBuilder()
    made.set_spout("lines", Lines())
    return made


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(builder_module).failed == 0
    assert doctest.testmod(builder_module).attempted >= 3
    assert doctest.testmod(storm_names).failed == 0


def test_a_topology_is_what_was_said() -> None:
    made = base()
    made.set_bolt("split", Split(), 2, num_tasks=4, conf={"k": 1}).shuffle_grouping("lines")
    topology = made.build()
    split = topology.components["split"]
    assert (split.kind, split.parallelism, split.num_tasks, split.conf) == ("bolt", 2, 4, {"k": 1})
    assert split.streams == {"default": Stream(["word"])}
    assert split.inputs == (Subscription("lines", "default", Grouping("shuffle")),)
    assert topology.components["lines"].kind == "spout"
    assert topology.components["lines"].streams["default"].fields == ("line", "number")


def test_outputs_may_be_fields_streams_or_streams_that_are_direct() -> None:
    made = base()
    made.set_bolt("join", Join()).all_grouping("lines")
    made.set_bolt("other", Join(), outputs=["x"]).all_grouping("lines")
    made.set_bolt("sink", Split(), outputs=[]).all_grouping("lines")
    components = made.build().components
    assert components["join"].streams == {
        "default": Stream(["a", "b"]),
        "late": Stream(["a"]),
        "to": Stream(["a"], direct=True),
    }
    assert components["other"].streams == {"default": Stream(["x"])}
    assert components["sink"].streams == {}


class Choose:
    def choose_tasks(self, task: int, values: tuple[Any, ...]) -> list[int]:
        return []


def test_every_grouping_has_its_word() -> None:
    made = base()
    chooser = Choose()
    made.set_bolt("join", Join()).shuffle_grouping("lines")
    (
        made.set_bolt("b", Split())
        .fields_grouping("lines", "line", "number")
        .partial_key_grouping("join", "a")
        .all_grouping("join", stream="late")
        .direct_grouping("join", stream="to")
    )
    words = ("global", "none", "local_or_shuffle", "load_aware_shuffle")
    for n, word in enumerate(words):
        getattr(made.set_bolt(f"b{n}", Split()), f"{word}_grouping")("lines")
    made.set_bolt("c", Split()).custom_grouping("lines", chooser)
    made.set_bolt("r", Split(), 2).key_range_grouping("lines", "number", [10, 100])
    components = made.build().components
    assert components["b"].inputs == (
        Subscription("lines", "default", Grouping("fields", ("line", "number"))),
        Subscription("join", "default", Grouping("partial_key", ("a",))),
        Subscription("join", "late", Grouping("all")),
        Subscription("join", "to", Grouping("direct")),
    )
    assert [components[f"b{n}"].inputs[0].grouping.kind for n in range(4)] == list(words)
    assert components["c"].inputs[0].grouping.custom is chooser
    result = components["r"].inputs[0].grouping
    assert result == Grouping("key_range", ("number",), KeyRanges([10, 100]))


def test_a_built_topology_does_not_change_with_its_builder() -> None:
    made = base()
    topology = made.build()
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    assert set(topology.components) == {"lines"}


def test_bolts_may_be_declared_before_their_sources_and_in_cycles() -> None:
    made = TopologyBuilder()
    made.set_bolt("b", Split()).shuffle_grouping("lines").shuffle_grouping("c")
    made.set_bolt("c", Split()).fields_grouping("b", "word")
    made.set_spout("lines", Lines())
    assert set(made.build().components) == {"b", "c", "lines"}


def test_stateful_bolts_are_bolts() -> None:
    made = base()
    made.set_bolt("count", Keep(), outputs=["word", "n"]).fields_grouping("lines", "line")
    assert made.build().components["count"].kind == "bolt"


Change = Callable[[TopologyBuilder], Any]


def split(*given: Any, id: Any = "split", **named: Any) -> Change:
    """Return the addition of a bolt with these arguments."""
    return lambda builder: builder.set_bolt(id, *(given or (Split(),)), **named)


def split_by(grouping: str, *given: Any, **named: Any) -> Change:
    """Return the addition of a bolt with a grouping."""
    return lambda builder: getattr(builder.set_bolt("split", Split()), grouping)(*given, **named)


MISTAKES: list[tuple[Change, str]] = [
    (
        split_by("shuffle_grouping", "line"),
        "component 'split' subscribes to unknown component 'line'; there are lines, split",
    ),
    (
        split_by("shuffle_grouping", "lines", stream="late"),
        "component 'split' subscribes to stream 'late' of 'lines', which declares default",
    ),
    (
        lambda b: (split(outputs=())(b), b.set_bolt("more", Split()).all_grouping("split")),
        "component 'more' subscribes to stream 'default' of 'split', which declares none",
    ),
    (
        split_by("fields_grouping", "lines", "line", "lime"),
        "component 'split' groups stream 'default' of 'lines' by unknown field 'lime'; it declares line, number",
    ),
    (split_by("partial_key_grouping", "lines", "key"), "by unknown field 'key'; it declares line"),
    (split_by("key_range_grouping", "lines", "key", [1]), "by unknown field 'key'; it declares"),
    (split_by("fields_grouping", "lines"), "fields grouping on 'lines' needs at least one field"),
    (
        split_by("fields_grouping", "lines", ["line"]),
        "component 'split': fields grouping on 'lines' takes names of fields, as in fields_grouping('lines', 'word'), "
        "not ['line']",
    ),
    (
        split_by("partial_key_grouping", "lines"),
        "component 'split': partial_key grouping on 'lines' needs at least one field",
    ),
    (
        lambda b: split(Split(), 2, num_tasks=4)(b).key_range_grouping(
            "lines", "number", [10, 100]
        ),
        "component 'split' has 4 tasks for the 3 key ranges of its input from 'lines', and some would get nothing; "
        "give more bounds or fewer tasks",
    ),
    (
        lambda b: (split()(b), split()(b)),
        "component id 'split' is used twice; ids are unique over spouts and bolts",
    ),
    (split(id="lines"), "component id 'lines' is used twice"),
    (
        lambda b: split()(b).shuffle_grouping("lines").all_grouping("lines"),
        "component 'split' subscribes to stream 'default' of 'lines' twice; drop one",
    ),
    (
        split(id="__acker"),
        "component id '__acker' is reserved: ids that begin with '__' belong to the system",
    ),
    (split(outputs={"__tick": ["n"]}), "component 'split': stream id '__tick' is reserved"),
    (
        split(id="split it"),
        "component id 'split it' is not valid: use letters, digits and any of - _ / . $ < > ( ) #",
    ),
    (split(id=""), "component id '' is not valid"),
    (split(id="split\n"), "is not valid"),
    (split(id=7), "component id '7' is not valid"),
    (split(outputs={"a stream": ["n"]}), "component 'split': stream id 'a stream'"),
    (
        split(Split(), 0),
        "component 'split': parallelism must be a whole number of at least 1, not 0",
    ),
    (split(Split(), 1.5), "at least 1, not 1.5"),
    (split(Split(), True), "at least 1, not True"),
    (split(Split(), None), "at least 1, not None"),
    (
        split(num_tasks=0),
        "component 'split': num_tasks must be a whole number of at least 1, not 0",
    ),
    (
        lambda b: b.set_spout("more", Lines(), 4, num_tasks=2),
        "component 'more': 4 executors cannot share 2 tasks; raise num_tasks or lower the parallelism",
    ),
    (
        split_by("direct_grouping", "lines"),
        "component 'split': direct grouping and a direct stream go together, but stream 'default' of 'lines' is "
        "not direct and the grouping is direct",
    ),
    (
        lambda b: (b.set_bolt("join", Join()), split()(b).shuffle_grouping("join", stream="to")),
        "but stream 'to' of 'join' is direct and the grouping is shuffle",
    ),
    (
        split(type("Muted", (Split,), {"effects": "mute"})()),
        "component 'split': effects is 'mute'; use one of Effects.RUN, Effects.IDEMPOTENT, Effects.MUTE, Effects.REDIRECT",
    ),
    (
        split(Split),
        "component 'split': set_bolt needs an instance of Bolt or BasicBolt, not the class Split (call it)",
    ),
    (split(Lines()), "not a Lines"),
    (
        lambda b: b.set_spout("more", Split()),  # type: ignore[arg-type]
        "component 'more': set_spout needs an instance of Spout, not a Split",
    ),
    (
        split_by("custom_grouping", "lines", object()),
        "component 'split': a custom grouping needs a method choose_tasks(task, values)",
    ),
    (split(outputs="word"), "outputs is the text 'word'; write a list of field names"),
    (
        split(outputs={"default": "word"}),
        "component 'split', stream 'default': fields must be a list of names, not 'word'",
    ),
    (split(outputs={"default": 3}), "stream 'default': fields must be a list of names, not 3"),
    (split(outputs=3), "stream 'default': fields must be a list of names, not 3"),
    (split(outputs=["word", 3]), "stream 'default': fields must be a list of names"),
    (split(outputs=["word", ""]), "fields must be a list of names"),
    (
        split(outputs=["word", "n", "word"]),
        "component 'split', stream 'default': field 'word' is declared twice; rename one",
    ),
    (split(conf=["k"]), "component 'split': conf must be a mapping of keys to values, not ['k']"),
]


@pytest.mark.parametrize(("change", "complaint"), MISTAKES)
def test_a_mistake_is_named_with_its_mend(change: Change, complaint: str) -> None:
    made = base()

    def build() -> None:
        change(made)
        made.build()

    with pytest.raises(InvalidTopologyError) as caught:
        build()
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("made", "name", "here"),
    [
        (base, "setBolt", "TopologyBuilder has no 'setBolt'; here it is set_bolt"),
        (base, "createTopology", "here it is build()"),
        (lambda: split()(base()), "fieldsGrouping", "here it is fields_grouping"),
        (lambda: split()(base()), "setNumTasks", "here it is num_tasks= of set_bolt"),
        (Sums, "withTumblingWindow", "Sums has no 'withTumblingWindow'; here it is with_tumbling"),
        (Sums, "withTimestampExtractor", "here it is with_timestamp_field"),
        (Sums, "with_nothing", "'Sums' object has no attribute 'with_nothing'"),
        (lambda: split()(base()), "group", "'Declarer' object has no attribute 'group'"),
    ],
)
def test_a_name_of_storm_is_answered_with_the_name_here(
    made: Callable[[], Any], name: str, here: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(made(), name)
    assert here in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.with_tumbling_window(60), "is 60; write Duration.seconds(60), or Count(60)"),
        (lambda b: b.with_window(Duration(10), 5), "slide of a window is 5; write Duration"),
        (lambda b: b.with_key(["word"]), "as in with_key('word'), not ['word']"),
        (lambda b: b.with_lag(10), "with_lag(10): write a Duration, as Duration.seconds(10)"),
        (lambda b: b.with_session_window("1m"), "with_session_window('1m'): write a Duration"),
        (lambda b: b.with_allowed_lateness(1.5), "with_allowed_lateness(1.5): write a Duration"),
    ],
)
def test_a_setting_of_a_window_in_another_form_is_named(
    change: Callable[[Sums], Any], complaint: str
) -> None:
    with pytest.raises(InvalidTopologyError) as caught:
        change(Sums())
    assert complaint in str(caught.value)


def test_an_error_inside_a_property_of_a_windowed_bolt_keeps_its_text() -> None:
    class Odd(Sums):
        @property
        def width(self) -> int:
            return [].width  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'list' object has no attribute 'width'"):
        Odd().width  # noqa: B018 - the access raises


def test_a_topology_without_a_spout_is_refused() -> None:
    made = TopologyBuilder()
    made.set_bolt("split", Split())
    sentence = r"needs at least one spout; add one with set_spout\(\.\.\.\)"
    with pytest.raises(InvalidTopologyError, match=sentence):
        made.build()


# -- windows by key


@pytest.mark.parametrize("grouping", ["shuffle", "none", "local_or_shuffle"])
def test_windows_by_key_in_several_tasks_refuse_a_grouping_that_scatters_keys(
    grouping: str,
) -> None:
    made = words()
    getattr(made.set_bolt("sums", sums(), 2), f"{grouping}_grouping")("words")
    with pytest.raises(InvalidTopologyError) as refused:
        made.build()
    assert str(refused.value) == (
        "component 'sums': tuples of one key (word) must reach the same of its 2 tasks, but stream 'default' of 'words' "
        f"comes by {grouping} grouping; use fields_grouping('words', 'word'), or one task"
    )


@pytest.mark.parametrize(
    "more", [{"num_tasks": 2}, {"conf": {"topology.tasks": 2}}, {"parallelism": 2}]
)
def test_tasks_count_not_executors(more: dict[str, Any]) -> None:
    made = words()
    made.set_bolt("sums", sums(), **more).shuffle_grouping("words")
    with pytest.raises(InvalidTopologyError, match="of its 2 tasks"):
        made.build()


def test_windows_by_key_refuse_a_key_that_is_spread_by_other_fields_or_by_two_groupings() -> None:
    made = words()
    made.set_bolt("sums", sums(), 2).fields_grouping("words", "word", "place")
    sentence = r"'words' is grouped by word, place; use fields_grouping\('words', 'word'\)"
    with pytest.raises(InvalidTopologyError, match=sentence):
        made.build()
    groups: list[Callable[[Any], Any]] = [
        lambda b: b.fields_grouping("words", "place", "word").fields_grouping(
            "more", "word", "place"
        ),
        lambda b: b.fields_grouping("words", "word", "place").global_grouping("more"),
    ]
    for group in groups:
        made = words()
        made.set_bolt("more", Split(), outputs=["word", "place"]).shuffle_grouping("lines")
        group(made.set_bolt("sums", sums().with_key("word", "place"), 2))
        sentence = "stream 'default' of 'words' are grouped differently; group every input by"
        with pytest.raises(InvalidTopologyError, match=sentence):
            made.build()


@pytest.mark.parametrize(
    "group",
    [
        lambda b: b.set_bolt("sums", sums(), 2).fields_grouping("words", "word"),
        lambda b: b.set_bolt("sums", sums().with_key("word", "place"), 2).fields_grouping(
            "words", "word"
        ),
        lambda b: b.set_bolt("sums", sums(), 1).shuffle_grouping("words"),
        lambda b: b.set_bolt("sums", sums(), 2).global_grouping("words"),
        lambda b: b.set_bolt("sums", sums(), 2).all_grouping("words"),
        lambda b: b.set_bolt("sums", sums(), 2).partial_key_grouping("words", "word"),
        lambda b: b.set_bolt("sums", sums().with_key(), 2).shuffle_grouping("words"),
        lambda b: b.set_bolt("keep", Keep(), 2).shuffle_grouping("words"),
    ],
)
def test_what_keeps_keys_together_or_has_none_is_legal(
    group: Callable[[TopologyBuilder], Any],
) -> None:
    made = words()
    group(made)
    made.build()


def test_a_text_for_key_fields_is_named() -> None:
    made, bolt = words(), sums()
    bolt.key_fields = "word"
    made.set_bolt("sums", bolt).fields_grouping("words", "word")
    sentence = "component 'sums': key_fields is the text 'word'; write a tuple of field names"
    with pytest.raises(InvalidTopologyError, match=sentence):
        made.build()


# -- inputs


def test_a_bolt_without_inputs_is_refused_unless_ticks_are_its_input() -> None:
    made = base()
    made.set_bolt("split", Split())
    sentence = r"bolt 'split' has no inputs, so .* add a .*shuffle_grouping\('lines'\)"
    with pytest.raises(InvalidTopologyError, match=sentence):
        made.build()
    made = base()
    made.set_bolt("clock", Split(), conf={"topology.tick.tuple.freq.secs": 5})
    made.build()
