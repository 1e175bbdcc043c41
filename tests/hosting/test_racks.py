"""Racks from a file, and the folders of slots on a worker's host."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkstorm.common.errors import InvalidConfigError, SlotsUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.slot_spec import SlotSpec, StateAddress
from sparkstorm.control_plane.supervisor.slot_main import main, meta_of, wait_for_slot
from sparkstorm.driver.hosting.racks import read_racks


def a_spec(folder: str, host: str = "w1") -> SlotSpec:
    racks = {"w1": "/a", "w2": "/b"}
    return SlotSpec(
        StateAddress("h:1"),
        RedisAddress("h", 1),
        f"{folder}/supervisors",
        f"{folder}/logs",
        host=host,
        racks=racks,
    )


def test_racks_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "racks"
    file.write_text("# by floor\n\nw1 /floor-1/rack-1\nw2\t/floor-1/rack-1  # new\nw3 b\nw3 b\n")
    assert read_racks(str(file)) == {"w1": "/floor-1/rack-1", "w2": "/floor-1/rack-1", "w3": "b"}
    assert read_racks(None) == read_racks("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("w1 /a\nw2\n", "line 2: expected a host and its rack, got 'w2'"),
        ("w1 /a more\n", "line 1: expected a host and its rack"),
        ("w1 /a\nw1 /b\n", "line 2: w1 is in /a and in /b"),
        ("w\udcff /a\n", "is not UTF-8 text"),
        ("x" * ((4 << 20) + 1), "this is no table of racks"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "racks"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidConfigError, match=rf"sparkstorm\.racks\.file: .*racks.*{words}"):
        read_racks(str(file))
    sentence = r"sparkstorm\.racks\.file: .*none cannot be read: No such file"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_racks(str(tmp_path / "none"))


def test_a_slot_offers_the_rack_of_its_host(tmp_path: Path) -> None:
    assert meta_of(a_spec("/x"), "w2") == {"rack": "/b"}
    assert meta_of(a_spec("/x"), "w9") == {}


def test_the_folder_below_home_is_that_of_the_workers_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place = wait_for_slot(a_spec("~/own"))
    place.claim.release()
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["logs", "supervisors"]


def test_a_folder_that_cannot_be_made_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = (
        rf"w1: the folder {tmp_path}/file/supervisors cannot be made \(.*\), slots run as user \w+ "
        r"there: name another one in sparkstorm\.worker\.local\.dir"
    )
    with pytest.raises(SlotsUnavailableError, match=words):
        wait_for_slot(a_spec(f"{tmp_path}/file"))
    assert "sparkstorm.worker.local.dir" in main(a_spec(f"{tmp_path}/file"))


def test_a_folder_of_another_user_is_named_with_its_key() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "supervisors").mkdir()
        (Path(folder) / "supervisors").chmod(0o555)
        said = as_no_root(lambda: wait_for_slot(a_spec(folder)))
    words = rf"w1: the folder {folder}/supervisors is another user's, slots run as user \w+ there: "
    assert re.match(words + r"name another one in sparkstorm\.worker\.local\.dir", said), said


def as_no_root(call: Callable[[], object]) -> str:
    """Return the error of a call in a process without rights of root."""
    read, write = os.pipe()
    if not os.fork():
        try:
            if not os.getuid():
                os.setresuid(65534, 65534, 65534)
            call()
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.wait()
    return said
