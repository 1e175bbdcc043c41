"""A cluster of a run's own: started for one job, stopped after it; signals, and the end of Spark
under it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.common.model import compiled
from sparkstorm.common.spark_versions import is_java_ending
from sparkstorm.common.stores.addresses import not_configured
from sparkstorm.driver.cluster import Cluster
from sparkstorm.driver.exit_status import DATA_LOST, FAILED, INTERRUPTED, OK, PARKED, leave
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.run import Run, Signals, StoppedError


def run_in_own_cluster(run: Run, job: JobFile) -> int:
    """Start a cluster for this run alone; Ctrl-C and SIGTERM drain and stop it, a second one ends
    it at once.
    """
    run.console.say(starting_text(f"topology '{job.name}'", not_configured(job.conf)))
    if compiled.core is None:  # slower than the compiled core, whose use needs no line
        run.console.say(f"row path: {compiled.description}")
    with Signals(lambda: interrupt(run)), spark_may_end(lambda: run.has_begun):
        try:
            with Cluster.open(job.conf, say=run.console.say) as cluster:
                status = run.on(
                    cluster,
                    lambda: check_spark(cluster),
                    cluster.log_dir if cluster.has_logs_here else None,
                )
                is_over = status in (OK, PARKED, DATA_LOST) and run.is_all_kept
                is_last = is_over and not run.patiently(cluster.state.topology_ids)
        except StoppedError:
            run.console.say("stopped while starting; no run was begun or changed")
            return INTERRUPTED
    if is_last:  # an unfinished run of another name may need the data
        cluster.stores.discard()
    return status


def interrupt(run: Run) -> None:
    """Stop at Ctrl-C: let sources rest and finish what is under way; at the second, end the process."""
    if run.stop.is_set():
        run.console.say("stopped at once; the same command goes on from the last commit")
        leave(INTERRUPTED)
    run.stop.set()
    if not run.has_begun:
        run.console.say(
            "stopping: nothing has begun yet; Spark and the servers are ended (again to stop at once) ..."
        )
        raise StoppedError
    run.console.say(
        "stopping: sources rest, what is under way is finished (again to stop at once) ..."
    )


def starting_text(what: str, own: list[str]) -> str:
    """Return the names of the parts that are started: Spark, and the servers without a configured
    address.
    """
    names = {"redis": "Redis", "zookeeper": "ZooKeeper"}
    *first, last = ["Spark", *(names[name] for name in own)]
    started = f"{', '.join(first)} and {last}" if first else last
    given = " and ".join(said for name, said in names.items() if name not in own)
    return f"starting {started} for {what}{f' on your {given}' if given else ''} ..."


def check_spark(cluster: Cluster) -> None:
    """Stop like a killed driver: without Spark there are no slots, and nothing here can end in an
    orderly way.
    """
    try:
        cluster.check_spark()
    except SlotsUnavailableError as error:
        with contextlib.suppress(OSError):  # our output went through the JVM that is gone
            print(
                f"{error}; the same command goes on from the last commit",
                file=sys.stderr,
                flush=True,
            )
        leave(FAILED)


@contextlib.contextmanager
def spark_may_end(has_begun: Callable[[], bool]) -> Iterator[None]:
    """Turn what a call raises because spark-submit's JVM ended, our parent, into one sentence.

    A service manager sends its SIGTERM to that JVM, not to this process.
    """
    parent = os.getppid()
    try:
        yield
    except Exception as error:
        if not _is_jvm_gone(parent):
            raise
        rest = (
            "; the same command goes on from the last commit"
            if has_begun()
            else " while the run was starting"
        )
        raise SlotsUnavailableError(f"Spark was ended from outside{rest}") from error


def _is_jvm_gone(parent: int) -> bool:
    """Return whether the JVM has ended or shuts down: it is no longer our parent, or its Spark
    context has been stopped.
    """
    if os.getppid() != parent:
        return True
    try:
        return is_java_ending()
    except Exception:  # py4j has several errors for a JVM that does not answer
        return True
