"""The daemon from which Spark forks slots on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
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


def test_it_leaves_the_archives_of_an_installed_pyspark_alone() -> None:
    """Spark names the archives first; every fork would read their directories again."""
    libraries = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [str(path) for path in libraries.glob("*.zip")]
    assert any(path.endswith("pyspark.zip") for path in archives)
    look = f"import sys, {SLOT_DAEMON}, pyspark; print(pyspark.__file__, *sys.path, *sys.path_importer_cache)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*archives, os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, env=environ).stdout
    assert not any(archive in found for archive in archives)
