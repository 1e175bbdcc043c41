"""Order of the test files in a parallel run: those that wait, next to those that compute.

A file with a cluster in its own processes waits for half of its time. When all processes of the
run have such files at once, cores idle; when none has, files only compete for cores. So every third
process begins with the files that compute, those with Spark first, and the others with those that
wait, longest first. A process that finds none of its kind takes another, and those with Spark last.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# By their seconds in a run on two cores. A file that has Spark in the test's own process is not
# here: its JVM would be there before those of tests/replay, which set the environment of theirs.
WAITING = (
    "tests/system/test_gray_upgrade_spark.py",
    "tests/system/test_slots_spark.py",
    "tests/system/test_main_job.py",
    "tests/system/test_connectors.py",
    "tests/system/test_spare_driver.py",
    "tests/system/test_standing_cluster.py",
    "tests/system/test_nimbus_spark.py",
    "tests/sim/test_fail_over.py",
    "tests/hosts/test_hosts.py",
    "tests/system/test_growing_stores.py",
    "tests/connectors/test_kafka.py",
    "tests/system/test_project_travels.py",
    "tests/system/test_cells_of_a_cluster.py",
    "tests/system/test_results.py",
    "tests/system/test_back_fill.py",
    "tests/system/test_fail_over_spark.py",
    "tests/system/test_tls.py",
    "tests/system/test_security.py",
    "tests/nimbus/test_nimbus_system.py",
    "tests/app/test_spark_daemon.py",
)
# Three processes on two cores: with 2 here, one process had all that wait and would end last; with
# 6, cores idle as before where there are more processes.
_PROCESSES_PER_COMPUTING_ONE = 3


SPARK = (
    "tests/connectors/test_file_partitions.py",
    "tests/connectors/test_spark_frame.py",
    "tests/replay/",
    "tests/system/test_bad_input.py",
    "tests/system/test_two_stores.py",
)
"""Files that have Spark in the test's own process, or their folder. One process takes them all:
each that has some starts a JVM, which loads and compiles the same code once more.
"""


def next_file(files_left: Iterable[str], is_waiting: bool) -> str:
    """Return the file that a process takes next, of those that are left in the order of names."""
    files = list(files_left)
    waiting = [file for file in WAITING if file in files]
    spark = [file for file in files if file.startswith(SPARK)]
    computing = [file for file in files if file not in (*waiting, *spark)]
    kinds = (waiting, computing, spark) if is_waiting else (spark, computing, waiting)
    return next(kind[0] for kind in kinds if kind)


class ByKind(LoadFileScheduling):
    """xdist's `loadfile`, with the next file of each process by `next_file`."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_waiting = self.nodes.index(node) % _PROCESSES_PER_COMPUTING_ONE != 0
        self.workqueue.move_to_end(next_file(self.workqueue, is_waiting), last=False)
        super()._assign_work_unit(node)


# pytest may run without xdist
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByKind | None:
    """Return the scheduler of `--dist loadfile`; None leaves other distributions to xdist."""
    return ByKind(config, log) if config.getoption("dist") == "loadfile" else None
