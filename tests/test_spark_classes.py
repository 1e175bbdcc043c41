"""JVMs of Spark that tests start take their classes from the archive."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark_classes import ARCHIVE


@pytest.mark.system
@pytest.mark.skipif(not ARCHIVE.exists(), reason="`make test` writes the archive")
def test_a_jvm_of_spark_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    log = tmp_path / "loaded"
    more = f"{os.environ['SPARKSTORM_SPARK_CLASSES']} -Xlog:class+load:file={log}"
    done = subprocess.run(
        [Path(spec.origin).parent / "bin" / "spark-submit", "--version"],
        env={**os.environ, "SPARKSTORM_SPARK_CLASSES": more},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from_archive = [line for line in log.read_text().splitlines() if "objects file (top)" in line]
    assert any("org.apache.spark.deploy.SparkSubmit " in line for line in from_archive)
