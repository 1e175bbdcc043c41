"""KafkaServer: a Kafka broker in KRaft mode on loopback, from Maven Central's jars."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.java import find_java
from sparkstorm.extensions.embedded.process import free_ports
from sparkstorm.testing.servers.server import OwnServer

VERSION = "4.1.2"
_CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    / "sparkstorm"
    / f"kafka-{VERSION}"
)
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


USER = "test"
PASSWORD = "of-the-tests"


class KafkaServer(OwnServer):
    """One broker; its topics outlive `kill` and `start`.

    `address` is for clients without a password; at `guarded` it asks for USER and PASSWORD (SASL
    PLAIN).
    """

    name = "kafka"

    def __init__(self, folder: Path | str | None = None) -> None:
        self._jars = install_kafka()
        super().__init__(folder)
        self.port, guarded, controller = free_ports(3)
        self.guarded = f"127.0.0.1:{guarded}"
        self.address = f"127.0.0.1:{self.port}"
        self._conf = self.folder / "server.properties"
        ports = {"port": self.port, "guarded": guarded, "controller": controller}
        self._conf.write_text(
            _PROPERTIES.format(**ports, folder=self.folder, user=USER, password=PASSWORD)
        )
        cluster = uuid.uuid4().hex[:22]
        command = self._java(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._conf)
        )
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode:
            self.stop()
            raise EmbeddedServerError(
                f"Kafka could not begin in {self.folder}: {(done.stdout + done.stderr)[-1000:].strip()}"
            )

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic; KafkaException when there is one."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)

    def send(
        self, topic: str, records: Iterable[Mapping[str, Any]], key: str | None = None
    ) -> None:
        """Write records as JSON objects and return when the broker has them; `key` names the field
        of the key.
        """
        from confluent_kafka import Producer

        # a broker that has just started is asked twice for the producer's number, which librdkafka
        # would warn of
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "log_level": 3}
        )
        for record in records:
            row = json.dumps(record), None if key is None else str(record[key])
            while True:
                try:
                    producer.produce(topic, *row)
                except BufferError:  # a hundred thousand records wait for the broker
                    producer.poll(0.1)
                else:
                    break
            producer.poll(0)
        if producer.flush(60):
            raise EmbeddedServerError(
                f"Kafka at {self.address} did not take all records of {topic} within 60 s"
            )

    def answers(self) -> bool:
        """Return whether it lists its brokers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return bool(
                AdminClient({"bootstrap.servers": self.address, "log_level": 0})
                .list_topics(timeout=0.5)
                .brokers
            )
        except KafkaException:
            return False

    def _command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._conf))

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [
            str(find_java()),
            *_HEAP,
            "-Dlog4j2.level=WARN",
            "-cp",
            f"{self._jars}/*",
            main,
            *arguments,
        ]


def install_kafka() -> Path:
    """Return the folder with Kafka's jars; fetched once, by the Ivy that PySpark brings;
    EmbeddedServerError if that fails.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise EmbeddedServerError(
            "Kafka needs the package confluent-kafka: pip install 'sparkstorm[servers]'"
        )
    if (_CACHE / "complete").exists():
        return _CACHE
    _CACHE.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    [ivy] = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    command = [
        str(find_java()),
        "-jar",
        str(ivy),
        "-cache",
        str(_CACHE / "ivy"),
        "-m2compatible",
        "-confs",
        "default,runtime",
    ]
    command += [
        "-dependency",
        "org.apache.kafka",
        "kafka_2.13",
        VERSION,
        "-retrieve",
        f"{_CACHE}/[artifact]-[revision].[ext]",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not list(_CACHE.glob("kafka_2.13-*.jar")):
        raise EmbeddedServerError(
            f"Kafka's jars cannot be fetched from Maven Central: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    (_CACHE / "complete").touch()
    return _CACHE
