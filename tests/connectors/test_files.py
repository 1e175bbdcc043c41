"""FileLines and the files it is given: odd bytes, empty files, missing paths, shares, and going on
from a position.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.connectors.files import share

ODD_LINES = [b"", b"a", b"caf\xe9", "naïve".encode(), b"\xe2\x82", b"\r", b"a\rb", b" x \t"]


class Context:
    """Context of FileLines."""

    def __init__(self, index: int, tasks: int, takes_batches: bool = False) -> None:
        self.task_index, self.peers = index, tuple(range(tasks))
        self.column_streams = frozenset({"default"} if takes_batches else ())


class Collector:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ids: list[Any] = []

    def emit(self, values: tuple[str], message_id: Any) -> None:
        self.lines.append(values[0])
        self.ids.append(message_id)

    def emit_batch(self, batch: Any, message_id: Any) -> None:
        batch.validate(full=True)
        self.lines += batch.column("line").to_pylist()
        self.ids.append(message_id)


def opened(
    files: list[tuple[str, int]], index: int = 0, tasks: int = 1, takes_batches: bool = False
) -> tuple[FileLines, Collector]:
    spout, collector = FileLines(files), Collector()
    spout.open({}, Context(index, tasks, takes_batches), collector)  # type: ignore[arg-type]
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


def test_paths_are_taken_as_what_find_files_returns_of_them(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    given: list[Any] = [[str(tmp_path / "a.txt"), tmp_path / "b.txt"], [tmp_path], tmp_path]
    for files in given:
        spout, collector = FileLines(files), Collector()
        spout.open({}, Context(0, 1), collector)  # type: ignore[arg-type]
        drain(spout)
        assert collector.lines == ["a.txt", "b.txt"]
    sentence = r"FileLines: 7 is no path and no \(path, bytes\) of `find_files`"
    with pytest.raises(InvalidConfigError, match=sentence):
        FileLines([7])  # type: ignore[list-item]


@pytest.mark.parametrize("found", [lambda: find_files(["a.log"]), lambda: [("a.log", 8)]])
def test_a_relative_path_means_the_same_in_the_folder_of_a_worker(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text("one\ntwo\n")
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path)
    spout = FileLines(found(), read={"a.log": 4})
    monkeypatch.chdir("worker")
    collector = Collector()
    spout.open({}, Context(0, 1), collector)  # type: ignore[arg-type]
    drain(spout)
    assert collector.lines == ["two"]


def test_bytes_that_are_not_utf_8_become_replacement_characters(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 \xff\xfe\nna\xc3\xafve\n")
    spout, collector = opened(find_files([tmp_path]))
    drain(spout)
    assert collector.lines == ["caf� ��", "naïve"]


@given(
    st.lists(
        st.sampled_from(
            [b"", b"a", b"caf\xe9", "naïve".encode(), b"\xe2\x82", b"\r", b"a\rb", b" x \t"]
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_blocks_hold_the_lines_that_would_be_emitted_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], has_end: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "a"
    path.write_bytes(b"\r\n".join(lines) + (b"\n" if has_end else b""))
    (single, of_rows), (block, of_batches) = (
        opened(find_files([path]), takes_batches=whole) for whole in (False, True)
    )
    drain(single)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkstorm.connectors.files._BLOCK_BYTES", 7)
        drain(block)
    assert of_batches.lines == of_rows.lines
    assert block.snapshot() == single.snapshot() and block.extent() == single.extent()
    assert len(set(of_batches.ids)) == len(of_batches.ids)
    assert set(of_batches.ids) <= set(of_rows.ids)


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
    sentence = r"input .*/nowhere: there is no such file or folder"
    with pytest.raises(InvalidConfigError, match=sentence):
        find_files([tmp_path, tmp_path / "nowhere"])


def test_a_folder_without_matching_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"no file matches '\*\.py' under "):
        find_files([tmp_path], "*.py")


@pytest.mark.parametrize("takes_batches", [False, True])
def test_a_restored_spout_goes_on_behind_the_last_committed_line(
    tmp_path: Path, takes_batches: bool
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    (tmp_path / "b").write_bytes(b"4\n5\n")
    files = find_files([tmp_path])
    for steps in range(6):
        first, before = opened(files, takes_batches=takes_batches)
        for _ in range(steps):
            first.next_tuple()
        position = first.snapshot()
        first.close()
        second, after = opened(files, takes_batches=takes_batches)
        second.restore(position)
        drain(second)
        assert before.lines + after.lines == ["1", "2", "3", "4", "5"]


@given(st.lists(st.integers(0, 10_000), max_size=40), st.integers(1, 8))
def test_shares_are_a_partition_and_no_share_is_much_larger_than_another(
    sizes: list[int], tasks: int
) -> None:
    files = [(f"f{number}", size) for number, size in enumerate(sizes)]
    shares = share(files, tasks)
    assert sorted(file for dealt in shares for file in dealt) == sorted(files)
    loads = [sum(size for _, size in dealt) for dealt in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.integers(0, 20),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_what_one_run_hands_over_the_next_goes_on_behind_whatever_its_tasks(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], calls: int, before: int, after: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for number, size in enumerate(sizes):
        (folder / f"f{number}").write_text("".join(f"{number}-{line}\n" for line in range(size)))
    handed, lines = [], list[str]()
    for index in range(before):
        spout, collector = opened(find_files([folder]), index, before)
        for _ in range(calls):
            spout.next_tuple()
        handed.append(spout.hand_over())
        spout.close()
        lines += collector.lines
    with (folder / "f0").open("a") as grown:
        grown.write("grown\n")
    (folder / "new").write_text("new\n")
    for index in range(after):
        spout, collector = FileLines(find_files([folder])).take_over(handed), Collector()
        spout.open({}, Context(index, after), collector)  # type: ignore[arg-type]
        drain(spout)
        assert spout.extent()[0] == spout.extent()[1]
        lines += collector.lines
    assert sorted(lines) == sorted(
        [f"{n}-{line}" for n, size in enumerate(sizes) for line in range(size)] + ["grown", "new"]
    )


@pytest.mark.parametrize("handed", [None, [1, 2], {"a": "b"}, {"a": -1}, {1: 1}])
def test_what_no_files_handed_over_is_refused(tmp_path: Path, handed: Any) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    sentence = r"FileLines was handed .*, which is not bytes read by path"
    with pytest.raises(InvalidConfigError, match=sentence):
        FileLines(find_files([tmp_path])).take_over([handed])


def test_a_taken_over_spout_goes_on_from_its_own_positions(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    (tmp_path / "b").write_bytes(b"4\n5\n")
    files, handed = find_files([tmp_path]), [{str(tmp_path / "a"): 2}]
    first, before = FileLines(files).take_over(handed), Collector()
    first.open({}, Context(0, 1), before)  # type: ignore[arg-type]
    first.next_tuple()
    position = first.snapshot()
    first.close()
    second, after = FileLines(files).take_over(handed), Collector()
    second.open({}, Context(0, 1), after)  # type: ignore[arg-type]
    second.restore(position)
    drain(second)
    assert (before.lines, after.lines) == (["2"], ["3", "4", "5"])


class Logs(FileLines):
    """A source of the user's own, with another constructor."""

    def __init__(self, folder: Path) -> None:
        super().__init__(find_files([folder]))


def test_a_subclass_is_handed_over_whatever_its_constructor_takes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    spout = Logs(tmp_path).take_over([{str(tmp_path / "a"): 2}])
    collector = Collector()
    assert isinstance(spout, Logs)
    spout.open({}, Context(0, 1), collector)  # type: ignore[arg-type]
    drain(spout)
    assert collector.lines == ["2"]
    with pytest.raises(InvalidConfigError, match="9 bytes were read of it, but it has 4 now"):
        Logs(tmp_path).take_over([{str(tmp_path / "a"): 9}])


def test_a_task_reads_its_share_in_the_order_of_names_whatever_the_sizes(tmp_path: Path) -> None:
    """Logs by day are in the order of their times."""
    for day, size in ((1, 300), (2, 100), (3, 900), (4, 500)):
        (tmp_path / f"day{day}.log").write_text("".join(f"{day} {n}\n" for n in range(size)))
    for tasks in (1, 2):
        for index in range(tasks):
            spout, collector = opened(find_files([tmp_path]), index, tasks)
            drain(spout)
            places = [(int(day), int(n)) for day, n in map(str.split, collector.lines)]
            assert places == sorted(places)


def test_a_share_is_read_in_the_order_of_a_key(tmp_path: Path) -> None:
    for name in ("10.log", "9.log", "2.log"):
        (tmp_path / name).write_text(name)
    spout = FileLines(find_files([tmp_path]), order=lambda path: int(Path(path).stem))
    collector = Collector()
    spout.open({}, Context(0, 1), collector)  # type: ignore[arg-type]
    drain(spout)
    assert collector.lines == ["2.log", "9.log", "10.log"]
    assert spout.take_over([{}])._order is spout._order
