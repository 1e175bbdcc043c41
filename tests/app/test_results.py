"""The results of a run as files: any legal component id names one file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.driver.results import Result, collect, read_results
from sparkstorm.replay import read_json


class Finished:
    """Handle with the methods that `collect` calls."""

    topology_id = "wc-1-1700000000"

    def key_values(self, component: str) -> Iterator[tuple[Any, Any]]:
        yield component, 1


@pytest.mark.parametrize(
    "component",
    [
        "count",
        "a/b",
        "../../count",
        "..",
        ".",
        "-rf",
        ".hidden",
        "/",
        "/tmp/made-by-a-test",
        "dead-letters",
        "x" * 150,
        "/" * 150,
        "$<>()#",
    ],
)
def test_every_legal_id_gets_one_visible_file_in_the_runs_own_folder(
    component: str, tmp_path: Path
) -> None:
    said: list[str] = []
    results = Result(component, directory=str(tmp_path / "results"))
    file = collect([results], cast(TopologyHandle, Finished()), said.append)
    assert file is not None
    assert file.parent == tmp_path / "results" / "wc-1-1700000000"
    assert file.name[0] not in ".-"
    assert file.name != "dead-letters.jsonl", "that file is the run's dead letters"
    assert json.loads(file.read_text()) == [component, 1] and str(file) in said[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_several_components_are_written_in_the_format_that_the_job_names(tmp_path: Path) -> None:
    class Kept(Finished):
        def key_values(self, component: str) -> Iterator[tuple[Any, Any]]:
            states: dict[str, list[Any]] = {
                "words": [("a", 2), ("b", 3)],
                "pairs": [(("u", 1), [1.5]), (("v", 2), [])],
            }
            yield from states[component]

    handle = cast(TopologyHandle, Kept())
    folder = tmp_path / "wc-1-1700000000"
    for kind in ("csv", "parquet"):
        collect(
            [Result(each, format=kind, directory=str(tmp_path)) for each in ("words", "pairs")],
            handle,
            lambda line: None,
        )
    assert (folder / "words.csv").read_text() == "key,value\nb,3\na,2\n"
    assert (folder / "pairs.csv").read_text() == 'key,value\n"[""u"",1]",[1.5]\n"[""v"",2]",[]\n'
    result = pq.read_table(folder / "words.parquet").to_pylist()
    assert result == [{"key": "b", "value": 3}, {"key": "a", "value": 2}]
    result = pq.read_table(folder / "pairs.parquet")["key"].to_pylist()
    assert result == [{"_1": "u", "_2": 1}, {"_1": "v", "_2": 2}]


def test_lines_of_results_read_back_as_the_keys_and_values_that_they_were(tmp_path: Path) -> None:
    pairs: list[list[Any]] = [
        [b"x", float("inf")],
        [["a", 1], {1: "a", None: [b""]}],
        ["n", 2**63 - 1],
        ["f", 1.0],
        [True, -0.0],
    ]

    class Kept(Finished):
        def key_values(self, component: str) -> Iterator[tuple[Any, Any]]:
            return ((tuple(key) if isinstance(key, list) else key, value) for key, value in pairs)

    file = collect(
        [Result("c", directory=str(tmp_path))], cast(TopologyHandle, Kept()), lambda line: None
    )
    assert file is not None
    found = [read_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(map(repr, found)) == sorted(map(repr, pairs))


def test_a_state_and_the_default_stream_of_one_component_are_two_results() -> None:
    entries = [{"component": "count"}, {"component": "count", "stream": "default"}]
    state, stream = read_results("job.yaml", entries)
    assert (state.stream, stream.stream) == ("", "default")
    with pytest.raises(InvalidConfigError, match="'count' is written as jsonl twice"):
        read_results("job.yaml", [*entries, {"component": "count", "stream": "default"}])
