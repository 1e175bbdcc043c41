"""SqlSink and SqlSource over SQLite: rows once under every death, constraints, gaps of keys, and
mistakes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from sparkstorm.api import Source, TopologyBuilder, TransactionalSink, Tuple
from sparkstorm.api.columns import rows_of
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, WorkerFailedError
from sparkstorm.connectors import SqlSink, SqlSource
from sparkstorm.connectors.patience import Secret, database_url
from sparkstorm.testing import FeederSpout, complete_topology
from tests.connectors.crashing_sink import die_everywhere, feed


def run(path: Path, *statements: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        found = [
            row for statement in statements for row in connection.execute(statement).fetchall()
        ]
        connection.commit()
    finally:
        connection.close()
    return found


@pytest.fixture
def database(tmp_path: Path) -> Path:
    run(
        tmp_path / "a.db",
        "CREATE TABLE rows (n INTEGER NOT NULL, text TEXT CHECK (text <> 'poison'), UNIQUE (n, text))",
    )
    return tmp_path / "a.db"


@pytest.mark.slow
def test_rows_are_in_the_table_once_whatever_dies(tmp_path: Path) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        path = tmp_path / f"{number}.db"
        run(path, "CREATE TABLE rows (n INTEGER, text TEXT)")

        def check() -> None:
            result = run(path, "SELECT n, text FROM rows ORDER BY n")
            assert result == [(n, f"text {n}") for n in range(8)]

        return SqlSink(f"sqlite:///{path}", "rows"), check

    assert die_everywhere(make, rows=8) > 8


def test_sinks_of_one_worker_write_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    run(path, "CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
    builder = TopologyBuilder()
    builder.set_spout("numbers", FeederSpout(["n"]))
    sink = SqlSink(f"sqlite:///{path}", "numbers")
    builder.set_bolt("sink", sink, 2).shuffle_grouping("numbers")
    rows = [[n] for n in range(20)]
    complete_topology(builder.build(), {"numbers": rows}, conf={"topology.workers": 1})
    assert [n for (n,) in run(path, "SELECT n FROM numbers ORDER BY n")] == list(range(20))


def test_a_sink_alone_holds_its_file_until_the_commit_and_sinks_that_share_one_do_not(
    database: Path,
) -> None:
    sinks = [SqlSink(f"sqlite:///{database}", "rows", ["n", "text"]) for _ in range(2)]

    def is_locked(index: int) -> bool:
        """Return whether nobody else can write behind a sink's `prepare`."""
        sink = sinks[index]
        sink.begin(1)
        sink.write(Tuple((index, "x"), 0, Source("s", 0, "default", ("n", "text"))))
        prepared = sink.prepare(1)
        with closing(sqlite3.connect(database, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            finally:
                other.rollback()
                sink.commit(1, prepared)
        return False

    def start(index: int) -> None:
        context: Any = SimpleNamespace(topology_id="t", component_id="sink", task_index=index)
        sinks[index].open({}, context)
        sinks[index].recover(0, None)

    start(0)
    assert is_locked(0)
    start(1)
    assert not is_locked(1)
    sinks[0].cleanup()
    sinks[1].begin(2)
    assert sinks[1].prepare(2) and sinks[1]._open is not None
    sinks[1].cleanup()
    assert run(database, "SELECT n FROM rows ORDER BY n") == [(0,), (1,)]


def test_rows_that_break_constraints_are_parked_and_the_others_stay(database: Path) -> None:
    rows = [(1, "a"), (2, "poison"), (1, "a"), (None, "b"), (3, ["list"]), (4, "c")]
    letters = feed(SqlSink(f"sqlite:///{database}", "rows"), ["n", "text"], rows)
    assert run(database, "SELECT n, text FROM rows ORDER BY n") == [(1, "a"), (4, "c")]
    reasons = sorted((str(letter.values), letter.reason) for letter in letters)
    assert len(reasons) == 4
    assert any("CHECK constraint failed" in reason for _, reason in reasons)
    assert any("UNIQUE constraint failed" in reason for _, reason in reasons)
    assert any("NOT NULL constraint failed" in reason for _, reason in reasons)
    assert any("field 'text' is a list, which no column holds" in reason for _, reason in reasons)


def test_rows_of_two_streams_have_the_same_columns(database: Path) -> None:
    sink = SqlSink(f"sqlite:///{database}", "t")
    sink._open_as("rows")
    for fields in (("a", "b"), ("b", "a")):
        sink.write(Tuple((1, 2), 0, Source("rows", 1, "default", fields)))
    for other in (("a",), ("a", "b", "c")):
        with pytest.raises(ValueError, match="in a table that gets a, b: name the columns by fie"):
            sink.write(Tuple((1, 2, 3)[: len(other)], 0, Source("rows", 1, "default", other)))


def test_rows_that_the_driver_or_a_column_has_no_form_for_are_parked_and_times_are_in_utc(
    tmp_path: Path,
) -> None:
    database = tmp_path / "typed.db"
    run(database, "CREATE TABLE rows (n BIGINT, day DATE, is_on BOOLEAN, at TIMESTAMP, text TEXT)")
    noon = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    good = [1, date(2024, 5, 1), True, noon, "a"]
    odd = {0: 1 << 70, 1: "2024-05-01", 2: "yes", 4: UUID(int=5)}
    rows = [
        good,
        *[[*good[:at], value, *good[at + 1 :]] for at, value in odd.items()],
        [6, *good[1:4], {1}],
        [7, *good[1:]],
    ]
    letters = feed(
        SqlSink(f"sqlite:///{database}", "rows"), ["n", "day", "is_on", "at", "text"], rows
    )
    wanted = ("2024-05-01", 1, "2024-05-01 10:00:00.000000", "a")
    assert run(database, "SELECT * FROM rows ORDER BY n") == [(1, *wanted), (7, *wanted)]
    reasons = " ".join(letter.reason for letter in letters)
    for sign in (
        "too large",
        "only accepts Python date",
        "'yes'",
        "type 'UUID' is not supported",
        "'text' is a set, which no",
    ):
        assert sign in reasons
    assert len(letters) == 5


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:///a/out.db", "sqlite:///{}/a/out.db"),
        ("sqlite+pysqlite:///./out.db?timeout=9", "sqlite+pysqlite:///{}/out.db?timeout=9"),
        ("sqlite:////srv/out.db", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///file:out.db?uri=true", None),
        ("sqlite://", None),
        ("postgresql:///shop", None),
    ],
)
def test_a_relative_path_of_sqlite_means_the_same_in_a_worker(
    url: str, meant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = (meant or url).format(tmp_path)
    assert database_url(url, "SqlSink") == expected
    assert vars(SqlSink(url, "rows"))["_url"] == expected
    assert vars(SqlSource(url, "rows", ["n"], key="n"))["_url"] == expected


def test_mistakes_of_a_sink_are_one_sentence(database: Path) -> None:
    url = f"sqlite:///{database}"
    sentence = r"'sink' \(task \d\): table gone at sqlite:///.*: there is no such table"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(SqlSink(url, "gone"), ["n"], [[1]])
    sentence = r"table rows at .* has no column 'm'; it has n, text"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(SqlSink(url, "rows"), ["m"], [[1]])
    for rows in ([], [[1]]):  # before the first row, where the columns are named
        with pytest.raises(WorkerFailedError, match=r"no column 'txt'.*did you mean 'text'"):
            feed(SqlSink(url, "rows", ["n", "txt"]), ["n", "txt"], rows)
    with pytest.raises(WorkerFailedError, match="unable to open database file"):
        feed(SqlSink("sqlite:////nowhere/a.db", "rows"), ["n"], [[1]])
    for held in (
        "postgresql://me:secret@host/db",
        "postgresql://host/db?user=me&password=secret",
        "host=h password=secret",
    ):
        with pytest.raises(InvalidConfigError, match="take the password out of the URL"):
            SqlSink(held, "rows")
    with pytest.raises(InvalidConfigError, match="SqlSink: nonsense is no URL of a database"):
        SqlSink("nonsense", "rows")
    with pytest.raises(InvalidConfigError, match=r"dialect 'postgrsql'.*did you mean 'postgresql'"):
        SqlSink("postgrsql+psycopg://host/db", "rows")
    # that of a worker's machine, which may have it
    SqlSink("snowflake://host/db", "rows")


def test_a_relative_password_file_is_below_the_folder_of_the_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    secret = Secret("SqlSink", "password", None)
    monkeypatch.chdir("/")
    assert secret.read() == "secret"


class Bench:
    """One task of a SqlSource, stepped by hand under a clock of the test."""

    column_streams: frozenset[str] = frozenset()

    def __init__(self, source: Any, position: Any = None, tasks: int = 1, index: int = 0) -> None:
        self.source, self.rows, self.kept, self.at_ms = source, list[Any](), list[Any](), 0
        self.task_index = index
        self.peers = tuple(range(tasks))
        self.component_id = "sql"
        self.errors = list[str]()
        self.gauges: dict[str, Any] = {}
        source.open({}, self, self)
        if position is not None:
            source.restore(position)

    def now_ms(self) -> int:
        return self.at_ms

    def register_gauge(self, name: str, function: Any) -> None:
        self.gauges[name] = function

    def emit(self, values: Any, message_id: Any) -> None:
        self.rows.append(tuple(values))

    def keep_position(self, message_id: Any) -> None:
        self.kept.append(self.source.snapshot())

    def report_error(self, error: str) -> None:
        self.errors.append(error)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step(1000)

    def step(self, ms: int = 500) -> list[Any]:
        for _ in range(4):
            self.source.next_tuple()
        self.at_ms += ms
        taken, self.rows = self.rows, []
        return taken


@pytest.fixture
def source(database: Path) -> SqlSource:
    run(database, "CREATE TABLE events (id INTEGER PRIMARY KEY, page TEXT)")
    return SqlSource(f"sqlite:///{database}", "events", ["page"], key="id", gap_secs=1.0)


def test_rows_come_once_in_the_order_of_the_key_over_restarts(
    database: Path, source: SqlSource
) -> None:
    bench = Bench(source)
    assert bench.step() == []
    run(database, "INSERT INTO events VALUES (1, 'a'), (2, 'b')")
    assert bench.step() == [("a",), ("b",)]
    position = source.snapshot()
    source.close()
    run(database, "INSERT INTO events VALUES (3, 'c')")
    assert Bench(source, position).step() == [("c",)]
    source.close()


def test_a_missing_number_is_waited_for(database: Path, source: SqlSource) -> None:
    run(database, "INSERT INTO events VALUES (1, 'a'), (3, 'c')")
    bench = Bench(source)
    assert bench.step() == [("a",)]
    # its transaction commits later than the next one's
    run(database, "INSERT INTO events VALUES (2, 'b')")
    assert bench.step() == [("b",), ("c",)]
    run(database, "INSERT INTO events VALUES (5, 'e')")
    assert [bench.step() for _ in range(5)] == [[], [], [("e",)], [], []]  # 4 was rolled back
    source.close()


@pytest.mark.parametrize("query", [None, "SELECT * FROM events"])
def test_keys_that_begin_anew_below_the_position_are_reported(
    database: Path, query: str | None
) -> None:
    run(
        database,
        "CREATE TABLE events (id INTEGER PRIMARY KEY, page TEXT)",
        "INSERT INTO events VALUES (8, 'a'), (9, 'b')",
    )
    url = f"sqlite:///{database}"
    source = SqlSource(
        url, None if query else "events", ["page"], key="id", query=query, gap_secs=0
    )
    bench = Bench(source)
    assert bench.step() == [("a",), ("b",)]
    run(database, "DELETE FROM events WHERE id = 9")
    bench.steps(12)
    run(database, "DELETE FROM events")
    bench.steps(12)
    run(database, "INSERT INTO events VALUES (1, 'c')")
    bench.steps(12)
    assert bench.errors == [], "rows that were read may be deleted"
    run(database, "INSERT INTO events VALUES (2, 'd')")
    bench.steps(12)
    assert len(bench.errors) == 1
    assert (
        "inserted with 'id' up to 2, below the position 9, and are not read: its keys have begun anew"
        in bench.errors[0]
    )
    source.close()


def test_a_query_and_mistakes_of_a_source(database: Path, source: SqlSource) -> None:
    url = f"sqlite:///{database}"
    run(database, "INSERT INTO events VALUES (1, 'a'), (2, 'b')")
    query = SqlSource(
        url,
        query="SELECT id AS n, upper(page) AS p FROM events",
        fields=["p"],
        key="n",
        follow=False,
    )
    bench = Bench(query)
    assert [bench.step(), bench.step()] == [[("A",), ("B",)], []] and query.is_exhausted()
    query.close()
    sentence = r"component 'sql', events at .*: no such column: cost"
    with pytest.raises(InvalidConfigError, match=sentence):
        Bench(SqlSource(url, "events", ["cost"], key="id")).step()
    run(database, "INSERT INTO events VALUES (3, 'b')")
    with pytest.raises(InvalidConfigError, match="'page' is not unique or null"):
        Bench(SqlSource(url, "events", ["id"], key="page")).step()
    # though the first fetch ends between the two
    with pytest.raises(InvalidConfigError, match="'page' is not unique or null"):
        Bench(SqlSource(url, "events", ["id"], key="page", rows=2)).step()
    with pytest.raises(InvalidConfigError, match=r"the query at .*: near .*: syntax error"):
        Bench(SqlSource(url, query="SELECT id FROM events WHERE", fields=["id"], key="id")).step()
    query = SqlSource(
        url, query="SELECT id, page || ':b' AS p FROM events;", fields=["p"], key="id", follow=False
    )
    assert Bench(query).step() == [("a:b",), ("b:b",), ("b:b",)]
    query.close()
    with pytest.raises(InvalidConfigError, match="give a table or a query"):
        SqlSource(url, fields=["a"], key="id")
    with pytest.raises(InvalidTopologyError, match="give SqlSource parallelism 1"):
        Bench(source, tasks=2)


def test_an_outage_is_borne_then_named(database: Path, source: SqlSource) -> None:
    bench = Bench(source)
    lock = sqlite3.connect(database, isolation_level=None)
    run(database, "PRAGMA journal_mode = DELETE")
    source._url += "?timeout=0.01"
    lock.execute("BEGIN EXCLUSIVE")
    assert bench.step() == [] and "cannot be reached: database is locked" in bench.errors[0]
    with pytest.raises(WorkerFailedError, match=r"cannot be reached for 60 s: database is locked"):
        bench.steps(200)
    lock.execute("ROLLBACK")
    lock.close()
    source.close()


def test_text_that_is_no_utf_8_costs_its_row_only(database: Path, source: SqlSource) -> None:
    run(database, "DROP TABLE events", "CREATE TABLE events (id INTEGER PRIMARY KEY, text TEXT)")
    run(
        database,
        *(
            f"INSERT INTO events VALUES ({n}, CAST(X'{t}' AS TEXT))"
            for n, t in enumerate(["61", "FF", "62"], 1)
        ),
    )
    made = SqlSource(f"sqlite:///{database}", "events", ["text"], key="id", follow=False)
    bench: Any = Bench(made)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = [row for _ in range(8) for row in bench.step()]
    assert [row[:2] for row in rows] == [("default", "a"), ("bad", "2"), ("default", "b")]
    made.close()


class BatchBench(Bench):
    """Takes batches; their rows are told from single ones."""

    column_streams = frozenset({"default"})

    def __init__(self, source: SqlSource, position: Any = None) -> None:
        self.batches = 0
        super().__init__(source, position)

    def emit_batch(self, batch: pa.RecordBatch, message_id: Any) -> None:
        self.batches += 1
        self.rows += rows_of(batch)


@pytest.mark.parametrize("odd", [None, "'text'", "1.5", "9223372036854775807"])
def test_batches_hold_the_rows_that_come_one_by_one(database: Path, odd: str | None) -> None:
    run(database, "CREATE TABLE events (id INTEGER PRIMARY KEY, n INTEGER, page TEXT)")
    run(database, *[f"INSERT INTO events VALUES ({n}, {n * n}, 'p{n}')" for n in range(1, 10)])
    run(database, f"INSERT INTO events VALUES (10, {odd or 'NULL'}, NULL), (12, 1, 'behind a gap')")
    fields = {"n": "bigint", "page": "string"}
    url = f"sqlite:///{database}"
    single = Bench(SqlSource(url, "events", fields, key="id"))
    batched = BatchBench(SqlSource(url, "events", fields, key="id"))
    found = [[row for _ in range(9) for row in bench.step()] for bench in (single, batched)]
    assert found[0] == found[1]
    assert len(found[0]) == 11
    run(
        database, *[f"INSERT INTO events VALUES ({n}, {odd or 'NULL'}, 'x')" for n in range(13, 16)]
    )
    assert single.step() == batched.step() != []
    assert single.source.snapshot() == batched.source.snapshot() == [15]
    # a value that is none of its column's type goes as a row
    assert batched.batches == (0 if odd in ("'text'", "1.5") else 1)
    single.source.close()
    batched.source.close()
