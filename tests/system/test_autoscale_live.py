"""Autoscaling of a running job by the lag of a real Kafka topic: it grows when more arrives than one
worker takes, the lag goes, and the counts are exact.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sparkstorm.testing.servers import KafkaServer
from tests.system.main_job import MainJob, Sight

pytestmark = [pytest.mark.system, pytest.mark.nightly]
# one worker takes 500 rows/s at most, and its band ends at 400
BEFORE_PER_S, AFTER_PER_S = 150, 480


class Sender:
    """A producer of numbers at a rate that may be changed."""

    def __init__(self, address: str) -> None:
        self.rate = BEFORE_PER_S
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        self.is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self.is_stopped.set()
        self._thread.join()
        assert self._producer.flush(120) == 0

    def _run(self) -> None:
        due = time.monotonic()
        while not self.is_stopped.wait(max(0.0, due - time.monotonic())):
            for _ in range(self.rate // 10):
                self._producer.produce("in", json.dumps({"n": self.sent}), str(self.sent))
                self.sent += 1
            self._producer.poll(0)
            due += 0.1


def acked(sight: Sight) -> int:
    """Return how many numbers are done: bolts ack too."""
    progress = sight.progress()
    counts = progress.counts_by_task.values() if progress else ()
    return sum(task.acked for task in counts if task.component == "numbers")


def test_a_topology_grows_by_its_lag_and_catches_up(tmp_path: Path) -> None:
    kafka = KafkaServer(tmp_path / "kafka")
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("in", 4, 1)])["in"].result(120)
    (tmp_path / "job.yaml").write_text(
        json.dumps(
            {
                "name": "numbers",
                "topology": "tests.system.autoscale_topology:build",
                "arguments": {"kafka": kafka.address},
                "topology.workers": 1,
                "topology.autoscale": True,
                "topology.autoscale.grace.secs": 180,
                "topology.autoscale.catch.up.secs": 120,
                "topology.autoscale.max.workers": 4,
                "topology.message.timeout.secs": 600,
            }
        )
    )
    job = MainJob(
        tmp_path / "run",
        tmp_path / "job.yaml",
        master="local[6]",
        settings={"sparkstorm.supervisors": 1, "sparkstorm.slots.per.supervisor": 4},
    )
    sender = Sender(kafka.address)
    sight: Sight | None = None
    try:
        job.start()
        sight = job.sight()
        job.workers(sight)
        job.wait_for(lambda: acked(sight) >= 300, "the first rows")
        sender.rate = AFTER_PER_S
        grew_s = job.wait_for(lambda: len(sight.workers()) > 1, "more workers", 900)
        lag = sender.sent - acked(sight)
        caught_up_s = job.wait_for(
            lambda: sender.sent - acked(sight) < 5 * AFTER_PER_S, "a short lag", 600
        )
        print(f"grew after {grew_s:.0f} s, {lag:,} rows behind; caught up in {caught_up_s:.0f} s")
        sender.stop()
        job.wait_for(lambda: acked(sight) == sender.sent, "all rows")
        progress = sight.progress()
        assert progress is not None
        executed = {
            name: sum(c.executed for c in progress.counts_by_task.values() if c.component == name)
            for name in ("work", "seen")
        }
        assert executed == {"work": sender.sent, "seen": sender.sent}
        assert len(sight.workers()) <= 4
    finally:
        if sight is not None:
            sight.close()
        if not sender.is_stopped.is_set():
            sender.stop()
        job.close()
        kafka.stop()
