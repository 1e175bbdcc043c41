"""Bad input where servers are: PostgreSQL and an S3; one clear sentence each, and nothing lost."""

from __future__ import annotations

import contextlib
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import Files, FileSink, SqlLookup, SqlSink, SqlSource
from sparkstorm.testing import CaptureBolt, LocalCluster, Shared
from sparkstorm.testing.servers import ObjectStore, PostgresServer
from sparkstorm.testing.servers.postgres import PASSWORD
from tests.connectors.crashing_sink import feed
from tests.connectors.test_bad_input import ROWS, Relieved, fill, write
from tests.connectors.test_bad_input import small_disk as small_disk
from tests.connectors.test_file_source import Run
from tests.connectors.test_lookups import opened
from tests.connectors.test_sql import Bench
from tests.leaks import keep_children
from tests.system.main_job import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.sampled]


class Dropping(SqlSink):
    """Sink whose table loses a column after the second epoch."""

    def __init__(
        self, drop: Shared[Callable[[], Any]], url: str, table: str, **secret: Any
    ) -> None:
        super().__init__(url, table, **secret)
        self.drop = drop

    def commit(self, epoch: int, prepared: Any) -> None:
        super().commit(epoch, prepared)
        if epoch == 2:
            self.drop.value()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    keep_children()
    yield server
    server.stop()


def step_once(source: SqlSource) -> None:
    try:
        Bench(source).step()
    finally:
        source.close()


@pytest.fixture
def secret(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("BAD_PASSWORD", PASSWORD)
    # simulated topologies have all the same id
    postgres.run("DROP TABLE IF EXISTS sparkstorm_epochs")
    return {"password_env": "BAD_PASSWORD"}


def suppressed(server: PostgresServer, statement: str) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        server.run(statement)


def test_a_killed_server_starts_at_once_though_it_was_at_work(postgres: PostgresServer) -> None:
    """A backend that computes does not see its server's death, and keeps the shared memory that the
    next server needs.
    """
    query = threading.Thread(
        target=suppressed, args=(postgres, "SELECT count(*) FROM generate_series(1, 1000000000)")
    )
    query.start()
    busy = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT count(*) FROM generate_series%'"
    wait_until(lambda: postgres.run(busy), "the query runs")
    postgres.kill()
    postgres.start()
    keep_children()
    query.join()
    assert postgres.run("SELECT 2") == [(2,)]


def test_a_wrong_password_is_one_sentence_each(
    postgres: PostgresServer, secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE TABLE guarded (id BIGINT, n BIGINT)")
    monkeypatch.setenv("BAD_PASSWORD", "wrong")
    sentence = r"'sink' .*: table guarded at postgresql.*password authentication failed"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(SqlSink(postgres.url, "guarded", **secret), ["id", "n"], [(1, 2)])
    with pytest.raises(InvalidConfigError, match=r"authentication failed for user .postgres."):
        opened(SqlLookup(postgres.url, "guarded", "id", password_env="BAD_PASSWORD"), ["n"])
    sentence = r"component 'sql', guarded at postgresql.*password authentication failed"
    with pytest.raises(InvalidConfigError, match=sentence):
        step_once(SqlSource(postgres.url, "guarded", ["n"], key="id", **secret))
    assert postgres.run("SELECT * FROM guarded") == []


def test_keys_that_postgresql_refuses_fail_alone_whatever_their_column(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run(
        "CREATE TABLE named (name TEXT, id BIGINT, n BIGINT)",
        "INSERT INTO named VALUES ('a', 1, 2)",
    )
    for key, good, bad in (("name", "a", "\0"), ("name", "a", 1), ("id", 1, "a")):
        with contextlib.closing(SqlLookup(postgres.url, "named", key, **secret)) as lookup:
            answers = opened(lookup, ["n"]).fetch([good, bad])
        assert answers[good] == (2,) and isinstance(answers[bad], ValueError)
    pair = SqlLookup(postgres.url, "named", ["name", "id"], **secret)
    with contextlib.closing(pair):
        assert opened(pair, ["n"]).fetch([("a", 1), ("b", 1)]) == {("a", 1): (2,)}


def test_a_table_that_is_missing_or_has_changed_is_named(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    sentence = r'component .sql., nowhere at .*relation "nowhere" does not exist'
    with pytest.raises(InvalidConfigError, match=sentence):
        step_once(SqlSource(postgres.url, "nowhere", ["n"], key="id", **secret))
    postgres.run(
        "CREATE TABLE moving (id BIGINT PRIMARY KEY, n BIGINT)", "INSERT INTO moving VALUES (1, 10)"
    )
    source = SqlSource(postgres.url, "moving", ["n"], key="id", **secret)
    bench = Bench(source)
    assert bench.step() == [(10,)]
    postgres.run("INSERT INTO moving VALUES (2, 20)", "ALTER TABLE moving RENAME COLUMN n TO m")
    with pytest.raises(InvalidConfigError, match=r'moving at .*column "n" does not exist'):
        bench.step()
    postgres.run("ALTER TABLE moving RENAME COLUMN m TO n")
    assert bench.step() == [(20,)]  # it goes on behind the last row
    source.close()
    postgres.run("CREATE TABLE target (n BIGINT, text TEXT)")

    drop = Shared(lambda: postgres.run("ALTER TABLE target DROP COLUMN text"))
    sentence = r"table target at .*(has no column 'text'|column \"text\" .*does not exist)"
    with pytest.raises(WorkerFailedError, match=sentence):
        write(Dropping(drop, postgres.url, "target", **secret))
    # two epochs, each once
    assert [n for (n,) in postgres.run("SELECT n FROM target ORDER BY n")] == [0, 1, 2]


def test_a_full_disk_of_the_database_is_waited_for(
    postgres: PostgresServer, secret: dict[str, Any], small_disk: Path
) -> None:
    space = small_disk / "space"
    space.mkdir()
    subprocess.run(["chown", "postgres", str(space)], check=True)
    postgres.run(f"CREATE TABLESPACE small LOCATION '{space}'")
    postgres.run("CREATE TABLE tight (n BIGINT, text TEXT) TABLESPACE small")
    relieved = Relieved(SqlSink(postgres.url, "tight", **secret), fill(small_disk))
    write(relieved)
    assert "No space left on device" in relieved.refusals.value[0]
    assert postgres.run("SELECT n, text FROM tight ORDER BY n") == ROWS
    postgres.run("DROP TABLE tight")
    postgres.run("DROP TABLESPACE small")


def test_a_row_that_no_tuple_can_carry_costs_itself_only(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run("CREATE TABLE times (id BIGINT PRIMARY KEY, at TIMESTAMP)")
    postgres.run("INSERT INTO times VALUES (1, NULL), (2, NULL), (3, '2026-01-01'), (4, NULL)")
    rows, bad, builder = CaptureBolt(), CaptureBolt(), TopologyBuilder()
    builder.set_spout(
        "times", SqlSource(postgres.url, "times", ["id", "at"], key="id", follow=False, **secret)
    )
    builder.set_bolt("rows", rows, inputs="times")
    builder.set_bolt("bad", bad, inputs="times:bad")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        cluster.run_until(lambda: len(rows.values) >= 3 and len(bad.values) >= 1)
    assert [row[0] for row in rows.values] == [1, 2, 4]
    assert bad.values[0][0] == "3" and "zone" in bad.values[0][2]


ODD_VALUES: dict[str, tuple[Any, list[Any]]] = {
    "BIGINT": (1, [True, "x", 1 << 64]),
    "TIMESTAMP": (datetime(2026, 1, 1, tzinfo=UTC), [5, "x"]),
    "BYTEA": (b"x", ["text", 5]),
    "DATE": (date(2026, 1, 1), [7, True]),
    "BOOLEAN": (True, ["x", 7]),
    "NUMERIC(5, 2)": (Decimal("1.50"), [True, Decimal("1e9")]),
    "TEXT": ("a", ["a\0b"]),
    "JSONB": ('{"a": [1.10, null]}', ["{", "nan"]),
    "JSON": (None, ["[1,]"]),
    "BIGINT[]": ("{1,NULL}", ["{x}", "1"]),
    "BIGINT CHECK (v < 9)": (1, [9]),
    "BIGINT CHECK (1 / v > 0)": (1, [0]),
    "TEXT UNIQUE": (None, ["".join(map(chr, range(0x4E00, 0x9E00)))]),  # larger than an index takes
}


def test_dates_that_python_has_not_cost_their_rows_only(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run("CREATE TABLE days (id BIGINT PRIMARY KEY, day DATE)")
    days = ["2024-01-01", "infinity", "10000-01-01", "0044-03-15 BC", "2024-01-05", "-infinity"]
    for number, day in enumerate(days):
        postgres.run(f"INSERT INTO days VALUES ({number}, '{day}')")
    source = SqlSource(
        postgres.url, "days", ["id", "day"], key="id", follow=False, rows=4, **secret
    )
    bench: Any = Bench(source)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = [row for _ in range(10) for row in bench.step()]
    assert [row[1] for row in rows if row[0] == "default"] == [0, 4]
    bad = [row for row in rows if row[0] == "bad"]
    assert [row[1] for row in bad] == ["1", "2", "3", "5"] and all("date too" in x[3] for x in bad)
    assert source.is_exhausted() and source.snapshot() == [5]
    source.close()


@pytest.mark.parametrize("kind", ODD_VALUES)
def test_exactly_the_rows_that_postgresql_refuses_alone_are_parked(
    kind: str, postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    good, odd = ODD_VALUES[kind]
    postgres.run("DROP TABLE IF EXISTS odd", f"CREATE TABLE odd (n BIGINT, v {kind})")
    values = [good, *(value for bad in odd for value in (bad, good))]
    letters = feed(SqlSink(postgres.url, "odd", **secret), ["n", "v"], list(enumerate(values)))
    found = [n for (n,) in postgres.run("SELECT n FROM odd ORDER BY n")]
    assert found == list(range(0, len(values), 2))
    assert [letter.values[1] for letter in letters] == odd
    if kind.endswith(("JSON", "JSONB", "[]")):  # what the database makes of the text; NULL of None
        [(text,)] = postgres.run("SELECT v::TEXT FROM odd LIMIT 1")
        assert text == good


@pytest.mark.parametrize(
    ("deferred", "kept"), [("DEFERRABLE INITIALLY DEFERRED", [1, 2, 3, 8]), ("", [1, 8])]
)
def test_rows_that_need_each_other_stay_where_their_order_allows_it(
    deferred: str, kept: list[int], postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run(
        "DROP TABLE IF EXISTS tree",
        f"CREATE TABLE tree (n BIGINT PRIMARY KEY, up BIGINT REFERENCES tree {deferred})",
    )
    # children first, behind a row that is an epoch alone
    rows = [(8, None), (3, 2), (2, 1), (9, 99), (1, None)]
    letters = feed(
        SqlSink(postgres.url, "tree", **secret), ["n", "up"], rows, {"topology.epoch.rows": 9}
    )
    assert [letter.values for letter in letters] == [row for row in rows if row[0] not in kept]
    assert postgres.run("SELECT n FROM tree ORDER BY n") == [(n,) for n in kept]


def test_a_value_that_postgresql_refuses_is_named_with_table_and_column(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run("CREATE TABLE typed (b INTEGER, a BIGINT NOT NULL)")
    rows: list[list[Any]] = [[1, "one"], [None, "2"], [3, "4"]]
    letters = feed(SqlSink(postgres.url, "typed", **secret), ["a", "b"], rows)
    assert [letter.reason.partition(" violates")[0] for letter in letters] == [
        'table typed, column b: invalid input syntax for type integer: "one"',
        'table typed, column a: null value in column "a" of relation "typed"',
    ]


def test_a_statement_that_fails_by_a_trigger_parks_its_row_and_one_without_rights_ends_the_run(
    postgres: PostgresServer, secret: dict[str, Any]
) -> None:
    postgres.run(
        "CREATE TABLE picky (n BIGINT)",
        "CREATE FUNCTION no_two() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.n = 2 THEN RAISE 'no two'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER picky BEFORE INSERT ON picky FOR EACH ROW EXECUTE FUNCTION no_two()",
    )
    letters = feed(SqlSink(postgres.url, "picky", **secret), ["n"], [[1], [2], [3]])
    assert [letter.values for letter in letters] == [(2,)]
    assert letters[0].reason.startswith("table picky: no two")
    assert postgres.run("SELECT n FROM picky ORDER BY n") == [(1,), (3,)]
    postgres.run("CREATE VIEW fixed AS SELECT 1::BIGINT AS n UNION SELECT 2")
    with pytest.raises(WorkerFailedError, match='cannot insert into view "fixed"'):
        feed(SqlSink(postgres.url, "fixed", **secret), ["n"], [[1], [2]])


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An S3 that asks for credentials."""
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "0")
    server = ObjectStore(tmp_path / "s3")
    server.start()
    yield server
    server.kill()
    gc.collect()  # a file system's connections end with it


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 of this test's own that takes any credentials, and its bucket."""
    server = ObjectStore(tmp_path / "s3")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=server.url, region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    yield client
    client.close()
    server.kill()


def test_hostile_names_of_objects_are_names(bucket: Any) -> None:
    names = [
        "a b%2F+?#é'.txt",
        "x..%2f..%2fetc.txt",
        "$(x)`y`;--rf.txt",
        "[x]*.txt",
        'in"quoted".txt',
        "_hidden.txt",
    ]
    keys = [f"in/{name}" for name in names]
    for number, key in enumerate(keys):
        bucket.put_object(Bucket="bucket", Key=key, Body=f"{number}\n".encode())
    run = Run(Files("s3://bucket/in/*.txt")).steps()
    assert sorted(run.lines) == ["0", "1", "2", "3", "4"]
    write(
        FileSink("s3://bucket/out/it's a [folder]*?#", schema="n bigint, text string", flush_secs=0)
    )
    found = [
        each["Key"] for each in bucket.list_objects_v2(Bucket="bucket", Prefix="out/")["Contents"]
    ]
    written = [key for key in found if key.endswith(".parquet")]
    assert written and all(key.startswith("out/it's a [folder]*?#/test-") for key in written)


_ASK_S3 = """
import sys
import threading
from sparkstorm.connectors import DeltaSink, Files, FileSink, IcebergSink
from tests.connectors.test_bad_input import write
from tests.connectors.test_file_source import Run
bucket, folder, url = sys.argv[1:]
catalog = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"s3://{bucket}/wh", "s3.endpoint": url}
for call in (
    lambda: write(FileSink(f"s3://{bucket}/out", schema="n bigint, text string", flush_secs=0)),
    lambda: Run(Files(f"s3://{bucket}/in/*.txt")).steps(1),
    lambda: write(DeltaSink(f"s3://{bucket}/out", "n bigint, text string", flush_secs=0)),
    lambda: write(IcebergSink("db.rows", "n bigint, text string", flush_secs=0, properties=catalog)),
):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def refusals(bucket: str, folder: Path, url: str) -> list[str]:
    """Ask for a bucket in its own process: the libraries keep a connection that was answered
    with an error.
    """
    command = [sys.executable, "-c", _ASK_S3, bucket, str(folder), url]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done
    return lines


def test_a_bucket_that_is_gone_is_named(bucket: Any, tmp_path: Path) -> None:
    sink, source, delta, iceberg = refusals("gone", tmp_path, bucket.meta.endpoint_url)
    assert re.match(
        r"WorkerFailedError: component 'sink' .*: s3://gone/out: .*(not found|NO_SUCH_BUCKET)", sink
    )
    assert re.match(r"InvalidConfigError: component 'files': no file matches s3://gone/in", source)
    assert re.match(r"WorkerFailedError: component 'sink' .*: s3://gone/out: .*NoSuchBucket", delta)
    assert re.match(r"WorkerFailedError: component 'sink' .*: db.rows: .*NO_SUCH_BUCKET", iceberg)


def test_credentials_that_s3_refuses_are_named(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in {
        **own,
        "AWS_ACCESS_KEY_ID": "no-such",
        "AWS_SECRET_ACCESS_KEY": "wrong",
    }.items():
        monkeypatch.setenv(name, value)
    sink, source, delta, iceberg = refusals("bucket", tmp_path, s3.url)
    assert re.match(
        r"WorkerFailedError: component 'sink' .*: s3://bucket/out: .*(ACCESS_DENIED|INVALID_ACCESS_KEY_ID)",
        sink,
    )
    assert re.match(
        r"InvalidConfigError: component 'files', .*s3://bucket/in.*(ACCESS_DENIED|INVALID_ACCESS_KEY_ID)",
        source,
    )
    assert re.match(
        r"WorkerFailedError: component 'sink' .*: s3://bucket/out: .*InvalidAccessKeyId", delta
    )
    assert re.match(r"WorkerFailedError: component 'sink' .*: db.rows: .*ACCESS_DENIED", iceberg)
