"""Dead letters in a file: whole, in order, once each however often the run is taken up; and grouped
by cause.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.cli import main as cli
from sparkstorm.client.dead_letters import StoredLetters
from sparkstorm.common.errors import StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.dead_letter import Cause, DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.driver.dead_letter_file import DeadLetterFile, Groups, read_dead_letters

FAILURE = Failure(
    FailureKind.RAISED,
    "ValueError: bad 7 (parse.py, line 12)",
    "parse",
    3,
    time_ms=1_700_000_000_000,
)
LETTER = DeadLetter(FAILURE, "lines", 1, "default", ("line",), ("x",), 4)


def letter_with(values: tuple[Any, ...] = ("x",), **changes: Any) -> DeadLetter:
    return replace(
        LETTER, values=values, fields=("line",) * len(values), failure=replace(FAILURE, **changes)
    )


VALUES: list[tuple[Any, ...]] = [
    ("x",),
    (b"\xff\x00",),
    (1, None, [True, 2.5]),
    ({1: "a"},),
    ("line\nbreak",),
    (float("inf"),),
]


class Parked:
    """The stored letters of one topology."""

    def __init__(self) -> None:
        self.store = LocalStore()
        self.read = LocalReader(self.store).parked

    def park(self, *letters: DeadLetter | bytes) -> None:
        for letter in letters:
            self.store.letters_so_far += 1
            data = letter if isinstance(letter, bytes) else letter.encode(Codec())
            self.store.dead_letters.append((self.store.letters_so_far, data))


@pytest.fixture
def parked() -> Parked:
    return Parked()


def file_of(parked: Parked, folder: Path, most_bytes: int = 1 << 30) -> DeadLetterFile:
    return DeadLetterFile(folder / "run" / "dead-letters.jsonl", parked.read, most_bytes)


def in_file(file: DeadLetterFile) -> list[DeadLetter]:
    return [letter for _, letter in read_dead_letters(file.path)]


def test_letters_are_appended_as_they_are_parked_and_read_back_whole(
    parked: Parked, tmp_path: Path
) -> None:
    file = file_of(parked, tmp_path)
    file.collect()
    assert not file.path.exists(), "without letters there is no file"
    letters = [letter_with(values=values, task=n) for n, values in enumerate(VALUES)]
    for n, letter in enumerate(letters, 1):
        parked.park(letter)
        file.collect()
        assert in_file(file) == letters[:n] and file.is_whole
    assert [id for id, _ in read_dead_letters(file.path)] == [f"{n}-0" for n in range(1, 7)]
    assert file.path.stat().st_mode & 0o777 == 0o600, "input of users"


def test_a_run_that_is_taken_up_goes_on_without_doubling(parked: Parked, tmp_path: Path) -> None:
    parked.park(*[letter_with(task=n) for n in range(250)])
    file_of(parked, tmp_path).collect()
    parked.park(*[letter_with(task=n) for n in range(250, 260)])
    again = file_of(parked, tmp_path)
    again.collect()
    again.collect()
    assert [letter.task for letter in in_file(again)] == list(range(260))
    assert again.written == 260 and again.groups.largest()[0][1].count == 260


@pytest.mark.parametrize("kept", range(0, 400, 23))
def test_a_line_that_was_cut_by_a_crash_is_written_anew(
    kept: int, parked: Parked, tmp_path: Path
) -> None:
    parked.park(LETTER, letter_with(task=4))
    file = file_of(parked, tmp_path)
    file.collect()
    whole = file.path.read_bytes()
    os.truncate(file.path, min(kept, len(whole)))
    file_of(parked, tmp_path).collect()
    assert file.path.read_bytes() == whole


def test_letters_that_were_dropped_from_the_store_stay_in_the_file(
    parked: Parked, tmp_path: Path
) -> None:
    parked.park(LETTER)
    file = file_of(parked, tmp_path)
    file.collect()
    LocalReader(parked.store).drop_dead_letters()
    parked.park(letter_with(task=9))
    file.collect()
    assert [letter.task for letter in in_file(file)] == [3, 9]


def test_a_full_file_says_so_and_leaves_the_rest_in_the_store(
    parked: Parked, tmp_path: Path
) -> None:
    parked.park(*[LETTER] * 10)
    file = file_of(parked, tmp_path, 1000)
    file.collect()
    assert 0 < len(in_file(file)) < 10 and file.path.stat().st_size <= 1000
    assert not file.is_whole
    assert "has reached sparkstorm.dead.letters.file.max.bytes (1,000)" in file.trouble
    assert len(parked.read(99, "0")) == 10


def test_a_folder_that_cannot_be_written_ends_nothing_and_is_tried_again(
    parked: Parked, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("in the way")
    parked.park(LETTER)
    file = file_of(parked, tmp_path)
    file.collect()
    assert not file.is_whole and "cannot be written" in file.trouble
    (tmp_path / "run").unlink()
    file.collect()
    assert file.is_whole and in_file(file) == [LETTER]


def test_a_store_that_goes_away_half_way_costs_nothing(parked: Parked, tmp_path: Path) -> None:
    parked.park(*[letter_with(task=n) for n in range(150)])
    calls = 0

    def read(limit: int, after: str) -> list[tuple[str, bytes]]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailableError("away")
        return parked.read(limit, after)

    file = DeadLetterFile(tmp_path / "dead-letters.jsonl", read, 1 << 30)
    with pytest.raises(StoreUnavailableError):
        file.collect()
    file.collect()
    assert [letter.task for letter in in_file(file)] == list(range(150))


def test_what_is_no_letter_is_kept_as_its_bytes_and_counted(parked: Parked, tmp_path: Path) -> None:
    parked.park(b"\xc1 no letter", LETTER)
    for _ in range(2):
        file = file_of(parked, tmp_path)
        file.collect()
        assert file.written == 2 and len(file.path.read_text().splitlines()) == 2
    sentence = r"dead-letters\.jsonl, line 1: not a line of dead letters"
    with pytest.raises(StoreInconsistentError, match=sentence):
        in_file(file)


@pytest.mark.parametrize(
    "line", ["{}", "[]", "7", '{"id": "1-0"}', "{", '{"id": "1-0", "component": "x", "more": 1}']
)
def test_a_line_that_is_none_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"{LETTER.to_line('1-0')}\n{line}\n")
    with pytest.raises(StoreInconsistentError, match="file, line 2: not a line of dead letters"):
        list(read_dead_letters(tmp_path / "file"))


@pytest.mark.parametrize(
    ("reasons", "error", "place"),
    [
        (["ValueError: no 7 (bad.py, line 30)", "ValueError: no [8] (bad.py, line 30)"],
         "ValueError", "(bad.py, line 30)"),
        (["KeyError: 'a' (x.py, line 1)", "KeyError: 'b: (y.py, line 2)' (x.py, line 1)"],
         "KeyError", "(x.py, line 1)"),
        (["Odd: 1 (x.py, line 1)", "Odd:  (x.py, line 1)"], "Odd", "(x.py, line 1)"),
        (["killed its worker 3 times (exit status 9)", "killed its worker 4 times (exit status 9)"],
         "killed its worker * times (exit status *)", ""),
        (["no user 'ann'", "no user 'bob'"], "no user *", ""),
        (["CodecError: 'a'", "CodecError: 'b'"], "CodecError", ""),
        (["failed by the bolt"], "failed by the bolt", ""),
        ([""], "", ""),
        (["ValueError: two\nlines (a.py, line 3)", "ValueError: x (a.py, line 3)"],
         "ValueError", "(a.py, line 3)"),
    ],
)  # fmt: skip
def test_letters_with_one_cause_are_one_group_whatever_values_their_text_holds(
    reasons: list[str], error: str, place: str
) -> None:
    groups = Groups()
    for reason in reasons:
        groups.add(letter_with(text=reason))
    [(cause, group)] = groups.largest()
    assert cause == Cause("parse", error, place)
    assert group.count == len(reasons)
    assert group.example is not None
    assert group.example.reason == reasons[0]


def test_other_lines_errors_and_components_are_other_groups_the_largest_first() -> None:
    groups = Groups()
    for n in range(900):
        groups.add(letter_with(values=(n,), text=f"KeyError: {n} (x.py, line 1)"))
    groups.add(letter_with(text="KeyError: 1 (x.py, line 2)"))
    groups.add(letter_with(text="ValueError: 1 (x.py, line 1)"))
    groups.add(letter_with(component="other", text="KeyError: 1 (x.py, line 1)"))
    assert len(groups.largest()) == 4
    assert (
        groups.lines(9)[0]
        == "parse: KeyError (x.py, line 1): 900 tuples, the first [0]: KeyError: 0 (x.py, line 1)"
    )
    assert groups.lines(3)[3:] == ["and 1 more causes"]


def test_many_causes_and_large_values_take_bounded_room() -> None:
    groups = Groups()
    for n in range(3000):
        groups.add(letter_with(component=f"c{n}", values=("x" * 10_000,)))
    assert len(groups.largest()) == 1001
    assert sum(group.count for _, group in groups.largest()) == 3000
    assert all(len(line) < 400 for line in groups.lines(5))


# -- the command line


def test_the_command_line_lists_a_file_by_cause_and_one_by_one(
    parked: Parked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parked.park(LETTER, letter_with(values=(b"\xff",)))
    file = file_of(parked, tmp_path)
    file.collect()
    assert cli(["dead-letters", "list", str(file.path)]) == 0
    said = capsys.readouterr().out
    assert f"{file.path}: 2 dead letters\n  parse: ValueError (parse.py, line 12): 2 tuples" in said
    assert cli(["dead-letters", "list", str(file.path), "--lines"]) == 0
    assert capsys.readouterr().out == file.path.read_text()


def test_a_replays_folder_of_dead_letters_is_read_like_a_runs_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = letter_with(values=(b"\xff",))
    (tmp_path / "part-00000.txt").write_text(LETTER.to_line() + "\n")
    (tmp_path / "part-00001.txt").write_text(other.to_line() + "\n")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00000.txt.crc").write_bytes(b"\xff")
    assert list(read_dead_letters(tmp_path)) == [("", LETTER), ("", other)]
    assert cli(["dead-letters", "list", str(tmp_path)]) == 0
    assert "2 dead letters" in capsys.readouterr().out


def test_a_handle_gives_the_same_records(parked: Parked) -> None:
    parked.park(LETTER, LETTER, LETTER)
    letters = StoredLetters(
        "words-1-2", LocalReader(parked.store), dict, lambda: None, lambda: None
    )
    assert list(letters.read(limit=2).values()) == [LETTER, LETTER]


@pytest.mark.parametrize("where", ["none.jsonl", "none.json", "torn.jsonl"])
def test_the_command_line_names_what_cannot_be_read(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn.jsonl").write_bytes(b"\xff\n")
    assert cli(["dead-letters", "list", str(tmp_path / where)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(LETTER.to_line("1-0").encode() + b"\n\xff\xfe\n")
    letters = read_dead_letters(tmp_path / "file")
    assert next(letters) == ("1-0", LETTER)
    sentence = r"file, line 2: not a line of dead letters: byte 1 is no UTF-8 text"
    with pytest.raises(StoreInconsistentError, match=sentence):
        next(letters)
