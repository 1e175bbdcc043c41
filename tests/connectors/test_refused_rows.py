"""Of an epoch's rows exactly those are parked that the target refuses alone, wherever they are."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations, product
from pathlib import Path
from time import time
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkstorm.api import (
    RefusedRows,
    Source,
    TopologyContext,
    TransactionalSink,
    Tuple,
    find_refused,
)
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import FileSink, HttpSink, KafkaSink, KafkaSource, SqlSink
from sparkstorm.testing import Shared
from tests.connectors.crashing_sink import feed

ROWS = 5
CONTEXT = TopologyContext("refusals", 1, "sink", {1: "sink"}, (1,), {}, lambda: 0)
BAD = 13
# every set of places of refused rows among so many
CASES = [set(places) for k in range(ROWS + 1) for places in combinations(range(ROWS), k)]


def mixed(bad: set[int]) -> list[int]:
    return [BAD if n in bad else n for n in range(ROWS)]


def wanted(bad: set[int]) -> list[int]:
    return [n for n in range(ROWS) if n not in bad]


@pytest.mark.parametrize("most", [1, 2, ROWS])
def test_refused_rows_are_found_at_every_place_and_no_other_although_batches_have_limits(
    most: int,
) -> None:
    for bad in CASES:
        taken: list[int] = []

        def take(rows: Sequence[int], taken: list[int] = taken) -> str:
            if BAD in rows or len(rows) > most:
                return "too large" if len(rows) > most else "thirteen"
            taken += rows
            return ""

        assert find_refused(mixed(bad), take) == dict.fromkeys(sorted(bad), "thirteen")
        assert taken == wanted(bad)


def test_one_refused_row_of_many_takes_two_calls_for_each_halving() -> None:
    for place in (0, 511, 1023):
        calls: list[int] = []

        def take(rows: Sequence[int], place: int = place, calls: list[int] = calls) -> str:
            calls.append(len(rows))
            return "no" if place in rows else ""

        assert find_refused(range(1024), take) == {place: "no"}
        assert len(calls) == 21


def parked(sink: TransactionalSink, rows: Sequence[Any], fields: Sequence[str] = ("n",)) -> Any:
    """Write rows as one epoch; return the values of the refused ones with their reasons."""
    sink.open({}, CONTEXT)
    found: list[tuple[Tuple, str]] = []
    try:
        sink.begin(1)
        source = Source("feed", 2, "default", tuple(fields))
        for row in rows:
            sink.write(Tuple(row if type(row) is tuple else (row,), 0, source))
        sink.recover(0, None)
        try:
            prepared = sink.prepare(1)
        except RefusedRows as refusal:
            found += refusal.rows
            prepared = sink.prepare(1)
        try:
            sink.commit(1, prepared)
        except RefusedRows as refusal:
            found += refusal.rows
    finally:
        sink.cleanup()
    return [(tup.values, reason) for tup, reason in found]


class Ledger(TransactionalSink):
    """A user's sink into a target that takes a batch whole or not at all."""

    def __init__(self, target: Shared[list[int]]) -> None:
        self.target = target

    def begin(self, epoch: int) -> None:
        self.rows: list[Any] = []

    def write(self, tup: Any) -> None:
        self.rows.append(tup)

    def prepare(self, epoch: int) -> Any:
        refused = find_refused(
            self.rows, lambda rows: "thirteen" if any(tup[0] == BAD for tup in rows) else ""
        )
        if refused:
            bad = [(self.rows[n], reason) for n, reason in refused.items()]
            self.rows = [tup for n, tup in enumerate(self.rows) if n not in refused]
            raise RefusedRows(bad)
        return [tup[0] for tup in self.rows]

    def commit(self, epoch: int, prepared: Any) -> None:
        self.target.value += prepared


def test_a_sink_of_ones_own_parks_the_rows_that_are_found() -> None:
    target = Shared(list[int]())
    letters = feed(Ledger(target), ["n"], [[1], [BAD], [2], [3]])
    assert target.value == [1, 2, 3] and [x.values for x in letters] == [(BAD,)]


# SQLite's ways to refuse a row; ROLLBACK ends the whole transaction, FAIL keeps what went before
TRIGGERS = [
    f"CREATE TRIGGER t BEFORE INSERT ON rows WHEN NEW.n = {BAD} BEGIN SELECT {what}; END"
    for what in ("RAISE(ABORT, 'no')", "RAISE(FAIL, 'no')", "RAISE(ROLLBACK, 'no')", "json('{')")
]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_sql_parks_the_rows_that_the_database_refuses(trigger: str, tmp_path: Path) -> None:
    for number, bad in enumerate([*CASES[1 : 1 + ROWS], {1, 2, 4}, set(range(ROWS))]):
        path = tmp_path / f"{number}.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE rows (n INTEGER)")
        connection.execute(trigger)
        found = parked(SqlSink(f"sqlite:///{path}", "rows"), mixed(bad))
        rows = connection.execute("SELECT n FROM rows ORDER BY n").fetchall()
        connection.close()
        assert [n for (n,) in rows] == wanted(bad)
        assert [values for values, _ in found] == [(BAD,)] * len(bad)


class Server(ThreadingHTTPServer):
    """Refuses a request whole that has a bad row or more than three rows."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[int] = []
        self.first: list[tuple[int, str, str]] = []  # status, header and its value
        self.keys: dict[str, Any] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    timeout = 0.3

    def do_POST(self) -> None:
        server: Any = self.server
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        assert server.keys.setdefault(key, rows) == rows
        if server.first:
            status, name, value = server.first.pop()
            self.send_response(status)
            self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        status = 413 if len(rows) > 3 else 422 if {"n": BAD} in rows else 200
        if status == 200:
            server.taken += [row["n"] for row in rows]
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_http_parks_the_rows_that_the_server_refuses_alone(server: Server) -> None:
    for bad in CASES:
        server.taken.clear()
        server.keys.clear()
        sink = HttpSink(f"http://127.0.0.1:{server.server_address[1]}/", batch=ROWS)
        found = parked(sink, mixed(bad))
        assert server.taken == wanted(bad)
        assert [values for values, _ in found] == [(BAD,)] * len(bad)


@pytest.mark.parametrize("time", [0, -1, 1 << 63, True, "5", None])
def test_kafka_is_given_no_time_that_it_would_write_as_another(time: Any) -> None:
    """For 0 librdkafka writes the present."""
    with pytest.raises(ValueError, match="no time in milliseconds after 1970"):
        parked(KafkaSink("127.0.0.1:9", "rows", time="n"), [time])


KINDS: list[Any] = [
    *(pa.int64(), pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
    *(pa.decimal128(5, 2), pa.binary(3), pa.dictionary(pa.int32(), pa.string())),
    pa.list_(pa.int64()),
    pa.list_(pa.field("item", pa.int64(), nullable=False)),
    pa.struct([pa.field("a", pa.int64(), nullable=False)]),
    pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
    pa.list_(pa.map_(pa.string(), pa.int64())),
]
VALUES: list[Any] = [
    *(None, 1, -1, 300, 1 << 63, 1 << 64, True, 1.5, float("inf"), "a", "", b"x", b"abc"),
    *(date(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
    *(Decimal("1.5"), Decimal("1e10"), Decimal("NaN"), UUID(int=1)),
    *([1], [None], ["x"], [], {}, {"a": 1}, {"a": None}, {"b": 1}, {"a": "x"}, [[1]], [{"a": 1}]),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_that_a_file_sink_takes_is_written(kind: Any, tmp_path: Path) -> None:
    """It is refused by `write`, and so alone, or by nothing."""
    for format, nullable in product(("parquet", "json", "csv"), (True, False)):
        folder = tmp_path / f"{format}-{nullable}"
        sink = FileSink(folder, format, pa.schema([pa.field("v", kind, nullable=nullable)]))
        sink.open({}, CONTEXT)
        sink.begin(1)
        taken: list[Any] = []
        for value in VALUES:
            try:
                sink.write(Tuple((value,), 0, Source("feed", 2, "default", ("v",))))
            except (ValueError, TypeError):
                continue
            taken.append(value)
        sink.commit(1, sink.prepare(1))
        assert taken and (None in taken) == nullable
        [file] = folder.glob("[!_]*")
        assert format != "parquet" or pq.read_metadata(file).num_rows == len(taken)


def test_an_answer_that_is_cut_short_is_none_and_one_that_asks_to_wait_is_heeded(
    server: Server,
) -> None:
    clock = Shared([1_000])
    sink = HttpSink(f"http://127.0.0.1:{server.server_address[1]}/", batch=ROWS)
    sink.open({}, replace(CONTEXT, now_ms=lambda: clock.value[0]))
    outbox = ["", [["feed", 2, "default", ["n"], [1]]]]
    server.first = [
        (503, "Retry-After", formatdate(time() + 30, usegmt=True)),
        (503, "Retry-After", "30"),
        (200, "Content-Length", "100"),
    ]
    with pytest.raises(ConnectionError, match="its answer of 200 was cut short"):
        sink.commit(1, outbox)
    for _ in ("seconds", "a date, by the server's clock"):
        for problem in ("answers 503", r"asks to wait for (29|30|31) s more"):
            with pytest.raises(ConnectionError, match=problem):
                sink.commit(1, outbox)
        clock.value[0] += 31_000
    sink.commit(1, outbox)
    assert server.taken == [1]
    sink.cleanup()


def test_a_start_that_kafka_would_take_for_its_end_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="start is"):
        KafkaSource("127.0.0.1:9", "rows", ["n"], start=-1)
