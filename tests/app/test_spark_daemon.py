"""The daemon from which Spark forks slots on this machine."""

from __future__ import annotations

import subprocess
import sys

from pyspark import SparkConf

from sparkstorm.app.cluster import SLOT_DAEMON, with_slot_daemon


def test_it_has_a_slots_modules_and_no_thread_when_it_forks() -> None:
    look = (
        f"import sys, threading, {SLOT_DAEMON}; "
        "print(threading.active_count(), *({'sparkstorm.supervisor.slot_main', 'pyspark.worker'} - sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split() == ["1"]


def test_masters_on_this_machine_use_it_and_no_others() -> None:
    for master, daemon in (("local[2]", SLOT_DAEMON), ("local-cluster[2,1,1024]", SLOT_DAEMON), ("spark://head:7077", None)):
        assert with_slot_daemon(SparkConf(loadDefaults=False).setMaster(master)).get("spark.python.daemon.module") == daemon
