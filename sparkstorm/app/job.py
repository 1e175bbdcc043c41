"""Owns the command line of a job: what `spark-submit jobs/run_topology.py` does; mistakes show before Spark starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.app.job_file import JobFile, make_topology, read_job_file
from sparkstorm.client.connect import VARIABLE
from sparkstorm.config import inert_among, parse_override
from sparkstorm.embedded.passwords import exposed
from sparkstorm.errors import InvalidConfigError, SparkStormError
from sparkstorm.nimbus.submission import prepare

OK, FAILED, PARKED, INTERRUPTED = 0, 1, 3, 130
EXITS = "exit status: 0 all done, 1 failed, 3 done but tuples were parked, 130 stopped from outside"


def main(arguments: Sequence[str], prog: str = "run_topology.py") -> int:
    """Run a job; the result is the process's exit status, as `--help` explains it."""
    options = _parse(arguments, prog)
    try:
        overrides = dict(parse_override(c) for c in options.c)
        if options.from_checkpoint:
            overrides["topology.from.checkpoint"] = options.from_checkpoint
        job = read_job_file(options.conf, overrides, options.name, options.input)
        say_exposed(overrides, job.own_conf, options.conf)
        for key in inert_among(job.own_conf):
            print(f"note: {key} is accepted but changes nothing in this version", flush=True)
        return _run(job, options)
    except SparkStormError as error:
        sys.stdout.flush()
        print(f"{title(error)}: {error}", file=sys.stderr, flush=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a fault of ours: say so, with all that helps to find it
        traceback.print_exc()
        print(f"SparkStorm failed unexpectedly, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED


def say_exposed(overrides: Mapping[str, Any], own_conf: Mapping[str, Any], path: str) -> None:
    """Warn of passwords that other users of this machine can read."""
    for sentence in exposed(overrides, own_conf, path):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


def leave(status: int) -> None:
    """End the process at once, threads of Spark's or the user's notwithstanding."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it is gone
            stream.flush()
    os._exit(status)


def _run(job: JobFile, options: argparse.Namespace) -> int:
    from sparkstorm.app.run import Run, own_conf

    topology, by_value = make_topology(job)
    prepare(job.name, job.name, topology, own_conf(job), job.conf.as_dict())  # what Nimbus would refuse needs no Spark
    cluster = options.cluster or os.environ.get(VARIABLE)
    run = Run(job, topology, by_value, options.fresh, is_shared=bool(cluster))
    if cluster:
        from sparkstorm.app.remote_run import run_remotely

        return run_remotely(run, job, cluster, options.detach)
    if options.detach:
        raise InvalidConfigError(f"--detach needs a cluster that stands: give --cluster FILE or set {VARIABLE}")
    from sparkstorm.app.own_cluster import run_in_own_cluster

    return run_in_own_cluster(run, job)


def title(error: SparkStormError) -> str:
    """InvalidConfigError: Invalid config."""
    name = type(error).__name__.removesuffix("Error")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return words.capitalize()


def _parse(arguments: Sequence[str], prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog, description="Run a topology: on a cluster that stands, or on one of its own on Spark.", epilog=EXITS
    )
    parser.add_argument("conf", metavar="CONF.yaml", help="the job file: topology, parallelism, topology.* keys")
    parser.add_argument("--input", nargs="+", default=[], metavar="PATH", help="files or folders, the factory's `input`")
    parser.add_argument("-c", action="append", default=[], metavar="KEY=VALUE", help="override one configuration key")
    parser.add_argument("--name", help="name of the topology")
    parser.add_argument(
        "--from",
        dest="from_checkpoint",
        metavar="CHECKPOINT",
        help="begin with what a replay of the history left (replay_history.py --checkpoint)",
    )
    parser.add_argument("--fresh", action="store_true", help="drop an unfinished run of this name first")
    parser.add_argument(
        "--cluster",
        metavar="CONNECTION",
        help=f"submit to the cluster of this connection file, without starting Spark; else the variable {VARIABLE} names it",
    )
    parser.add_argument("--detach", action="store_true", help="with a cluster: end as soon as the topology is assigned")
    return parser.parse_args(list(arguments))
