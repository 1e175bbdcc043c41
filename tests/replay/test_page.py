"""The Python examples of docs/replay.md, on Spark, and of docs/recordings.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import pages

PAGE = pages.ROOT / "docs" / "replay.md"
RECORDINGS = pages.ROOT / "docs" / "recordings.md"


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pages.folder_of_examples(tmp_path, monkeypatch):
        (tmp_path / "history").mkdir()
        (tmp_path / "history" / "lines.txt").write_text("the quick fox\nthe end\n")
        module, _ = pages.run(PAGE, monkeypatch, {'"history/"': repr(str(tmp_path / "history"))})
        results = vars(module)["results"]
        counted = {row["key"]: row["value"] for row in results.state("count").collect()}
        assert counted == {"THE": 2, "QUICK": 1, "FOX": 1, "END": 1}
        assert {tuple(row) for row in results["shout"].collect()} == {(word,) for word in counted}


def test_the_example_of_recordings_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder,) = re.findall(r'recorded\("(.*?)"\)', RECORDINGS.read_text(encoding="utf-8"))
    with pages.folder_of_examples(tmp_path, monkeypatch):
        pages.record_count(tmp_path / folder)
        module, _ = pages.run(RECORDINGS, monkeypatch)
        assert vars(module)["step"].failure is None
