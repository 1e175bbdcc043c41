"""Compiled twins of the kernels: made by numba where it is installed, cached in a folder of the own user.

Importing numba and loading cached code takes a few tenths of a second, compiling some seconds: a worker starts with the
plain twin and lets its ledgers `adopt` these when they are ready.
"""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sparkstorm.acking import kernels as plain

_CALLED = (plain.home_of, plain.place_of, plain.apply_rows, plain.settle_rows)


class Kernels(NamedTuple):
    """The entry points that a ledger calls, compiled."""

    is_legal: Callable[..., bool]
    apply_batch: Callable[..., int]
    collect_changes: Callable[..., int]


def load_kernels(cache_dir: Path | None = None) -> Kernels | None:
    """Compiled kernels, from the cache folder when they are there; None where numba is not installed.

    Without a folder, or with one that others may write (cached code is executed), nothing is kept between processes.
    """
    try:
        numba: Any = importlib.import_module("numba")
        extending: Any = importlib.import_module("numba.extending")
    except ImportError:
        return None
    for function in _CALLED:
        extending.register_jitable(function)
    batch, apply_types, collect_types = _signatures(numba.types)
    safe_dir = cache_dir if cache_dir is not None and _is_ours_alone(cache_dir) else None
    return Kernels(
        _compile(numba, plain.is_legal, batch, safe_dir),
        _compile(numba, plain.apply_batch, apply_types, safe_dir),
        _compile(numba, plain.collect_changes, collect_types, safe_dir),
    )


def _signatures(types: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    longs, ints, bytes_ = (kind[::1] for kind in (types.int64, types.int32, types.uint8))
    column = types.Array(types.int64, 1, "C", readonly=True)  # frames are read in place
    table = (longs, longs, ints, bytes_)
    batch = (column,) * 6
    apply_types = (*table, longs, longs, longs, *batch, longs, longs, ints, types.int64, types.int64)
    return batch, apply_types, (*table, longs, types.int64, longs, longs, ints, bytes_)


def _compile(numba: Any, function: Callable[..., Any], signature: tuple[Any, ...], cache_dir: Path | None) -> Any:
    if cache_dir is None:
        return numba.njit(signature)(function)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_dir)  # read once, while the function is decorated
    try:
        return numba.njit(signature, cache=True)(function)
    except (RuntimeError, OSError):  # sources inside a zip, a full or read-only disk: do without the cache
        return numba.njit(signature)(function)
    finally:
        numba.config.CACHE_DIR = before


def _is_ours_alone(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
