"""A DataFrame of Spark Connect is refused with one sentence, by replays and back-fills, before
anything runs.

The client's libraries (pandas among them, which nothing here needs) are kept in a folder of their
own next to this Python: hundreds of megabytes for one sentence, so `make matrix` runs this test
(SPARKSTORM_TEST_CONNECT=1) and the suite does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.main_job import environment

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        "SPARKSTORM_TEST_CONNECT" not in os.environ,
        reason="make matrix runs it: it installs the client's libraries",
    ),
]
LIBRARIES = (
    "grpcio",
    "grpcio-status",
    "googleapis-common-protos",
    "protobuf",
    "pandas<3",
    "python-dateutil",
    "tzdata",
    "six",
    "zstandard",
    "pytz",
)
SCRIPT = """
import sys
from pyspark.sql import SparkSession
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.replay import back_fill, replay

@bolt("word")
def shout(tup):
    yield tup["line"].upper()

builder = TopologyBuilder()
builder.set_spout("lines", FileLines(find_files([sys.argv[0]])))
builder.set_bolt("shout", shout, inputs="lines")
spark = SparkSession.builder.remote("local[1]").getOrCreate()
for attempt in (
    lambda: replay(builder.build(), {"lines": spark.createDataFrame([("a",)], ["line"])}),
    lambda: back_fill(builder.build(), spark, "checkpoint"),
):
    try:
        attempt()
    except InvalidTopologyError as error:
        print(f"refused: {error}", flush=True)
spark.stop()
"""


def libraries() -> Path:
    """The folder of the client's libraries, filled once."""
    folder = Path(sys.prefix) / "spark-connect"
    if not (folder / "made").exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(folder),
        ]
        ended = subprocess.run(
            [*pip, *LIBRARIES], capture_output=True, text=True, check=False, timeout=900
        )
        if ended.returncode:
            pytest.skip(
                f"the libraries of Spark Connect cannot be installed: {ended.stderr.strip()[-200:]}"
            )
        (folder / "made").touch()
    return folder


def test_a_remote_session_is_refused_in_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    around = environment()
    around["PYTHONPATH"] = f"{around['PYTHONPATH']}:{libraries()}"
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=around,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    said = [line for line in ended.stdout.splitlines() if line.startswith("refused: ")]
    assert len(said) == 2, ended.stdout + ended.stderr
    assert all(
        "belongs to a session of Spark Connect, which a replay cannot run in: use a classic one"
        in line
        for line in said
    )
    assert said[0].startswith("refused: input 'lines' ") and not (tmp_path / "checkpoint").exists()
