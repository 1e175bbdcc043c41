"""Local modules of a topology's code in a replay: packed on the driver, made importable in Spark's Python workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext

from sparkstorm.blobs.attachments import read_attachments
from sparkstorm.blobs.local_modules import named_in, pack_sources, remove_sources
from sparkstorm.blobs.topology_code import classes_in, modules_of, pack_topology
from sparkstorm.model.topology import Topology
from sparkstorm.model.values.value_types import top_module
from sparkstorm.settings import FileSettings

_PREFIX = "sparkstorm-modules-"


def pack_with_modules(topology: Topology, by_value: Iterable[str], conf: Mapping[str, Any]) -> bytes:
    """Pack a topology, these modules by value, as sources all local modules that its code names or imports, and its files."""
    modules = sorted({*by_value, *modules_of(topology)})
    named = {*named_in(pack_topology(topology, modules)), *map(top_module, classes_in(topology, conf))}
    sent = FileSettings.of(conf)
    attachments = read_attachments(sent.files, sent.archives)
    return pack_topology(topology, modules, pack_sources(sorted({*modules, *named})), attachments)


def modules_file(key: str) -> Path | None:
    """Return where this Python worker is to put the modules of a topology; None on the driver, or if they are there already.

    A worker runs tasks of many replays: the modules of the last one are forgotten, since the driver's may have changed.
    """
    if TaskContext.get() is None:
        return None
    file = Path(SparkFiles.getRootDirectory()) / f"{_PREFIX}{key[:32]}-{os.getpid()}.zip"
    former = [path for path in sys.path if Path(path).name.startswith(_PREFIX)]
    if str(file) in former:
        return None
    for path in former:
        remove_sources(Path(path))
    return file
