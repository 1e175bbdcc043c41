"""Files and archives that travel with a topology's code (`topology.files`, `topology.archives`).

A file keeps its name; a folder brings all of its files below its own name. An archive (.zip, .tar,
.tar.gz) holds Python packages: an environment as venv-pack or conda-pack make it, of which the
site-packages are taken, or the packages alone. Packages that a worker's own Python has come first,
so an archive adds packages and replaces none.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import io
import lzma
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from sparkstorm.api.context import set_files_folder
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError

MAX_BYTES = 512 * 1024 * 1024
# Packages are packed to a third or a half; 600 KiB of zeros unpacked to 600 MB on every host, at
# each start of a worker.
_LEAST_BOUND = 256 * 1024 * 1024
_MOST_TIMES = 20
# what is unpacked at once: a name in a header of a .tar claimed 358 MB
_PIECE_BYTES = 1 << 20
# the others of a .zip unfold a piece to 90 MB
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# of the libraries, for bytes that are no archive; a ValueError, RuntimeError: names and methods
# that they do not take
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    ValueError,
    RuntimeError,
)
_Member: TypeAlias = tuple[str, int, Callable[[], bytes]]  # name, size in bytes, reader
_FILES = "files/"
_ARCHIVES = "archives/"
_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PACKAGES = re.compile(r"(?:.*?/)??(?:lib/python(?P<version>\d+\.\d+)/)?site-packages/(?P<name>.+)")


def read_attachments(files: Sequence[str], archives: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of files and archives by their names in the code blob; InvalidConfigError
    names what cannot travel.
    """
    data_by_name: dict[str, bytes] = {}
    for text in files:
        path = Path(text)
        if not path.exists():
            raise InvalidConfigError(f"topology.files: there is no file or folder {text}")
        inside = (
            sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        )
        for file in inside:
            name = (
                PurePosixPath(path.resolve().name, file.relative_to(path).as_posix())
                if path.is_dir()
                else path.name
            )
            _add(data_by_name, f"{_FILES}{name}", file, "topology.files")
    for text in archives:
        path = Path(text)
        if not path.is_file() or not path.name.endswith(_ENDINGS):
            raise InvalidConfigError(
                f"topology.archives: {text} is no file that ends in {', '.join(_ENDINGS)}"
            )
        _add(data_by_name, f"{_ARCHIVES}{path.name}", path, "topology.archives")
    return data_by_name


def _add(data_by_name: dict[str, bytes], name: str, path: Path, key: str) -> None:
    if name in data_by_name:
        raise InvalidConfigError(
            f"{key}: two entries are named {PurePosixPath(name).name}; rename one"
        )
    if sum(map(len, data_by_name.values())) + path.stat().st_size > MAX_BYTES:
        raise InvalidConfigError(
            f"{key}: with {path} the files and archives have more than {MAX_BYTES >> 20} MB, too many to send along: put "
            "them where all hosts see them"
        )
    try:
        data_by_name[name] = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error


def use(attachments: Mapping[str, bytes], folder: Path) -> None:
    """Unpack into a folder, unless another process of this host did, and make files and packages
    available to this process.
    """
    if not attachments:
        return
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(prefix="attached-", dir=folder.parent))
        try:
            _unpack(attachments, fresh)
            with contextlib.suppress(OSError):  # another process was faster
                fresh.rename(folder)
        finally:
            # also of a failed try: the next one would leave another
            shutil.rmtree(fresh, ignore_errors=True)
    set_files_folder(folder / "files")
    for packages in sorted((folder / "archives").glob("*")):
        if str(packages) not in sys.path:
            sys.path.append(str(packages))
    importlib.invalidate_caches()


def unpack(what: str, data: bytes, folder: Path) -> None:
    """Write the regular files of an archive (.zip or .tar, also compressed) below a new folder,
    within the bounds of packages.

    WorkerFailedError for an archive that is damaged, too large, or leads out of the folder; `what`
    names it.
    """
    folder.mkdir()
    try:
        with _opened(what, data, is_zip=data[:2] == b"PK") as members:
            for name, read in members.items():
                _write(folder, name, read())
    except _DAMAGED as error:
        raise WorkerFailedError(f"{what} cannot be unpacked: {error}") from error


def _unpack(attachments: Mapping[str, bytes], folder: Path) -> None:
    for name, data in attachments.items():
        if name.startswith(_FILES):
            _write(folder, name, data)
        else:
            for inside, content in _packages(PurePosixPath(name).name, data):
                _write(folder, f"{name}/{inside}", content)


def _packages(archive: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages in an archive; WorkerFailedError when it is damaged, too
    large or for another Python.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        with _opened(
            f"archive {archive} of the topology", data, archive.endswith(".zip")
        ) as members:
            matches = {name: match for name in members if (match := _PACKAGES.fullmatch(name))}
            versions = {match["version"] for match in matches.values()} - {None, here}
            if versions:
                raise WorkerFailedError(
                    f"archive {archive} of the topology is for Python {min(versions)}, but the workers of host "
                    f"{socket.gethostname()} run {here}: make it with that Python"
                )
            for name in matches or members:
                yield matches[name]["name"] if matches else name, members[name]()
    except _DAMAGED as error:
        raise WorkerFailedError(
            f"archive {archive} of the topology cannot be unpacked: {error}"
        ) from error


@contextlib.contextmanager
def _opened(what: str, data: bytes, is_zip: bool) -> Iterator[dict[str, Callable[[], bytes]]]:
    """Open an archive; yield readers of its regular files by name. Links are left out.

    Law: nothing is unpacked beyond the bound, whatever the archive claims.
    """
    most = _LEAST_BOUND + _MOST_TIMES * len(data)
    with contextlib.ExitStack() as stack:
        members: Iterator[_Member]
        if is_zip:
            zipped = stack.enter_context(zipfile.ZipFile(io.BytesIO(data)))
            entries = (entry for entry in zipped.infolist() if not entry.is_dir())
            members = (
                (entry.filename, entry.file_size, partial(_unzipped, zipped, entry))
                for entry in entries
            )
        else:
            unpacked: Any = stack.enter_context(_unpacked(data))
            metered: Any = _Metered(what, unpacked, most)
            packed = stack.enter_context(tarfile.TarFile(fileobj=metered))
            files = (entry for entry in packed if entry.isfile())
            members = (
                (entry.name.removeprefix("./"), entry.size, partial(_read, packed, entry))
                for entry in files
            )
        yield _bounded(what, members, most)


def _bounded(what: str, members: Iterator[_Member], most: int) -> dict[str, Callable[[], bytes]]:
    """Return the readers by name; WorkerFailedError for more than `most` bytes, and for a name that
    leads out of a folder.
    """
    total = 0
    readers = dict[str, Callable[[], bytes]]()
    for name, size, read in members:
        total += size  # by the archive's own header: no reader reads more of a file than that
        if total > most:
            raise _too_large(what, most)
        path = PurePosixPath(name)
        if ".." in path.parts or path.is_absolute():
            raise WorkerFailedError(
                f"{what} has a file {name!r:.80}, whose name leads out of its folder: pack it anew without that file"
            )
        readers[name] = read
    return readers


def _too_large(what: str, most: int) -> WorkerFailedError:
    return WorkerFailedError(
        f"{what} unpacks to more than {most >> 20} MB ({_LEAST_BOUND >> 20} MB and "
        f"{_MOST_TIMES} times its size): it holds more than packages; send data with topology.files"
    )


class _Metered:
    """The bytes of a .tar: no more of them than the bound, and few at once."""

    def __init__(self, what: str, file: Any, most: int) -> None:
        self._what = what
        self._file = file
        self._most = most
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        """Read a piece; a larger one is a header's, whose name or attributes claim that size."""
        if size > _PIECE_BYTES:
            raise WorkerFailedError(
                f"{self._what} has a header of {size:,} bytes: no archive of files needs that"
            )
        self._require(self.tell() + size)
        data: bytes = self._file.read(size)
        return data

    def seek(self, position: int) -> int:
        """Go on at a position, before which all is unpacked."""
        self._require(position)
        reached: int = self._file.seek(position)
        return reached

    def _require(self, position: int) -> None:
        if position > self._most:
            raise _too_large(self._what, self._most)


def _unpacked(data: bytes) -> Any:
    """Return the file of a .tar by the first bytes of what compresses it."""
    file = io.BytesIO(data)
    if data.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if data.startswith(b"BZh"):
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if data.startswith((b"\xfd7zXZ\0", b"]\0\0")) else file


def _unzipped(zipped: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type not in _METHODS:
        raise zipfile.BadZipFile(
            f"{member.filename!r:.80} is packed by method {member.compress_type}: use deflate"
        )
    with zipped.open(member) as file:
        return _whole(file)


def _read(packed: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = packed.extractfile(member)
    assert file is not None  # a regular file
    with contextlib.closing(file):
        return _whole(file)


def _whole(file: Any) -> bytes:
    """Read a file to its end in pieces: asked for all, zipfile unfolds what its header denies."""
    return b"".join(iter(lambda: file.read(_PIECE_BYTES >> 4), b""))


def _write(folder: Path, name: str, data: bytes) -> None:
    path = folder.joinpath(*PurePosixPath(name).parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise WorkerFailedError(
            f"the topology's code brings a file {name!r:.80}, whose name leads out of its folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
