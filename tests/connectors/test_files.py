"""FileLines and the files it is given: odd bytes, empty files, missing paths, shares, and going on from a position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.connectors import FileLines, find_files
from sparkstorm.connectors.files import share
from sparkstorm.errors import InvalidConfigError


class Context:
    """What FileLines asks of its context."""

    def __init__(self, index: int, tasks: int) -> None:
        self.task_index, self.peers = index, tuple(range(tasks))


class Collector:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ids: list[Any] = []

    def emit(self, values: tuple[str], message_id: Any) -> None:
        self.lines.append(values[0])
        self.ids.append(message_id)


def opened(files: list[tuple[str, int]], index: int = 0, tasks: int = 1) -> tuple[FileLines, Collector]:
    spout, collector = FileLines(files), Collector()
    spout.open({}, Context(index, tasks), collector)  # type: ignore[arg-type]
    return spout, collector


def drain(spout: FileLines) -> None:
    while not spout.is_exhausted():
        spout.next_tuple()
    spout.close()


def test_every_line_of_every_file_is_emitted_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\nlast without an end")
    (tmp_path / "b.txt").write_bytes(b"three\n")
    spout, collector = opened(find_files([tmp_path]))
    drain(spout)
    assert collector.lines == ["one", "two", "", "last without an end", "three"]
    assert len(set(collector.ids)) == 5
    assert spout.extent() == (35, 35)


def test_bytes_that_are_not_utf_8_become_replacement_characters(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 \xff\xfe\nna\xc3\xafve\n")
    spout, collector = opened(find_files([tmp_path]))
    drain(spout)
    assert collector.lines == ["caf� ��", "naïve"]


def test_empty_files_are_passed_by(tmp_path: Path) -> None:
    for name, data in (("a", b""), ("b", b"x\n"), ("c", b"")):
        (tmp_path / name).write_bytes(data)
    spout, collector = opened(find_files([tmp_path]))
    drain(spout)
    assert collector.lines == ["x"]


def test_nothing_but_empty_files_is_a_source_that_ends(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    spout, collector = opened(find_files([tmp_path]))
    drain(spout)
    assert collector.lines == [] and spout.extent() == (0, 0)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"input .*/nowhere: there is no such file or folder"):
        find_files([tmp_path, tmp_path / "nowhere"])


def test_a_folder_without_matching_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"no file matches '\*\.py' under "):
        find_files([tmp_path], "*.py")


def test_a_restored_spout_goes_on_behind_the_last_committed_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    (tmp_path / "b").write_bytes(b"4\n5\n")
    files = find_files([tmp_path])
    for steps in range(6):
        first, before = opened(files)
        for _ in range(steps):
            first.next_tuple()
        position = first.snapshot()
        first.close()
        second, after = opened(files)
        second.restore(position)
        drain(second)
        assert before.lines + after.lines == ["1", "2", "3", "4", "5"]


@given(st.lists(st.integers(0, 10_000), max_size=40), st.integers(1, 8))
def test_shares_are_a_partition_and_no_share_is_much_larger_than_another(sizes: list[int], tasks: int) -> None:
    files = [(f"f{number}", size) for number, size in enumerate(sizes)]
    shares = share(files, tasks)
    assert sorted(file for dealt in shares for file in dealt) == sorted(files)
    loads = [sum(size for _, size in dealt) for dealt in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
