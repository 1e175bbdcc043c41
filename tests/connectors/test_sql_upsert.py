"""SqlSink with a key: the table is what a dict makes of the rows, over SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import TopologyBuilder, TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, WorkerFailedError
from sparkstorm.connectors import SqlSink
from sparkstorm.testing import FeederSpout, Shared
from sparkstorm.testing.servers import PostgresServer
from sparkstorm.testing.servers.postgres import PASSWORD
from tests.connectors.crashing_sink import CrashingSink, feed
from tests.connectors.test_refused_rows import parked
from tests.leaks import keep_children
from tests.tiers import examples

FIELDS = ("k", "a", "b")
BAD = 13
TABLE = f"""CREATE TABLE rows (
    k INTEGER, a INTEGER CHECK (a <> {BAD}), b VARCHAR(9), other INTEGER DEFAULT 7, PRIMARY KEY (k))"""
Row = tuple[int, int | None, str | None]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(10, BAD)),
        st.one_of(st.none(), st.sampled_from("xyz")),
    ),
    max_size=14,
)
MODES = st.sampled_from(["upsert", "merge"])
Run = Callable[..., list[Any]]


def by_hand(
    rows: Sequence[Row], mode: str, on_tombstone: str = "delete"
) -> list[tuple[int, int | None, str | None, int]]:
    """Return the table as a dict has it."""
    table: dict[int, tuple[int | None, str | None]] = {}
    for k, a, b in rows:
        if a is None and b is None and on_tombstone == "delete":
            table.pop(k, None)
        elif a != BAD:
            old = table.get(k, (None, None)) if mode == "merge" else (None, None)
            table[k] = (old[0] if a is None else a, old[1] if b is None else b)
    return [(k, a, b, 7) for k, (a, b) in sorted(table.items())]


class Database:
    """A database with an empty table `rows`."""

    def __init__(self, url: str, run: Run) -> None:
        self.url = url
        self.run = run

    def make(self, statement: str = TABLE) -> None:
        self.run("DROP TABLE IF EXISTS rows", "DROP TABLE IF EXISTS sparkstorm_epochs", statement)

    def sink(self, key: Any = "k", **options: Any) -> SqlSink:
        place = {} if self.url.startswith("sqlite") else {"password_env": "UPSERT_PASSWORD"}
        return SqlSink(self.url, "rows", key=key, **place, **options)

    @property
    def rows(self) -> list[Any]:
        return self.run("SELECT * FROM rows ORDER BY 1, 2")


def sqlite(path: Path) -> Database:
    def run(*statements: str) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return [connection.execute(statement).fetchall() for statement in statements][-1]

    return Database(f"sqlite:///{path}", run)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        keep_children()
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.system)])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    if request.param == "sqlite":
        return sqlite(tmp_path / "a.db")
    server = request.getfixturevalue("postgres")
    monkeypatch.setenv("UPSERT_PASSWORD", PASSWORD)
    return Database(server.url, server.run)


@pytest.mark.slow
def test_a_table_is_what_a_dict_makes_of_random_rows(database: Database) -> None:
    @settings(max_examples=examples(40), deadline=None)
    @given(rows=ROWS, mode=MODES, on_tombstone=st.sampled_from(["delete", "write"]))
    def check(rows: list[Row], mode: str, on_tombstone: str) -> None:
        database.make()
        found = parked(database.sink(mode=mode, on_tombstone=on_tombstone), rows, FIELDS)
        assert database.rows == by_hand(rows, mode, on_tombstone)
        assert [values for values, _ in found] == [row for row in rows if row[1] == BAD]

    check()


@pytest.mark.slow
def test_rows_over_several_epochs_are_in_their_order(tmp_path: Path) -> None:
    database = sqlite(tmp_path / "a.db")

    @settings(max_examples=examples(15), deadline=None)
    @given(rows=ROWS, mode=MODES)
    def check(rows: list[Row], mode: str) -> None:
        database.make()
        feed(database.sink(mode=mode), FIELDS, rows)
        assert database.rows == by_hand(rows, mode)

    check()


@pytest.mark.slow
def test_refused_rows_at_every_place_leave_the_last_good_one_of_their_key(
    database: Database,
) -> None:
    good: list[Row] = [(1, 1, "x"), (1, 2, None), (1, None, None), (2, 3, "y"), (1, 4, "z")]
    cases = [set(bad) for n in (1, 2, 5) for bad in combinations(range(5), n)]
    for bad in cases:
        database.make()
        rows = [(k, BAD if n in bad else a, b) for n, (k, a, b) in enumerate(good)]
        found = parked(database.sink(), rows, FIELDS)
        assert [values for values, _ in found] == [row for row in rows if row[1] == BAD]
        assert all("CHECK constraint" in reason or "check" in reason for _, reason in found)
        assert database.rows == by_hand(rows, "upsert")


@pytest.mark.slow
def test_the_table_is_right_whatever_dies(tmp_path: Path) -> None:
    rows: list[Row] = [
        (n % 3, None if n % 4 == 3 else n, None if n % 4 else "x") for n in range(12)
    ]
    for mode in ("upsert", "merge"):
        number, left = 0, Shared([0])
        while left.value[0] <= 0:
            database = sqlite(tmp_path / f"{mode}-{number}.db")
            database.make()
            left = Shared([number])
            feed(CrashingSink(database.sink(mode=mode), left), FIELDS, rows)
            assert database.rows == by_hand(rows, mode), f"{mode}: death at phase {number}"
            number += 1
        assert number > 8


def test_a_key_of_several_columns_and_one_alone(database: Database) -> None:
    database.make("CREATE TABLE rows (k INTEGER, a VARCHAR(9), n INTEGER, UNIQUE (a, k))")
    rows: list[Any] = [(1, "x", 1), (1, "y", 2), (1, "x", 3), (1, "y", None)]
    assert parked(database.sink(["k", "a"]), rows, ("k", "a", "n")) == []
    assert database.rows == [(1, "x", 3)]
    database.make("CREATE TABLE rows (k INTEGER PRIMARY KEY, a INTEGER DEFAULT 7)")
    assert parked(database.sink(), [(1,), (1,), (2,)], ("k",)) == []
    assert database.rows == [(1, 7), (2, 7)]


@pytest.mark.parametrize("key", [None, float("nan")])
def test_a_row_without_a_key_is_parked(database: Database, key: Any) -> None:
    database.make()
    [letter] = feed(database.sink(), FIELDS, [(key, 1, "x"), (1, 1, "x")])
    assert f"field 'k' is {key}, and is a key of table rows" in letter.reason
    assert database.rows == [(1, 1, "x", 7)]


def test_a_key_that_is_deferrable_is_refused(database: Database) -> None:
    if database.url.startswith("sqlite"):
        pytest.skip("SQLite has none")
    database.make("CREATE TABLE rows (k BIGINT PRIMARY KEY DEFERRABLE, a BIGINT, b VARCHAR(9))")
    sentence = r"table rows .* does not support deferrable unique"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(database.sink(), FIELDS, [(1, 1, "x")])


def test_a_foreign_key_that_is_not_deferred_parks_the_rows_that_come_too_early(
    database: Database,
) -> None:
    if database.url.startswith("sqlite"):
        pytest.skip("SQLite checks foreign keys at the end of a transaction, or not at all")
    database.make("CREATE TABLE rows (k BIGINT PRIMARY KEY, up BIGINT REFERENCES rows)")
    rows: list[Any] = [(3, 2), (2, 1), (9, 99), (1, None)]
    for options in ({}, {"on_tombstone": "write"}):
        sink = database.sink(**options)
        assert [values for values, _ in parked(sink, rows, ("k", "up"))] == rows[:-1]
        assert database.rows == ([] if not options else [(1, None)])
        database.run("DELETE FROM sparkstorm_epochs", "DELETE FROM rows")


class Dialect(SqlSink):
    """Sink that takes its database for one of another name."""

    def _check_key(self, dialect: str) -> None:
        super()._check_key("mssql" if self._mode == "merge" else "mysql")


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    database = sqlite(tmp_path / "a.db")
    database.make("CREATE TABLE rows (k INTEGER PRIMARY KEY, a INTEGER UNIQUE, b INTEGER)")
    for options, sentence in (
        ({"key": "k", "mode": "replace"}, "mode is one of insert, upsert, merge"),
        ({"key": "k", "on_tombstone": "skip"}, "on_tombstone one of delete, write"),
        ({"key": "k", "mode": "insert"}, "mode insert takes none"),
        ({"mode": "upsert"}, "modes upsert and merge need a key"),
        ({"key": "k", "fields": ["a"]}, "its key 'k' is none of its fields"),
        ({"fields": "k"}, "fields is the text 'k'; write a list of names"),
        ({"key": ["k", "k"]}, "key names a column twice"),
        ({"on_tombstone": "write"}, "on_tombstone is for rows of a key, which is not given"),
    ):
        with pytest.raises(InvalidConfigError, match=f"SqlSink: .*{sentence}"):
            SqlSink("sqlite://", "rows", **options)
    with pytest.raises(WorkerFailedError, match="has no primary or unique key of b; it has a; k"):
        feed(database.sink("b"), FIELDS, [(1, 1, 1)])
    database.run("CREATE UNIQUE INDEX some ON rows (b) WHERE b > 0")
    with pytest.raises(WorkerFailedError, match="has no primary or unique key of b; it has a; k"):
        feed(database.sink("b"), FIELDS, [(1, 1, 1)])
    database.run("DROP INDEX some")
    with pytest.raises(WorkerFailedError, match=r"table rows at .*: unknown database elsewhere"):
        feed(database.sink(schema="elsewhere"), FIELDS, [(1, 1, 1)])
    builder = TopologyBuilder()
    builder.set_spout("feed", FeederSpout(["a"]))
    builder.set_bolt("table", database.sink(), inputs="feed")
    with pytest.raises(InvalidTopologyError, match="'k'"):
        builder.build()
    for mode, sentence in (
        ("upsert", "has several unique keys, and mysql would update"),
        ("merge", "mode merge is there for postgresql, .*, not for mssql"),
    ):
        sink: TransactionalSink = Dialect(database.url, "rows", key="k", mode=mode)
        with pytest.raises(WorkerFailedError, match=sentence):
            feed(sink, FIELDS, [(1, 1, 1)])
