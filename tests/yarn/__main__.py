"""`make yarn`: the word count on YARN, Hadoop's mini cluster of two node managers on this machine,
while a slot and an executor are killed; its counts must be exact.

The mini cluster is fetched from Maven Central once, by the Ivy that PySpark brings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from sparkstorm.extensions.embedded import start_redis, start_zookeeper
from sparkstorm.extensions.embedded.java import find_java
from tests.reaper import start_reaper
from tests.system.recovery import (
    kill_executor,
    kill_slot,
    make_corpus,
    run_with_faults,
)
from tests.yarn.cluster import NODES

ROOT = Path(__file__).parents[2]
JARS = Path(pyspark.__file__).parent / "jars"
# of the Hadoop that PySpark has, and what its classes name although nothing here uses it
_WITH_IT = (
    "org.bouncycastle:bcprov-jdk18on:1.78.1",
    "org.bouncycastle:bcutil-jdk18on:1.78.1",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "org.opentest4j:opentest4j:1.3.0",
    "org.junit.platform:junit-platform-commons:1.11.4",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
)
_FETCH_S = 900
_CORE = """\
<configuration><property><name>fs.defaultFS</name><value>file:///</value></property></configuration>
"""
_SPARK = """\
spark.yarn.jars local:{jars}/*
spark.yarn.stagingDir file://{folder}/staging
spark.yarn.am.memory 512m
spark.executor.instances {nodes}
spark.executor.cores 1
spark.executor.memory 512m
"""
_PASSWORD = "of-the-tests"


def fetched() -> list[Path]:
    """Return the jars of the mini cluster; the first call fetches them."""
    [client] = JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sparkstorm" / "yarn"
    found = []
    for each in (f"org.apache.hadoop:hadoop-client-minicluster:{version}", *_WITH_IT):
        group, name, number = each.split(":")
        jar = cache / f"{name}-{number}.jar"
        if not jar.exists():
            _fetch(cache, group, name, number)
        found.append(jar)
    return found


def _fetch(cache: Path, group: str, name: str, version: str) -> None:
    [ivy] = JARS.glob("ivy-*.jar")
    command = [find_java(), "-jar", str(ivy), "-cache", str(cache / "ivy"), "-m2compatible"]
    command += ["-notransitive", "-confs", "default", "-dependency", group, name, version]
    command += ["-retrieve", f"{cache}/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    assert (cache / f"{name}-{version}.jar").exists(), f"{name}: {done.stdout}{done.stderr}"


@contextmanager
def mini_yarn(folder: Path) -> Iterator[Path]:
    """A YARN on this machine, and the folder with the configuration that reaches it."""
    conf = folder / "hadoop"
    conf.mkdir()
    (conf / "core-site.xml").write_text(_CORE)
    path = ":".join(map(str, fetched()))
    given = f"--driver-memory 768m --driver-class-path {path} pyspark-shell"
    log = folder / "yarn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.yarn.cluster", str(conf)],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": given, "PYTHONPATH": str(ROOT)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == b"up\n", f"YARN did not come up: {log.read_text()[-3000:]}"
        yield conf
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        process.stdout.close()


def main(arguments: Sequence[str]) -> int:
    """Run it once and print what took how long."""
    assert not arguments, __doc__
    start_reaper()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkstorm-yarn-")))
        conf = stack.enter_context(mini_yarn(folder))
        redis = start_redis(folder / "redis", password=_PASSWORD)
        stack.callback(redis.stop)
        keeper = start_zookeeper(folder / "zookeeper", password=_PASSWORD)
        stack.callback(keeper.stop)
        spark = folder / "spark"
        spark.mkdir()
        settings = _SPARK.format(jars=JARS, folder=folder, nodes=NODES)
        (spark / "spark-defaults.conf").write_text(settings)
        taken = run_with_faults(
            folder / "run",
            make_corpus(folder / "corpus"),
            [("slot's Python process", kill_slot), ("executor JVM", kill_executor)],
            "yarn",
            {
                "topology.max.spout.pending": 300,
                "sparkstorm.supervisors": NODES,
                "sparkstorm.slots.start.timeout.ms": 600_000,
                "sparkstorm.redis.url": f"redis://{redis.host}:{redis.port}",
                "storm.zookeeper.servers": [keeper.hosts],
                "storm.zookeeper.auth.user": "sparkstorm",
            },
            {
                "HADOOP_CONF_DIR": str(conf),
                "SPARK_CONF_DIR": str(spark),
                "SPARKSTORM_REDIS_PASSWORD": _PASSWORD,
                "SPARKSTORM_ZOOKEEPER_PASSWORD": _PASSWORD,
            },
        )
    for name, seconds in taken:
        print(f"{name}: {seconds:.1f} s to the first commit after its death")
    print("all counts exact")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
