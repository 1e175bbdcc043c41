"""Command-line options of a replay; imports nothing of Spark's, since every `sparkstorm` command
builds its parser from them.
"""

from __future__ import annotations

import argparse

from sparkstorm.driver.job_options import add_overrides

FORMATS = ("text", "csv", "json", "parquet", "orc", "table")
WRITTEN = ("parquet", "json", "csv", "orc")
EXITS = (
    "exit status: 0 all done, 1 failed, 3 done but records were put aside, "
    "4 --against found differences, 130 stopped from outside"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a replay to a command line."""
    parser.add_argument(
        "conf",
        metavar="CONF.yaml",
        help="the job file of the live run; its `replay` part is for this",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        default=[],
        metavar="[SPOUT[:STREAM]=]PATH",
        help="the history of each spout; with --checkpoint the factory's `input`",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FOLDER",
        help="results are written below it, a folder each",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="of the inputs; by the ending of their paths if not given"
    )
    parser.add_argument(
        "--output-format", choices=WRITTEN, default="parquet", help="of the results"
    )
    parser.add_argument(
        "--result",
        nargs="+",
        metavar="NAME",
        help="what to write; else what no bolt listens to, and states",
    )
    parser.add_argument(
        "--event-time", metavar="COLUMN", help="the column that is the virtual time"
    )
    _add_checkpoint_options(parser)
    parser.add_argument(
        "--against",
        metavar="FOLDER",
        help="compare the results, row by row, with another version's --output",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="put failing records aside instead of ending"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace former results")
    add_overrides(parser)
    parser.add_argument("--name", help="name of the topology")


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of states and positions: those that a replay begins with, and those that it
    leaves.
    """
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="let spouts read their history, and leave there what a live run goes on from (its --from)",
    )
    parser.add_argument(
        "--from",
        dest="from_checkpoint",
        metavar="FOLDER",
        help="begin with the states, windows, timers and positions of a savepoint or checkpoint",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[],
        metavar="SPOUT=NUMBER",
        help="with --checkpoint: how many rows each task of a spout reads; else all there are",
    )
