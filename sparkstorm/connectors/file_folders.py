"""Files named by patterns, on this machine or in an object store: finding them, opening them, and
telling them apart.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors.file_records import skip_bytes
from sparkstorm.connectors.patience import plain_name

_MAGIC = ("*", "?", "[")
_REFUSALS = (
    "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "NO_SUCH_BUCKET", "not found. To create buckets",
    "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket",  # delta-rs
    "Error parsing Path",
    "File name too long", "Too many levels of symbolic links",
    # pyiceberg and its catalogs
    "NoSuchTableError", "UnauthorizedError", "ForbiddenError", "password authentication failed",
)  # fmt: skip
_UNPACKERS = {
    (".gz", ".gzip"): gzip.open,
    (".bz2",): bz2.open,
    (".xz",): lzma.open,
    (".zst", ".zstd"): None,  # pyarrow's
}
_PACKED = tuple(end for ends in _UNPACKERS for end in ends)
DAMAGES = EOFError, OSError, zlib.error, lzma.LZMAError
"""Errors of files that are gone or damaged."""
WHOLE = 1 << 40
"""Position behind every record of a file."""


_ARCHIVES = ".tgz", ".tar", ".zip", ".7z", ".tbz", ".txz", ".lz4", ".z", ".br"


def refuse_archive(where: str, path: str) -> None:
    """Refuse a file of text whose name says that it is an archive, or packed in another form."""
    plain = next((path[: -len(end)] for end in _PACKED if path.lower().endswith(end)), path)
    if plain.lower().endswith(_ARCHIVES):
        raise InvalidConfigError(
            f"{where}: {shown(path)} is an archive or compressed; Files unpacks .gz, .bz2, .xz and "
            ".zst, anything else is to be unpacked before"
        )


def is_packed(path: str) -> bool:
    """Return whether a file's name says that its text is packed in a form that `Folders` unpacks."""
    return path.lower().endswith(_PACKED)


class FileSplit(NamedTuple):
    """Part of what a source reads: a file from the record at `start` to the last one that begins
    before `until`, positions in it; or several files as a whole.
    """

    paths: tuple[str, ...]
    start: int
    until: int
    size: int


def split_at(path: str, size: int, starts: Sequence[int]) -> list[FileSplit]:
    """Return the parts of a file that begin at these positions; `size` is shared among them."""
    ends = [*starts[1:], WHOLE]
    return [
        FileSplit((path,), start, end, size // len(starts))
        for start, end in zip(starts, ends, strict=True)
    ]


def line_starts(stream: BinaryIO, size: int, most_bytes: int) -> list[int]:
    """Return the first position of a file of lines, and those of a line about every so many bytes."""
    starts = [0]
    while (position := starts[-1] + most_bytes) < size:
        position -= 1  # a line may end right before it
        stream.seek(position)
        while (part := stream.readline(1 << 20)) and not part.endswith(b"\n"):
            position += len(part)
        starts.append(position + len(part))
    return [start for start in starts if start < size or start == 0]


class Found(NamedTuple):
    """A file: the key under which its position is kept, its path, its size in bytes."""

    key: str
    path: str
    size: int


def shown(path: str) -> str:
    """A path for texts and tuples, with any bytes in its name."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Folders:
    """The files that match patterns: "logs/*.csv", "logs" (all below), "s3://bucket/logs/*.gz", any
    scheme of pyarrow or fsspec.

    Names that begin with a dot or an underscore are left out, as by Spark. `by_inode`: a file keeps
    its key when it is renamed.
    """

    def __init__(self, patterns: Sequence[str], by_inode: bool = False) -> None:
        self.is_remote = any("://" in pattern for pattern in patterns)
        self._by_inode = by_inode
        self._roots = [_split(pattern) for pattern in patterns]

    def find(self) -> list[Found]:
        """Every file that matches now, sorted by path."""
        file_by_key: dict[str, Found] = {}
        for root, pattern in self._roots:
            for file in (
                self._remote(root, pattern) if "://" in root else self._local(root, pattern)
            ):
                file_by_key.setdefault(file.key, file)
        return sorted(file_by_key.values(), key=lambda file: file.path)

    def find_renamed(self, keys: set[str]) -> list[Found]:
        """Files under these keys in the patterns' folders, under any present name."""
        roots = {root for root, _ in self._roots if "://" not in root}
        folders = {root if os.path.isdir(root) else os.path.dirname(root) or "." for root in roots}
        entries = [
            entry for folder in folders if os.path.isdir(folder) for entry in os.scandir(folder)
        ]
        return [
            file
            for entry in entries
            if (file := self._of(entry.path)) is not None and file.key in keys
        ]

    def open(self, path: str, offset: int) -> BinaryIO:
        """Open a file at a position in its unpacked bytes."""
        if not is_packed(path):
            raw = self.open_raw(path)
            raw.seek(offset)
            return raw
        make = next(make for ends, make in _UNPACKERS.items() if path.lower().endswith(ends))
        if make is None:
            stream: Any = io.BufferedReader(_Zstd(lambda: self.open_raw(path)))
        else:
            stream = io.BufferedReader(_Unpacked(make, self.open_raw(path)))
        skip_bytes(stream, offset)
        return cast(BinaryIO, stream)

    def open_raw(self, path: str) -> BinaryIO:
        """Open a file as it lies there."""
        if "://" not in path:
            return open(path, "rb")
        system, name = file_system(path)
        return io.BufferedReader(system.open_input_file(name), 1 << 20)

    def _local(self, root: str, pattern: str) -> list[Found]:
        if not os.path.exists(root):
            return []
        if os.path.isfile(root):
            return [file for file in [self._of(root)] if file is not None]
        files = []
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not is_hidden(name)]
            for name in names:
                path = os.path.join(folder, name)
                if not is_hidden(name) and _matches(os.path.relpath(path, root), pattern):
                    files.append(self._of(path))
        return [file for file in files if file is not None]

    def _of(self, path: str) -> Found | None:
        try:
            info = os.stat(path)
        except OSError:
            return None  # it has gone meanwhile
        if not stat.S_ISREG(info.st_mode):
            return None  # a pipe would block
        return Found(
            f"{info.st_dev}:{info.st_ino}" if self._by_inode else shown(path), path, info.st_size
        )

    def _remote(self, root: str, pattern: str) -> list[Found]:
        from pyarrow import fs

        system, base = file_system(root)
        if system.get_file_info(base).type == fs.FileType.File:
            return [Found(root, root, system.get_file_info(base).size)]
        scheme = root.partition("://")[0]
        files = []
        for info in system.get_file_info(
            fs.FileSelector(base, allow_not_found=True, recursive=True)
        ):
            name = info.path.removeprefix(base).lstrip("/")
            is_shown = not any(map(is_hidden, name.split("/")))
            if info.type == fs.FileType.File and is_shown and _matches(name, pattern):
                files.append(Found(f"{scheme}://{info.path}", f"{scheme}://{info.path}", info.size))
        return files


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is no data by its name, as Spark has it: `_k=1` is the folder
    of a field.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


class _Unpacked(io.RawIOBase):
    """Bytes of a packed file, which is closed with them."""

    def __init__(self, make: Any, raw: BinaryIO) -> None:
        self._raw = raw
        self._stream: Any = make(raw)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Zstd(io.RawIOBase):
    """Unpacked bytes of a zstd file up to where it is damaged.

    pyarrow fills a whole read or raises an error: what lies before the damage is read again from
    the beginning, in halves.
    """

    def __init__(self, reopen: Any) -> None:
        self._reopen = reopen
        self._at = 0
        self._stream: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import pyarrow as pa

        size = len(buffer)
        while True:
            try:
                if self._stream is None:
                    self._stream = pa.CompressedInputStream(self._reopen(), "zstd")
                    skip_bytes(self._stream, self._at)
                part = self._stream.read(size)
                break
            except OSError:
                self._drop()
                if size == 1:
                    raise
                size //= 2
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def absolute(path: str | os.PathLike[str], what: str) -> str:
    """Return a path that means the same in another working directory; URIs are left as they are.
    InvalidConfigError for what is no path.
    """
    name = plain_name(os.fspath(path) if isinstance(path, os.PathLike) else path, what)
    return name if "://" in name else os.path.abspath(os.path.expanduser(name))


def file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path in it; InvalidConfigError when there is
    none for its scheme.

    S3 reads AWS_ENDPOINT_URL for servers that are not Amazon's, and its credentials from the
    environment.
    """
    from pyarrow import fs

    scheme, mark, rest = uri.partition("://")
    if not mark:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    if scheme in ("s3", "s3a") and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        protocol, _, address = endpoint.rpartition("://")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        options = {
            "endpoint_override": address.rstrip("/"),
            "scheme": protocol or "https",
            "region": region,
        }
        # a small file is one request, not three
        return fs.S3FileSystem(**options, allow_delayed_open=True), rest
    try:
        return cast(tuple[Any, str], fs.FileSystem.from_uri(uri))
    except Exception as refusal:
        try:
            import fsspec

            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme))), rest
        except (ImportError, ValueError):
            raise InvalidConfigError(
                f"{uri}: no file system for '{scheme}://' ({refusal}); fsspec may have one"
            ) from refusal


def raise_lasting(error: BaseException, where: str) -> None:
    """Raise InvalidConfigError for what another try will not change: credentials or a bucket that
    an object store refuses.
    """
    text = " ".join(str(error).split())
    offset = next((offset for sign in _REFUSALS if (offset := text.find(sign)) >= 0), -1)
    if offset >= 0:
        if offset > 250:  # a long name or request comes before the reason
            text = f"{text[:100]} ... {text[offset:]}"
        raise InvalidConfigError(f"{where:.300}: {text[:300]}") from error


def fingerprint(stream: BinaryIO, size: int) -> int:
    """Return a checksum of a local file's first bytes; its position does not matter."""
    return zlib.crc32(os.pread(stream.fileno(), size, 0))


def _split(pattern: str) -> tuple[str, str]:
    """Return the folder before the first wildcard, and the pattern below it (empty: all)."""
    if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
        raise InvalidConfigError(f"{pattern!r:.80} is no path or pattern of files")
    scheme, mark, rest = pattern.partition("://")
    path = PurePosixPath(rest if mark else os.path.expanduser(pattern))
    if mark and scheme == "file":
        mark = ""
        scheme = ""
    is_file = not mark and os.path.isfile(path)  # a name may have brackets
    wild = next(
        (
            n
            for n, part in enumerate(path.parts)
            if any(sign in part for sign in _MAGIC) and not is_file
        ),
        len(path.parts),
    )
    root = str(Path(*path.parts[:wild])) if wild else "."
    return f"{scheme}{mark}{root}" if mark else root, "/".join(path.parts[wild:])


def _matches(name: str, pattern: str) -> bool:
    if not pattern:
        return True
    return _fit(name.split("/"), pattern.split("/"))


def _fit(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether each part of a path matches its pattern; `**` is any number of folders, as in
    a shell.
    """
    if not patterns or not names:
        return not patterns and not names
    if patterns[0] == "**" and len(patterns) > 1:
        return _fit(names, patterns[1:]) or _fit(names[1:], patterns)
    return fnmatchcase(names[0], patterns[0]) and _fit(names[1:], patterns[1:])
