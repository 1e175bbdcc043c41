"""Spark's standalone mode on this machine: a master and two workers from PySpark's jars, for a
driver with executors of its own.
"""

from __future__ import annotations

import importlib.util
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from sparkstorm.driver.hosting.spark import QUICK_JAVA
from sparkstorm.extensions.embedded.java import find_java
from sparkstorm.extensions.embedded.process import TetheredProcess, start_tethered

STANDALONE = "standalone"
_HOST = "127.0.0.1"
_CORES = 7  # of each worker; its one executor has them all
_PACKAGE = "org.apache.spark.deploy"
_LIMIT_S = 180.0
_URL = re.compile(r"Starting Spark master at (spark://\S+)")


class StandalonePair:
    """A master and two workers, which end with this process; `spark_conf` is the folder for a
    driver's SPARK_CONF_DIR.

    `environ` is added to their environment, which executors inherit. `hosts`: the workers'
    addresses; Spark starts a speculative copy of a task on another host only, for which 127.0.0.2
    is one.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], hosts: Sequence[str] = (_HOST, _HOST)
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._open = ExitStack()
        self._hosts = hosts
        self.spark_conf = folder / "conf"
        self.spark_conf.mkdir(mode=0o700, parents=True)
        conf = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(32),
            "spark.network.crypto.enabled": "true",
            "spark.pyspark.python": sys.executable,
            # the package is on this machine
            "spark.python.daemon.module": "sparkstorm.driver.spark_daemon",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.ui.enabled": "false",
        }
        self._conf = self.spark_conf / "spark-defaults.conf"
        self._conf.touch(mode=0o600)
        self._conf.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
        (folder / "master").mkdir()
        master = self._run("master", "master.Master", _HOST, "--port", "0")
        self._open.callback(master.stop)
        master.wait_ready(lambda: bool(_URL.search(master.log_path.read_text())), _LIMIT_S)
        self.url = _URL.findall(master.log_path.read_text())[0]
        self._workers = [self._start_worker(number) for number in range(len(hosts))]

    def _run(self, name: str, main: str, host: str, *arguments: str) -> TetheredProcess:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        home = Path(spec.origin).parent
        scala = next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0]
        # the former for commands of executors
        environ = {"SPARK_HOME": home, "SPARK_SCALA_VERSION": scala, **self._environ}
        variables = [f"{key}={value}" for key, value in environ.items()]
        java = [
            "/usr/bin/env",
            *variables,
            find_java(),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{home}/jars/*",
        ]
        own = ["--host", host, "--webui-port", "0", "--properties-file", str(self._conf)]
        return start_tethered(
            name, [*java, f"{_PACKAGE}.{main}", *own, *arguments], self._folder / "master"
        )

    def _start_worker(self, number: int) -> TetheredProcess:
        name = f"worker-{number}"
        options = ["--cores", str(_CORES), "--memory", "1g", "--work-dir", str(self._folder / name)]
        return self._run(name, "worker.Worker", self._hosts[number], *options, self.url)

    def kill_worker(self, number: int) -> None:
        """Kill one of the two workers, with which its executor ends, and start it again as an
        operator's supervisor does.
        """
        number %= len(self._workers)
        self._workers[number].kill()
        self._workers[number] = self._start_worker(number)

    def close(self) -> None:
        """End all three."""
        for worker in self._workers:
            worker.stop()
        self._open.close()
