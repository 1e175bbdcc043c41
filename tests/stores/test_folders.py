"""Folders of our own: marked when made, refused when somebody else's, and deleted only with their
mark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.folders import MARKER, discard_folder, own_folder


def test_a_folder_made_here_is_marked_private_and_can_be_discarded(tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "a" / "redis")
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("x")
    assert (folder / MARKER).is_file() and folder.stat().st_mode & 0o077 == 0
    assert own_folder(folder) == folder, "a second run takes it again"
    assert discard_folder(folder) and not folder.exists()
    assert tmp_path.exists() and (tmp_path / "a").exists()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    assert (own_folder(tmp_path / "redis") / MARKER).is_file()


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "redis"
    theirs.mkdir()
    (theirs / "dump.rdb").write_text("mine")
    sentence = r"redis holds files that SparkStorm did not write .* set storm\.local\.dir to"
    with pytest.raises(InvalidConfigError, match=sentence):
        own_folder(theirs)
    assert not discard_folder(theirs)
    assert [path.name for path in theirs.iterdir()] == ["dump.rdb"]


@pytest.mark.parametrize("kind", ["file", "link to nothing", "pipe"])
def test_what_is_no_folder_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    import os

    path = tmp_path / "redis"
    if kind == "file":
        path.write_text("x")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidConfigError, match=r"redis"):
        own_folder(path)
    assert not discard_folder(path)
    assert path.is_symlink() or path.exists()


def test_a_symbolic_link_is_never_followed_when_deleting(tmp_path: Path) -> None:
    real = own_folder(tmp_path / "real")
    link = tmp_path / "link"
    link.symlink_to(real)
    assert not discard_folder(link)
    assert link.is_symlink() and (real / MARKER).is_file()
    inside = own_folder(tmp_path / "inside")
    (inside / "way-out").symlink_to(real)
    assert discard_folder(inside)
    assert (real / MARKER).is_file()


def test_a_marker_that_is_a_link_is_no_marker(tmp_path: Path) -> None:
    real = own_folder(tmp_path / "real")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / MARKER).symlink_to(real / MARKER)
    assert not discard_folder(theirs)
    assert theirs.exists()


def test_a_run_whose_folders_parent_is_a_link_works(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = own_folder(tmp_path / "link" / "redis")
    assert (tmp_path / "real" / "redis" / MARKER).is_file()
    assert discard_folder(folder)
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "real" / "redis").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidConfigError, match=r"file/redis cannot be made: Not a directory"):
        own_folder(tmp_path / "file" / "redis")
