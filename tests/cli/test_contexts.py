"""Checks contexts: their file, its verbs, which cluster a verb asks, and the formats in which
records are listed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstorm.cli.__main__ import main, parser
from sparkstorm.cli.common import write
from sparkstorm.cli.completion import candidates, live_names
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.connection import (
    Connection,
    ReadOnlyConnection,
    ZooKeeperEndpoint,
    new_secret,
    save_connection,
)
from sparkstorm.common.stores.contexts import Contexts, contexts_file, named, read_contexts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the connection files of two clusters; the user has no contexts yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SPARKSTORM_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    redis = RedisAddress("redis.example", 6379)
    keeper = ZooKeeperEndpoint("zk:2181", "/storm", "storm")
    save_connection(tmp_path / "near.json", Connection(redis, keeper, new_secret()))
    save_connection(tmp_path / "far.json", ReadOnlyConnection(redis, keeper))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Return what a verb writes, to stderr where it fails."""
    assert main(list(arguments)) == status
    out, err = capsys.readouterr()
    assert "" in (out, err)
    return out or err


def test_clusters_get_names_and_one_of_them_is_current(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = said(capsys, "context", "list")
    assert result == f"no context is in {contexts_file()}: sparkstorm context add NAME FILE\n"
    assert named(None) is None
    assert said(capsys, "context", "add", "near", "near.json") == f"near is {folder}/near.json\n"
    assert said(capsys, "context", "add", "far", "far.json") == f"far is {folder}/far.json\n"
    assert said(capsys, "context", "list").splitlines() == [
        "   context  rights     connection",
        f"   far      read only  {folder}/far.json",
        f"*  near     all        {folder}/near.json",
    ]
    assert named(None) == f"{folder}/near.json" and named("other.json") == "other.json"
    said(capsys, "context", "use", "far")
    rows = [
        {
            "context": "far",
            "current": True,
            "rights": "read only",
            "connection": f"{folder}/far.json",
        }
    ]
    (folder / "near.json").unlink()
    found = json.loads(said(capsys, "context", "list", "--json"))["contexts"]
    assert found[0] == rows[0] and found[1]["rights"].startswith("none: connection file")
    assert candidates(["list", "--context", ""], parser("list"), live_names) == ["far", "near"]
    said(capsys, "context", "remove", "far")
    assert read_contexts() == Contexts({"near": f"{folder}/near.json"}, "")
    assert (folder / "far.json").exists()
    assert contexts_file().stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["use", "far"], "there is no context 'far'; there are near"),
        (["remove", "far"], "there is no context 'far'; there are near"),
        (["add", "near", "far.json"], "near.json already: give --force to replace it"),
        (["add", "a/b", "far.json"], "its name must have letters"),
        (["add", "x", "none.json"], "none.json cannot be read: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_named_is_one_sentence(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "context", "add", "near", "near.json")
    error = said(capsys, "context", *words, status=1)
    assert sentence in error and error.count("\n") == 1
    assert [*read_contexts().files] == ["near"]


def test_a_verb_asks_the_cluster_of_the_context_it_is_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no context 'near'; none is there" in said(
        capsys, "list", "--context", "near", status=1
    )
    said(capsys, "context", "add", "near", "near.json")
    (folder / "near.json").chmod(0o644)
    for words in (["list", "--context", "near"], ["list"]):  # the first context is current
        assert f"{folder}/near.json can be read by others" in said(capsys, *words, status=1)
    with pytest.raises(SystemExit):
        main(["list", "--context", "near", "--cluster", "far.json"])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"contexts": {"a": "relative.json"}, "current": ""}',
        '{"contexts": {}, "current": "a"}',
        "[" * 50_000,
    ],
)
def test_a_damaged_file_of_contexts_is_named(content: str, folder: Path) -> None:
    path = contexts_file()
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(InvalidConfigError, match=r"contexts\.json is damaged"):
        read_contexts()
    path.chmod(0o644)
    with pytest.raises(InvalidConfigError, match="can be read by others"):
        read_contexts()


ROWS: list[dict[str, Any]] = [
    {"name": "a, b", "counts": {"acked": 1, "failed": None}, "nodes": ["n1", "n2"]},
    {"name": "c\x1b[2J", "counts": {"acked": 2, "late": 3}, "nodes": []},
]


def test_records_are_listed_in_the_format_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def written(output: str) -> str:
        assert write(argparse.Namespace(output=output), {"rows": ROWS}, ROWS)
        return capsys.readouterr().out

    assert json.loads(written("json")) == yaml.safe_load(written("yaml")) == {"rows": ROWS}
    assert [*csv.reader(io.StringIO(written("csv")))] == [
        ["name", "counts.acked", "counts.failed", "nodes", "counts.late"],
        ["a, b", "1", "", "n1, n2", ""],
        ["c\\x1b[2J", "2", "", "", "3"],
    ]
    assert not write(argparse.Namespace(output="table"), {}, ROWS) and capsys.readouterr().out == ""
