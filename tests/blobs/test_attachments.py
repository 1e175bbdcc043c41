"""Files and archives that travel with a topology: packages that only an archive has, files by name,
and mistakes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.data_plane.user_code import attachments
from sparkstorm.data_plane.user_code.attachments import read_attachments, use
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.testing import complete_topology
from sparkstorm.testing.components import FeederSpout

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OPEN = """
import sys, pathlib
from sparkstorm.api.context import TopologyContext
from sparkstorm.data_plane.user_code.topology_code import open_topology
from sparkstorm.common.errors import SparkStormError
try:
    open_topology(pathlib.Path("code").read_bytes(), sys.argv[1], pathlib.Path("modules.zip").resolve())
    import carried_package
    context = TopologyContext("t-1-1", 1, "c", {1: "c"}, (1,), {}, lambda: 0)
    print(carried_package.WORD, open(context.file("table.csv")).read(), open(context.file("folder/deep/x.txt")).read())
except (SparkStormError, FileNotFoundError) as error:
    print(error)
"""


def archive(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive of the kind that its name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in members.items():
                zipped.writestr(name, data)
        return path
    with tarfile.open(path, "w:gz") as packed:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path


def environment(version: str = HERE) -> dict[str, bytes]:
    """The files of a packed environment that matter here."""
    packages = f"lib/python{version}/site-packages"
    return {
        "bin/activate": b"",
        f"{packages}/carried_package/__init__.py": b"WORD = 'carried'\n",
        f"{packages}/redis.py": b"1 / 0\n",
    }


def opened(tmp_path: Path, files: list[Path], archives: list[Path]) -> str:
    """Open the code twice in fresh processes of another folder, as two workers of a host do; what
    the second prints.
    """
    builder = TopologyBuilder()
    builder.set_spout("feed", FeederSpout(["x"]))
    code = pack_topology(
        builder.build(), (), b"", read_attachments([*map(str, files)], [*map(str, archives)])
    )
    host = tmp_path / "host"
    host.mkdir(exist_ok=True)
    (host / "code").write_bytes(code)
    command = [sys.executable, "-c", OPEN, hashlib.sha256(code).hexdigest()]
    for _ in range(2):
        ended = subprocess.run(
            command, cwd=host, capture_output=True, text=True, check=False, timeout=900
        )
        assert ended.stderr == ""
    return ended.stdout.strip()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "x.txt").write_text("x")
    return [tmp_path / "table.csv", tmp_path / "folder"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["env.tar.gz", "env.zip"])
def test_a_package_that_only_the_archive_has_and_files_are_there(
    tmp_path: Path, files: list[Path], name: str
) -> None:
    assert opened(tmp_path, files, [archive(tmp_path / name, environment())]) == "carried a,b x"


@pytest.mark.slow
def test_an_archive_that_does_not_fit_is_one_sentence(tmp_path: Path, files: list[Path]) -> None:
    other = archive(tmp_path / "other.tar.gz", environment("3.9"))
    assert (
        "archive other.tar.gz of the topology is for Python 3.9, but the workers of host"
        in opened(tmp_path, files, [other])
    )
    (tmp_path / "broken.tar.gz").write_bytes(b"nothing")
    assert "archive broken.tar.gz of the topology cannot be unpacked" in opened(
        tmp_path, files, [tmp_path / "broken.tar.gz"]
    )


@pytest.mark.parametrize("name", ["../../evil.py", "a/../../evil.py", "/evil.py"])
@pytest.mark.parametrize("file", ["hostile.zip", "hostile.tar.gz"])
def test_a_name_that_leads_out_of_the_folder_is_refused(
    tmp_path: Path, file: str, name: str
) -> None:
    hostile = archive(tmp_path / file, {"good.py": b"", name: b""})
    found = read_attachments([], [str(hostile)])
    folder = tmp_path / "folder" / "attached"
    folder.parent.mkdir()
    with pytest.raises(WorkerFailedError, match=rf"{file} .*{name}'.*leads out of its folder"):
        use(found, folder)
    assert list(folder.parent.iterdir()) == [] and not list(tmp_path.rglob("evil.py"))


def test_what_cannot_travel_is_named(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = r"topology\.files: there is no file or folder /no/such"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_attachments(["/no/such"], [])
    with pytest.raises(InvalidConfigError, match=r"table\.csv is no file that ends in \.zip"):
        read_attachments([], [str(files[0])])
    with pytest.raises(InvalidConfigError, match=r"two entries are named table\.csv"):
        read_attachments([str(files[0])] * 2, [])
    monkeypatch.setattr(attachments, "MAX_BYTES", 2)
    sentence = r"with .*table\.csv the files and archives have more than 0 MB"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_attachments([str(files[0])], [])


class Lookup(BasicBolt):
    """Emits what its file says."""

    outputs = ("text",)

    def prepare(self, conf: Any, context: Any) -> None:
        self.text = Path(context.file("table.csv")).read_text()
        sentence = r"topology\.files has no 'other\.csv'; it names .*table\.csv"
        with pytest.raises(FileNotFoundError, match=sentence):
            context.file("other.csv")

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((self.text,))


def test_a_simulated_cluster_finds_files_where_they_are(files: list[Path]) -> None:
    builder = TopologyBuilder()
    builder.set_spout("feed", FeederSpout(["x"]))
    builder.set_bolt("lookup", Lookup(), inputs="feed")
    found = complete_topology(
        builder.build(), {"feed": [[1]]}, conf={"topology.files": [str(files[0])]}
    )
    assert found["lookup"] == [("a,b",)]


def bomb(name: str, size: int = 1 << 20) -> bytes:
    """Return a small archive with 16 files of `size` bytes each."""
    out = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
            for number in range(16):
                with zipped.open(f"p/{number}.py", "w") as file:
                    for _ in range(size >> 20):
                        file.write(bytes(1 << 20))
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for number in range(16):
            info = tarfile.TarInfo(f"p/{number}.py")
            info.size = size
            packed.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
def test_an_archive_that_unpacks_to_far_more_than_it_has_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "_LEAST_BOUND", 1 << 20)
    data = bomb(name)
    for _ in range(3):
        sentence = rf"archive {name} of the topology unpacks to more than \d+ MB"
        with pytest.raises(WorkerFailedError, match=sentence):
            use({f"archives/{name}": data}, tmp_path / "attached")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@pytest.mark.parametrize("cut", [0, 10, 40, 0.5, 0.7])
def test_a_damaged_archive_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, name: str, cut: float
) -> None:
    whole = archive(tmp_path / name, environment()).read_bytes()
    (tmp_path / name).unlink()
    torn = whole[: int(cut * len(whole)) if cut < 1 else int(cut)]
    changed = bytes(byte ^ (position % 7 == 3) for position, byte in enumerate(whole))
    for data in (torn, changed):
        sentence = f"archive {name} of the topology cannot be unpacked"
        with pytest.raises(WorkerFailedError, match=sentence):
            use({"files/a.txt": b"a", f"archives/{name}": data}, tmp_path / "attached")
    assert list(tmp_path.iterdir()) == []


def lying_zip(size: int) -> bytes:
    """Return a .zip whose directory claims 10 bytes for a file that inflates to `size`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("p/one.py", bytes(size))
    return out.getvalue().replace(size.to_bytes(4, "little"), (10).to_bytes(4, "little"))


def long_name(size: int, kind: bytes) -> bytes:
    """Return a .tar.xz with a header of `size` bytes: a name, or attributes."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = kind
    info.size = size
    return lzma.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(size) + bytes(1024), preset=0)


def unknown_kind(size: int) -> bytes:
    """Return a .tar.gz with an entry that is no regular file, and has content."""
    info = tarfile.TarInfo("one")
    info.type = b"Z"
    info.size = size
    return gzip.compress(info.tobuf() + bytes(size) + bytes(1024), 1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("lying.zip", lying_zip(64 << 20)),
        ("name.tar.xz", long_name(64 << 20, tarfile.GNUTYPE_LONGNAME)),
        ("link.tar.xz", long_name(64 << 20, tarfile.GNUTYPE_LONGLINK)),
        ("attributes.tar.xz", long_name(64 << 20, tarfile.XHDTYPE)),
        ("unknown.tar.gz", unknown_kind(64 << 20)),
    ],
)
def test_no_archive_unpacks_beyond_its_bound_whatever_its_headers_claim(
    tmp_path: Path, name: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "_LEAST_BOUND", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(WorkerFailedError, match=rf"archive {name} of the topology"):
            use({f"archives/{name}": data}, tmp_path / "attached")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 24 << 20, f"{most:,} bytes were held"
    assert list(tmp_path.iterdir()) == []


def test_a_zip_that_is_packed_by_a_method_without_bounds_is_refused(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as zipped:
            zipped.writestr("p/one.py", b"x")
        with pytest.raises(WorkerFailedError, match=r"is packed by method .*: use deflate"):
            use({"archives/one.zip": out.getvalue()}, tmp_path / "attached")


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_read_however_it_is_compressed(tmp_path: Path, mode: Any) -> None:
    out = io.BytesIO()
    name = "p/" + "long" * 60 + ".txt"
    with tarfile.open(fileobj=out, mode=mode) as packed:
        info = tarfile.TarInfo(name)
        info.size = 3 << 20
        packed.addfile(info, io.BytesIO(b"x" * (3 << 20)))
    attachments.unpack("blob one", out.getvalue(), tmp_path / "folder")
    assert (tmp_path / "folder" / name).read_bytes() == b"x" * (3 << 20)
