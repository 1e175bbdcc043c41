"""Command line of `simulate`: `python -m sparkstorm.testing MODULE:FUNCTION --seeds 10000`.

Each function returns a Topology whose spouts come to an end, or a sparkstorm.testing.Subject;
several share the seeds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sparkstorm.testing.trial import Subject
from sparkstorm.testing.trials import SimulationError, simulate


def main(arguments: Sequence[str]) -> int:
    """Run it; the exit status is 1 when a seed has failed."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkstorm.testing",
        description="Run topologies on a simulated cluster under faults drawn from seeds.",
    )
    parser.add_argument(
        "topologies", nargs="+", metavar="MODULE:FUNCTION", help="returns a Topology or a Subject"
    )
    parser.add_argument(
        "--seeds", type=int, default=1000, help="how many seeds, shared evenly (default 1000)"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument(
        "--only", help="numbers of that seed's faults, with commas; all when left out"
    )
    parser.add_argument("--processes", type=int, default=2, help="how many processes (default 2)")
    options = parser.parse_args(arguments)
    only = (
        None
        if options.only is None
        else [int(number) for number in options.only.split(",") if number]
    )
    seeds = (
        range(options.first, options.first + options.seeds)
        if options.seed is None
        else [options.seed]
    )
    for number, name in enumerate(options.topologies):
        module, _, function = name.partition(":")
        try:
            made = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            parser.error(f"{name}: {error}; name a function as MODULE:FUNCTION")
        if not callable(made):
            parser.error(
                f"{name} is of type {type(made).__name__}; name a function that returns a Topology or a Subject"
            )
        result = made()
        subject = result if isinstance(result, Subject) else made
        share = seeds if options.seed is not None else seeds[number :: len(options.topologies)]
        try:
            report = simulate(subject, share, only=only, processes=options.processes, name=name)
        except (SimulationError, ValueError) as error:
            print(f"{name}: {error}")
            return 1
        print(f"{name}: {report}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
