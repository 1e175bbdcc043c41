"""Parts of all verbs that ask a running cluster: connection, read model (`sampled`), and --watch.

Apart from `common.py`, which verbs without a cluster import too: they pay for no client of a store
(decision 68).
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sparkstorm.cli import terminal
from sparkstorm.cli.common import Verb, add_verb, at_least
from sparkstorm.client import ClusterClient, connect
from sparkstorm.control_plane.insight.records import TopologyReport
from sparkstorm.control_plane.insight.sampler import Sampler


def add_watched_verb(verbs: Any, name: str, run: Verb, **options: Any) -> argparse.ArgumentParser:
    """Add a verb that only looks: in all formats, and with --watch, which shows it again and
    again.
    """
    verb = add_verb(verbs, name, run, is_listing=True, **options)
    verb.add_argument(
        "--watch",
        nargs="?",
        const=2.0,
        type=at_least(0.2, float),
        metavar="SECONDS",
        help="show it again every 2 s, or every SECONDS, until Ctrl-C",
    )
    verb.set_defaults(run=partial(_watched, run))
    return verb


def _watched(run: Verb, arguments: argparse.Namespace) -> int:
    """Run a verb once, or again and again over one connection; on a terminal each time in place of
    the last.
    """
    if arguments.watch is None:
        return run(arguments)
    with connect(arguments.cluster) as cluster:
        arguments.held_cluster = cluster
        arguments.held_samplers = {}
        while True:
            with terminal.page():
                run(arguments)
            time.sleep(arguments.watch)


def opened(
    arguments: argparse.Namespace, writes: bool = False
) -> AbstractContextManager[ClusterClient]:
    """Connect to the cluster that the arguments name; ReadOnlyConnectionError when the verb writes
    and may not.
    """
    held: ClusterClient | None = getattr(arguments, "held_cluster", None)
    if held is not None:  # of --watch, which asks again and again
        return nullcontext(held)
    cluster = connect(arguments.cluster)
    if writes and cluster.is_read_only:
        cluster.close()
        cluster.require_writer()
    return cluster


def sampled(
    arguments: argparse.Namespace, cluster: ClusterClient, name: str | None = None
) -> Sampler:
    """Return the read model of a cluster, or of one topology of it, which has read the stores just
    now; --watch has one for all.
    """
    only = None if name is None else cluster.topology(name).topology_id
    held: dict[str | None, Sampler] = getattr(arguments, "held_samplers", {})
    if only not in held:
        seconds = 60 * getattr(arguments, "minutes", 10)
        held[only] = Sampler(cluster.source(only, is_lasting=False, seconds=seconds))
    held[only].step()
    held[only].cluster()  # or the stores have not answered yet
    return held[only]


def sampled_topology(arguments: argparse.Namespace, cluster: ClusterClient) -> TopologyReport:
    """Return the records of the topology that the arguments name, read just now."""
    return sampled(arguments, cluster, arguments.name).topology(arguments.name)
