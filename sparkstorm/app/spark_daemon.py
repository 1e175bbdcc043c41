"""Spark's Python daemon with a slot's modules loaded before it forks (spark.python.daemon.module).

Spark's own daemon imports nothing first, so that every new slot process spends its first half second of CPU on imports,
and several seconds on a busy machine. The modules named here start no threads when they are imported, which a process
that forks must not have.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import sparkstorm.supervisor.slot_main  # noqa: F401

if __name__ == "__main__":
    manager()
