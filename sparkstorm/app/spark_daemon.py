"""Spark's Python daemon with a slot's modules loaded before it forks (spark.python.daemon.module).

Spark's own daemon imports nothing first, so that every new slot process spends its first half second of CPU on imports,
and several seconds on a busy machine. A worker's modules are for the slot's first worker, which it forks. The modules named here
start no threads of Python when they are imported, which a process that forks must not have; those of numpy's BLAS end at a fork
and start again when they are needed.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path


def _leave_archives() -> None:
    """Import pyspark and py4j from the folder that pip installed instead of from the archives that it holds.

    The archives have no compiled modules, and each forked process would read their directories again, once per package
    (`importlib.invalidate_caches` in pyspark's worker): 0.4 s of CPU per daemon and 0.17 s per slot.
    """
    found = [path for path in sys.path if Path(path).name == "pyspark.zip"]
    for archive in found:
        package = Path(archive).parents[2]
        if package.name == "pyspark" and (package / "__init__.py").exists() and (package.parent / "py4j").exists():
            libraries = package / "python" / "lib"
            sys.path[:] = [path for path in sys.path if Path(path).parent != libraries]
            if str(package.parent) not in sys.path:
                sys.path.append(str(package.parent))
            for path in [path for path in sys.path_importer_cache if path.startswith(str(libraries))]:
                del sys.path_importer_cache[path]


gc.disable()  # nothing that is imported is garbage
_leave_archives()

import pyspark.worker  # noqa: E402,F401
from pyspark.daemon import manager  # noqa: E402

import sparkstorm.supervisor.slot_main  # noqa: E402
import sparkstorm.worker.loop  # noqa: E402,F401

gc.freeze()  # forks share these pages as long as the collector does not touch them
gc.enable()

if __name__ == "__main__":
    manager()
