"""Bad input for sources and sinks without servers: one clear sentence each, and nothing lost."""

from __future__ import annotations

import http.client
import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api import TopologyBuilder, TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import (
    Files,
    FileSink,
    HttpSink,
    Rate,
    RedisSink,
    SparkSource,
    SqlSink,
    Webhook,
)
from sparkstorm.connectors.file_folders import Folders
from sparkstorm.connectors.time_order import NO_TIME, PartitionOrder
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing import CaptureBolt, LocalCluster, Shared
from tests.connectors.crashing_sink import CONF, feed
from tests.connectors.test_file_source import Run
from tests.connectors.test_http import Target
from tests.connectors.test_http import target as target
from tests.connectors.test_spark import Numbers, NumbersReader, read

ROWS = [(n, f"text {n}") for n in range(12)]


class Relieved(TransactionalSink):
    """Sink whose target is relieved when it has refused twice."""

    def __init__(self, inner: TransactionalSink, relieve: Callable[[], Any]) -> None:
        self.inner, self.relieve, self.refusals = inner, Shared(relieve), Shared(list[str]())

    def open(self, conf: Any, context: Any) -> None:
        self.inner.open(conf, context)

    def begin(self, epoch: int) -> None:
        self.inner.begin(epoch)

    def write(self, tup: Any) -> None:
        self.inner.write(tup)

    def prepare(self, epoch: int) -> Any:
        return self._call(lambda: self.inner.prepare(epoch))

    def commit(self, epoch: int, prepared: Any) -> None:
        self._call(lambda: self.inner.commit(epoch, prepared))

    def recover(self, epoch: int, prepared: Any) -> None:
        self._call(lambda: self.inner.recover(epoch, prepared))

    def cleanup(self) -> None:
        self.inner.cleanup()

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            self.refusals.value.append(str(error))
            if len(self.refusals.value) == 2:
                self.relieve.value()
            raise


class Spoiled(Relieved):
    """Sink whose target is spoiled after the second epoch."""

    def commit(self, epoch: int, prepared: Any) -> None:
        self.inner.commit(epoch, prepared)
        if epoch == 2:
            self.relieve.value()


def write(sink: TransactionalSink, rows: Any = ROWS) -> None:
    from tests.connectors.crashing_sink import CrashingSink

    assert feed(CrashingSink(sink, Shared([0])), ["n", "text"], rows) == []


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 300 kB, which any user may reach."""
    with disk_of("300k") as folder:
        yield folder


@contextmanager
def disk_of(size: str) -> Iterator[Path]:
    """Mount a disk of a size."""
    folder = Path(tempfile.mkdtemp(prefix="sparkstorm-small-"))
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        folder.rmdir()
        pytest.skip(f"only root may mount a small disk: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def fill(folder: Path) -> Callable[[], None]:
    """Fill a disk; the function that makes room again."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    return (folder / "ballast").unlink


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_full_disk_keeps_a_file_sink_waiting_and_loses_nothing(
    small_disk: Path, format: str
) -> None:
    sink = FileSink(small_disk / "out", format, "n bigint, text string", flush_secs=0)
    relieved = Relieved(sink, fill(small_disk))
    write(relieved)
    assert len(relieved.refusals.value) >= 2
    assert "No space left on device" in relieved.refusals.value[0]
    read_back = pq.read_table if format == "parquet" else _read_json
    found = [
        row for path in (small_disk / "out").glob("*.*") for row in read_back(path).to_pylist()
    ]
    assert Counter((row["n"], row["text"]) for row in found) == Counter(ROWS)


def _read_json(path: Path) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])


def test_a_full_disk_keeps_a_table_waiting_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "a.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE rows (n INTEGER, text TEXT)")
    connection.close()
    relieved = Relieved(SqlSink(f"sqlite:///{path}", "rows"), fill(small_disk))
    write(relieved)
    assert (
        "disk is full" in relieved.refusals.value[0]
        or "disk I/O error" in relieved.refusals.value[0]
    )
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT n, text FROM rows ORDER BY n").fetchall() == ROWS
    connection.close()


def test_a_full_redis_keeps_a_stream_waiting_and_loses_nothing(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REDIS_PASSWORD", redis_server.password)
    with redis_server.client() as client:
        before = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", "1")

        def relieve() -> None:
            with redis_server.client() as own:
                own.config_set("maxmemory", before)

        sink = RedisSink(
            f"redis://{redis_server.host}:{redis_server.port}",
            "full",
            password_env="TEST_REDIS_PASSWORD",
        )
        relieved = Relieved(sink, relieve)
        try:
            write(relieved)
        finally:
            relieve()
        assert "'maxmemory'" in relieved.refusals.value[0]
        assert [(int(e[b"n"]), e[b"text"].decode()) for _, e in client.xrange("full")] == ROWS


def run_files(spout: Files) -> tuple[list[Any], list[Any]]:
    """Return what a topology captures of the rows and of the bad records."""
    rows, bad, builder = CaptureBolt(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("files", spout)
    builder.set_bolt("rows", rows, inputs="files")
    builder.set_bolt("bad", bad, inputs="files:bad")
    builder.set_spout("unheard", spout)
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2})
        cluster.run_until_idle()
        counts = [cluster.counts(name) for name in ("files", "unheard")]
    assert [each.bad for each in counts] == [len(bad.values)] * 2
    assert counts[0].emitted == counts[1].emitted == len(rows.values) + len(bad.values)
    assert (counts[0].transferred, counts[1].transferred) == (counts[0].emitted, 0)
    return rows.values, bad.values


POISON = {
    "surrogate": ('"\\ud800"', "not valid UTF-8"),
    "number": ("9" * 3000, "the most are 8192"),
}


@pytest.mark.parametrize("kind", POISON)
def test_a_record_that_no_tuple_can_carry_costs_itself_only(tmp_path: Path, kind: str) -> None:
    value, reason = POISON[kind]
    lines = [f'{{"n": {n}, "t": "x"}}' for n in range(20)]
    (tmp_path / "a.json").write_text(
        "\n".join([*lines[:10], f'{{"n": 99, "t": {value}}}', *lines[10:]]) + "\n"
    )
    rows, bad = run_files(Files(str(tmp_path / "a.json"), "json", {"n": "bigint", "t": "any"}))
    assert sorted(n for n, _ in rows) == list(range(20))
    assert len(bad) == 1 and reason in bad[0][3]


def test_a_parquet_row_that_no_tuple_can_carry_costs_itself_only(tmp_path: Path) -> None:
    import datetime

    times = [None, datetime.datetime(2026, 1, 1), None]
    pq.write_table(
        pa.table({"n": [1, 2, 3], "at": pa.array(times, pa.timestamp("us"))}),
        tmp_path / "a.parquet",
    )
    rows, bad = run_files(
        Files(str(tmp_path / "a.parquet"), "parquet", {"n": "bigint", "at": "any"})
    )
    assert [n for n, _ in rows] == [1, 3]
    assert "zone" in bad[0][3]


def test_a_column_whose_type_has_changed_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": ["1"], "t": ["x"]}), tmp_path / "a.parquet")
    sentence = r"a.parquet: column 'n' is string, but the source declares bigint"
    with pytest.raises(InvalidConfigError, match=sentence):
        Run(Files(str(tmp_path / "a.parquet"), "parquet", {"n": "bigint", "t": "string"})).steps(3)
    sentence = "column 'n' is string, but the source declares timestamp"
    with pytest.raises(InvalidConfigError, match=sentence):
        Run(Files(str(tmp_path / "a.parquet"), "parquet", {"n": "timestamp"})).steps(3)


def test_a_folder_of_another_schema_is_named_and_kept(tmp_path: Path) -> None:
    old = FileSink(tmp_path, schema="n bigint, text string", flush_secs=0)
    write(old)
    new = FileSink(tmp_path, schema="n bigint, text string, more double", flush_secs=0)
    sentence = r"has the columns n int64, text string, the sink n int64, .* more double"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(new, ["n", "text", "more"], [(1, "a", 1.0)])
    found = [row for path in tmp_path.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert Counter((row["n"], row["text"]) for row in found) == Counter(ROWS)


def test_a_folder_that_goes_in_the_middle_of_a_run_is_named(tmp_path: Path) -> None:
    inner = FileSink(tmp_path / "out", schema="n bigint, text string", flush_secs=0)
    sentence = r"/out: epoch \d+ was staged as .* is there any more; restore it, or kill"
    with pytest.raises(WorkerFailedError, match=sentence):
        write(Spoiled(inner, lambda: shutil.rmtree(tmp_path / "out")))


def test_a_table_that_is_dropped_in_the_middle_of_a_run_is_named_and_hostile_names_are_names(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute('CREATE TABLE "ro""ws; --" ("n"");--" INTEGER, ":p" TEXT)')
    assert feed(SqlSink(url, 'ro"ws; --'), ['n");--', ":p"], [(1, "a")]) == []
    assert connection.execute('SELECT * FROM "ro""ws; --"').fetchall() == [(1, "a")]
    connection.execute("DROP TABLE sparkstorm_epochs")  # simulated topologies have all the same id
    connection.execute("CREATE TABLE target (n INTEGER, text TEXT)")
    sentence = r"'sink' .*: table target at .*: no such table: target"
    with pytest.raises(WorkerFailedError, match=sentence):
        write(Spoiled(SqlSink(url, "target"), lambda: connection.execute("DROP TABLE target")))
    connection.close()


class Failing:
    """Stream of a store that goes away in the middle of a file."""

    def __init__(self, inner: BinaryIO, lines: int) -> None:
        self.inner, self.left = inner, lines

    def readline(self, most: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError("AWS Error NETWORK_CONNECTION: curlCode: 7")
        return self.inner.readline(most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_store_that_goes_away_in_the_middle_of_a_file_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(200)))
    opened, whole = iter((10, 0, 100, 100, 1000)), Folders.open
    monkeypatch.setattr(
        Folders, "open", lambda self, path, at: Failing(whole(self, path, at), next(opened))
    )
    rows, errors = CaptureBolt(), []
    builder = TopologyBuilder()
    builder.set_spout("files", Files(str(tmp_path / "a.txt")))
    builder.set_bolt("rows", rows, inputs="files")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        cluster.run_until_idle()
        errors = [each.text for each in cluster.errors]
    assert rows.values == [(str(n),) for n in range(200)]
    assert any("NETWORK_CONNECTION" in text for text in errors)


class StumblingReader(NumbersReader):
    """Raises once in the middle of each range."""

    stumbled: Shared[set[int]] = Shared(set())

    def read(self, partition: Any) -> Iterator[Any]:
        for number, row in enumerate(super().read(partition)):
            if number == 5 and partition.first not in self.stumbled.value:
                self.stumbled.value.add(partition.first)
                raise OSError("the source went away")
            yield row


class Stumbling(Numbers):
    def streamReader(self, schema: Any) -> Any:
        return StumblingReader(self.options)


def test_a_data_source_that_raises_in_the_middle_of_a_partition_costs_no_row(
    tmp_path: Path,
) -> None:
    StumblingReader.stumbled.value.clear()
    found = read(
        SparkSource(Stumbling, {"end": "53", "told": str(tmp_path / "told")}, follow=False)
    )
    assert Counter(found) == Counter((n, str(n)) for n in range(53))


def test_wrong_tokens_and_addresses_end_a_run_and_park_nothing(target: Target) -> None:
    for status, mend in (
        (401, "name the token's place with token_file or token_env"),
        (404, "correct the URL"),
        (308, "it points elsewhere"),
    ):
        target.statuses = [status] * 99
        sentence = rf"'sink' .*: {target.url} answers {status}: said; {mend}"
        with pytest.raises(WorkerFailedError, match=sentence):
            feed(HttpSink(target.url), ["n"], [[1], [2]])
    assert target.bodies == {}


def test_a_hostile_post_is_answered_and_harms_no_other() -> None:
    port, builder, rows = free_port(), TopologyBuilder(), CaptureBolt()
    builder.set_spout("hook", Webhook(port, ["user"], patience_secs=5))
    builder.set_bolt("rows", rows, inputs="hook")

    def post(body: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    with LocalCluster() as cluster, ThreadPoolExecutor(2) as threads:
        cluster.submit(builder.build(), CONF)
        for body, status, text in (
            ('{"user": "\\ud800"}', 422, "not valid UTF-8"),
            ('{"user": "a"}', 200, ""),
        ):
            answer = threads.submit(post, body)
            cluster.run_until(answer.done)
            assert answer.result()[0] == status and text in answer.result()[1]
        cluster.kill("test", 0)
    assert rows.values == [("a", None)]


def test_a_rate_gives_each_number_once_whatever_a_hosts_clock_says() -> None:
    class Host:
        component_id, task_index, peers = "rate", 0, (0,)

        def __init__(self, now_ms: int) -> None:
            self.at_ms, self.rows = now_ms, list[int]()

        def now_ms(self) -> int:
            self.at_ms += 10
            return self.at_ms

        def emit(self, values: Any, message_id: Any) -> None:
            self.rows.append(values[0])

    found: list[int] = []
    position = None
    for now_ms in (10_000_000, 3_000, 20_000_000):  # hosts whose clocks are hours apart
        host: Any = Host(now_ms)
        rate = Rate(100, rows=30)
        rate.open({}, host, host)
        if position is not None:
            rate.restore(position)
        for _ in range(10):
            rate.next_tuple()
        position, found = rate.snapshot(), found + host.rows
    assert found == list(range(len(found))) and len(found) >= 20


TIMES = st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4)


@given(TIMES, st.data())
def test_a_record_is_as_late_as_in_its_own_partition(
    times: list[list[int]], data: st.DataObject
) -> None:
    order = PartitionOrder(1000)
    left = [list(each) for each in times]
    given = list[tuple[int, int]]()
    for place in range(len(times)):
        order.add(str(place))
    ended: set[int] = set()
    while len(ended) < len(times):
        place = data.draw(st.sampled_from(sorted(set(range(len(times))) - ended)))
        for _ in range(data.draw(st.integers(1, 5))):
            if not left[place]:
                ended.add(place)
                order.note_end(str(place))
                break
            time_ms = left[place].pop(0)
            order.put(str(place), [(time_ms, (place, time_ms))])
        given += order.take(data.draw(st.integers(1, 10)))
    while taken := order.take(7):
        given += taken
    assert order.is_at_end
    assert [[t for p, t in given if p == place] for place in range(len(times))] == times
    newest, clocks = -1, [-1] * len(times)
    for place, time_ms in given:
        clocks[place] = max(clocks[place], time_ms)
        assert newest <= max(clocks[place], time_ms), given
        newest = max(newest, time_ms)


def test_each_partition_says_how_far_its_records_are_behind_its_own_newest() -> None:
    order = PartitionOrder(1000)
    for name in "abc":
        order.add(name)
    order.put("a", [(50, "a"), (NO_TIME, "no time"), (40, "a"), (45, "a")])
    order.put("a", [(48, "a")])
    order.put("b", [(1, "b"), (2, "b")])  # behind a's, in order
    assert order.behind_ms() == {"a": 10, "b": 0, "c": 0}


def test_a_silent_partition_is_not_waited_for_longer_than_it_may_be_idle() -> None:
    order = PartitionOrder(1000)
    order.add("a")
    order.add("b")
    order.put("a", [(5, "a5")])
    order.note_poll(999)
    assert order.take(10) == []
    order.note_poll(1)
    order.put("a", [(7, "a7")])
    assert order.take(10) == ["a5", "a7"]
    order.put("b", [(1, "b1")])
    order.put("a", [(9, "a9")])
    assert order.take(10) == ["b1"]


def test_a_partition_at_its_end_is_waited_for_as_long_as_it_says() -> None:
    order = PartitionOrder(1000, end_wait_ms=500)
    for name in "ab":
        order.add(name)
        order.note_end(name)
    order.put("a", [(5, "a5")])
    order.note_end("a")
    order.note_poll(499)
    order.note_end("b")  # said again, which begins no new wait
    assert order.take(10) == []
    order.put("b", [(3, "b3")])
    order.note_end("b")
    assert order.take(10) == ["b3"]
    order.note_poll(499)
    assert order.take(10) == []
    order.note_poll(1)
    assert order.take(10) == ["a5"]


def test_the_first_record_after_a_silence_waits_for_the_others_from_its_coming() -> None:
    for silence_ms in (400, 999, 1000, 60_000):
        order = PartitionOrder(1000, end_wait_ms=1000)
        for name in "ab":
            order.add(name)
            order.note_end(name)
        order.note_poll(silence_ms)
        order.put("b", [(100, "b100")])
        order.note_end("b")
        order.note_poll(999)
        assert order.take(10) == []
        order.put("a", [(1, "a1")])
        order.note_end("a")
        assert order.take(10) == ["a1"]
        order.note_poll(999)
        assert order.take(10) == []
        order.note_poll(1)
        assert order.take(10) == ["b100"]


def test_a_steady_flow_does_not_wait_for_a_partition_that_stays_silent() -> None:
    order = PartitionOrder(1000, end_wait_ms=1000)
    for name in "ab":
        order.add(name)
        order.note_end(name)
    waited = []
    for ms in range(0, 6000, 500):
        order.put("a", [(ms, ms)])
        order.note_end("a")
        waited += [ms - came_ms for came_ms in order.take(10)]
        order.note_poll(500)
    assert waited == [1000, 1000, 1000, 500, *[0] * 8]  # twice 1000 ms after b's end
    order.put("b", [(5900, "b")])  # has news: is waited for again
    order.note_end("b")
    order.put("a", [(6000, "a")])
    order.note_end("a")
    assert order.take(10) == ["b"]


BURSTS = st.lists(st.tuples(st.integers(0, 3000), TIMES), max_size=4)


@given(BURSTS, st.data())
def test_what_is_written_while_it_is_followed_goes_out_in_order_if_ends_are_waited_for(
    bursts: list[tuple[int, list[list[int]]]], data: st.DataObject
) -> None:
    order, given = PartitionOrder(1000, end_wait_ms=1000), list[int]()
    for place in range(4):
        order.add(str(place))
        order.note_end(str(place))
    for number, (silence_ms, times) in enumerate(bursts):
        for _ in range(3):
            order.note_poll(silence_ms // 3)
            given += order.take(data.draw(st.integers(1, 10)))
        left = [sorted(number * 100 + time_ms for time_ms in each) for each in times]
        while any(left):
            place = data.draw(st.sampled_from([n for n, rest in enumerate(left) if rest]))
            time_ms = left[place].pop(0)
            order.put(str(place), [(time_ms, time_ms)])
            order.note_end(str(place))  # each record is the last one for now
            order.note_poll(data.draw(st.integers(0, 12)))  # all of a burst within the wait
            given += order.take(data.draw(st.integers(1, 10)))
    order.note_poll(1000)
    while taken := order.take(7):
        given += taken
    assert len(given) == sum(len(each) for _, times in bursts for each in times)
    assert given == sorted(given)
