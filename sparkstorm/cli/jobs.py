"""Verbs about jobs: submit and update from a job file, follow, and the cluster that they run on."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.cli.cluster_verbs import opened
from sparkstorm.cli.common import (
    EXITS,
    OK,
    Verb,
    add_job_options,
    add_topology_verb,
    add_verb,
    is_for_programs,
    say,
    steps,
)
from sparkstorm.client.connect import require_named
from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.driver.job import perform
from sparkstorm.driver.job_file import make_topology, read_job, topology_conf
from sparkstorm.driver.job_options import add_cluster_options, add_dev_options, add_options
from sparkstorm.driver.machine_checks import settings_of_file
from sparkstorm.driver.remote_run import follow as follow_topology
from sparkstorm.driver.replay import options as of_replay
from sparkstorm.extensions.embedded.java import find_java

_JOB_EXITS = f"{EXITS}, 3 done but tuples were parked, 4 done but Redis had lost data"


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    add_options(add_verb(verbs, "submit", submit, epilog=_JOB_EXITS))
    _add_driver(verbs, "run", run, add_options, _JOB_EXITS)
    _add_driver(verbs, "replay", replay, of_replay.add_options, of_replay.EXITS)
    verb = add_verb(verbs, "update", update)
    verb.add_argument("conf", metavar="CONF.yaml", help="the job file")
    add_job_options(verb)
    add_topology_verb(verbs, "follow", follow, epilog=_JOB_EXITS)
    _add_driver(verbs, "cluster", cluster, add_cluster_options)
    _add_driver(verbs, "dev", dev, add_dev_options)


def _add_driver(
    verbs: Any,
    name: str,
    run: Verb,
    add_own: Callable[[argparse.ArgumentParser], None],
    epilog: str | None = None,
) -> None:
    """Add a verb that becomes a Spark driver: with options of its own, then Spark's."""
    verb = verbs.add_parser(name, description=run.__doc__, epilog=epilog)
    add_own(verb)
    verb.set_defaults(run=run, own=verb._actions[1:])  # without --help
    verb.add_argument(
        "--master",
        help="Spark's master (default: as spark-submit is configured, else this machine)",
    )
    verb.add_argument(
        "--spark", action="append", default=[], metavar="KEY=VALUE", help="one setting of Spark's"
    )


def submit(arguments: argparse.Namespace) -> int:
    """Submit the topology of a job file to a standing cluster, and follow it to its end, results
    included.
    """

    arguments.cluster = require_named(arguments.cluster)
    return perform(arguments)


def update(arguments: argparse.Namespace) -> int:
    """Replace the code of a running topology; with the same components and tasks it goes on with
    its streams and states.
    """

    job = read_job(arguments)
    topology, by_value = make_topology(job)
    with opened(arguments, writes=True) as client:
        former = client.topology(job.name)
        handle = former.update(topology, topology_conf(job), by_value, steps(arguments))
    record = {"topology_id": handle.topology_id, "replaces": former.topology_id}
    say(arguments, f"{handle.topology_id} goes on in place of {former.topology_id}", record)
    return OK


def follow(arguments: argparse.Namespace) -> int:
    """Watch a topology until its sources are drained; Ctrl-C leaves it to the cluster."""
    with opened(arguments) as client:
        return follow_topology(client, arguments.name, is_for_programs(arguments))


def cluster(arguments: argparse.Namespace) -> int:
    """Hold a cluster until Ctrl-C: Nimbus and the slots on Spark; other processes submit topologies
    to it.
    """
    return _become_driver(arguments, "sparkstorm.driver.standing")


def dev(arguments: argparse.Namespace) -> int:
    """Hold a cluster until Ctrl-C with its web UI, and next to it Kafka, PostgreSQL and an object
    store with sample data.
    """
    return _become_driver(arguments, "sparkstorm.cli.dev")


def run(arguments: argparse.Namespace) -> int:
    """Run a job on its own cluster, which ends with it; Redis and ZooKeeper are embedded
    unless addresses are configured.
    """
    return _become_driver(arguments, "sparkstorm.driver.job")


def replay(arguments: argparse.Namespace) -> int:
    """Replay a job's topology over history, as a Spark batch; with --checkpoint a live run goes on
    from its end.
    """
    return _become_driver(arguments, "sparkstorm.driver.replay.job")


def _words(arguments: argparse.Namespace, actions: Sequence[argparse.Action]) -> list[str]:
    """Return the parsed values of options as the words of a command line."""
    words: list[str] = []
    for action in actions:
        value = getattr(arguments, action.dest)
        if value in (None, False, []):
            continue
        values = value if isinstance(value, list) else [] if value is True else [str(value)]
        option = action.option_strings[:1]
        if isinstance(action, argparse._AppendAction):
            words += [word for text in values for word in (*option, text)]
        else:
            words += [*option, *values]
    return words


def _become_driver(arguments: argparse.Namespace, module: str) -> int:
    """Replace this process by a driver; SlotsUnavailableError when there is no Spark to host it."""
    if (spec := importlib.util.find_spec("pyspark")) is None:
        raise SlotsUnavailableError(
            "a cluster runs on Spark, and this Python has no pyspark: pip install pyspark"
        )
    spark_home = Path(os.environ.get("SPARK_HOME") or Path(spec.origin or "").parent)
    java_home = Path(find_java()).resolve().parent.parent
    environment = cluster_environment(arguments, os.environ, sys.executable, java_home, spark_home)
    command = [sys.executable, "-m", module, *_words(arguments, arguments.own)]
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def cluster_environment(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    python: str,
    java_home: Path,
    spark_home: Path,
) -> dict[str, str]:
    """Return the environment of the cluster's driver: this Python, a Java that is new enough, the
    options of spark-submit.

    Spark's folder of settings is left as the user has it where it says something: in
    SPARK_CONF_DIR, or in `spark_home`/conf. A driver on another master than a local one keeps its
    own address, which the executors' hosts must reach.
    """
    folders = [str(Path(python).parent), *environment.get("PATH", os.defpath).split(os.pathsep)]
    options = ["--master", arguments.master] if arguments.master else []
    for setting in arguments.spark:
        options += ["--conf", setting]
    submit = {"PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"])} if options else {}
    defaults = (
        Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf") / "spark-defaults.conf"
    )
    # keeps Spark's own log, and a warning of the JVM's, out of sight
    is_theirs = "SPARK_HOME" in environment or defaults.exists()
    quiet = (
        {}
        if is_theirs
        else {"SPARK_CONF_DIR": str(Path(__file__).parents[1] / "driver" / "spark_conf")}
    )
    loopback = (
        {"SPARK_LOCAL_IP": "127.0.0.1"} if _master(arguments, defaults).startswith("local") else {}
    )
    return {
        **quiet,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        **loopback,
        **environment,
        "JAVA_HOME": str(java_home),
        "PATH": os.pathsep.join(dict.fromkeys(folders)),
        **submit,
    }


def _master(arguments: argparse.Namespace, defaults: Path) -> str:
    """Return the master that Spark will use: of --master, of --spark spark.master=..., of
    spark-defaults.conf, else local.
    """
    given = [arguments.master] if arguments.master else []
    given += [
        value
        for key, _, value in (setting.partition("=") for setting in arguments.spark)
        if key.strip() == "spark.master"
    ]
    given += [value for key, value, _ in settings_of_file(defaults) if key == "spark.master"]
    return str(given[0]).strip() if given else "local"
