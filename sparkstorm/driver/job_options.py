"""Command-line options of a job, and the one that overrides keys; imports little, since every
`sparkstorm --help` builds its parser from them.
"""

from __future__ import annotations

import argparse

from sparkstorm.common.model.names import filled


def add_overrides(
    parser: argparse.ArgumentParser, help: str = "override one configuration key"
) -> None:
    """Add the option `-c KEY=VALUE`, which may be given several times."""
    parser.add_argument("-c", action="append", default=[], metavar="KEY=VALUE", help=help)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a standing cluster to a command line."""
    parser.add_argument("conf", nargs="?", metavar="CONF.yaml", help="configuration of the cluster")
    add_overrides(parser)
    parser.add_argument(
        "--web",
        nargs="?",
        type=int,
        const=8080,
        metavar="PORT",
        help="also serve the web UI, on this port (8080)",
    )


def add_dev_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a cluster with servers for development to a command line."""
    add_overrides(parser)
    parser.add_argument(
        "--web", type=int, default=8080, metavar="PORT", help="port of the web UI (8080)"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job to a command line."""
    parser.add_argument(
        "conf",
        metavar="CONF.yaml",
        help="the job file: topology, parallelism, topology.* keys; or a Flux document",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files or folders, the factory's `input`",
    )
    add_overrides(parser)
    parser.add_argument("--name", type=filled, help="name of the topology")
    parser.add_argument(
        "--from",
        dest="from_checkpoint",
        metavar="CHECKPOINT",
        help="begin with what a replay of the history left (sparkstorm replay --checkpoint)",
    )
    parser.add_argument(
        "--files",
        nargs="+",
        metavar="PATH",
        help="files and folders that travel with it (topology.files)",
    )
    parser.add_argument(
        "--archives",
        nargs="+",
        metavar="FILE",
        help="archives of packages that travel with it (topology.archives)",
    )
    parser.add_argument(
        "--filter", metavar="FILE", help="properties for the ${name}s of a Flux document"
    )
    parser.add_argument(
        "--env-filter", action="store_true", help="fill the ${ENV-NAME}s of a Flux document"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="drop an unfinished run of this name first"
    )
    parser.add_argument(
        "--yes", action="store_true", help="do not ask before --fresh drops one that is active"
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="on a standing cluster: end as soon as the topology is assigned",
    )
