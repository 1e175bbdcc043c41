"""Archive of Spark's classes, loaded and verified, for the JVMs that tests start:
`python -m tests.spark_classes` writes it into this Python's environment.

A JVM of Spark spends a third of its start on reading and verifying some ten thousand classes; from
an archive (Java's class data sharing) it maps them. Java passes over an archive of another version
of Java or of other jars, and the tests run without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FOLDER = Path(sys.prefix) / "spark-classes"
ARCHIVE = _FOLDER / "classes.jsa"
# the same empty folder is on the class path when the archive is written and when it is read
_EMPTY = _FOLDER / "conf"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVMs of Spark live for some seconds here: the optimising compiler and parallel garbage collector
cost more than they give.
"""
_LIMIT_S = 1800
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from sparkstorm.replay.arrow_map import map_in_arrow

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).selectExpr("id % 7 AS key", "id AS value", "cast(id AS string) AS text")
for kind in ("json", "parquet", "csv"):
    place = f"{sys.argv[1]}/{kind}"
    rows.write.format(kind).save(place)
    rows.union(spark.read.schema(rows.schema).format(kind).load(place)).count()
divided = rows.repartition(2, "key").sortWithinPartitions("value")
map_in_arrow(divided, iter, rows.schema).cache().count()
rows.groupBy("key").sum("value").join(rows, "key").orderBy("value").collect()
spark.sparkContext.parallelize(range(10), 2).map(str).collect()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()
sys.exit(java.wait())
"""


def use_spark_classes() -> None:
    """Have the JVMs of Spark that this process starts use the archive, if there is one, and those
    of their executors.
    """
    if ARCHIVE.exists():
        archive = f"-XX:SharedArchiveFile={ARCHIVE}"
        executors = f"'-Dspark.executor.defaultJavaOptions=-Xlog:disable {archive}'"
        os.environ |= _environment(f"{archive} {executors}")


def _environment(option: str) -> dict[str, str]:
    """Return the variables that tests/spark_conf/spark-env.sh reads, and that which names it."""
    return {
        "SPARK_CONF_DIR": str(ROOT / "tests" / "spark_conf"),
        "SPARKSTORM_EMPTY_CONF": str(_EMPTY),
        "SPARKSTORM_SPARK_CLASSES": option,
    }


def main() -> None:
    """Write the archive anew; a failure is reported and costs the tests' JVMs their quick start."""
    _EMPTY.mkdir(parents=True, exist_ok=True)
    new = ARCHIVE.with_suffix(".new")
    for path in (ARCHIVE, new):
        path.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **_environment(f"-XX:ArchiveClassesAtExit={new}"),
        "SPARK_SUBMIT_OPTS": QUICK,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, folder],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    if done.returncode or not new.exists():
        print(f"no archive of Spark's classes: {done.stderr[-3000:]}", file=sys.stderr)
    else:
        new.rename(ARCHIVE)


if __name__ == "__main__":
    main()
