"""Blobs with names, which a cluster keeps and may replace while topologies run:
`topology.blobstore.map` (Storm).

On a host each version lies under its hash. The local name is a link to the newest one, replaced in
one step: a reader sees a whole version, never a mixture. Left out: a notice to user code, since a
tuple that is executed twice may meet two versions with or without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError, show
from sparkstorm.common.settings import FileSettings
from sparkstorm.data_plane.user_code.attachments import MAX_BYTES, unpack

KEY = "topology.blobstore.map"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,149}")
_OPTIONS = {"localname": str, "uncompress": bool, "workerRestart": bool}
_VERSIONS = ".versions"


@dataclass(frozen=True, slots=True)
class BlobUse:
    """Use of a blob by a topology: its name on the hosts, and what happens to it there."""

    name: str
    local_name: str
    unpacks: bool = False
    restarts: bool = False  # whether workers are started anew with each version


def blob_uses(conf: Mapping[str, Any]) -> tuple[BlobUse, ...]:
    """Return the blobs of a topology's configuration; InvalidConfigError names the entry and what
    it may have.
    """
    uses: dict[str, BlobUse] = {}
    for name, options in (FileSettings.of(conf).blobs or {}).items():
        options = {} if options is None else options
        check_name(name, f"{KEY}: blob")
        wrong = not isinstance(options, dict) or any(
            not isinstance(value, _OPTIONS.get(option, type(None)))
            for option, value in options.items()
        )
        if wrong:
            raise InvalidConfigError(
                f"{KEY}: {name} has {show(options)}; it may have localname (a text), uncompress and workerRestart (true or false)"
            )
        local = options.get("localname", name)
        check_name(local, f"{KEY}: localname")
        if local in uses:
            raise InvalidConfigError(
                f"{KEY}: {uses[local].name} and {name} have the localname {local}; give one of them another"
            )
        uses[local] = BlobUse(
            name, local, options.get("uncompress", False), options.get("workerRestart", False)
        )
    return tuple(uses.values())


def check_name(name: Any, where: str) -> None:
    """Refuse what cannot be the name of a blob, which is a file's name on every host."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfigError(
            f"{where} {show(name)}: use up to 150 letters, digits, '-', '_' and '.', the first no '-' and no '.'"
        )


def check_size(name: str, size: int) -> None:
    """Refuse a blob that is too large to lie in Redis."""
    if size > MAX_BYTES:
        raise InvalidConfigError(
            f"blob {name}: {size} bytes are more than {MAX_BYTES >> 20} MB, too many for Redis: put the file where all hosts see it"
        )


def lay_out(folder: Path, use: BlobUse, key: str, fetch: Callable[[], bytes]) -> None:
    """Make the bytes of a key the newest version of a blob in a topology's folder on this host; the
    version before stays.

    WorkerFailedError for an archive that is damaged, too large, or leads out of its folder.
    """
    if not key.isalnum():
        raise StoreInconsistentError(f"{show(key)} is no blob key")
    versions = folder / _VERSIONS
    versions.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{key}.unpacked" if use.unpacks else key
    if not (versions / name).exists():
        data = fetch()
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=versions))
        try:
            if use.unpacks:
                unpack(f"blob {use.name}", data, fresh / "content")
            else:
                (fresh / "content").write_bytes(data)
            with contextlib.suppress(OSError):  # another slot of this host was faster
                (fresh / "content").rename(versions / name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    link = folder / use.local_name
    former = os.readlink(link) if link.is_symlink() else ""
    target = f"{_VERSIONS}/{name}"
    if former == target:
        return
    fresh_link = folder / f".{use.local_name}.{os.getpid()}.{key[:8]}"
    fresh_link.unlink(missing_ok=True)
    fresh_link.symlink_to(target)
    os.replace(fresh_link, link)
    _prune(folder, {former, target})


def _prune(folder: Path, kept_paths: set[str]) -> None:
    """Delete versions that no link names, but for these: user code with a path of the version
    before may go on with it.
    """
    kept_paths |= {os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()}
    for version in (folder / _VERSIONS).iterdir():
        if f"{_VERSIONS}/{version.name}" in kept_paths or version.name.startswith("new-"):
            continue
        if version.is_dir():
            shutil.rmtree(version, ignore_errors=True)
        else:
            version.unlink(missing_ok=True)
