"""KafkaServer: a real Kafka broker in KRaft mode for tests, from Maven Central's jars, on loopback."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

from sparkstorm.embedded.java import find_java
from sparkstorm.embedded.process import free_ports

VERSION = "4.1.2"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sparkstorm" / f"kafka-{VERSION}"
_HEAP = ("-Xmx256m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{guarded}
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    user_{user}="{password}";
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions=3
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


USER, PASSWORD = "test", "of-the-tests"


class KafkaServer:
    """One broker that is its own controller; its data outlive `kill` and `start`. At `guarded` it asks for USER and PASSWORD."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port, guarded, controller = free_ports(3)
        self.guarded = f"127.0.0.1:{guarded}"
        self.address = f"127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._conf = folder / "server.properties"
        self._conf.write_text(
            _PROPERTIES.format(port=self.port, guarded=guarded, controller=controller, folder=folder, user=USER, password=PASSWORD)
        )
        self._jars = install_kafka()
        cluster = uuid.uuid4().hex[:22]
        self._run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._conf)).wait(180)

    def start(self, patience_s: float = 180.0) -> None:
        """Start the broker, and wait until it answers."""
        self._process = self._run("kafka.Kafka", str(self._conf))
        deadline = time.monotonic() + patience_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start: {(self._folder / 'kafka.log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    stop = kill

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(find_java()), *_HEAP, "-Dlog4j2.level=WARN", "-cp", f"{self._jars}/*", main, *arguments]
        with (self._folder / "kafka.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=0.5).brokers)
        except KafkaException:
            return False


def install_kafka() -> Path:
    """Return the folder with Kafka's jars; fetched once, by the Ivy that PySpark brings; RuntimeError if that fails."""
    if (_CACHE / "complete").exists():
        return _CACHE
    _CACHE.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    [ivy] = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    command = [str(find_java()), "-jar", str(ivy), "-cache", str(_CACHE / "ivy"), "-m2compatible", "-confs", "default,runtime"]
    command += ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-retrieve", f"{_CACHE}/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not list(_CACHE.glob("kafka_2.13-*.jar")):
        raise RuntimeError(f"Kafka's jars cannot be fetched from Maven Central: {done.stdout[-500:]}{done.stderr[-500:]}")
    (_CACHE / "complete").touch()
    return _CACHE
