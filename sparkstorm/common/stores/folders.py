"""Folders that SparkStorm makes for its own data: marked when made, and deleted only while they
carry that mark.

Left out: to delete what is below storm.local.dir because it is ours by its path: users set that to
folders of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from sparkstorm.common.errors import InvalidConfigError

# A file and no list of folders elsewhere: a list is wrong about a folder that was copied or mounted
# anew. A topology named ".." once made storm.local.dir its parent, whose files would have been
# deleted.
MARKER = ".sparkstorm"
_TEXT = b"SparkStorm made this folder and may delete it with all that is in it.\n"


def own_folder(path: Path) -> Path:
    """Make a folder (mode 0700) with its marker, or take one that has the marker or is empty;
    return its absolute path.

    Raises InvalidConfigError when files are in it that SparkStorm did not write, or when it cannot
    be made. Several processes may do this at the same time: the marker is the first entry.
    """
    path = Path(path).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _has_marker(path):
            _mark(path)
    except OSError as error:
        raise InvalidConfigError(
            f"folder {path} cannot be made: {error.strerror}; set storm.local.dir to a folder that can be written"
        ) from error
    return path


def discard_folder(path: Path) -> bool:
    """Delete a folder that `own_folder` made, with all that is in it; False when it is not one, and
    then nothing is done.

    A symbolic link to a folder is not one: the run uses what it leads to, but SparkStorm has not
    made that.
    """
    if path.is_symlink() or not _has_marker(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


def _has_marker(path: Path) -> bool:
    try:
        # A link could point to the marker of another folder.
        return stat.S_ISREG(os.lstat(path / MARKER).st_mode)
    except OSError:
        return False


def _mark(path: Path) -> None:
    # another process may have marked it just now
    if any(name != MARKER for name in os.listdir(path)) and not _has_marker(path):
        raise InvalidConfigError(
            f"{path} holds files that SparkStorm did not write (it has no file {MARKER}); "
            "set storm.local.dir to a folder of SparkStorm's own, or empty this one"
        )
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(
            path / MARKER,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(_TEXT)
