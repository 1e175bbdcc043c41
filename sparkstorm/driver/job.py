"""Command line of a job (`spark-submit jobs/run_topology.py`); mistakes show before Spark
starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sparkstorm.client.submission import prepare
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.contexts import VARIABLE
from sparkstorm.driver.console import RunConsole, is_wanted
from sparkstorm.driver.exit_status import guarded
from sparkstorm.driver.job_file import make_topology, read_job, topology_conf
from sparkstorm.driver.job_options import add_options
from sparkstorm.driver.remote_run import run_remotely
from sparkstorm.driver.run import Run

EXITS = "exit status: 0 all done, 1 failed, 3 done but tuples were parked, 4 done but Redis had lost data, 130 stopped from outside"


def main(arguments: Sequence[str]) -> int:
    """Run a job; the result is the process's exit status, as `--help` explains it."""
    parser = argparse.ArgumentParser(
        prog="run_topology.py",
        description="Run a topology: on a standing cluster, or on one of its own on Spark.",
        epilog=EXITS,
    )
    add_options(parser)
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help=f"submit to the cluster of this connection file (or of {VARIABLE})",
    )
    options = parser.parse_args(list(arguments))
    named = "" if options.cluster else os.environ.get(VARIABLE, "")
    options.cluster = options.cluster or named
    note = f"{VARIABLE} is set: the job goes to the cluster of {named}" if named else ""
    return guarded(lambda: perform(options, note))


def main_of_run(arguments: Sequence[str]) -> int:
    """Run a job on its own cluster, as the verb `run` promises, whatever the environment names
    for other verbs.
    """
    parser = argparse.ArgumentParser(prog="sparkstorm run", epilog=EXITS)
    add_options(parser)
    options = parser.parse_args(list(arguments))
    options.cluster = ""
    if options.detach:
        words = f"sparkstorm submit {options.conf} --detach"
        text = f"--detach needs a standing cluster, and `run` has one of its own: {words}"
        return guarded(lambda: _refuse(text))
    note = (
        f"{VARIABLE} does not matter to `run`, which has a cluster of its own; `sparkstorm submit` "
        "goes to the one that it names"
        if os.environ.get(VARIABLE)
        else ""
    )
    return guarded(lambda: perform(options, note))


def _refuse(text: str) -> int:
    raise InvalidConfigError(text)


def perform(options: argparse.Namespace, note: str = "") -> int:
    """Run the job of parsed options, on the cluster that they name, else on one of its own; `note`
    is its first line.
    """
    job = read_job(options)
    topology, by_value = make_topology(job)
    # what Nimbus would refuse needs no Spark
    prepare(job.name, job.name, topology, topology_conf(job), job.conf.as_dict())
    cluster = options.cluster
    is_json = getattr(options, "output", "") == "json"
    console = RunConsole(sys.stderr if is_json else None)
    if note:
        console.say(note)
    run = Run(
        job,
        topology,
        by_value,
        options.fresh,
        console,
        is_shared=bool(cluster),
        confirm=lambda question: options.yes or is_wanted(question),
    )
    if cluster:
        return run_remotely(run, job, cluster, options.detach, is_json)
    if options.detach:
        raise InvalidConfigError(
            f"--detach needs a standing cluster: give --cluster FILE or set {VARIABLE}"
        )
    from sparkstorm.driver.own_cluster import run_in_own_cluster

    return run_in_own_cluster(run, job)


if __name__ == "__main__":
    sys.exit(main_of_run(sys.argv[1:]))
