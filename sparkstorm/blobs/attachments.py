"""Files and archives that travel with a topology's code (`topology.files`, `topology.archives`).

A file keeps its name; a folder brings all of its files below its own name. An archive (.zip, .tar, .tar.gz) holds Python packages:
an environment as venv-pack or conda-pack make it, of which the site-packages are taken, or the packages alone. Packages that
a worker's own Python has come first, so an archive adds packages and replaces none.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from sparkstorm.api.context import set_files_folder
from sparkstorm.errors import InvalidConfigError, WorkerFailedError

MAX_BYTES = 512 * 1024 * 1024
_FILES, _ARCHIVES = "files/", "archives/"
_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PACKAGES = re.compile(r"(?:.*?/)??(?:lib/python(?P<version>\d+\.\d+)/)?site-packages/(?P<name>.+)")


def read_attachments(files: Sequence[str], archives: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of files and archives by their names in the code blob; InvalidConfigError names what cannot travel."""
    found: dict[str, bytes] = {}
    for text in files:
        path = Path(text)
        if not path.exists():
            raise InvalidConfigError(f"topology.files: there is no file or folder {text}")
        inside = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for each in inside:
            name = PurePosixPath(path.resolve().name, each.relative_to(path).as_posix()) if path.is_dir() else path.name
            _add(found, f"{_FILES}{name}", each, "topology.files")
    for text in archives:
        path = Path(text)
        if not path.is_file() or not path.name.endswith(_ENDINGS):
            raise InvalidConfigError(f"topology.archives: {text} is no file that ends in {', '.join(_ENDINGS)}")
        _add(found, f"{_ARCHIVES}{path.name}", path, "topology.archives")
    return found


def _add(found: dict[str, bytes], name: str, path: Path, key: str) -> None:
    if name in found:
        raise InvalidConfigError(f"{key}: two entries are named {PurePosixPath(name).name}; rename one")
    if sum(map(len, found.values())) + path.stat().st_size > MAX_BYTES:
        raise InvalidConfigError(
            f"{key}: with {path} the files and archives have more than {MAX_BYTES >> 20} MB, too many to send along: put "
            "them where all hosts see them"
        )
    try:
        found[name] = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error


def use(attachments: Mapping[str, bytes], folder: Path) -> None:
    """Unpack into a folder, unless another process of this host did, and make files and packages known to this process."""
    if not attachments:
        return
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(prefix="attached-", dir=folder.parent))
        _unpack(attachments, fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(fresh, ignore_errors=True)
    set_files_folder(folder / "files")
    for packages in sorted((folder / "archives").glob("*")):
        if str(packages) not in sys.path:
            sys.path.append(str(packages))
    importlib.invalidate_caches()


def _unpack(attachments: Mapping[str, bytes], folder: Path) -> None:
    for name, data in attachments.items():
        if name.startswith(_FILES):
            _write(folder, name, data)
        else:
            for inside, content in _packages(PurePosixPath(name).name, data):
                _write(folder, f"{name}/{inside}", content)


def _packages(archive: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the packages in an archive; WorkerFailedError when it is damaged or for another Python."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        members = [(name, content) for name, content in _members(archive, data) if ".." not in PurePosixPath(name).parts]
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise WorkerFailedError(f"archive {archive} of the topology cannot be unpacked: {error}") from error
    matches = {name: found for name, _ in members if (found := _PACKAGES.fullmatch(name))}
    versions = {found["version"] for found in matches.values()} - {None, here}
    if versions:
        raise WorkerFailedError(
            f"archive {archive} of the topology is for Python {min(versions)}, but the workers of host {socket.gethostname()} "
            f"run {here}: make it with that Python"
        )
    for name, content in members:
        if not matches:
            yield name, content
        elif name in matches:
            yield matches[name]["name"], content


def _members(archive: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files of an archive; links are left out."""
    if archive.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            yield from ((each.filename, zipped.read(each)) for each in zipped.infolist() if not each.is_dir())
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        for member in packed:
            if member.isfile() and (file := packed.extractfile(member)) is not None:
                with contextlib.closing(file):
                    yield member.name.removeprefix("./"), file.read()


def _write(folder: Path, name: str, data: bytes) -> None:
    path = folder.joinpath(*PurePosixPath(name).parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise WorkerFailedError(f"the topology's code brings a file {name!r:.80}, whose name leads out of its folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
