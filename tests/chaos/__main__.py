"""Command of the chaos kit: `python -m tests.chaos --seconds 600` (`make chaos
SECONDS=600`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.disasters import DISASTERS
from tests.chaos.faults import FAULTS
from tests.chaos.processes import run_processes
from tests.chaos.report import GUARANTEES, ChaosReport
from tests.chaos.simulated import run_simulated


def main(arguments: Sequence[str]) -> int:
    """Run the backends one after the other and print their reports; 1 when a guarantee was not
    kept.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Harm topologies, and say what became of them.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each backend strikes")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule")
    parser.add_argument("--backend", choices=["simulation", "processes", "both"], default="both")
    parser.add_argument(
        "--guarantees", nargs="+", default=GUARANTEES, choices=GUARANTEES, help="these alone"
    )
    parser.add_argument("--master", default="", help="Spark's master for all, or: standalone")
    parser.add_argument(
        "--faults",
        nargs="+",
        default=[],
        choices=[*FAULTS, *DISASTERS],
        help="these kinds alone, in processes",
    )
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    options = parser.parse_args(list(arguments))
    reports = []
    if options.backend != "processes":
        report = ChaosReport(f"simulation, seed {options.seed}")
        reports.append(
            run_simulated(options.seconds, options.seed, report, guarantees=options.guarantees)
        )
        print(f"{reports[-1]}\n", flush=True)
    if options.backend != "simulation":
        with tempfile.TemporaryDirectory(prefix="sparkstorm-chaos-") as folder:
            report = ChaosReport(f"processes, seed {options.seed}")
            try:
                run_processes(
                    options.seconds,
                    options.seed,
                    report,
                    Path(folder),
                    options.master,
                    options.faults,
                    options.guarantees,
                )
            finally:  # what was struck before a failure has its table too
                print(f"{report}\n", flush=True)
        reports.append(report)
    if options.json:
        print(json.dumps([each.as_json() for each in reports]))
    return 0 if all(each.is_kept for each in reports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
