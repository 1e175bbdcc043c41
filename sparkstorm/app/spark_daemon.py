"""Spark's Python daemon with a slot's modules loaded before it forks (spark.python.daemon.module).

Spark's own daemon imports nothing first, so that every new slot process spends its first half second of CPU on imports,
and several seconds on a busy machine. A worker's modules are for the slot's first worker, which it forks. The modules named here
start no threads of Python when they are imported, which a process that forks must not have; those of numpy's BLAS end at a fork
and start again when they are needed.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import sparkstorm.supervisor.slot_main
import sparkstorm.worker.loop  # noqa: F401

if __name__ == "__main__":
    manager()
