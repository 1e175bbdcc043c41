"""Files of other projects (foreign/LICENSES.txt): their rows, bad records and positions are those that
Python's own parsers find, live, in parts, by `replay_locally` and on Spark.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from sparkstorm.connectors import Files
from sparkstorm.driver.replay.file_inputs import FileInput, FilesInput
from sparkstorm.replay import ReplayOptions, replay_locally
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.replay.replay import start
from sparkstorm.testing import complete_topology
from tests.replay.test_file_inputs import divided, live, topology

FOREIGN = Path(__file__).parent / "foreign"
Row = tuple[Any, ...]


class Foreign(NamedTuple):
    """A file, and how its topology reads it."""

    name: str
    format: str
    fields: dict[str, str] | None
    bad: int  # records that have a value of another type

    @property
    def path(self) -> Path:
        return FOREIGN / self.name

    def source(self) -> Files:
        return Files(str(self.path), self.format, self.fields)


FLIGHT = {"year": "int", "dep_time": "int", "arr_delay": "double", "tailnum": "string"}
AIRPORT = {"faa": "string", "name": "string", "lat": "double", "alt": "bigint", "tzone": "string"}
STRIKE = {"Flight Date": "string", "Wildlife Species": "string", "Cost Total $": "bigint"}
MOVIE = {"Title": "string", "US Gross": "bigint", "IMDB Rating": "double", "Director": "any"}
QUAKE = {"id": "string", "type": "string", "properties": "any", "geometry": "any"}
FILES = [
    Foreign("flights.csv", "csv", {**FLIGHT, "time_hour": "string"}, 40),
    Foreign("airports.csv", "csv", AIRPORT, 0),
    Foreign("birdstrikes.csv", "csv", {**STRIKE, "Speed IAS in knots": "double"}, 0),
    Foreign("movies.jsonl", "json", MOVIE, 11),
    Foreign("earthquakes.jsonl", "json", QUAKE, 0),
    Foreign("blns.txt", "lines", None, 0),
    Foreign("blns.json", "json", {"line": "string"}, 517),  # one list, over many lines
]
TYPES: dict[str, Callable[[str], Any]] = {"int": int, "bigint": int, "double": float}
TAKEN: dict[str, set[type]] = {
    "int": {int},
    "bigint": {int},
    "double": {int, float},
    "string": {str},
}


def by_hand(file: Foreign) -> tuple[list[Row], list[int]]:
    """Return rows, and the positions of what is none, by the csv and json of Python."""
    lines = file.path.read_bytes().splitlines(keepends=True)
    if file.format == "lines":
        text = file.path.read_bytes().decode("utf-8", "replace")
        return [(line.removesuffix("\r"),) for line in text.removesuffix("\n").split("\n")], []
    assert file.fields is not None
    header = lines.pop(0) if file.format == "csv" else b""
    at = len(header)
    rows: list[Row] = []
    bad: list[int] = []
    for line in lines:
        try:
            if file.format == "csv":
                [record] = csv.DictReader(io.StringIO((header + line).decode(), newline=""))
                row = tuple(
                    TYPES.get(kind, str)(record[name]) if record[name] or kind == "string" else None
                    for name, kind in file.fields.items()
                )
            else:
                found = dict(json.loads(line))
                row = tuple(found.get(name) for name in file.fields)
                for value, kind in zip(row, file.fields.values(), strict=True):
                    if value is not None and type(value) not in TAKEN.get(kind, {type(value)}):
                        raise ValueError(value)
            rows.append(row)
        except (ValueError, TypeError):
            bad.append(at)
        at += len(line)
    return rows, bad


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_rows_and_bad_records_are_those_of_pythons_parsers(file: Foreign) -> None:
    rows, bad = by_hand(file)
    source = file.source()
    done = complete_topology(topology(source), {})
    assert [repr(row) for row in done["source"]] == [repr(row) for row in rows]
    assert [place for _, place, _, _ in done.values("source", "bad")] == bad
    assert len(bad) == file.bad and (rows or bad)
    expected = live(source)
    for most_bytes in (1000, 1 << 20):
        assert divided(source, file.path, most_bytes) == expected
    inputs = {"source": done["source"], "source:bad": done.values("source", "bad")}
    given = {name: rows for name, rows in inputs.items() if rows}
    replayed = replay_locally(topology(source), given, outputs=["kept"])
    assert Counter(replayed["kept"]) == Counter(done["kept"])


@pytest.mark.parametrize("path", sorted(FOREIGN.glob("csv-spectrum/*.csv")), ids=lambda p: p.stem)
def test_csv_spectrum_is_read_as_it_says(path: Path) -> None:
    """One of its answers belongs to another file: Python's parser has that one."""
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        reader = csv.DictReader(stream)
        wanted: list[dict[str, str]] = list(reader)
    if (answer := path.with_suffix(".json")).exists():
        assert json.loads(answer.read_text("utf-8")) == wanted
    source = Files(str(path), "csv", list(wanted[0]))
    found = live(source)
    assert found == {"default": [repr(tuple(row.values())) for row in wanted], "bad": []}
    assert divided(source, path, 1) == found


def test_naughty_strings_are_the_same_in_every_format(tmp_path: Path) -> None:
    """As JSON with and without escapes, and as CSV."""
    texts = [(text,) for text in json.loads((FOREIGN / "blns.json").read_text("utf-8"))]
    assert len(texts) == 515
    for is_ascii in (True, False):
        lines = [json.dumps({"text": text}, ensure_ascii=is_ascii) for (text,) in texts]
        (tmp_path / f"{is_ascii}.json").write_text("\n".join(lines), "utf-8")
        source = Files(str(tmp_path / f"{is_ascii}.json"), "json", {"text": "string"})
        assert live(source) == {"default": [repr(text) for text in texts], "bad": []}
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "n"), *((text, 1) for (text,) in texts)])
    source = Files(str(tmp_path / "a.csv"), "csv", ["text"])
    assert live(source) == {"default": [repr(text) for text in texts], "bad": []}
    assert divided(source, tmp_path / "a.csv", 1 << 20) == live(source)


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_spark_has_the_rows_and_bad_records_of_live(spark: SparkSession, file: Foreign) -> None:
    built = topology(file.source())
    job = make_job(ReplayOptions().plan(built), RunSettings(), ["tests.replay.test_file_inputs"])
    read = FilesInput(spark, FileInput(job, "source", str(file.path), None), file.source())
    inputs = {"source": read.input(), "source:bad": read.input("bad")}
    results = start(built, inputs, ReplayOptions(outputs=["kept"]))
    expected = Counter(text for (text,) in complete_topology(built, {})["kept"])
    assert Counter(row.text for row in results["kept"].collect()) == expected
    assert bool(read.note()) == bool(file.bad)
