"""The folder of a checkpoint: what goes in comes out, a name means a whole one, and every lie is
named by file and field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sparkstorm.common.errors import CheckpointError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.checkpoint.files import CheckpointWriter, read_checkpoint

TASKS = {1: "__acker", 2: "count", 3: "count", 4: "lines"}
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def write(folder: Path, rows: list[Any], **more: Any) -> Path:
    with CheckpointWriter(folder, "wc", TASKS, **more) as writer:
        writer.add("lines", "spout", [(4, "position", None, [0, 17])])
        writer.add("count", "bolt", rows)
        writer.close()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(
        tmp_path / "half",
        [(2, "state", "a", 7), (3, "state", ("b", 1), [1]), (3, "time", ("W",), 5)],
    )


@settings(deadline=None)  # each example writes and reads files
@given(
    st.lists(
        st.tuples(st.sampled_from([2, 3]), scalars | st.tuples(scalars, scalars), values),
        max_size=8,
    )
)
def test_every_key_and_value_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[Any]
) -> None:
    folder = write(
        tmp_path_factory.mktemp("one") / "half",
        [(task, "state", key, value) for task, key, value in pairs],
    )
    content = read_checkpoint(folder).content("count")
    result = repr([(t, *pair) for t in (2, 3) for pair in content[t].state])
    assert result == repr(sorted(pairs, key=lambda pair: int(pair[0])))


def test_parts_are_kept_by_task(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    count = checkpoint.content("count")
    assert (count[2].state, count[2].time) == ([("a", 7)], [])
    assert (count[3].state, count[3].time) == ([(("b", 1), [1])], [(("W",), 5)])
    assert checkpoint.content("lines")[4].position == [0, 17]
    assert checkpoint.component_by_task == TASKS


def test_a_writer_that_fails_leaves_nothing_and_one_that_replaces_leaves_one(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="there is something already"):
        write(folder, [])
    with (
        pytest.raises(ZeroDivisionError),
        CheckpointWriter(folder.parent / "other", "wc", TASKS) as writer,
    ):
        writer.add("count", "bolt", [(2, "state", "a", 1 // 0)])
    write(folder, [(2, "state", "z", 1)], overwrite=True)
    assert read_checkpoint(folder).content("count")[2].state == [("z", 1)]
    assert list(folder.parent.iterdir()) == [folder]


Spoil = Callable[[dict[str, Any]], Any]
LIES: dict[str, tuple[Spoil, str]] = {
    "kind": (lambda m: m.update(kind="other"), "kind: expected one of sparkstorm checkpoint, got 'other'"),
    "format": (lambda m: m.update(format=9), "format is 9; this version reads format 4: make the checkpoint again"),
    "name": (lambda m: m.pop("name"), "name: missing"),
    "task": (lambda m: m["component_by_task"].update({"-1": "x"}), "component_by_task: expected an object keyed by whole numbers"),
    "component": (lambda m: m["component_by_task"].update({"1": 5}), r"component_by_task\.1: expected a text, got 5"),
    "fields": (lambda m: m["components"]["count"].pop("rows"), r"components\.count\.rows: missing"),
    "type": (lambda m: m["components"]["count"].update(rows="3"), r"components\.count\.rows: expected an integer, got '3'"),
    "part kind": (lambda m: m["components"]["count"].update(kind="sink"), "kind: expected one of bolt, spout, got 'sink'"),
    "tasks": (lambda m: m["components"]["count"].update(tasks=[2]), r"tasks are \(2,\), but component_by_task says \[2, 3\]"),
    "path": (lambda m: m["components"]["count"].update(file="../secret"), "file: expected the name of a file in this folder"),
    "no name": (lambda m: m["components"]["count"].update(file="a\0b"), "file: expected the name of a file in this folder"),
    "half a letter": (lambda m: m["components"]["count"].update(file="\ud800"), "expected the name of a file in this folder"),
    "missing": (lambda m: m["components"]["count"].update(file="gone"), "gone cannot be read"),
    "sum": (lambda m: m["components"]["count"].update(sha256="0" * 64), r"part-1\.parquet holds other bytes than manifest\.json"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_manifest_are_named(folder: Path, lie: str) -> None:
    spoil, said = LIES[lie]
    manifest = json.loads((folder / "manifest.json").read_text())
    spoil(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_what_is_no_manifest_is_said_to_be_none(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"manifest\.json (cannot be read|is no JSON object)"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"nowhere/manifest\.json cannot be read"):
        read_checkpoint(folder / "nowhere")


def replaced(folder: Path, table: pa.Table | bytes) -> Path:
    """The same checkpoint with other rows under a fitting checksum."""
    path = folder / "part-1.parquet"
    if isinstance(table, bytes):
        path.write_bytes(table)
    else:
        parquet.write_table(table, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["components"]["count"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def row(
    task: int = 2,
    part: str = "state",
    key: bytes | None = Codec().pack("a"),
    value: bytes = Codec().pack(1),
) -> pa.Table:
    kinds = {"task": pa.int32(), "part": pa.string(), "key": pa.binary(), "value": pa.binary()}
    cells = {"task": task, "part": part, "key": key, "value": value}
    return pa.table({name: pa.array([cells[name]], kind) for name, kind in kinds.items()})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"PAR1", r"part-1\.parquet cannot be read as Parquet"),
        (pa.table({"task": [1]}), r"part-1\.parquet: its columns are task; expected task int32"),
        (row(task=4), r"row 0: task 4 is none of 2 to 3"),
        (row(part="position"), r"row 0: part is 'position'; of a bolt it is one of state, time"),
        (row(key=b"\xc1"), r"row 0: key or value is not a packed value"),
        (row(key=None), r"row 0: key or value is not a packed value"),
        (row(key=Codec().pack({"a": 1})), r"row 0: key \{'a': 1\} is no key of a state"),
        (row(key=Codec().pack([["a"]])), r"row 0: key \[\['a'\]\] is no key of a state"),
        (row(part="time"), r"row 0: key 'a' is no key of a time"),
    ],
)
def test_rows_that_cannot_be_ours_are_named_though_their_checksum_fits(
    folder: Path, table: Any, said: str
) -> None:
    checkpoint = read_checkpoint(replaced(folder, table))
    with pytest.raises(CheckpointError, match=said):
        checkpoint.content("count")


def test_a_spout_without_a_position_is_named(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path / "half", "wc", TASKS) as writer:
        writer.add("lines", "spout", ())
        writer.close()
    with pytest.raises(CheckpointError, match="no position of task 4 of spout 'lines'"):
        read_checkpoint(tmp_path / "half").content("lines")


@pytest.mark.parametrize("kind", ["files", "link", "file", "forged manifest"])
def test_a_folder_that_is_no_checkpoint_is_never_replaced(kind: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("mine")
    target = theirs
    if kind == "link":
        target = tmp_path / "link"
        target.symlink_to(write(tmp_path / "half", []))
    elif kind == "file":
        target = theirs / "thesis.txt"
    elif kind == "forged manifest":
        (theirs / "manifest.json").write_text('{"name": "somebody else\'s"}')
    with pytest.raises(CheckpointError, match="is no checkpoint; name another folder"):
        CheckpointWriter(target, "wc", TASKS, overwrite=True)
    assert (theirs / "thesis.txt").read_text() == "mine" and len(list(tmp_path.iterdir())) <= 3


def test_a_folder_that_holds_more_than_the_checkpoint_is_not_replaced(folder: Path) -> None:
    (folder / "thesis.txt").write_text("mine")
    sentence = r"holds thesis\.txt, which is no part of the checkpoint"
    with pytest.raises(CheckpointError, match=sentence):
        write(folder, [], overwrite=True)
    assert (folder / "thesis.txt").exists()


def test_an_empty_folder_is_replaced_and_odd_ways_to_name_a_folder_work(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert read_checkpoint(write(tmp_path / "empty", [], overwrite=True)).component_by_task == TASKS
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / ".." / "half", [])
    assert read_checkpoint(tmp_path / "half").component_by_task == TASKS
