"""The Python examples of docs/replay.md, on Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import pages

PAGE = pages.ROOT / "docs" / "replay.md"


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = re.findall(r'recorded\("(.*?)"\)', PAGE.read_text(encoding="utf-8"))
    with pages.folder_of_examples(tmp_path, monkeypatch):
        (tmp_path / "history").mkdir()
        (tmp_path / "history" / "lines.txt").write_text("the quick fox\nthe end\n")
        pages.record_count(tmp_path / folder)
        module, _ = pages.run(PAGE, monkeypatch, {'"history/"': repr(str(tmp_path / "history"))})
        results = vars(module)["results"]
        counted = {row["key"]: row["value"] for row in results.state("count").collect()}
        assert counted == {"THE": 2, "QUICK": 1, "FOX": 1, "END": 1}
        assert {tuple(row) for row in results["shout"].collect()} == {(word,) for word in counted}
