"""JSON and CSV as the input of a replay: the rows that the topology's own spout emits live."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import TopologyBuilder
from sparkstorm.app.replay.file_inputs import FilesInput, read_lines, reads_as_live
from sparkstorm.connectors import Files
from sparkstorm.replay.failures import SPARK_ERRORS
from sparkstorm.testing import complete_topology

FIELDS = {"name": "string", "count": "bigint", "share": "double", "is_new": "boolean"}
JSON = (
    b'{"name": "a", "count": 1, "share": 0.5, "is_new": true}\n'
    b'{"share": 2, "more": [1], "count": null,\r"name": "\\u00fc"}\r\n'
    b' {"name": "c"} \n'
    b"{not json\n"
    b"[1]\n"
    b"\n"
    b'{"name": 5}\n'
    b'{"name": "d", "count": 3.5}\n'
    b'{"name": "e", "count": "3"}\n'
    b'{"name": "g", "is_new": 1}\n'
    b'{"name": "\\ud800"}\n'
    b'{"name": "\xff"}\n'
    b'{"name": "i", "count": 9223372036854775807, "share": 1e400}'
)
CSV = (
    b"more,count,name,is_new,share\n"
    b"x,1,a,true,0.5\n"
    b'"q ""z"" y",,b,False,\n'
    b",3.5,c,,\n"
    b",1_000,c,,\n"
    b",2,,,1\n"
    b"3,001\n"
    b',4,"two, words",,\n'
    b", 5,d, true,\n"
    b",6,001,,7\n"
)


def live_rows(folder: Path, format: str) -> tuple[Counter[Any], int]:
    """Rows that the spout emits, and the number of those in its stream `bad`."""
    builder = TopologyBuilder()
    builder.set_spout("source", Files(str(folder / "*"), format, FIELDS))
    found = complete_topology(builder.build(), {})
    return Counter(found["source"]), len(found.values("source", "bad"))


@pytest.mark.system
@pytest.mark.parametrize(("format", "data"), [("json", JSON), ("csv", CSV)])
def test_files_are_read_as_their_spout_reads_them(
    spark: SparkSession, tmp_path: Path, format: str, data: bytes
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.{format}").write_bytes(data)
    spout = Files(str(tmp_path / "*"), format, FIELDS)
    read = FilesInput(spark, spout, "source", str(tmp_path), in_order=True)
    rows, bad = live_rows(tmp_path, format)
    assert Counter(tuple(row) for row in read.frame.collect()) == rows
    read.frame.count()  # a second result: what was left out is not counted twice
    assert f"input 'source': {bad} of its records were left out" in read.note()


@pytest.mark.system
def test_lines_end_where_they_do_live(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\rb\r\n\nü \r\r\n\f\v\x85c".encode())
    builder = TopologyBuilder()
    builder.set_spout("source", Files(str(tmp_path / "*")))
    live = complete_topology(builder.build(), {})["source"]
    assert [tuple(row) for row in read_lines(spark, str(tmp_path)).collect()] == live


@pytest.mark.system
def test_a_number_that_no_column_holds_ends_the_replay_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Live it is a whole number like any other."""
    (tmp_path / "a.json").write_text('{"name": "f", "count": 1180591620717411303424}')
    spout = Files(str(tmp_path / "*"), "json", FIELDS)
    read = FilesInput(spark, spout, "source", str(tmp_path), in_order=True)
    with pytest.raises(SPARK_ERRORS, match=r"input 'source': a number of \('f', 11805916"):
        read.frame.collect()


@pytest.mark.parametrize(
    ("spout", "kind", "expected"),
    [
        (Files("x", "json", FIELDS), "json", True),
        (Files("x", "csv", FIELDS), "csv", True),
        (Files("x", "json", FIELDS), "csv", False),
        (Files("x", "json", ["name"]), "json", False),
        (Files("x", "json", {"at": "timestamp"}), "json", False),
        (Files("x", "parquet", FIELDS), "parquet", False),
        (object(), "json", False),
    ],
)
def test_only_scalars_of_declared_types_are_read_so(
    spout: object, kind: str, expected: bool
) -> None:
    assert reads_as_live(spout, kind) is expected
