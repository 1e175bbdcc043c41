"""Local modules of a topology's code in a replay: packed on the driver, made importable in Spark's Python workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext

from sparkstorm.blobs.attachments import read_attachments
from sparkstorm.blobs.local_modules import local_spec, pack_sources, remove_sources
from sparkstorm.blobs.topology_code import modules_by_value, pack_topology
from sparkstorm.model.topology import Topology
from sparkstorm.settings import FileSettings

_PREFIX = "sparkstorm-modules-"
_SHORT_TEXT = b"\x8c"  # pickle's opcode before a text of less than 256 bytes


def names_by_value(topology: Topology) -> set[str]:
    """Return the top-level modules of the components' classes that executors will not find installed."""
    modules = [sys.modules.get(type(component.instance).__module__) for component in topology]
    return {name for module in modules if module is not None and module.__name__ != "__main__" for name in modules_by_value(module)}


def pack_with_modules(topology: Topology, by_value: Iterable[str], conf: Mapping[str, Any]) -> bytes:
    """Pack a topology, these modules by value, as sources all local modules that its code names or imports, and its files."""
    modules = sorted({*by_value, *names_by_value(topology)})
    named = _named_in(pack_topology(topology, modules))
    sent = FileSettings.of(conf)
    attachments = read_attachments(sent.files, sent.archives)
    return pack_topology(topology, modules, pack_sources(sorted({*modules, *named})), attachments)


def _named_in(code: bytes) -> Iterator[str]:
    """Yield local top-level modules that a pickle names: those of functions in attributes, and of a script's own imports."""
    for name in list(sys.modules):
        encoded, top = name.encode(), name.partition(".")[0]
        if len(encoded) < 256 and _SHORT_TEXT + bytes([len(encoded)]) + encoded in code and local_spec(top) is not None:
            yield top


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
