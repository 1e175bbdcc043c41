"""Owns Nimbus's periods and patience, read from the configuration once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.scheduling.liveness import Timeouts


@dataclass(frozen=True, slots=True)
class NimbusTimes:
    """Milliseconds, from the keys in the comments."""

    round_ms: int = 10_000  # nimbus.monitor.freq.secs
    timeouts: Timeouts = field(default_factory=Timeouts)
    worker_max_ms: int = 600_000  # worker.max.timeout.secs
    cleanup_ms: int = 10_000  # task.cleanup.timeout.sec
    blob_delay_ms: int = 300_000  # nimbus.topology.blobstore.deletion.delay.ms

    @staticmethod
    def of(conf: Mapping[str, Any]) -> "NimbusTimes":
        """Read them; an absent key keeps the value above."""

        def secs(key: str, default_ms: int) -> int:
            value = conf.get(key)
            return default_ms if value is None else round(value * 1000)

        usual = NimbusTimes()
        timeouts = Timeouts(
            secs("nimbus.task.timeout.secs", usual.timeouts.task_ms),
            secs("nimbus.task.launch.secs", usual.timeouts.launch_ms),
            secs("nimbus.supervisor.timeout.secs", usual.timeouts.supervisor_ms),
        )
        delay_ms = conf.get("nimbus.topology.blobstore.deletion.delay.ms")
        return NimbusTimes(
            secs("nimbus.monitor.freq.secs", usual.round_ms),
            timeouts,
            secs("worker.max.timeout.secs", usual.worker_max_ms),
            secs("task.cleanup.timeout.sec", usual.cleanup_ms),
            usual.blob_delay_ms if delay_ms is None else int(delay_ms),
        )
