"""Local modules that a topology's code imports, as one archive that travels with it.

Local is a module that the submitter finds outside of the standard library, of installed packages
and of this one: most often a file or a package folder next to the topology's module. Imports are
read from the sources, those inside functions too; names that only `importlib` computes are not
found, and neither are data files and compiled modules.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import re
import socket
import stat
import sys
import zipfile
import zipimport
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

from sparkstorm.common.errors import InvalidTopologyError, WorkerFailedError

MAX_SOURCE_BYTES = 32 * 1024 * 1024
_INSTALLED = {"site-packages", "dist-packages"}
_SHORT_TEXT = re.compile(b"\x8c")  # pickle's opcode before a text of less than 256 bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources make the same bytes, and so the same blob


class _Source(NamedTuple):
    """A source as it was at one time."""

    path: str
    mtime_ns: int
    size: int


def pack_sources(modules: Iterable[str]) -> bytes:
    """A zip archive of these top-level modules and of every local one that they import; empty when
    none is local.

    InvalidTopologyError names a module that is too large to travel.
    """
    source_by_name: dict[str, _Source] = {}
    waiting = [*modules]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or (spec := local_spec(name)) is None:
            seen.add(name)
            continue
        seen.add(name)
        files = dict(_files_of(name, spec))
        if sum(source.size for source in files.values()) > MAX_SOURCE_BYTES:
            raise InvalidTopologyError(
                f"module '{name}' ({_home(spec)}) has more than {MAX_SOURCE_BYTES >> 20} MB of sources, "
                "too many to send along: install it on the hosts"
            )
        source_by_name |= files
        waiting += sorted(set[str]().union(*map(_imports_of, files.values())) - seen)
    return _archive(tuple(sorted(source_by_name.items()))) if source_by_name else b""


def local_spec(name: str) -> ModuleSpec | None:
    """Return where a local top-level module of the submitter is found; None for any other, and for
    a compiled one.
    """
    if name == "sparkstorm" or name in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: __main__, and modules made by hand
        return None
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    home = _home(spec)
    is_source = bool(spec.submodule_search_locations) or (spec.origin or "").endswith(".py")
    return spec if home is not None and is_source and not _INSTALLED & set(home.parts) else None


def named_in(code: bytes) -> Iterator[str]:
    """Yield local top-level modules that a pickle names: those of functions in attributes, and of a
    script's own imports.
    """
    starts = [match.end() for match in re.finditer(_SHORT_TEXT, code) if match.end() < len(code)]
    texts = {code[start + 1 : start + 1 + code[start]] for start in starts}
    tops = {name.partition(".")[0] for name in list(sys.modules) if name.encode() in texts}
    yield from sorted(top for top in tops if local_spec(top) is not None)


@lru_cache(maxsize=4096)
def _imports_of(source: _Source) -> frozenset[str]:
    """Return top-level names that a source imports anywhere; none when it cannot be read as Python.

    Every submission and replay asks again: a source that has not changed is read once.
    """
    try:
        tree = ast.parse(Path(source.path).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return frozenset(names)


def add_sources(archive: bytes, file: Path) -> None:
    """Make a packed archive importable in this process, before other modules of that name; write it
    to `file`.
    """
    if archive:
        # a full disk keeps no worker from its next start
        if not file.exists() or file.read_bytes() != archive:
            fresh = file.with_suffix(".new")
            fresh.write_bytes(archive)
            fresh.replace(file)
        _forget_finders(file)
        sys.path.insert(0, str(file))


def remove_sources(file: Path) -> None:
    """Undo `add_sources`: delete the archive and unload the modules that were imported from it."""
    sys.path.remove(str(file))
    file.unlink(missing_ok=True)
    for name, module in list(sys.modules.items()):
        if _is_in(getattr(module, "__file__", None), file):
            del sys.modules[name]
    _forget_finders(file)


def _forget_finders(file: Path) -> None:
    """Drop the import system's caches of one archive.

    `importlib.invalidate_caches` would read every archive on the path anew: 0.4 s in a Python
    worker of Spark.
    """
    for cached_path in [
        cached_path for cached_path in sys.path_importer_cache if _is_in(cached_path, file)
    ]:
        del sys.path_importer_cache[cached_path]
    zipimport._zip_directory_cache.pop(str(file), None)  # type: ignore[attr-defined]


def _is_in(cached_path: str | None, file: Path) -> bool:
    return cached_path is not None and (
        cached_path == str(file) or cached_path.startswith(f"{file}{os.sep}")
    )


def missing_module(error: ModuleNotFoundError) -> WorkerFailedError:
    """The sentence for a module that the submitter had and this host has not."""
    return WorkerFailedError(
        f"module '{error.name}' is neither installed on host {socket.gethostname()} nor sent along with the topology: install "
        "it there for this Python, or import it by its name in a source next to the topology's module"
    )


def _home(spec: ModuleSpec) -> Path | None:
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return Path(places[0]).resolve() if places[0] else None


def _files_of(name: str, spec: ModuleSpec) -> Iterator[tuple[str, _Source]]:
    """Yield the name in the archive and the source of each file of a module or a package."""
    if not spec.submodule_search_locations and (source := _source_at(str(spec.origin))):
        yield f"{name}.py", source
    # Texts, and one look at each file: with objects of pathlib a thousand files cost each replay
    # 21 ms of CPU, now 9.
    for folder in map(os.path.normpath, spec.submodule_search_locations or ()):
        for directory, _, files in os.walk(folder):
            inner = name + directory[len(folder) :].replace(os.sep, "/")
            for file in files:
                if file.endswith(".py") and (source := _source_at(os.path.join(directory, file))):
                    yield f"{inner}/{file}", source


def _source_at(path: str) -> _Source | None:
    """Return a source as it is now; None for a link to no file (an editor's lock), a pipe and a
    file that has just gone.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return (
        _Source(path, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None
    )


@lru_cache(maxsize=1)
def _archive(sources: tuple[tuple[str, _Source], ...]) -> bytes:
    """Return an archive of sources by name: every replay of a notebook asks again."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sources:
            data = Path(source.path).read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()
