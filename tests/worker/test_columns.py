"""Bolts of columns live: whole batches through memory and store, mixed with bolts of rows, with
equal results.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparkstorm.api import (
    BasicBolt,
    BatchCollector,
    ColumnBolt,
    Source,
    Spout,
    StatefulBolt,
    Tuple,
    value_columns,
)
from sparkstorm.api.columns import rows_of
from sparkstorm.api.value_columns import exact_array, plain_values
from sparkstorm.common.errors import CodecError, MalformedFrameError
from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.data_plane.executor import pieces
from sparkstorm.data_plane.executor.emitter import build_routes
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.base import Entry
from sparkstorm.data_plane.transport.batch_columns import (
    is_readable,
    pack_columns,
    plain_batch,
    unpack_columns,
)
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.testing import (
    FeederSpout,
    LocalCluster,
    Shared,
    Subject,
    die,
    simulate,
)
from tests.topologies import building, running

WORDS = ["the", "cow", "jumped", "över", "", "moon", "a", "b"]
SIZES: Shared[list[int]] = Shared([])


class SplitRows(BasicBolt):
    outputs = ("word", "length")

    def execute(self, tup: Tuple, collector: Any) -> None:
        for word in tup[0].split("|"):
            collector.emit((word, len(word)))


class SplitColumns(ColumnBolt):
    outputs = ("word", "length")

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        words = pc.list_flatten(pc.split_pattern(batch.column(0), "|"))
        collector.emit_batch(pa.RecordBatch.from_arrays([words, pc.utf8_length(words)], ["w", "n"]))


class CountRows(StatefulBolt):
    def execute(self, tup: Tuple, collector: Any) -> None:
        self.state.add(tup["word"], tup["length"] + 1)


class CountColumns(ColumnBolt, StatefulBolt):
    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        SIZES.value.append(batch.num_rows)
        assert batch.schema.names == ["word", "length"] and source.component == "split"
        sums = (
            pa.Table.from_batches([batch])
            .group_by("word")
            .aggregate([("length", "sum"), ("length", "count")])
        )
        self.state.add_batch(sums["word"], pc.add(sums["length_sum"], sums["length_count"]))


class Lines(Spout):
    """Emits all its lines as batches, each tracked as one message."""

    outputs = ("line",)

    def __init__(self, lines: list[str], size: int) -> None:
        self._batches = [lines[start : start + size] for start in range(0, len(lines), size)]

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.left = collector, list(enumerate(self._batches))

    def next_tuple(self) -> None:
        if self.left:
            number, lines = self.left.pop(0)
            self.collector.emit_batch(
                pa.RecordBatch.from_arrays([pa.array(lines)], ["line"]), number
            )

    def is_exhausted(self) -> bool:
        return not self.left


def some_lines(seed: int, count: int) -> list[str]:
    chance = random.Random(seed)
    return ["|".join(chance.choices(WORDS, k=chance.randint(1, 6))) for _ in range(count)]


def wanted(lines: list[str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for line in lines:
        for word in line.split("|"):
            counts[word] += len(word) + 1
    return dict(counts)


def topology(spout: Spout, split: Any, count: Any, tasks: int = 3) -> Topology:
    builder = building(lines=spout)
    builder.set_bolt("split", split, tasks).shuffle_grouping("lines")
    builder.set_bolt("count", count, tasks).fields_grouping("split", "word")
    return builder.build()


@pytest.mark.sampled
@pytest.mark.parametrize(("split", "count", "workers", "is_batch"), list(product(
    [SplitRows, SplitColumns], [CountRows, CountColumns], [1, 3], [False, True]
)))  # fmt: skip
def test_rows_and_columns_mix_with_equal_results(
    split: Any, count: Any, workers: int, is_batch: bool
) -> None:
    lines = some_lines(workers, 700)
    feeder, SIZES.value[:] = FeederSpout(["line"]), []
    with running(
        topology(Lines(lines, 60) if is_batch else feeder, split(), count()),
        {"topology.workers": workers},
    ) as cluster:
        for number, line in enumerate([] if is_batch else lines):
            feeder.feed([line], message_id=number)
        cluster.run_until_idle()
        assert cluster.state("count") == wanted(lines)
        counts = {name: cluster.counts(name) for name in ("lines", "split", "count")}
        words = sum(len(line.split("|")) for line in lines)
        assert (counts["lines"].emitted, counts["split"].executed) == (700, 700)
        assert (counts["split"].emitted, counts["count"].executed) == (words, words)
        assert (counts["lines"].acked, counts["lines"].failed) == (12 if is_batch else 700, 0)
        assert count is not CountColumns or max(SIZES.value) > 10
        store = cluster.topology().store
        assert not store.quarantine
        assert not any(keys.backlog or keys.stream for keys in store.task_keys.values())


def test_only_the_row_that_fails_is_parked_and_what_its_batch_emitted_leaves_no_trace() -> None:
    class Fussy(ColumnBolt, StatefulBolt):
        outputs = ("word", "length")

        def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
            self.state.add_batch(batch.column(0))
            collector.emit_batch(
                pa.RecordBatch.from_arrays(
                    [batch.column(0), pc.utf8_length(batch.column(0))], ["w", "n"]
                )
            )
            if "bad" in batch.column(0).to_pylist():
                raise ValueError("no bad lines")

    with LocalCluster() as cluster:
        lines = ["good"] * 40 + ["bad"] + ["fine"] * 40
        spout = FeederSpout(["line"])
        cluster.submit(
            topology(spout, Fussy(), CountColumns(), 1),
            {"topology.max.retries": 1, "topology.workers": 2},
        )
        for number, line in enumerate(lines):
            spout.feed([line], message_id=number)
        cluster.run_until_idle()
        assert cluster.state("split") == {"good": 40, "fine": 40}
        assert cluster.state("count") == {"good": 200, "fine": 200}
        assert [letter.values for letter in cluster.dead_letters] == [("bad",)]
        assert spout.failed == [40] and len(spout.acked) == 80


def test_a_row_of_a_batch_that_kills_its_worker_is_found_and_parked() -> None:
    class Deadly(ColumnBolt, StatefulBolt):
        def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
            if "poison" in batch.column(0).to_pylist():
                die()
            self.state.add_batch(batch.column(0))

    lines = [f"w{n % 3}" for n in range(50)]
    lines[20] = "poison"
    with running(
        topology(Lines(lines, 50), SplitColumns(), Deadly(), 1), {"topology.workers": 3}
    ) as cluster:
        cluster.run_until_idle()
        result = cluster.state("count")
        assert result == {f"w{n}": sum(line == f"w{n}" for line in lines) for n in range(3)}
        assert [letter.values[0] for letter in cluster.dead_letters] == ["poison"]


BERLIN = "Europe/Berlin"


def priced(numbers: Any) -> Any:
    """A batch of numbers with a price, a day and a time of each, some of them missing."""
    prices = pc.multiply(numbers.cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.908")))
    # Every half hour over the autumn's change of the clock, when one hour comes twice.
    at = pa.array(
        [datetime(2026, 10, 24, tzinfo=UTC) + timedelta(minutes=30 * n.as_py()) for n in numbers],
        pa.timestamp("ms", "UTC"),
    ).cast(pa.timestamp("ms", BERLIN))
    days = at.cast(pa.date32())
    rest = pc.if_else(pc.equal(pc.bit_wise_and(numbers, 7), 0), None, prices)
    return pa.RecordBatch.from_arrays([numbers, prices, days, at, rest], list(PRICED))


PRICED = ("number", "price", "day", "at", "rest")


class PricedColumns(ColumnBolt):
    outputs = PRICED

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        collector.emit_batch(priced(batch.column(0)))


class PricedRows(BasicBolt):
    outputs = PRICED

    def execute(self, tup: Tuple, collector: Any) -> None:
        for values in rows_of(priced(pa.array([tup[0]]))):
            collector.emit(values)


class SeenRows(StatefulBolt):
    def prepare(self, conf: Any, context: Any) -> None:
        self.task = context.task_index

    def execute(self, tup: Tuple, collector: Any) -> None:
        self.state[tup[0]] = [self.task, *tup.values]


class SeenColumns(ColumnBolt, StatefulBolt):
    def prepare(self, conf: Any, context: Any) -> None:
        self.task = context.task_index

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        SIZES.value.append(batch.num_rows)
        # as it was emitted: of rows it would have no more digits than their values
        assert batch.schema.field("price").type == pa.decimal128(23, 3)
        for values in rows_of(batch):
            self.state[values[0]] = [self.task, *values]


@pytest.mark.sampled
@pytest.mark.parametrize("key", ["price", "day", "at", "rest"])
@pytest.mark.parametrize("workers", [1, 3])
def test_decimals_days_and_times_stay_columns_and_reach_the_tasks_of_their_rows(
    workers: int, key: str
) -> None:
    def run(price: Any, seen: Any) -> Any:
        spout = FeederSpout(["number"])
        builder = building(numbers=spout)
        builder.set_bolt("priced", price, 2).shuffle_grouping("numbers")
        builder.set_bolt("seen", seen, 3).fields_grouping("priced", key)
        with running(builder.build(), {"topology.workers": workers}) as cluster:
            for number in range(200):
                spout.feed([number], message_id=number)
            cluster.run_until_idle()
            return cluster.state("seen")

    SIZES.value[:] = []
    expected = run(PricedRows(), SeenRows())
    assert len(expected) == 200 and not SIZES.value
    found = run(PricedColumns(), SeenColumns())
    assert found == expected
    for number, one in found.items():
        other = expected[number]
        result = [(type(value), str(value)) for value in one]
        assert result == [(type(value), str(value)) for value in other]
        assert one[4].fold == other[4].fold
    assert max(SIZES.value) > 3
    assert run(PricedColumns(), SeenRows()) == expected


def column_words() -> Topology:
    return topology(FeederSpout(["line"]), SplitColumns(), CountColumns(), 2)


@pytest.mark.nightly
@pytest.mark.slow
def test_nothing_is_lost_or_doubled_under_faults() -> None:
    rows = [[line] for line in some_lines(5, 40)]
    simulate(Subject(column_words, {"lines": rows}), range(25))


# -- pieces and their bytes


def test_pieces_are_counted_cut_and_taken_as_the_rows_that_they_are() -> None:
    source = Source("c", 1, "default", ("n",))
    whole = [
        ((0,), 1, source),
        (pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4])], ["n"]), 2, source),
        ((5,), 3, source),
    ]
    plain = pieces.unfold(whole)
    result = [row[:2] for row in plain]
    assert result == [((0,), 1), ((1,), 2), ((2,), 2), ((3,), 2), ((4,), 2), ((5,), 3)]
    assert pieces.count_rows(whole) == 6
    for start in range(6):
        for stop in range(start + 1, 7):
            assert pieces.unfold(pieces.part_of(whole, start, stop)) == plain[start:stop]
    for most in range(1, 8):
        left, taken = list(whole), []
        while left:
            part = pieces.take(left, most)
            assert pieces.count_rows(part) <= most
            taken += pieces.unfold(part)
        assert taken == plain


COLUMNS = [
    pa.array([1, None, 3]), pa.array([1.5, 2.5, None]), pa.array(["a", "", "é"]), pa.array([b"x", None, b""]),
    pa.array([True, False, None]), pa.array([None, None, None]), pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([1, 2, 3], pa.int8()), pa.array(["q", None, "r"], pa.large_string()),
    pa.array([Decimal("1.50"), None, Decimal("-7.00")]), pa.array([date(1, 1, 2), None, date(9999, 12, 30)]),
    pa.array([datetime(2, 1, 1, tzinfo=UTC), None, datetime(2026, 10, 25, 0, 30, 0, 1, UTC)], pa.timestamp("us", "+05:30")),
    pa.array([None, None, None], pa.timestamp("us", BERLIN)),
]  # fmt: skip


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_columns_come_back_as_they_went_whole_and_sliced(column: Any) -> None:
    for start, stop in ((0, 3), (1, 3), (0, 1), (2, 3)):
        batch = plain_batch(
            pa.RecordBatch.from_arrays([column.slice(start, stop - start)], ["x"]), ["x"]
        )
        packed = Codec().unpack(Codec().pack(pack_columns(batch)))
        found = unpack_columns(packed, stop - start, ["x"])
        assert found.column(0).to_pylist() == column.to_pylist()[start:stop]


def test_a_column_outside_the_closed_set_travels_as_rows() -> None:
    assert plain_batch(pa.RecordBatch.from_arrays([pa.array([[1], [2]])], ["x"]), ["x"]) is None
    assert (
        plain_batch(pa.RecordBatch.from_arrays([pa.array([2**64 - 1], pa.uint64())], ["x"]), ["x"])
        is None
    )
    assert plain_batch(
        pa.RecordBatch.from_arrays([pa.array([2**63 - 1], pa.uint64())], ["x"]), ["x"]
    )[0].to_pylist() == [2**63 - 1]
    for column in (
        pa.array([datetime(2026, 1, 1)]),
        pa.array([1], pa.timestamp("ns", "UTC")),
        pa.array([1], pa.timestamp("us", "Mars/Base")),
        pa.array([date(9999, 12, 31)]),
        pa.array([2**62], pa.timestamp("us", "UTC")),
        pa.array([2**62], pa.timestamp("s", "UTC")),
        pa.array([Decimal("1.5")], pa.decimal256(40, 1)),
        pa.array([Decimal("1E+3")], pa.decimal128(3, -3)),
    ):
        batch = pa.RecordBatch.from_arrays([column], ["x"])
        assert plain_batch(batch, ["x"]) is None, column.type


def test_a_zone_that_is_a_folder_is_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(name: str) -> Any:
        raise IsADirectoryError(name)

    # as Python 3.11 does where the package tzdata is installed
    monkeypatch.setattr(value_columns, "ZoneInfo", folder)
    with pytest.raises(CodecError, match="unknown zone 'America'"):
        value_columns.zone_of("America")


@pytest.mark.parametrize(
    ("name", "minutes"),
    [("+01:30", 90), ("-0130", -90), ("GMT+2", 120), ("UTC+01:30", 90), ("UT-11", -660), ("-00:00", 0), ("GMT+0", 0)],
)  # fmt: skip
def test_offsets_are_read_as_arrow_and_sessions_of_spark_write_them(
    name: str, minutes: int
) -> None:
    offset = timedelta(minutes=minutes)
    assert datetime(2026, 1, 1, tzinfo=value_columns.zone_of(name)).utcoffset() == offset


@pytest.mark.parametrize(
    "name", ["GMT+24", "UTC+", "+1:2:3", "GMT+02:00:00:00", "CET+1", "+01:60", ""]
)
def test_a_zone_that_is_none_is_named(name: str) -> None:
    with pytest.raises(CodecError, match="unknown zone"):
        value_columns.zone_of(name)


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
        datetime.min.replace(tzinfo=ZoneInfo("Europe/Berlin")),
    ],
    ids=["last", "first"],
)
def test_times_that_utc_has_no_year_for_are_read_in_their_zone(value: datetime) -> None:
    since = value.replace(tzinfo=None) - datetime(1970, 1, 1) - (value.utcoffset() or timedelta())
    column = pa.array([since // timedelta(microseconds=1), 0, None], pa.int64())
    found = plain_values(column.cast(pa.timestamp("us", str(value.tzinfo))))
    assert found[0] == value and found[0].utcoffset() == value.utcoffset()
    assert found[1:] == [datetime(1970, 1, 1, tzinfo=UTC), None]


@pytest.mark.parametrize(
    ("values", "plain", "kind"),
    [
        ([[0], None], pa.list_(pa.int64()), pa.list_(pa.timestamp("us", "GMT+2"))),
        ([{"at": 0}], pa.struct({"at": pa.int64()}), pa.struct({"at": pa.timestamp("us", "GMT+2")})),
        ([[(1, 0)]], pa.map_(pa.int64(), pa.int64()), pa.map_(pa.int64(), pa.timestamp("us", "GMT+2"))),
        ([[(0, 1)]], pa.map_(pa.int64(), pa.int64()), pa.map_(pa.timestamp("us", "GMT+2"), pa.int64())),
    ],
    ids=["list", "struct", "map", "key"],
)  # fmt: skip
def test_times_of_a_session_of_spark_are_read_at_every_depth(
    values: list[Any], plain: pa.DataType, kind: pa.DataType
) -> None:
    at = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    (found, *_) = plain_values(pa.array(values, plain).cast(kind))
    inside = found if isinstance(found, list) else [*found, *found.values()]
    (read,) = [each for each in inside if isinstance(each, datetime)]
    assert read == at and read.utcoffset() == at.utcoffset()


BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\x01\0\0\0"), pa.py_buffer(b"\xff")]
)
FAR = pa.array([1 << 60])


@pytest.mark.parametrize(
    "column",
    [
        BAD_TEXT,
        FAR.cast(pa.timestamp("us", "UTC")),
        FAR.cast(pa.timestamp("us", BERLIN)),
        FAR.cast(pa.timestamp("s", BERLIN)),
        pa.array([1 << 30], pa.int32()).cast(pa.date32()),
        pa.array([1]).cast(pa.timestamp("ns", BERLIN)),
        pa.array([[1 << 60]]).cast(pa.list_(pa.timestamp("us", "UTC"))),
        pa.array([1]).cast(pa.timestamp("us", "Mars/X")),
        pa.StructArray.from_arrays([pa.array([[1 << 60]]).cast(pa.list_(pa.timestamp("us", BERLIN)))], ["x"]),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_values_that_python_has_none_for_are_refused_and_seen_by_the_ends(column: pa.Array) -> None:
    # Between their ends: columns of nanoseconds are refused by their type.
    assert is_readable(column) == (column.type == pa.timestamp("ns", BERLIN))
    with pytest.raises(CodecError, match=r"cannot carry|unknown zone"):
        plain_values(column)


def test_columns_that_are_coded_by_runs_or_by_a_dictionary_have_their_values() -> None:
    texts = pa.array(["ab", "cd"])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), texts)
    assert plain_values(runs) == ["ab", "cd", "cd"]
    lists = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), runs)
    assert plain_values(lists) == [["ab", "cd", "cd"]]
    either = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(CodecError, match=r"a column of sparse_union.*cast it"):
        plain_values(either)


AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "fit", "unfit"),
    [
        (pa.date64(), [date(2026, 1, 1)], [1, True, 1.0, Decimal(1), AT]),
        (pa.date32(), [date(2026, 1, 1)], [1, AT]),
        (pa.string_view(), ["ab"], [b"ab", 1]),
        (pa.binary_view(), [b"ab"], ["ab"]),
        (pa.binary(2), [b"ab"], ["ab", b"a"]),
        (pa.dictionary(pa.int32(), pa.string()), ["ab"], [b"ab", 1]),
        (pa.dictionary(pa.int32(), pa.int64()), [1], [True, 1.0, Decimal(1)]),
        (pa.dictionary(pa.int32(), pa.float64()), [1.5, 1], [True, Decimal("0.5")]),
        (pa.list_(pa.date64()), [[date(2026, 1, 1)]], [[1], [AT]]),
        (pa.list_(pa.binary(2)), [[b"ab"]], [["ab"]]),
        (pa.bool8(), [], [1]),
        (pa.uuid(), [UUID(int=1)], [b"a" * 16]),
    ],
    ids=str,
)  # fmt: skip
def test_a_declared_type_takes_no_value_that_it_would_change(
    kind: pa.DataType, fit: list[Any], unfit: list[Any]
) -> None:
    assert plain_values(value_columns.declared_array(fit, kind)) == fit
    for value in unfit:
        with pytest.raises(pa.ArrowInvalid):
            value_columns.declared_array([value], kind)


def test_times_of_other_units_travel_as_microseconds() -> None:
    for unit in ("s", "ms", "ns"):
        column = pa.array([1, None, -1], pa.int64()).cast(pa.timestamp("s", BERLIN))
        column = column.cast(pa.timestamp(unit, BERLIN))
        found = plain_batch(pa.RecordBatch.from_arrays([column], ["x"]), ["x"]).column(0)
        assert found.type == pa.timestamp("us", BERLIN)
        assert found.cast(pa.int64()).to_pylist() == [1_000_000, None, -1_000_000]


@pytest.mark.parametrize("packed", [
    None, [], [1], [["string"]], [["string", [None, b"", b""], 1]], [["int64", [None, b"1234567"]]], [["int64", [None, None]]],
    [["int64", [None]]], [["list", [None]]], [["string", [None, bytes(12), b""]]], [["string", [None, b"\xff" * 16, b"ab"]]],
    [["string", [None, bytes([0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), b"ab"]]], [["string", ["a", "b", "c"]]],
    [["string", [None, bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]), b"\xff\xfe"]]], [["bool", [None, b""]]], [[1, []]],
    [["decimal128(39, 0)", [None, bytes(48)]]], [["decimal128(3, 4)", [None, bytes(48)]]],
    [["decimal128(3, 0)", [None, b"\x7f" * 48]]], [["decimal128(3, 0)", [None, bytes(47)]]],
    [["date32[day]", [None, struct.pack("<3i", 0, 3_000_000, 0)]]], [["date32[day]", [bytes(12)]]],
    [["timestamp[us]", [None, bytes(24)]]], [["timestamp[ms, tz=UTC]", [None, bytes(24)]]],
    [["timestamp[us, tz=Mars/Base]", [None, bytes(24)]]],
    [["timestamp[us, tz=UTC]", [None, struct.pack("<3q", 0, -(2**62), 0)]]], [["timestamp[us, tz=../../UTC]", [None, bytes(24)]]],
])  # fmt: skip
def test_bytes_that_are_no_columns_are_refused(packed: Any) -> None:
    body = [1, 0, "s", [1], b"", 3, {"arrow": packed}, b"", b"", None]
    sentence = r"batch|column|buffer|Buffer|offset|UTF|[Ii]nvalid|data|fit in precision"
    with pytest.raises(MalformedFrameError, match=sentence):
        frames.decode(Codec(), frames._framed(frames.ROWS, 0, Codec().pack(body)))


def test_spoilt_batches_raise_nothing_but_malformed_frame_error() -> None:
    chance, source = random.Random(3), Source("c", 1, "default", ("word", "n"))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", None, "ccc", "dé"]), pa.array([1, 2, None, 4])], ["word", "n"]
    )
    sound = frames.encode_pieces(
        Codec(), "s", 0, [(batch, (5, 6), source), (batch, 7, source)], lambda roots: 9
    )
    assert frames.decode(Codec(), sound).batch.num_rows == 8  # type: ignore[union-attr]
    refused = 0
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(12, len(data))] = chance.randrange(256)
        try:
            found = frames.decode(Codec(), bytes(data))
            assert isinstance(found, frames.RowFrame) and len(found.batch.to_pylist()) == 8
        except MalformedFrameError:
            refused += 1
    assert refused > 500


def test_pieces_of_several_senders_come_back_with_the_sender_and_the_roots_of_each_row() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4, 5])], ["n"])
    sources = {task: Source("c", task, "s", ("n",)) for task in range(300)}
    for tasks in ([4, 4, 4], [4, 7, 4], [*range(300)]):
        sent = [(batch.slice(0, 1 + task % 5), 10 + task % 3, sources[task]) for task in tasks]
        data = frames.encode_pieces(Codec(), "s", 0, sent, lambda roots: 9)
        inbox = Inbox(1, Codec(), lambda task, stream: sources[task])
        inbox.add(Entry(1, "1-0", data))
        found = [row for chunk in inbox.chunks for row in chunk.part(0, chunk.total)]
        assert pieces.unfold(found) == pieces.unfold(sent)


def test_a_spout_learns_on_its_worker_which_streams_bolts_of_columns_read(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(some_lines(1, 50)))
    for count, split, messages in ((CountRows, SplitColumns, 1), (CountColumns, SplitRows, 50)):
        with running(topology(FileLines(find_files([tmp_path])), split(), count(), 2)) as cluster:
            cluster.run_until_idle()
            assert cluster.state("count") == wanted(some_lines(1, 50))
            assert cluster.counts("lines").acked == messages
            assert cluster.counts("lines").emitted == 50


def test_a_batch_is_divided_as_its_rows_would_be_each_by_itself() -> None:
    from sparkstorm.data_plane.executor.column_runner import BatchEmitter, dividers_of
    from sparkstorm.data_plane.executor.emitter import Emitter

    builder = building(spout=FeederSpout(["a", "b", "c"]))
    for name, fields in (("one", ("a",)), ("both", ("a", "b")), ("any", ("c",))):
        builder.set_bolt(name, CountRows(), 5).fields_grouping("spout", *fields)
    built = builder.build()
    tasks = {"one": [1, 2, 3, 4, 5], "both": [6, 7, 8, 9, 10], "any": [11, 12, 13, 14, 15]}
    values = [
        (random.Random(n).choice([None, "x", "é", ""]), n % 7, UUID(int=n % 9)) for n in range(200)
    ]
    found = []
    *plain, last = zip(*values, strict=True)
    columns = [*map(pa.array, plain), exact_array(last)]
    batch = pa.RecordBatch.from_arrays(columns, ["a", "b", "c"])
    for way in ("rows", "batch", "divided"):  # the last one in a replay
        targets: dict[int, Target] = {}

        def make(channel: str, task: int, targets: dict[int, Target] = targets) -> Target:
            return targets.setdefault(task, Target(task, [], False))

        emitter = Emitter(
            "spout", build_routes(built, "spout", 0, tasks, Codec(), 0, {}, make), is_strict=False
        )
        if way == "rows":
            for row in values:
                emitter.emit(row)
        elif way == "batch":
            BatchEmitter(emitter).emit_batch(batch.rename_columns(["p", "q", "r"]))
        else:
            route = emitter.routes["default"]
            for divide in dividers_of(route) or ():
                for rows, piece in divide(batch):
                    rows.append((piece, 0, route.source))
        assert way == "divided" or emitter.take_counts() == (200, 600, 0)
        found.append(
            {
                task: [row[0] for row in pieces.unfold(target.rows)]
                for task, target in targets.items()
            }
        )
    assert found[0] == found[1] == found[2]
