"""Spark's own log at a driver: errors are shown, one that repeats itself is not for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkstorm.extensions.embedded.java import find_java

pytestmark = pytest.mark.system
CONF = Path(__file__).parents[2] / "conf" / "spark"
# Logs as Spark does, after the driver has settled what is shown
PROGRAM = """
from sparkstorm.driver.cluster import quiet_spark
from sparkstorm.common.spark_versions import start_java
from pyspark import SparkContext

start_java()
quiet_spark()
for name in ("rpc.netty.Inbox", "executor.Executor", "scheduler.DAGScheduler"):
    log = SparkContext._jvm.org.slf4j.LoggerFactory.getLogger("org.apache.spark." + name)
    for number in range(9):
        log.error(f"error of {name} {number}")
    log.warn(f"error of {name} that is a warning")
"""


@pytest.mark.parametrize("is_configured", [True, False], ids=["conf/spark", "no file"])
@pytest.mark.sampled(2)
def test_of_errors_that_repeat_themselves_three_are_shown(
    is_configured: bool, tmp_path: Path
) -> None:
    folder = CONF if is_configured else tmp_path
    home = Path(find_java()).resolve().parents[1]
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder), "JAVA_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    shown = done.stdout + done.stderr
    found = [shown.count(f"error of {name}") for name in ("rpc", "executor", "scheduler")]
    assert found == [3, 0, 9], shown
