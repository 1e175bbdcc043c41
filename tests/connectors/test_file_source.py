"""Files: every record of each format once, over restarts, new files, growth and rotation; and what
cannot be read.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkstorm.api import TopologyBuilder
from sparkstorm.api.columns import rows_of
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import Files
from sparkstorm.connectors.file_records import CsvReader, FileRecord
from sparkstorm.connectors.files import find_files
from sparkstorm.testing import CaptureBolt, LocalCluster


class Context:
    """Context of the spout, with a clock that the test moves."""

    def __init__(self, index: int = 0, tasks: int = 1) -> None:
        self.task_index = index
        self.peers = tuple(range(tasks))
        self.component_id = "files"
        self.at_ms = 0
        self.column_streams: frozenset[str] = frozenset()

    def now_ms(self) -> int:
        self.at_ms += 100
        return self.at_ms


class Collector:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.bad: list[tuple[Any, ...]] = []
        self.errors: list[str] = []

    def emit(self, values: tuple[Any, ...], message_id: Any, stream: str = "default") -> None:
        (self.rows if stream == "default" else self.bad).append(values)

    def emit_batch(self, batch: pa.RecordBatch, message_id: Any) -> None:
        self.rows += rows_of(batch)

    def report_error(self, error: str) -> None:
        self.errors.append(error)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what the spouts of a test have opened."""
    Run.opened.clear()
    yield
    for spout in Run.opened:
        spout.close()


class Run:
    """One task of a Files, stepped by hand, which may be restarted from a position."""

    opened: ClassVar[list[Files]] = []

    def __init__(
        self,
        spout: Files,
        position: Any = None,
        index: int = 0,
        tasks: int = 1,
        column_streams: Sequence[str] = (),
    ) -> None:
        self.spout, self.collector = copy.copy(spout), Collector()
        self.opened.append(self.spout)
        context = Context(index, tasks)
        context.column_streams = frozenset(column_streams)
        self.spout.open({}, context, self.collector)  # type: ignore[arg-type]
        if position is not None:
            self.spout.restore(position)

    def steps(self, count: int = 60) -> Run:
        for _ in range(count):
            self.spout.next_tuple()
        return self

    @property
    def lines(self) -> list[Any]:
        return [row[0] for row in self.collector.rows]


def packed(folder: Path, name: str, data: bytes) -> None:
    if name.endswith(".zst"):
        with pa.CompressedOutputStream(str(folder / name), "zstd") as out:
            out.write(data)
    else:
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines(first: int, last: int) -> bytes:
    return "".join(f"line {n}\n" for n in range(first, last)).encode()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_packed_files_and_folders_are_read_once_from_any_position(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "deep").mkdir()
    packed(tmp_path, f"a.txt{suffix}", lines(0, 150))
    packed(tmp_path / "deep", f"b.txt{suffix}", lines(150, 300)[:-1])  # without a last line end
    packed(tmp_path, f"_half.txt{suffix}", b"not yet\n")
    wanted = [f"line {n}" for n in range(300)]
    for steps in range(8):
        first = Run(Files(str(tmp_path))).steps(steps)
        second = Run(Files([str(tmp_path)]), first.spout.snapshot()).steps()
        assert sorted(first.lines + second.lines) == sorted(wanted)
        assert second.spout.is_exhausted() and second.spout.extent()[0] == second.spout.extent()[1]
        first.spout.close()


def parquet(path: Path) -> None:
    pq.write_table(
        pa.table({"n": list(range(200)), "t": [str(n) for n in range(200)]}),
        path,
        row_group_size=30,
    )


FORMATS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "parquet": ("a.parquet", parquet),
    "json": (
        "a.json",
        lambda p: p.write_text(
            "".join(json.dumps({"t": str(n), "n": n, "x": 0}) + "\n" for n in range(200))
        ),
    ),
    "csv": (
        "a.csv",
        lambda p: p.write_text("t,x,n\n" + "".join(f'"{n}",,{n}\n' for n in range(200))),
    ),
}


@pytest.mark.parametrize("format", FORMATS)
def test_fields_are_read_by_name_and_type_from_any_position(tmp_path: Path, format: str) -> None:
    name, make = FORMATS[format]
    make(tmp_path / name)
    spout = Files(str(tmp_path / "*"), format, {"n": "bigint", "t": "string"})
    for steps in range(5):
        first = Run(spout).steps(steps)
        second = Run(spout, first.spout.snapshot()).steps()
        assert first.collector.rows + second.collector.rows == [(n, str(n)) for n in range(200)]


def test_csv_cells_may_hold_line_ends_quotes_and_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfid;text\r\n1;"two\r\nlines; and ""quotes"""\r\n2;\r\n'
    )
    run = Run(
        Files(str(tmp_path / "a.csv"), "csv", {"text": "string", "id": "int"}, delimiter=";")
    ).steps()
    assert run.collector.rows == [('two\r\nlines; and "quotes"', 1), ("", 2)]


@given(
    st.lists(st.sampled_from(['"', '"', ",", "\n", "\r\n", "a", "b", "é"]), max_size=24),
    st.lists(st.integers(0, 40), max_size=4),
)
@example(list('a"b,"c\nd"\n'), [])
def test_csv_is_read_as_by_python_whatever_comes_in_parts(
    parts: list[str], cuts: list[int]
) -> None:
    """Where Python's parser, which is given the whole text, finds no mistake."""
    text = "".join(parts)
    data = text.encode()
    try:
        wanted = [tuple(row) for row in csv.reader(io.StringIO(text, newline=""), strict=True)]
    except csv.Error:
        return
    stream = io.BytesIO()
    reader = CsvReader(stream, 0, tuple, ",", 1 << 20)
    found: list[FileRecord] = []
    for until in (*sorted(min(cut, len(data)) for cut in cuts), len(data)):
        at = stream.tell()
        stream.seek(0, os.SEEK_END)
        stream.write(data[stream.tell() : until])
        stream.seek(at)
        found += iter(partial(reader.next, False), None)
    found += iter(partial(reader.next, True), None)
    assert [record.values for record in found] == wanted
    assert not any(record.problem for record in found)
    assert [record.end for record in found][-1:] == ([len(data)] if wanted else [])
    for record in found:  # each position is where a record begins
        stream.seek(record.end)
        rest = CsvReader(stream, record.end, tuple, ",", 1 << 20)
        again = iter(partial(rest.next, True), None)
        assert list(again) == found[found.index(record) + 1 :]


@pytest.mark.parametrize(
    ("text", "rows", "bad"),
    [
        # a quote within a cell opens none
        (b'a,b\n1,5" pipe\n2,"x\ny"\n3,z\n', [(1, '5" pipe'), (2, "x\ny"), (3, "z")], []),
        (b'a,"b\nc",b\n1,x,2\n', [(1, "2")], []),
        (b'a,c,b\n1,5" pipe,"x\ny"\n2,"x\ny",5" pipe"\n', [(1, "x\ny"), (2, '5" pipe"')], []),
        (
            b"a,b\n1,x\r2,y\n3,z\n",
            [(3, "z")],
            ["a carriage return outside of quotes; lines end with a newline"],
        ),
        (b"a,b\n1_0,x\n", [], ["field 'a' is '1_0', not a whole number"]),
        (b"a,b\n%d,x\n" % (2**63), [], [f"field 'a' is {2**63}, which bigint does not hold"]),
        (b"", [], []),
    ],
)
def test_no_row_of_a_csv_file_is_passed_by_in_silence(
    tmp_path: Path, text: bytes, rows: list[Any], bad: list[str]
) -> None:
    (tmp_path / "1.csv").write_bytes(text)
    (tmp_path / "2[1].csv").write_bytes(b"a,b\n9,last\n")
    paths = [str(tmp_path / "1.csv"), str(tmp_path / "2[1].csv")]  # a name, not a pattern
    run = Run(Files(paths, "csv", {"a": "bigint", "b": "string"})).steps()
    assert run.collector.rows == [*rows, (9, "last")]
    assert [row[3] for row in run.collector.bad] == bad
    assert run.spout.is_exhausted()


def test_headers_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_bytes(b"a,b\r1,x\r2,y\r")
    sentence = r"1\.csv: its header cannot be read: a carriage return outside of quotes"
    with pytest.raises(InvalidConfigError, match=sentence):
        Run(Files(str(tmp_path / "1.csv"), "csv", ["a"])).steps()


def test_a_zstd_file_that_was_cut_is_reported_and_the_next_file_is_read(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(b"one\n" * 1000)
    (tmp_path / "1.zst").write_bytes(sink.getvalue().to_pybytes()[:-5])
    (tmp_path / "2.txt").write_bytes(b"two\n")
    run = Run(Files(str(tmp_path / "*"))).steps(200)
    assert run.lines[-1] == "two" and "damaged from here on: Truncated" in run.collector.bad[0][3]


def test_rows_of_parquet_that_no_tuple_carries_go_to_bad_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    columns = {
        "nanoseconds": pa.array([0, 1, 2_000, 3_000], pa.timestamp("ns", "UTC")),
        "year-10000": pa.array([0, 253_402_300_800_000_000, 5, 6], pa.timestamp("us", "UTC")),
        "key-twice": pa.array([[("a", 1)], [("a", 1), ("a", 2)], [], None], pa.map_(pa.string(), pa.int64())),
    }  # fmt: skip
    for name, column in columns.items():
        pq.write_table(pa.table({"n": range(4), "v": column}), tmp_path / f"{name}.parquet")
    for time in (None, "n"):
        run = Run(Files(str(tmp_path), "parquet", ["n", "v"], time=time)).steps()
        assert sorted(row[0] for row in run.collector.rows) == sorted([0, 2, 3] * 3)
        bad = sorted((Path(path).stem, place) for path, place, _, _ in run.collector.bad)
        assert bad == sorted((name, 1) for name in columns)
        assert run.spout.is_exhausted()


@pytest.mark.parametrize(("time", "streams"), [(None, ()), ("n", ()), (None, ("default",))])
@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("int", pa.array([1, 2**31, 3, None])),
        ("smallint", pa.array([1, -(2**15) - 1, 3, None], pa.int32())),
        ("bigint", pa.array([1, 2**63, 3, None], pa.uint64())),
        ("tinyint", pa.array([1, 128, 3, None]).dictionary_encode()),
    ],
)
def test_numbers_of_parquet_beyond_their_declared_type_go_to_bad(
    tmp_path: Path, kind: str, column: pa.Array, time: str | None, streams: Sequence[str]
) -> None:
    pq.write_table(pa.table({"n": range(4), "v": column}), tmp_path / "a.parquet")
    files = Files(str(tmp_path), "parquet", {"n": "bigint", "v": kind}, time=time)
    run = Run(files, column_streams=streams).steps()
    assert run.collector.rows == [(0, 1), (2, 3), (3, None)]
    [(_, place, text, problem)] = run.collector.bad
    assert (place, problem) == (1, f"field 'v' is a number which {kind} does not hold")
    assert str(column[1].as_py()) in text


def test_a_cell_of_csv_may_be_as_large_as_a_record_and_have_many_lines(tmp_path: Path) -> None:
    wide, high = "x" * 500_000, "\n" * 900_000
    (tmp_path / "a.csv").write_text(f'n,text\n1,{wide}\n2,"{high}"\n3,"{wide}"\n4,"a""\n""b"\n')
    run = Run(Files(str(tmp_path), "csv", {"n": "bigint", "text": "string"})).steps()
    assert run.collector.rows == [(1, wide), (2, high), (3, wide), (4, 'a"\n"b')]
    assert not run.collector.bad


def test_poison_records_go_to_the_stream_bad_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"n": 1}\n[1]\n{"n": "x"}\n{"n"\n' + "x" * 500 + '\n{"n": 2}\n'
    )
    (tmp_path / "b.json").write_text("[" * 300 + '\n{"n": 3}\n')
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b'{"n": 4}\n' * 5)[:-12])
    run = Run(Files(str(tmp_path), "json", {"n": "bigint"}, max_record_bytes=400)).steps()
    assert [row for row in run.collector.rows if row != (4,)] == [(1,), (2,), (3,)]
    reasons = [(Path(path).name, reason) for path, _, _, reason in run.collector.bad]
    assert reasons[0] == ("a.json", "it is a list, not a JSON object")
    assert reasons[1] == ("a.json", "field 'n' is 'x', not a whole number")
    assert "it is no JSON" in reasons[2][1] and "more than 400 bytes" in reasons[3][1]
    assert reasons[4][0] == "b.json" and "the file is damaged from here on" in reasons[5][1]
    assert str(tmp_path / "a.json") in run.collector.errors[0]
    assert run.spout.is_exhausted()


@pytest.mark.parametrize("format", ["lines", "json", "csv", "parquet"])
@pytest.mark.parametrize("harm", ["gone", "shorter"])
def test_a_file_that_goes_or_shrinks_between_two_runs_is_reported_and_the_next_is_read(
    tmp_path: Path, format: str, harm: str
) -> None:
    def put(name: str, rows: int) -> None:
        numbers = [str(n) for n in range(rows)]
        if format == "parquet":
            pq.write_table(pa.table({"n": numbers}), tmp_path / name)
        else:
            text = "".join(f'{{"n": "{n}"}}\n' if format == "json" else f"{n}\n" for n in numbers)
            (tmp_path / name).write_text(("n\n" if format == "csv" else "") + text)

    put("a", 4000)
    spout = Files(str(tmp_path / "*"), format, None if format == "lines" else ["n"])
    begun = Run(spout).steps(1)
    assert begun.lines
    put("b", 3)
    put("a", 2) if harm == "shorter" else (tmp_path / "a").unlink()
    again = Run(spout, begun.spout.snapshot()).steps()
    assert again.lines == ["0", "1", "2"] and again.spout.is_exhausted()
    [(path, _, _, reason)] = again.collector.bad
    assert path == str(tmp_path / "a")
    assert ("is gone" if harm == "gone" else "has become shorter") in reason
    assert str(tmp_path / "a") in again.collector.errors[0]


def test_a_damaged_page_of_a_parquet_file_is_reported_and_the_next_file_is_read(
    tmp_path: Path,
) -> None:
    table = pa.table({"n": list(range(5000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000, compression="zstd")
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 2000] = b"\xff" * 2000
    (tmp_path / "a.parquet").write_bytes(damaged)
    pq.write_table(table.slice(0, 3), tmp_path / "b.parquet")
    run = Run(Files(str(tmp_path / "*.parquet"), "parquet", ["n"])).steps()
    assert run.spout.is_exhausted() and 0 < len(run.lines) < 5000
    assert [Path(path).name for path, *_ in run.collector.bad] == ["a.parquet"]
    assert "the file is damaged from here on" in run.collector.bad[0][3]


def test_files_are_read_in_the_order_of_their_paths_or_of_a_key(tmp_path: Path) -> None:
    for name, size in (("10.log", 1), ("9.log", 900), ("2.log", 20)):
        (tmp_path / name).write_text(f"{name}\n" * size)
    for order, wanted in (
        (None, ["10", "2", "9"]),
        (lambda path: int(Path(path).stem), ["2", "9", "10"]),
    ):
        read = Run(Files(str(tmp_path), order=order)).steps().lines
        assert [f"{stem}.log" for stem in wanted] == list(dict.fromkeys(read)) and len(read) == 921


def test_new_files_are_found_and_shared_by_tasks(tmp_path: Path) -> None:
    runs = [
        Run(Files(str(tmp_path / "*.txt"), follow=True), index=index, tasks=3) for index in range(3)
    ]
    found: list[str] = []
    for n in range(9):
        (tmp_path / f"{n}.txt").write_bytes(lines(n, n + 1))
        for run in runs:
            run.steps(15)
    found = [line for run in runs for line in run.lines]
    assert sorted(found) == [f"line {n}" for n in range(9)]
    assert not any(run.spout.is_exhausted() for run in runs)
    handed = [run.spout.hand_over() for run in runs]
    (tmp_path / "9.txt").write_bytes(lines(9, 10))
    assert Run(Files(str(tmp_path / "*.txt")).take_over(handed)).steps().lines == ["line 9"]


def test_a_growing_file_is_followed_over_renames_truncation_and_restarts(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(lines(0, 3) + b"line ")
    run = Run(Files(str(log), tail=True)).steps()
    assert run.lines == ["line 0", "line 1", "line 2"]  # half a line is no line yet
    with log.open("ab") as writer:
        writer.write(b"3\n" + lines(4, 5))
        # rotation: its writer goes on for a moment, then opens a new file
        log.rename(tmp_path / "app.log.1")
        writer.write(lines(5, 6))
        writer.flush()
        log.write_bytes(lines(6, 8))
        run.steps()
        assert sorted(run.lines) == [f"line {n}" for n in range(8)]
    with log.open("ab") as writer:
        writer.write(lines(8, 9))
    position = run.spout.snapshot()
    run.spout.close()
    log.rename(tmp_path / "app.log.1")  # rotated while nothing runs: found by its inode
    log.write_bytes(lines(9, 11))
    again = Run(Files(str(log), tail=True), position).steps()
    assert sorted(again.lines) == ["line 10", "line 8", "line 9"]
    os.truncate(log, 0)  # as logrotate's copytruncate
    again.steps()
    with log.open("ab") as writer:
        writer.write(b"new\n")
    assert again.steps().lines[3:] == ["new"]


def test_a_new_file_under_an_old_inode_is_told_from_it(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(lines(0, 3))
    run = Run(Files(str(log), tail=True)).steps()
    position = run.spout.snapshot()
    log.write_bytes(b"other 0\nother 1\nother 2\nother 3\n")  # the same inode
    result = Run(Files(str(log), tail=True), position).steps().lines
    assert result == [f"other {n}" for n in range(4)]


def test_hostile_names_and_what_is_no_file_do_no_harm(tmp_path: Path) -> None:
    for name in (b"a\nb.txt", b"\xff\xfe.txt", b"--rf $(x);'\".txt", b"[x]*.txt"):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_bytes(b"read\n")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    capture, builder = CaptureBolt(), TopologyBuilder()
    builder.set_spout("files", Files(str(tmp_path / "*.txt")), 2)
    builder.set_bolt("capture", capture, inputs="files")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        cluster.run_until_idle()
    assert capture.values == [("read",)] * 4


def test_loops_of_links_and_folders_of_any_depth(tmp_path: Path) -> None:
    for folder in ("", "a/", "a/b/"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "x.txt").write_text(f"{folder}\n")
    (tmp_path / "a" / "self").symlink_to(tmp_path)
    (tmp_path / "a" / "loop.txt").symlink_to(tmp_path / "a" / "loop.txt")
    for pattern, found in (
        ("**/*.txt", ["", "a/", "a/b/"]),
        ("*/*.txt", ["a/"]),
        ("a/../**/b/*", ["a/b/"]),
        ("**", [""]),
    ):
        assert sorted(Run(Files(str(tmp_path / pattern))).steps().lines) == found
    for name in ("a/loop.txt", "n" * 300):
        with pytest.raises(InvalidConfigError, match="no file matches"):
            Run(Files(str(tmp_path / name))).steps(1)
        with pytest.raises(InvalidConfigError, match=r"input .*: there is no such file or folder"):
            find_files([tmp_path / name])


def test_a_header_that_grows_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,na")
    run = Run(Files(str(tmp_path / "a.csv"), "csv", ["name"], tail=True)).steps(5)
    assert run.lines == []
    with (tmp_path / "a.csv").open("a") as file:
        file.write("me\n1,x\n2,y")
    assert run.steps().lines == ["x"]


def test_a_log_that_is_rotated_away_before_a_position_in_it_is_committed_is_not_read(
    tmp_path: Path,
) -> None:
    spout = Files(str(tmp_path / "app.log"), tail=True)
    (tmp_path / "app.log").write_text("one\n")
    begun = Run(spout).steps(1)
    committed, lost = begun.spout.snapshot(), Run(spout).spout.snapshot()
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    (tmp_path / "app.log").write_text("two\n")
    assert begun.lines == ["one"]
    assert Run(spout, committed).steps().lines == ["two"]
    assert Run(spout, lost).steps().lines == ["two"]  # the limit that docs/connectors.md names
    wide = Files(str(tmp_path / "app.log*"), tail=True)
    assert sorted(Run(wide, lost).steps().lines) == ["one", "two"]  # and its remedy


def test_mistakes_are_named(tmp_path: Path) -> None:
    sentence = "format is 'xml'; there are lines, json, csv, parquet"
    with pytest.raises(InvalidConfigError, match=sentence):
        Files("a", "xml")
    with pytest.raises(InvalidConfigError, match="json needs fields, as names or types by name"):
        Files("a", "json")
    with pytest.raises(InvalidConfigError, match="only local files of text grow; drop tail"):
        Files("a", "parquet", ["x"], tail=True)
    with pytest.raises(InvalidConfigError, match=r"component 'files': no file matches .*/nothing"):
        Run(Files(str(tmp_path / "nothing"))).steps()
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    sentence = r"a.csv: its header has no column 'text', only id, name"
    with pytest.raises(InvalidConfigError, match=sentence):
        Run(Files(str(tmp_path / "a.csv"), "csv", ["text"])).steps()
    (tmp_path / "b.parquet").write_text("no parquet")
    with pytest.raises(InvalidConfigError, match=r"b.parquet is no Parquet file: "):
        Run(Files(str(tmp_path / "b.parquet"), "parquet", ["x"])).steps()
    parquet(tmp_path / "c.parquet")
    with pytest.raises(InvalidConfigError, match=r"c.parquet: there is no column 'x'; it has n, t"):
        Run(Files(str(tmp_path / "c.parquet"), "parquet", ["x"])).steps()
