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


class Session:
    """A Spark session and the environment that its workers need, made when it is asked for."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._former: dict[str, str | None] = {}

    def get(self, master: str, partitions: int = 2) -> SparkSession:
        """Return the session, made if there is none or one of another master; `partitions` are
        those of its shuffles.
        """
        if self._session and self._session.sparkContext.master != master:
            self.stop()
        if not self._session:
            self._former = {name: os.environ.get(name) for name in ENVIRONMENT}
            os.environ.update(ENVIRONMENT)
            self._session = _made(master, partitions)
        return self._session

    def stop(self) -> None:
        """End the session, if there is one."""
        if not self._session:
            return
        self._session.stop()
        self._session = None
        for name, value in self._former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _made(master: str, partitions: int) -> SparkSession:
    """Expressions are interpreted: compiling them is 40 % of the JVM's time where frames have some
    hundred rows. The system tests and `test_standalone.py` run with what Spark compiles.
    """
    session: SparkSession = (
        SparkSession.builder.master(master)
        .appName("replay-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(partitions))
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.python.daemon.module", "tests.replay.worker_daemon")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


_SHARED = Session()
"""That of all files that run one after another, have no `spark` of their own and want the same
master.
"""


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of two cores (or a module's MASTER); frames are small, so are its shuffles."""
    yield _SHARED.get(getattr(request.module, "MASTER", MASTER))
    if request.path.parent != Path(__file__).parent:
        _SHARED.stop()


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the session before a file that may make its own context."""
    if not _may_share(nextitem):
        _SHARED.stop()


def _may_share(item: pytest.Item | None) -> bool:
    if item is None or item.path.parent != Path(__file__).parent:
        return False
    return not hasattr(getattr(item, "module", None), "spark")
