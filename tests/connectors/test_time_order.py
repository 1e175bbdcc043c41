"""Sources that merge their inputs by event time: files of one task and Redis streams, live,
replayed and over restarts.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api import Duration, FoldingBolt, Spout, StatefulBolt, TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import FileLines, Files, KafkaSource, RedisSource, find_files
from sparkstorm.connectors.time_order import MergedInputs
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.replay import back_fill_locally, replay_locally
from sparkstorm.testing import LocalCluster
from tests.connectors.test_file_source import Run
from tests.connectors.test_files import Collector, Context, drain
from tests.connectors.test_sql import Bench

HOSTS = 5
ROWS = 60  # of each host: file `host n` has the times n, n + 5, n + 10, ...
TIMES = list(range(HOSTS * ROWS))


def first_word(record: Any) -> int:
    return int(record["line"].split()[0])


# -- the merge -------------------------------------------------------------------------------------


class Numbers:
    """An input with times; some calls find nothing yet."""

    def __init__(self, number: int, times: list[int]) -> None:
        self.number, self.left, self.is_open = number, list(times), False


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=6),
    st.integers(1, 3),
    st.booleans(),
)
def test_no_record_is_later_than_in_its_own_input_and_few_inputs_are_open(
    times: list[list[int]], most_open: int, in_order: bool
) -> None:
    times = [sorted(each) for each in times] if in_order else times
    inputs = [Numbers(number, each) for number, each in enumerate(times)]

    def read(each: Numbers) -> tuple[int, Any] | None:
        each.is_open = bool(each.left)
        assert sum(every.is_open for every in inputs) <= most_open + 1
        return (each.left[0], each.left.pop(0)) if each.left else None

    def pause(each: Numbers) -> None:
        assert each.is_open
        each.is_open = False

    merged = MergedInputs(read, pause, most_open)
    for each in inputs:
        merged.add(each, each.number)
    given: list[tuple[int, int]] = []
    while (found := merged.take()) is not None:
        given.append((found[0].number, found[1]))
    assert not merged
    assert [[ms for number, ms in given if number == place] for place in range(len(times))] == times
    if in_order:
        assert given == sorted(given, key=lambda each: (each[1], each[0]))
    newest, clocks = -1, [-1] * len(times)
    for number, time_ms in given:
        clocks[number] = max(clocks[number], time_ms)
        assert newest <= clocks[number]
        newest = max(newest, time_ms)


def test_nothing_goes_out_before_each_of_many_inputs_was_asked_and_an_error_repeats() -> None:
    inputs = [Numbers(number, [1000 - number]) for number in range(600)]
    broken = [300]

    def read(each: Numbers) -> tuple[int, Any] | None:
        if [each.number] == broken:
            raise OSError("no answer")
        return (each.left[0], each.left.pop(0)) if each.left else None

    merged = MergedInputs(read, lambda each: None, 600)
    for each in inputs:
        merged.add(each, each.number)
    assert merged.take() is None
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            merged.take()
    broken.clear()
    taken = [found[1] if (found := merged.take()) else None for _ in range(602)]
    assert taken == [None, *range(401, 1001), None]


# -- files -----------------------------------------------------------------------------------------


def write(folder: Path, format: str) -> Path:
    """Make a file of each host and return their folder."""
    folder.mkdir()
    for host in range(HOSTS):
        times = TIMES[host::HOSTS]
        if format == "parquet":
            pq.write_table(
                pa.table({"at": times, "host": [str(host)] * ROWS}),
                folder / f"{host}.parquet",
                row_group_size=7,
            )
            continue
        rows = {
            "json": [json.dumps({"host": str(host), "at": ms}) for ms in times],
            "csv": ["host,at", *(f"{host},{ms}" for ms in times)],
            "lines": [f"{ms} {host}" for ms in times],
        }[format]
        data = "".join(f"{row}\n" for row in rows).encode()
        packed = host == 2  # one of them in another form
        (folder / f"{host}.log{'.gz' if packed else ''}").write_bytes(
            gzip.compress(data) if packed else data
        )
    return folder


def source(folder: Path, format: str) -> tuple[Files, Callable[[Any], int]]:
    if format == "lines":
        return Files(str(folder), time=first_word), lambda row: int(row[0].split()[0])
    return Files(
        str(folder), format, {"at": "bigint", "host": "string"}, time="at"
    ), lambda row: int(row[0])


@pytest.mark.sampled
@pytest.mark.parametrize("most_open", [1, 2, 99])
@pytest.mark.parametrize("format", ["lines", "json", "csv", "parquet"])
def test_files_of_a_task_are_read_in_step_from_any_position(
    tmp_path: Path, format: str, most_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.connectors.file_source.MOST_OPEN", most_open)
    spout, time_of = source(write(tmp_path / "in", format), format)
    for steps in (0, 1, 2, 4, 9):
        first = Run(spout).steps(steps)
        assert not first.spout.is_exhausted() or steps == 9
        second = Run(spout, first.spout.snapshot()).steps(9)
        assert second.spout.is_exhausted() and second.spout.extent()[0] == second.spout.extent()[1]
        assert [time_of(row) for row in first.collector.rows + second.collector.rows] == TIMES
        assert not first.collector.bad and not second.collector.bad


def test_records_without_a_time_are_bad_and_hold_up_no_other(tmp_path: Path) -> None:
    for host, rows in {"a": ["1", "x", "5"], "b": ['"2"', "3", "null"]}.items():
        (tmp_path / host).write_text("".join(f'{{"at": {row}}}\n' for row in rows))
    run = Run(Files(str(tmp_path), "json", ["at"], time="at")).steps(3)
    assert run.collector.rows == [(1,), (3,), (5,)]
    assert [(Path(path).name, reason) for path, _, _, reason in run.collector.bad] == [
        ("b", "the time of the record is '2', not a whole number of milliseconds"),
        ("a", run.collector.bad[1][3]),
        ("b", "the time of the record is None, not a whole number of milliseconds"),
    ]
    assert run.collector.bad[1][3].startswith("it is no JSON") and len(run.collector.errors) == 3
    raising = Run(Files(str(tmp_path / "a"), time=lambda record: 1 // 0)).steps(3)
    assert {row[3] for row in raising.collector.bad} == {
        "time= raised ZeroDivisionError: integer division or modulo by zero"
    } and raising.spout.is_exhausted()


def test_a_file_that_goes_in_the_middle_is_reported_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.connectors.file_source.MOST_OPEN", 1)
    folder = write(tmp_path / "in", "lines")
    run = Run(Files(str(folder), time=first_word)).steps(2)
    (folder / "3.log").unlink()
    run.steps(9)
    assert run.spout.is_exhausted()
    left = [ms for ms in TIMES[128:] if ms % HOSTS != 3]
    read = [int(line.split()[0]) for line in run.lines]
    assert [ms for ms in read[128:] if ms % HOSTS != 3] == left and read == sorted(read)
    [(path, *_, reason)] = run.collector.bad
    assert path.endswith("3.log") and "the file is gone since it was read up to here" in reason


def test_files_that_grow_and_files_that_come_join_the_merge(tmp_path: Path) -> None:
    run = Run(Files(str(tmp_path / "*.log"), tail=True, time=first_word))
    (tmp_path / "b.log").write_text("1 b\n4 b\n")
    (tmp_path / "a.log").write_text("2 a\n3 ")
    assert run.steps(30).lines == ["1 b", "2 a", "4 b"]  # a file at its end is not waited for
    with (tmp_path / "a.log").open("a") as a, (tmp_path / "b.log").open("a") as b:
        a.write("a\n7 a\n")
        b.write("5 b\n8 b\n")
    (tmp_path / "c.log").write_text("6 c\n9 c\n")
    position = run.spout.snapshot()
    again = Run(Files(str(tmp_path / "*.log"), tail=True, time=first_word), position).steps(30)
    assert again.lines == ["3 a", "5 b", "6 c", "7 a", "8 b", "9 c"]
    come = Run(Files(str(tmp_path / "*.log"), follow=True, time=first_word)).steps(30)
    assert [int(line.split()[0]) for line in come.lines] == list(range(1, 10))
    (tmp_path / "d.log").write_text("0 d\n")
    assert come.steps(30).lines[9:] == ["0 d"] and not come.spout.is_exhausted()


@pytest.mark.parametrize("most_open", [1, 99])
def test_lines_of_a_share_are_read_in_step_from_any_position_and_handed_over(
    tmp_path: Path, most_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.connectors.files.MOST_OPEN", most_open)
    for host in range(HOSTS):
        (tmp_path / f"host{host}").write_text(
            "".join(f"{ms} {host}\n" for ms in TIMES[host::HOSTS])
        )
    (tmp_path / "empty").touch()
    made = FileLines(find_files([tmp_path]), time=first_word)
    for steps in range(5):
        read, snapshot, handed = list[int](), None, None
        for part in ("begun", "restored", "handed over"):
            spout = made.take_over([handed]) if part == "handed over" else made
            collector = Collector()
            spout.open({}, Context(0, 1), collector)  # type: ignore[arg-type]
            if part == "restored":
                spout.restore(snapshot)
            for _ in range(9 if part == "handed over" else steps):
                spout.next_tuple()
            snapshot, handed = spout.snapshot(), spout.hand_over()
            spout.close()
            read += [int(line.split()[0]) for line in collector.lines]
        assert read == TIMES and spout.is_exhausted() and spout.extent()[0] == spout.extent()[1]
        assert len(set(collector.ids)) == len(collector.ids)


def test_a_line_without_a_time_keeps_its_place_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 a\n-\n5 a\n")
    (tmp_path / "b").write_text("2 b\n6 b\n")
    spout = FileLines(find_files([tmp_path]), time=first_word)
    collector = Collector()
    errors = list[str]()
    collector.report_error = errors.append  # type: ignore[attr-defined]
    spout.open({}, Context(0, 1, takes_batches=True), collector)  # type: ignore[arg-type]
    drain(spout)
    assert collector.lines == ["1 a", "-", "2 b", "5 a", "6 b"]
    assert [error.partition(": ")[0].rpartition("/")[2] for error in errors] == ["a, at 4"]
    sentence = "FileLines: time names the field 'line', which is not among the fields; it may be"
    with pytest.raises(InvalidConfigError, match=sentence):
        FileLines([], time="line")
    sentence = "Files: time names the field 'ta', which is not among the fields"
    with pytest.raises(InvalidConfigError, match=sentence):
        Files("a", "json", ["at"], time="ta")


def test_a_time_is_a_declared_field_of_whole_numbers_and_types_are_checked_at_once() -> None:
    made: list[tuple[str, Callable[..., Any]]] = [
        ("KafkaSource", lambda types, **options: KafkaSource("h:1", "t", types, **options)),
        ("Files", lambda types, **options: Files("a", "json", types, **options)),
    ]
    for name, source in made:
        for kind in ("string", "double", "timestamp", "array<bigint>"):
            with pytest.raises(
                InvalidConfigError,
                match=f"^{name}: time names the field 'order_id', which is declared as {kind}; a time is a bigint of ",
            ):
                source({"order_id": kind}, time="order_id")
        with pytest.raises(
            InvalidConfigError,
            match=f"^{name}: time names the field 'at-ms', .* among the fields; did you mean 'at_ms'?",
        ):
            source({"at_ms": "bigint"}, time="at-ms")
        with pytest.raises(InvalidConfigError, match=f"^{name}: field 'n': 'txt' is no type"):
            source({"n": "txt"})
        for fields in ({"at": "bigint"}, {"at": "long"}, {"at": "int"}, ["at"]):
            source(fields, time="at")
        source({"at": "string"}, time=lambda record: int(record["at"]))


# -- windows over them, live and replayed ----------------------------------------------------------


class Members(FoldingBolt):
    """Counts the rows of a window."""

    outputs = ("start", "n")

    def initial(self) -> Any:
        return 0

    def fold(self, accumulator: Any, tup: Any) -> Any:
        return accumulator + 1

    def execute(self, window: Any, collector: Any) -> None:
        collector.emit((window.start, window.value))


class Kept(StatefulBolt):
    """The number of rows by window."""

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.add(tup["start"], tup["n"])


def counted(spout: Spout) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("logs", spout)
    windowed = (
        Members()
        .with_tumbling_window(Duration.millis(20))
        .with_timestamp_field("at")
        .with_lag(Duration.millis(0))
    )
    builder.set_bolt("windows", windowed, inputs="logs")
    builder.set_bolt("kept", Kept()).global_grouping("windows")
    return builder.build()


def live(topology: Topology, **options: Any) -> dict[Any, Any]:
    with LocalCluster() as cluster:
        cluster.submit(topology, **options)
        cluster.run_until_idle()
        return cluster.state("kept")


def test_logs_of_several_hosts_dealt_to_one_task_have_no_late_row_live_and_replayed(
    tmp_path: Path,
) -> None:
    folder, fields = write(tmp_path / "in", "json"), {"at": "bigint", "host": "string"}
    wanted = dict.fromkeys(range(0, len(TIMES), 20), 20)
    one_after_another = live(counted(Files(str(folder), "json", fields)))
    assert ROWS <= sum(one_after_another.values()) < 2 * ROWS  # rows of later files were late
    merged = counted(Files(str(folder), "json", fields, time="at"))
    assert live(merged) == wanted
    back_fill_locally(merged, tmp_path / "half", rows={"logs": 130})
    assert live(merged, from_checkpoint=tmp_path / "half") == wanted
    rows = [(ms, str(ms % HOSTS)) for host in range(HOSTS) for ms in TIMES[host::HOSTS]]
    assert dict(replay_locally(merged, {"logs": rows}, event_time="at").states["kept"]) == wanted


# -- Redis streams ---------------------------------------------------------------------------------


@pytest.fixture
def url(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_REDIS_PASSWORD", redis_server.password)
    return f"redis://{redis_server.host}:{redis_server.port}"


@pytest.mark.parametrize(
    "time", [None, "at", lambda record: int(record["at"])], ids=["id", "field", "function"]
)
def test_streams_of_a_task_are_read_in_step_over_restarts(
    url: str, redis_server: RedisServer, time: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.connectors.redis_streams._ENTRIES_PER_READ", 7)
    streams, size = [f"hosts-{number}" for number in range(3)], 300
    read, position = list[int](), None
    with redis_server.client() as client:
        client.delete(*streams)
        for ms in range(size):  # the first stream is far ahead at any number of entries
            client.xadd(
                streams[0 if ms % 10 else 1 + ms // 10 % 2],
                {"at": ms},
                f"{ms + 1 if time is None else size - 1}-{ms + 1}",
            )
        for _ in range(400):
            spout = RedisSource(
                url, streams, ["at"], follow=False, time=time, password_env="TEST_REDIS_PASSWORD"
            )
            bench = Bench(spout, position)
            read += [int(row[0]) for _ in range(5) for row in bench.step()]
            position = spout.snapshot()
            spout.close()
            if spout.is_exhausted():
                break
    assert read == list(range(size))


def test_an_entry_without_a_time_is_bad_and_holds_up_no_other(
    url: str, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        client.delete("times-a", "times-b")
        for number, at in enumerate(["1", "x", None, "5"]):
            client.xadd(
                "times-a",
                {"n": number} if at is None else {"n": number, "at": at},
                f"1-{number + 1}",
            )
        client.xadd("times-b", {"n": 9, "at": 3}, "1-1")
    spout = RedisSource(
        url,
        ["times-a", "times-b"],
        ["n", "at"],
        follow=False,
        time="at",
        password_env="TEST_REDIS_PASSWORD",
    )
    bench: Any = Bench(spout)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = bench.step()
    spout.close()
    assert [row[1] for row in rows if row[0] == "default"] == ["0", "9", "3"]
    assert [(row[1], row[3]) for row in rows if row[0] == "bad"] == [
        ("times-a/1-2", "time= raised ValueError: invalid literal for int() with base 10: 'x'"),
        ("times-a/1-3", "the time of the record is None, not a whole number of milliseconds"),
    ]
    sentence = "RedisSource: time names the field 'id', which is not among the fields"
    with pytest.raises(InvalidConfigError, match=sentence):
        RedisSource(url, "times-a", ["at"], time="id")
