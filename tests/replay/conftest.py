"""One Spark session for the replay tests, whose workers can import the tests' bolts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


MASTER = "local[2]"


# not longer: the system tests after these make contexts of their own
@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of two cores (or a module's MASTER); frames are small, so are its shuffles.

    Expressions are interpreted: compiling them is 40 % of the JVM's time where frames have some
    hundred rows. The system tests and `tests/replay/test_standalone.py` run with what Spark
    compiles.
    """
    former = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    session = (
        SparkSession.builder.master(getattr(request.module, "MASTER", MASTER))
        .appName("replay-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    for name, value in former.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
