"""Verbs about jobs: submit and update from a job file, follow, and the cluster that they run on."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.cli.common import EXITS, OK, add_topology_verb, add_verb, opened, say, steps
from sparkstorm.errors import SlotsUnavailableError

_JOB_EXITS = f"{EXITS}, 3 done but tuples were parked"


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    from sparkstorm.app.job import add_options

    verb = add_verb(verbs, "submit", submit, "submit the topology of a job file and follow it", epilog=_JOB_EXITS)
    add_options(verb)
    verb = verbs.add_parser("run", help="run a job file on a cluster of its own", description=run.__doc__, epilog=_JOB_EXITS)
    add_options(verb)
    _add_spark_options(verb)
    verb.set_defaults(run=run)
    verb = add_verb(verbs, "update", update, "replace a running topology's code by that of a job file")
    verb.add_argument("conf", metavar="CONF.yaml", help="the job file")
    verb.add_argument("--input", nargs="+", default=[], metavar="PATH", help="files or folders, the factory's `input`")
    verb.add_argument("-c", action="append", default=[], metavar="KEY=VALUE", help="override one configuration key")
    verb.add_argument("--name", help="name of the topology")
    verb = add_topology_verb(verbs, "follow", follow, "watch a topology until its sources are drained", epilog=_JOB_EXITS)
    verb = verbs.add_parser("cluster", help="hold a cluster on Spark until stopped", description=cluster.__doc__)
    verb.add_argument("conf", nargs="?", metavar="CONF.yaml", help="configuration of the cluster")
    verb.add_argument("-c", action="append", default=[], metavar="KEY=VALUE", help="override one configuration key")
    _add_spark_options(verb)
    verb.set_defaults(run=cluster)


def _add_spark_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--master", help="Spark's master (default: as spark-submit is configured, else this machine)")
    verb.add_argument("--spark", action="append", default=[], metavar="KEY=VALUE", help="one setting of Spark's")


def submit(arguments: argparse.Namespace) -> int:
    """Submit the topology of a job file to a standing cluster, and follow it to its end, results included."""
    from sparkstorm.app.job import perform
    from sparkstorm.client.connect import require_named

    require_named(arguments.cluster)
    return perform(arguments)


def update(arguments: argparse.Namespace) -> int:
    """Replace the code of a running topology; with the same components and tasks it goes on with its streams and states."""
    from sparkstorm.app.job import read_job
    from sparkstorm.app.job_file import make_topology, topology_conf

    job = read_job(arguments)
    topology, by_value = make_topology(job)
    with opened(arguments, writes=True) as found:
        former = found.topology(job.name)
        handle = former.update(topology, topology_conf(job), by_value, steps(arguments))
    record = {"topology_id": handle.topology_id, "replaces": former.topology_id}
    say(arguments, f"{handle.topology_id} goes on in place of {former.topology_id}", record)
    return OK


def follow(arguments: argparse.Namespace) -> int:
    """Watch a topology until its sources are drained; Ctrl-C leaves it to the cluster."""
    from sparkstorm.app.remote_run import follow as follow_topology

    with opened(arguments) as found:
        return follow_topology(found, arguments.name, arguments.json)


def cluster(arguments: argparse.Namespace) -> int:
    """Hold a cluster until Ctrl-C: Nimbus and the slots on Spark; other processes submit topologies to it."""
    own = [arguments.conf] if arguments.conf else []
    return _become_driver(arguments, "sparkstorm.app.standing", [*own, *_overrides(arguments)])


def run(arguments: argparse.Namespace) -> int:
    """Run a job on a cluster of its own, which ends with it; Redis and ZooKeeper are embedded unless addresses are configured."""
    words = [arguments.conf, *_overrides(arguments)]
    for name, value in (("--name", arguments.name), ("--from", arguments.from_checkpoint)):
        words += [name, value] if value else []
    words += ["--fresh"] if arguments.fresh else []
    words += ["--detach"] if arguments.detach else []
    for name, values in (("--input", arguments.input), ("--files", arguments.files), ("--archives", arguments.archives)):
        words += [name, *values] if values else []
    return _become_driver(arguments, "sparkstorm.app.job", words)


def _overrides(arguments: argparse.Namespace) -> list[str]:
    return [word for each in arguments.c for word in ("-c", each)]


def _become_driver(arguments: argparse.Namespace, module: str, words: Sequence[str]) -> int:
    """Replace this process by a driver; SlotsUnavailableError when there is no Spark to host it."""
    from sparkstorm.embedded.java import find_java

    if importlib.util.find_spec("pyspark") is None:
        raise SlotsUnavailableError("a cluster runs on Spark, and this Python has no pyspark: pip install pyspark")
    environment = cluster_environment(arguments, os.environ, sys.executable, Path(find_java()).resolve().parent.parent)
    command = [sys.executable, "-m", module, *words]
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def cluster_environment(
    arguments: argparse.Namespace, environment: Mapping[str, str], python: str, java_home: Path
) -> dict[str, str]:
    """Return the environment of the cluster's driver: this Python, a Java that is new enough, the options of spark-submit."""
    folders = [str(Path(python).parent), *environment.get("PATH", os.defpath).split(os.pathsep)]
    options = ["--master", arguments.master] if arguments.master else []
    for setting in arguments.spark:
        options += ["--conf", setting]
    submit = {"PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"])} if options else {}
    # keeps Spark's own log, and a warning of the JVM's, out of sight; a Spark of the user's has a folder of its own
    quiet = {} if "SPARK_HOME" in environment else {"SPARK_CONF_DIR": str(Path(__file__).parents[1] / "app" / "spark_conf")}
    return {
        **quiet,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **environment,
        "JAVA_HOME": str(java_home),
        "PATH": os.pathsep.join(dict.fromkeys(folders)),
        **submit,
    }
