"""Upgrade of Spark under load: topologies go on while their cluster's drivers, first of one PySpark,
are replaced in turn by drivers of another.

`python -m tests.system.spark_upgrade PYTHON`, where PYTHON is the interpreter of an environment with
the older PySpark (`make matrix ARGS='"pyspark 4.1.4"'` makes one below `.matrix/`).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sparkstorm.client import connect
from tests.system.test_spare_driver import Drivers
from tests.system.test_standing_cluster import versions_of_exact_counts

NAMES = ("alpha", "beta")


def pyspark_of(python: str) -> str:
    """Return the version of PySpark that an interpreter has."""
    command = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def upgrade(drivers: Drivers, old: str, new: str) -> list[str]:
    """Replace a driver of the PySpark of `old` by two of `new`; return what took how long.

    AssertionError unless the counts are exact.
    """
    said = []
    drivers.start("one", old)
    drivers.wait_up("one")
    for name in NAMES:
        drivers.run("submit", f"{name}.yaml", "--detach")
    with connect(drivers.connection) as cluster:
        handles = [cluster.topology(name) for name in NAMES]

        def wait_at_work() -> float:
            began = time.monotonic()
            acked = [each.progress().acked for each in handles]
            drivers.wait(
                lambda: all(
                    h.progress().acked > a + 20 for h, a in zip(handles, acked, strict=True)
                ),
                "the work of both",
            )
            return time.monotonic() - began

        wait_at_work()
        drivers.start("two", new)
        drivers.wait_up("two")
        drivers.wait(lambda: len(cluster.drivers()) == 2, "the spare driver")
        drivers.processes["one"].send_signal(signal.SIGINT)
        began = time.monotonic()
        drivers.processes["one"].wait(240)
        drivers.wait(
            lambda: all(slot.node.endswith("@2") for each in handles for slot in each.slots()),
            "all workers on the spare driver's slots",
        )
        wait_at_work()
        said.append(f"at work on the spare driver's slots {time.monotonic() - began:.1f} s after")
        drivers.start("one", new)
        drivers.wait_up("one", times=2)
        said.append(f"at work beside the third driver after {wait_at_work():.1f} s")
        for handle in handles:
            (drivers.folder / f"gate-{handle.name}").touch()
            drivers.run("follow", handle.name)
            found = versions_of_exact_counts(handle, drivers.folder)
            assert found == {"$v1"}, f"{handle.name}: {found}"
    return said


def main(arguments: Sequence[str]) -> int:
    """Run it once and print the times."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.spark_upgrade", description=__doc__
    )
    parser.add_argument("python", help="interpreter of an environment with the older PySpark")
    old = parser.parse_args(arguments).python
    # The older environment has no SparkStorm of its own
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    print(f"PySpark {pyspark_of(old)} to {pyspark_of(sys.executable)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sparkstorm-upgrade-") as folder:
        drivers = Drivers(Path(folder))
        try:
            print("\n".join([*upgrade(drivers, old, sys.executable), "all counts exact"]))
        finally:
            drivers.stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
