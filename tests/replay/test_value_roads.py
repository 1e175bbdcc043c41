"""The table of values in docs/values.md: each type by each road is the same afterwards, or
refused in a sentence.
"""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from sparkstorm.api import (
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Source,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    fold,
    tumbling,
)
from sparkstorm.api.columns import batch_of, rows_of
from sparkstorm.api.value_columns import declared_array, exact_array, plain_values
from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import from_json, read_value
from sparkstorm.common.model.values.value_types import register
from sparkstorm.connectors import FileSink
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.extensions.recording.capsule_files import read_capsule, write_capsule
from sparkstorm.replay import replay_locally
from sparkstorm.replay.results.types import problem_with, result_type, state_values, typed_array
from sparkstorm.testing import CaptureBolt, FeederSpout
from tests.model.test_value_types import Colour, Order, values
from tests.tiers import examples
from tests.topologies import ran, running


class Level(enum.IntEnum):
    """A class of numbers that are no plain numbers."""

    LOW = 1


register([f"{__name__}:Level"])
BERLIN, CODEC = ZoneInfo("Europe/Berlin"), Codec()
CONF = {
    "topology.serializers": [
        f"{__name__}:Level",
        *(f"tests.model.test_value_types:{name}" for name in ("Colour", "Order")),
    ]
}
ORDER = Order(UUID(int=1), Decimal("9.90"), Colour.BLUE, [2**70])
BY_TYPE: dict[str, list[Any]] = {
    "none": [None],
    "true/false": [True, False],
    "whole number": [0, -1, 2**63 - 1, -(2**63)],
    "wide whole number": [2**63, -(2**200)],
    "float": [0.5, -0.0, float("nan"), float("-inf"), 1.0],
    "text": ["", "storm", "é", '{"$value":1}', "\x00"],
    "bytes": [b"", b"\xff\x00"],
    "date": [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)],
    "datetime": [
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        datetime.datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN),
        datetime.datetime(
            2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))
        ),
        datetime.datetime(1800, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=61))),
    ],
    "Decimal": [
        Decimal(text)
        for text in ("1.5", "1.50", "-0", "1E+2", "NaN", "Infinity", "1E-60", "9" * 60)
    ],
    "UUID": [UUID(int=5)],
    "set": [set(), {1, "a"}, frozenset({b"x", 2**70})],
    "list": [
        [],
        [1, 2.5],
        [1, True],
        [None, "a"],
        [[1], ["a"]],
        [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
    ],
    "mapping": [{}, {"a": 1, "b": "x"}, {"a": None}, {"$x": 1}],
    "mapping with other keys": [
        {1: 2},
        {b"a": 1},
        {True: 1},
        {2**70: 1},
        {datetime.date(2024, 1, 1): [1.5]},
    ],
    "enum": [Colour.RED, Level.LOW, [Level.LOW]],
    "dataclass": [ORDER, {"of": ORDER}],
}
EVERY = [value for those in BY_TYPE.values() for value in those]


def same(one: Any, other: Any) -> bool:
    return CODEC.pack(CODEC.normalise(one)) == CODEC.pack(CODEC.normalise(other))


class PassColumns(ColumnBolt):
    """Emits its batches as they are, as slices, and as rows of Python's values."""

    outputs = {"default": ("n", "value"), "rows": ("n", "value")}  # noqa: RUF012

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        collector.emit_batch(batch.slice(0, 1))
        collector.emit_batch(batch.slice(1))
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # zones and maps of Arrow's own
            if not isinstance(row[1], datetime.datetime | list | dict):
                collector.emit(row, stream="rows")


class Keep(StatefulBolt):
    """Keeps each value under its number, and emits what the state gives back."""

    outputs = ("n", "value")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup["n"], tup["value"])
        collector.emit((tup["n"], self.state[tup["n"]]))


def roads(spout: FeederSpout) -> tuple[Topology, dict[str, CaptureBolt]]:
    builder = TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("columns", PassColumns(), 2).shuffle_grouping("source")
    builder.set_bolt("again", PassColumns()).global_grouping("columns")
    builder.set_bolt("keep", Keep(), 2).fields_grouping("source", "n")
    captures = {
        name: CaptureBolt() for name in ("source", "columns", "columns:rows", "again", "keep")
    }
    for name, capture in captures.items():
        component, _, stream = name.partition(":")
        builder.set_bolt(f"capture-{component}{stream}", capture).global_grouping(
            component, stream=stream or "default"
        )
    return builder.build(), captures


def require_same(
    found: Sequence[Sequence[Any]], given_values: Sequence[Any], where: str, is_whole: bool = True
) -> None:
    assert not is_whole or len(found) == len(given_values), where
    for n, value in found:
        assert same(value, given_values[n]), f"{where}: {given_values[n]!r} became {value!r}"


def by_every_road_live(given_values: Sequence[Any], backend: str, rows_at_once: int) -> None:
    spout = FeederSpout(["n", "value"])
    topology, captures = roads(spout)
    with running(
        topology,
        {**CONF, "topology.workers": 2, "topology.state.backend": backend},
        seed=len(given_values),
    ) as cluster:
        for n, value in enumerate(given_values):
            spout.feed([n, value])
            if n % rows_at_once == rows_at_once - 1:
                cluster.run_until_idle()
        cluster.run_until_idle()
        cluster.kill_worker("keep")
        cluster.run_until_idle()
        assert not cluster.dead_letters and not cluster.errors
        state = cluster.state("keep")
    for name, capture in captures.items():
        require_same(capture.values, given_values, f"live, {name}", is_whole=name != "columns:rows")
    require_same(list(state.items()), given_values, f"live, {backend} state")


def by_every_road_of_a_replay(given_values: Sequence[Any]) -> None:
    topology, _ = roads(FeederSpout(["n", "value"]))
    results = replay_locally(topology, {"source": list(enumerate(given_values))}, conf=CONF)
    for name in ("columns", "again", "keep"):
        require_same(results[name], given_values, f"replay, {name}")
    require_same(list(results.states["keep"].items()), given_values, "replay, state")


def by_files(given_values: Sequence[Any], folder: Path) -> None:
    failure = Failure(FailureKind.RAISED, "no", "bolt", 2)
    letter = DeadLetter(
        failure,
        "source",
        1,
        "default",
        ("value",),
        (list(given_values),),
        1,
        state=((1, list(given_values)),),
    )
    assert same(DeadLetter.from_line(letter.to_line("1-0"))[1].as_record(), letter.as_record())
    write_capsule(folder / "one.capsule.json", letter)
    assert same(read_capsule(folder / "one.capsule.json").as_record(), letter.as_record())
    spout, builder = FeederSpout(["n", "value"]), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("json", FileSink(folder / "out", "json", flush_secs=0)).global_grouping(
        "source"
    )
    with running(builder.build(), CONF) as cluster:
        for n, value in enumerate(given_values):
            spout.feed([n, value])
        cluster.run_until_idle()
        assert not cluster.dead_letters
    lines = [
        json.loads(line)
        for file in (folder / "out").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    require_same(
        [(line["n"], from_json(json.dumps(line["value"]))) for line in lines],
        given_values,
        "JSON lines",
    )


def by_results(given_values: Sequence[Any]) -> None:
    """A result's or state's column of Spark's, and the state read from it."""
    kind = result_type(list(given_values))
    column = typed_array(list(given_values), kind, "value", by_place=False)
    for value, back, cell in zip(
        given_values, state_values(column, is_key=False), plain_values(column), strict=True
    ):
        assert same(back, value), f"{value!r} became {back!r}"
        assert same(read_value(cell), value) or kind != pa.string()


@pytest.mark.parametrize("rows_at_once", [1, 1000])
@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_every_type_is_the_same_by_every_road_live(backend: str, rows_at_once: int) -> None:
    by_every_road_live(EVERY, backend, rows_at_once)


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(BY_TYPE))
def test_rows_of_one_type_are_the_same_by_every_road(name: str, tmp_path: Path) -> None:
    several = BY_TYPE[name] * 40  # batches of columns need some rows
    by_every_road_live(several, "memory", 1000)
    by_every_road_of_a_replay(several)
    by_results(BY_TYPE[name])
    by_files(BY_TYPE[name], tmp_path)


def test_rows_of_all_types_together_are_the_same_in_a_replay_and_in_files(tmp_path: Path) -> None:
    by_every_road_of_a_replay(EVERY)
    by_files(EVERY, tmp_path)
    by_results(EVERY)


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(values)
def test_any_value_is_the_same_in_a_column_and_a_result(value: Any) -> None:
    normal = CODEC.normalise(value)
    whole = exact_array([normal])
    for column in (whole, pa.concat_arrays([whole, whole]).slice(1)):
        assert same(plain_values(column)[-1], normal)
        assert same(plain_values(column.take(pa.array([len(column) - 1])))[0], normal)
    by_results([normal])


CASES: list[tuple[Any, pa.DataType, str]] = [
    ({1, 2}, pa.list_(pa.int64()), "would become"),
    ([1, 2, 2], pa.string(), "list"),
    ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())]), "would become"),
    ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), "would become"),
    (Decimal("-0"), pa.decimal128(10, 2), "would become"),
    (Decimal("1.234"), pa.decimal128(10, 2), "[Rr]escal"),
    ([True], pa.list_(pa.int64()), "got bool"),
    (Level.LOW, pa.int64(), "of type Level"),
    (2**70, pa.int64(), "too large|too big"),
    (
        datetime.datetime(2024, 1, 1, microsecond=7, tzinfo=BERLIN),
        pa.timestamp("ms", "UTC"),
        "would become|lose data",
    ),
]


@pytest.mark.parametrize(("value", "kind", "sentence"), CASES)
def test_a_declared_column_refuses_what_it_would_change(
    value: Any, kind: pa.DataType, sentence: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=sentence):
        declared_array([value], kind)
    words = r"field 'price': .*; declare another type of it, or none"
    with pytest.raises(CodecError, match=words):
        batch_of(["price"], [[value]], {"price": kind})


def test_a_declared_column_converts_what_compares_equal() -> None:
    assert declared_array([1, 2.5, None], pa.float64()).to_pylist() == [1.0, 2.5, None]
    assert str(declared_array([Decimal("1.5")], pa.decimal128(10, 2))[0]) == "1.50"
    assert declared_array([[1, 2.5]], pa.list_(pa.float64())).to_pylist() == [[1.0, 2.5]]


COLUMNS: list[tuple[str, Callable[[], pa.Array], str]] = [
    (
        "a key twice",
        lambda: pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
        "one key twice",
    ),
    (
        "keys of a struct",
        lambda: pa.array([[({"x": 1}, 2)]], pa.map_(pa.struct([("x", pa.int64())]), pa.int64())),
        "a map with keys of type struct",
    ),
    (
        "no zone",
        lambda: pa.array([datetime.datetime(2024, 1, 1)], pa.timestamp("us")),
        "without a zone",
    ),
    (
        "a duration",
        lambda: pa.array([datetime.timedelta(1)]),
        "datetime.timedelta, which is not one of",
    ),
    (
        "an unknown zone",
        lambda: pa.array([0], pa.timestamp("us", "Mars/Olympus")),
        "unknown zone 'Mars/Olympus'",
    ),
    (
        "no UTF-8",
        lambda: pa.array([b"\xff"]).view(pa.string()),
        "stream 'default', field 'any': a column of string holds",
    ),
]


class EmitBatch(ColumnBolt):
    """Emits a batch that its test names."""

    outputs = ("value",)

    def __init__(self, name: str) -> None:
        self.name = name

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        column = next(make for name, make, _ in COLUMNS if name == self.name)()
        collector.emit_batch(pa.RecordBatch.from_arrays([column], ["any"]))


@pytest.mark.parametrize(("name", "make", "sentence"), COLUMNS)
def test_an_emitted_column_that_no_tuple_carries_is_refused_by_name(
    name: str, make: Any, sentence: str
) -> None:
    spout, builder = FeederSpout(["n"]), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("emits", EmitBatch(name)).global_grouping("source")
    with ran(builder.build(), spout, [1], {"topology.max.retries": 0}) as cluster:
        (letter,) = cluster.dead_letters
    assert sentence in letter.reason


def test_times_of_an_emitted_column_keep_their_zone() -> None:
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=BERLIN)
    for kind in (
        pa.timestamp("us", "Europe/Berlin"),
        pa.list_(pa.timestamp("us", "Europe/Berlin")),
    ):
        value = [moment] if pa.types.is_list(kind) else moment
        ((found,),) = rows_of(pa.RecordBatch.from_arrays([pa.array([value], kind)], ["at"]))
        assert same(found, value)
    ((nested,),) = rows_of(
        pa.RecordBatch.from_arrays(
            [pa.array([[moment]], pa.list_(pa.timestamp("us", "UTC")))], ["at"]
        )
    )
    assert nested[0].tzinfo is datetime.UTC


def test_results_of_columns_that_spark_has_no_type_for_are_tagged() -> None:
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=BERLIN)
    for array in (
        pa.array([2**63], pa.uint64()),
        pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
        pa.array([[moment]], pa.list_(pa.timestamp("us", "Europe/Berlin"))),
        pa.array([Decimal("9" * 60)]),
    ):
        column = typed_array(array, result_type(array), "value")
        assert same(list(map(read_value, column.to_pylist())), plain_values(array))


def test_a_map_with_keys_of_a_struct_is_no_input_of_a_replay() -> None:
    kind = pa.map_(pa.struct([("x", pa.int64())]), pa.int64())
    assert "keys of a nested type" in problem_with(kind)
    assert "keys of a nested type" in problem_with(pa.list_(kind))


EQUAL_KEYS = [
    (1, True, 1.0, np.int64(1), Decimal(1)),
    (0, False, -0.0, np.float64(0)),
    ("a", np.str_("a")),
]


class ByKey(StatefulBolt):
    """Counts under one of several equal keys, alone and as a part of a key, and deletes a key."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for equal in EQUAL_KEYS:
            key = equal[tup["n"] % len(equal)]
            self.state.add(key)
            self.state.put((key, "x"), [tup["n"]])
            self.state.put(("gone", key), 1)
            self.state.delete(("gone", key))
            collector.emit(({key: key},))


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_keys_that_compare_equal_are_one_key_live_and_replayed(backend: str) -> None:
    spout, capture, builder = FeederSpout(["n"]), CaptureBolt(), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("keys", ByKey()).global_grouping("source")
    builder.set_bolt("capture", capture).global_grouping("keys")
    with running(builder.build(), {"topology.state.backend": backend}) as cluster:
        for n in range(20):
            spout.feed([n])
            if n % 5 == 4:
                cluster.run_until_idle()
                cluster.kill_worker("keys")
        cluster.run_until_idle()
        assert not cluster.dead_letters
        live = cluster.state("keys")
    assert live == {1: 20, 0: 20, "a": 20, (1, "x"): [19], (0, "x"): [19], ("a", "x"): [19]}
    assert {type(part) for key in live for part in (key if type(key) is tuple else (key,))} <= {
        int,
        str,
        bool,
        float,
        Decimal,
    }
    assert all(
        type(key) in (int, float, bool, str, Decimal)
        for (value,) in capture.values
        for key in value
    )
    replayed = replay_locally(builder.build(), {"source": [(n,) for n in range(20)]})
    assert replayed.states["keys"] == live


TWICE = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
MISSED = datetime.datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN)
TIMES = [TWICE, TWICE.replace(fold=1), MISSED, MISSED.replace(fold=1)]


class ByTime(StatefulBolt):
    """Counts under a time that it gets and under times that it makes."""

    outputs = ("at", "counts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        at = tup["at"]
        made = at.astimezone(datetime.UTC).astimezone(BERLIN)
        keys = at, (made, 1), ("hour", at.replace(minute=0))
        counts = [self.state.add(key) for key in keys]
        collector.emit((at.isoformat(), [*counts, len(tup["set"]), len(tup["mapping"])]))


@fold(window=tumbling(seconds=10), key="at", time="ms", initial=0)
def per_time(total: int, tup: Tuple) -> int:
    """Count."""
    return total + 1


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_times_of_two_offsets_are_keys_by_their_instants(backend: str) -> None:
    spout, builder = FeederSpout(["at", "ms", "set", "mapping"]), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("state", ByTime(), 2).fields_grouping("source", "at")
    builder.set_bolt("fold", per_time, 2).fields_grouping("source", "at")
    captures = {name: CaptureBolt() for name in ("state", "fold")}
    for name, capture in captures.items():
        builder.set_bolt(f"capture-{name}", capture).global_grouping(name)
    own = CODEC.normalise(TIMES)  # a set of Python's own would merge them
    rows = [(at, 1000, set(own), dict.fromkeys(own, 1)) for at in TIMES for _ in range(3)]
    rows += [(datetime.datetime(2024, 1, 1, tzinfo=BERLIN), 60_000, set(), {})]
    topology = builder.build()
    replayed = replay_locally(topology, {"source": rows})
    with running(topology, {"topology.state.backend": backend}) as cluster:
        for n, row in enumerate(rows):
            spout.feed(row)
            if n % 4 == 3:
                cluster.run_until_idle()
                cluster.kill_worker("state")
                cluster.kill_worker("fold")
        cluster.run_until_idle()
        assert not cluster.dead_letters
        live = cluster.state("state")
    for found in (captures["state"].values, replayed["state"]):
        assert sorted(found)[1:] == [
            (at.isoformat(), [n, n, n, 4, 4])
            for at in sorted(TIMES, key=datetime.datetime.isoformat)
            for n in (1, 2, 3)
        ]
    for found in (captures["fold"].values, replayed["fold"]):
        assert [row[1] for row in found][:4] == [3, 3, 3, 3]
        assert {row[0].isoformat() for row in found} >= {at.isoformat() for at in TIMES}
    result = CODEC.pack(sorted(map(repr, live.items())))
    assert result == CODEC.pack(sorted(map(repr, replayed.states["state"].items())))
    assert sorted(live.values()) == [*[1] * 3, *[3] * 12]


IS_STATE_KEY = {
    "none",
    "true/false",
    "whole number",
    "wide whole number",
    "float",
    "text",
    "bytes",
    "date",
    "datetime",
    "Decimal",
    "UUID",
}


@pytest.mark.parametrize("name", sorted(BY_TYPE))
def test_a_type_is_a_key_or_is_refused_in_a_sentence(name: str) -> None:
    for value in BY_TYPE[name]:
        # two of them are two keys of a mapping, but none can be found in a state
        is_nan = value != value
        for key in (value, (value, 1)):
            state = MemoryState(CODEC)
            if name in IS_STATE_KEY and not is_nan:
                state.put(key, 1)
                assert state[key] == 1
            else:
                with pytest.raises((CodecError, TypeError), match=r"a state key|unhashable"):
                    state.put(key, 1)
        if name in IS_STATE_KEY or isinstance(value, enum.Enum):
            assert same(CODEC.normalise({value: 1}), {value: 1})
            assert is_nan or same(CODEC.normalise({value}), {value})
        elif value.__hash__ is not None and not isinstance(value, Order):
            sentence = r"a mapping key of type|an element of a set of type"
            with pytest.raises(CodecError, match=sentence):
                CODEC.normalise({value: 1})
