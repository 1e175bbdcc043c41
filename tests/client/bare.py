"""Processes without Spark and Java: a Python in which importing pyspark and py4j fails, and a PATH
without a java.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refuse())
"""
_CLI = "from sparkstorm.cli import main; sys.exit(main(sys.argv[1:]))"


def bare(
    program: str, *arguments: str, folder: Path, cluster: Path | None = None
) -> subprocess.Popen[str]:
    """Start a program in that Python; `cluster` is what SPARKSTORM_CLUSTER names."""
    dropped = ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "SPARKSTORM_CLUSTER")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("PYSPARK_")
    }
    environment |= {
        "PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }
    if cluster is not None:
        environment["SPARKSTORM_CLUSTER"] = str(cluster)
    command = [sys.executable, "-c", _BARE + program, *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sparkstorm(*arguments: str, folder: Path, cluster: Path | None = None) -> subprocess.Popen[str]:
    """Start the `sparkstorm` command in that Python."""
    return bare(_CLI, *arguments, folder=folder, cluster=cluster)


def ended(process: subprocess.Popen[str], limit_s: float = 900.0) -> tuple[int, str, str]:
    """Wait for its end; exit status, standard output and standard error."""
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err
