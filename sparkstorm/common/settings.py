"""Typed settings: each configuration key is parsed once, into frozen records.

A field is annotated with its key. `Settings.of` checks the value as defaults.yaml describes it, and
takes that file's default for an absent key: no default is written a second time. Fields of time
keys are whole milliseconds, for any unit of the key. Zero means zero. PURE.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from sparkstorm.common.config import keys, milliseconds
from sparkstorm.common.errors import InvalidConfigError


class Settings:
    """Base of records whose fields are annotated with configuration keys."""

    __slots__ = ()

    @classmethod
    def of(cls, conf: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Self:
        """Read every field; values of `own` (a component's configuration) that are not null win
        over `conf`.

        Raises InvalidConfigError, which names the key and what it expects.
        """
        keys_by_field = _keys_of(cls)  # type: ignore[arg-type]  # mypy takes a class with slots for unhashable
        return cls(**{name: _value(key, conf, own or {}) for name, key in keys_by_field.items()})

    @classmethod
    def of_partial(cls, conf: Mapping[str, Any]) -> Self:
        """Read every field of a scheduling problem: null is absent, and numbers out of range are
        for the scheduler to refuse.
        """
        keys_by_field = _keys_of(cls)  # type: ignore[arg-type]
        given = {key: conf[key] for key in keys_by_field.values() if conf.get(key) is not None}
        return cls(
            **{name: _value(key, given, {}, in_range=False) for name, key in keys_by_field.items()}
        )


@functools.cache
def _keys_of(kind: type[Settings]) -> Mapping[str, str]:
    """Configuration keys by field."""
    return {
        name: hint.__metadata__[0]
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def _value(
    name: str, conf: Mapping[str, Any], own: Mapping[str, Any], in_range: bool = True
) -> Any:
    key = keys()[name]
    value = own.get(name)
    value = conf.get(name, key.default) if value is None else value
    if problem := key.problem(value, in_range):
        raise InvalidConfigError(f"{name}: {problem}")
    return milliseconds(key, value) if key.is_time and value is not None else value


@dataclass(frozen=True, slots=True)
class DriverSettings(Settings):
    """Settings of a driver: its folder, its slots, its waits and what it reports."""

    local_dir: Annotated[str, "storm.local.dir"]
    supervisors: Annotated[int, "sparkstorm.supervisors"]
    slots_per_supervisor: Annotated[int, "sparkstorm.slots.per.supervisor"]
    slots_start_ms: Annotated[int, "sparkstorm.slots.start.timeout.ms"]
    slots_hosts: Annotated[int, "sparkstorm.slots.hosts"]
    slots_settle_ms: Annotated[int, "sparkstorm.slots.settle.ms"]
    worker_folder: Annotated[str | None, "sparkstorm.worker.local.dir"]
    racks_file: Annotated[str | None, "sparkstorm.racks.file"]
    authenticates: Annotated[bool, "sparkstorm.spark.authenticate"]
    patience_ms: Annotated[int, "sparkstorm.stores.patience.secs"]
    progress_ms: Annotated[int, "sparkstorm.progress.interval.ms"]
    dead_letters_bytes: Annotated[int, "sparkstorm.dead.letters.file.max.bytes"]

    @property
    def slots(self) -> int:
        """Slots that this driver starts."""
        return self.supervisors * self.slots_per_supervisor

    @property
    def folder(self) -> Path:
        """The local folder."""
        return Path(self.local_dir)


@dataclass(frozen=True, slots=True)
class StoreSettings(Settings):
    """Addresses of Redis and ZooKeeper, and settings of those that are embedded."""

    local_dir: Annotated[str, "storm.local.dir"]
    connection_file: Annotated[str | None, "sparkstorm.connection.file"]
    redis_url: Annotated[str | None, "sparkstorm.redis.url"]
    redis_urls: Annotated[list[str] | None, "sparkstorm.redis.urls"]
    redis_viewer: Annotated[str | None, "sparkstorm.redis.viewer.user"]
    redis_port: Annotated[int | None, "sparkstorm.embedded.redis.port"]
    redis_memory_mb: Annotated[int, "sparkstorm.embedded.redis.maxmemory.mb"]
    redis_appendfsync: Annotated[str, "sparkstorm.embedded.redis.appendfsync"]
    zookeeper_servers: Annotated[list[str] | None, "storm.zookeeper.servers"]
    zookeeper_default_port: Annotated[int, "storm.zookeeper.port"]
    zookeeper_root: Annotated[str, "storm.zookeeper.root"]
    zookeeper_user: Annotated[str | None, "storm.zookeeper.auth.user"]
    zookeeper_port: Annotated[int | None, "sparkstorm.embedded.zookeeper.port"]
    zookeeper_tls: Annotated[bool, "storm.zookeeper.ssl.enable"]
    tls_ca: Annotated[str | None, "sparkstorm.tls.ca.file"]
    tls_certificate: Annotated[str | None, "sparkstorm.tls.certificate.file"]
    tls_key: Annotated[str | None, "sparkstorm.tls.key.file"]

    def own_redis(self) -> list[str]:
        """Return the URLs of the user's own stores, the home store's first; InvalidConfigError when
        two keys name them.
        """
        if self.redis_url and self.redis_urls:
            raise InvalidConfigError(
                "sparkstorm.redis.url and sparkstorm.redis.urls are both set: keep one of them"
            )
        return self.redis_urls or ([self.redis_url] if self.redis_url else [])

    def embedded(self) -> list[str]:
        """Return the names of the servers that are to be embedded."""
        addresses = {"redis": self.own_redis(), "zookeeper": self.zookeeper_servers}
        return [name for name, address in addresses.items() if not address]


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings(Settings):
    """Time limits and retries of a ZooKeeper client."""

    session_ms: Annotated[int, "storm.zookeeper.session.timeout"]
    connection_ms: Annotated[int, "storm.zookeeper.connection.timeout"]
    retries: Annotated[int, "storm.zookeeper.retry.times"]
    retry_ms: Annotated[int, "storm.zookeeper.retry.interval"]
    longest_retry_ms: Annotated[int, "storm.zookeeper.retry.intervalceiling.millis"]
    request_ms: Annotated[int, "sparkstorm.zookeeper.request.timeout"]


@dataclass(frozen=True, slots=True)
class TrackingSettings(Settings):
    """Settings that decide how many ackers a topology has."""

    guarantee: Annotated[str, "topology.delivery.guarantee"]
    workers: Annotated[int, "topology.workers"]
    ackers: Annotated[int | None, "topology.acker.executors"]
    master: Annotated[bool | None, "topology.master.single.worker"]


@dataclass(frozen=True, slots=True)
class TaskSettings(Settings):
    """Number of a component's tasks."""

    tasks: Annotated[int | None, "topology.tasks"]
    cap: Annotated[int | None, "topology.max.task.parallelism"]


@dataclass(frozen=True, slots=True)
class RequestSettings(Settings):
    """Resources asked for by each executor."""

    on_heap_mb: Annotated[float, "topology.component.resources.onheap.memory.mb"]
    off_heap_mb: Annotated[float, "topology.component.resources.offheap.memory.mb"]
    cpu: Annotated[float, "topology.component.cpu.pcore.percent"]
    others: Annotated[dict[str, Any] | None, "topology.component.resources.map"]
    shared: Annotated[dict[str, Any] | None, "topology.component.shared.memory"]


@dataclass(frozen=True, slots=True)
class DeliverySettings(Settings):
    """Guarantee and retries of failed inputs, the same live and in replay."""

    guarantee: Annotated[str, "topology.delivery.guarantee"]
    retry_limit: Annotated[int, "topology.max.retries"]
    back_off_ms: Annotated[int, "topology.retry.backoff.ms"]

    @property
    def is_exactly_once(self) -> bool:
        """Return whether failed inputs are tried again where they failed."""
        return self.guarantee == "exactly-once"

    @property
    def is_tracked(self) -> bool:
        """Return whether trees of messages are tracked, so that `ack` and `fail` of spouts are
        called.
        """
        return self.guarantee != "at-most-once"

    @property
    def retries(self) -> int:
        """Tries after the first at the failing task; 0 under the guarantees that leave retries to
        the spout.
        """
        return self.retry_limit if self.is_exactly_once else 0


@dataclass(frozen=True, slots=True)
class BreakerSettings(Settings):
    """Failing share and number of inputs given up at which a component is paused; the share may be
    "never".
    """

    share: Annotated[float | str, "topology.failure.pause.share"]
    count: Annotated[int, "topology.failure.pause.count"]


@dataclass(frozen=True, slots=True)
class EpochSettings(Settings):
    """Bounds of one epoch."""

    idle_ms: Annotated[int, "topology.epoch.idle.ms"]
    loaded_ms: Annotated[int, "topology.epoch.loaded.ms"]
    rows: Annotated[int, "topology.epoch.rows"]
    bytes: Annotated[int, "topology.epoch.bytes"]


STORE_LOSS = "topology.store.loss"
CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class WorkerSettings(Settings):
    """Settings of a topology that hold for a whole worker."""

    workers: Annotated[int, "topology.workers"]
    max_worker_deaths: Annotated[int, "topology.max.worker.deaths"]
    inbox_high_bytes: Annotated[int, "topology.inbox.high.bytes"]
    spout_sleep_ms: Annotated[int, "topology.sleep.spout.wait.strategy.time.ms"]
    message_timeout_ms: Annotated[int, "topology.message.timeout.secs"]
    has_message_timeouts: Annotated[bool, "topology.enable.message.timeouts"]
    prefers_local_ackers: Annotated[bool, "topology.acker.local"]
    batch_size: Annotated[int, "topology.acker.batch.size"]
    batch_split_ms: Annotated[int, "topology.acker.batch.split.ms"]
    recorded_components: Annotated[list[str], "topology.record.components"]
    record_directory: Annotated[str | None, "topology.record.directory"]
    failure_capsules: Annotated[int, "topology.failure.capsules"]
    from_checkpoint: Annotated[str | None, "topology.from.checkpoint"]
    sink_patience_ms: Annotated[int, "topology.sink.patience.secs"]
    store_loss: Annotated[str, STORE_LOSS]
    store_tail_ms: Annotated[int, "topology.store.tail.secs"]
    durability: Annotated[str, "topology.cells.durability"]
    error_interval_ms: Annotated[int, "topology.error.throttle.interval.secs"]
    errors_per_interval: Annotated[int, "topology.max.error.report.per.interval"]
    worker_hooks: Annotated[list[str], "topology.worker.hooks"]
    environment: Annotated[dict[str, Any] | None, "topology.environment"]
    serializers: Annotated[list[str], "topology.serializers"]
    is_direct: Annotated[bool, "topology.local.delivery"]


@dataclass(frozen=True, slots=True)
class ComponentSettings(Settings):
    """Settings that a component may have of its own."""

    max_spout_pending: Annotated[int | str | None, "topology.max.spout.pending"]
    executor_threads: Annotated[bool, "topology.executor.threads"]
    task_hooks: Annotated[list[str], "topology.auto.task.hooks"]
    tick_ms: Annotated[int | None, "topology.tick.tuple.freq.secs"]
    record_rows: Annotated[int, "topology.record.max.rows"]
    record_bytes: Annotated[int, "topology.record.max.bytes"]
    record_state_keys: Annotated[int, "topology.record.state.keys"]


@dataclass(frozen=True, slots=True)
class StateSettings(Settings):
    """Place of a stateful bolt's state, which a component may have of its own."""

    backend: Annotated[str, "topology.state.backend"]
    cache_keys: Annotated[int, "topology.state.cache.keys"]


@dataclass(frozen=True, slots=True)
class SupervisorSettings(Settings):
    """Periods and capacity of a supervisor and its slots."""

    heartbeat_ms: Annotated[int, "supervisor.heartbeat.frequency.secs"]
    monitor_ms: Annotated[int, "supervisor.monitor.frequency.secs"]
    worker_heartbeat_ms: Annotated[int, "worker.heartbeat.frequency.secs"]
    task_heartbeat_ms: Annotated[int, "task.heartbeat.frequency.secs"]
    worker_timeout_ms: Annotated[int, "supervisor.worker.timeout.secs"]
    cpus_per_worker: Annotated[int, "worker.cpu.slot.num"]
    has_cpu_affinity: Annotated[bool, "worker.cpu.affinity"]
    cpu: Annotated[float, "supervisor.cpu.capacity"]
    memory_mb: Annotated[float, "supervisor.memory.capacity.mb"]
    other_resources: Annotated[dict[str, float] | None, "supervisor.resources.map"]

    @property
    def resources(self) -> dict[str, float]:
        """Amounts that a supervisor offers, by Storm's names."""
        return {
            "supervisor.cpu.capacity": float(self.cpu),
            "supervisor.memory.capacity.mb": float(self.memory_mb),
            **{name: float(amount) for name, amount in (self.other_resources or {}).items()},
        }


@dataclass(frozen=True, slots=True)
class WorkerTimers(Settings):
    """Time limits of one worker process, some of them its topology's."""

    supervisor_timeout_ms: Annotated[int, "supervisor.worker.timeout.secs"]
    topology_timeout_ms: Annotated[int | None, "topology.worker.timeout.secs"]
    longest_timeout_ms: Annotated[int, "worker.max.timeout.secs"]
    progress_timeout_ms: Annotated[int | None, "topology.worker.progress.timeout.secs"]
    start_timeout_ms: Annotated[int, "supervisor.worker.start.timeout.secs"]
    soft_kill_ms: Annotated[int, "supervisor.worker.shutdown.sleep.secs"]
    failed_starts: Annotated[int, "topology.worker.max.start.failures"]

    @property
    def timeout_ms(self) -> int:
        """Age of the last sign of life at which a worker is restarted: the topology's own within
        worker.max.timeout.secs.
        """
        if self.topology_timeout_ms is None:
            return self.supervisor_timeout_ms
        return min(
            max(self.supervisor_timeout_ms, self.topology_timeout_ms), self.longest_timeout_ms
        )

    @property
    def progress_ms(self) -> int:
        """Time without progress of the loop at which a worker is restarted; without a setting that
        of the sign of life.
        """
        return self.timeout_ms if self.progress_timeout_ms is None else self.progress_timeout_ms


@dataclass(frozen=True, slots=True)
class NimbusSettings(Settings):
    """Periods and time limits of Nimbus."""

    round_ms: Annotated[int, "nimbus.monitor.freq.secs"]
    task_heartbeat_ms: Annotated[int, "task.heartbeat.frequency.secs"]
    task_timeout_ms: Annotated[int, "nimbus.task.timeout.secs"]
    task_launch_ms: Annotated[int, "nimbus.task.launch.secs"]
    supervisor_timeout_ms: Annotated[int, "nimbus.supervisor.timeout.secs"]
    longest_worker_timeout_ms: Annotated[int, "worker.max.timeout.secs"]
    cleanup_ms: Annotated[int, "task.cleanup.timeout.sec"]
    blob_delay_ms: Annotated[int, "nimbus.topology.blobstore.deletion.delay.ms"]
    request_timeout_ms: Annotated[int, "nimbus.request.timeout.secs"]
    trial_wait_ms: Annotated[int, "nimbus.trial.wait.secs"]
    reassigns: Annotated[bool, "nimbus.reassign"]
    validator: Annotated[str | None, "nimbus.topology.validator"]
    store_timeout_ms: Annotated[int, "sparkstorm.worker.store.timeout.secs"]
    window_ms: Annotated[int, "nimbus.measurements.window.secs"]


@dataclass(frozen=True, slots=True)
class SubmissionSettings(Settings):
    """Settings of one topology for its submission."""

    workers: Annotated[int, "topology.workers"]
    copies: Annotated[int, "topology.min.replication.count"]
    copies_wait_ms: Annotated[int, "topology.max.replication.wait.time.sec"]
    is_hot_deploy: Annotated[bool, "topology.hot.deploy.enable"]
    message_timeout_ms: Annotated[int, "topology.message.timeout.secs"]
    keeps_old_places: Annotated[bool, "use.old.assignment"]
    serializers: Annotated[list[str], "topology.serializers"]
    is_upgrade: Annotated[bool, "topology.upgrade"]
    store_loss: Annotated[str, STORE_LOSS]
    from_checkpoint: Annotated[str | None, "topology.from.checkpoint"]
    store: Annotated[str | None, "topology.redis.store"]
    cells: Annotated[int, "topology.cells"]
    durability: Annotated[str, "topology.cells.durability"]


@dataclass(frozen=True, slots=True)
class AutoscaleMode(Settings):
    """Whether Nimbus scales a topology: True, False or "advise"."""

    mode: Annotated[bool | str, "topology.autoscale"]


@dataclass(frozen=True, slots=True)
class AutoscaleSettings(Settings):
    """Limits and times of scaling."""

    min_workers: Annotated[int, "topology.autoscale.min.workers"]
    max_workers: Annotated[int | None, "topology.autoscale.max.workers"]
    low: Annotated[float, "topology.autoscale.utilization.min"]
    high: Annotated[float, "topology.autoscale.utilization.max"]
    catch_up_ms: Annotated[int, "topology.autoscale.catch.up.secs"]
    grace_ms: Annotated[int, "topology.autoscale.grace.secs"]

    def __post_init__(self) -> None:
        remedy = "lower the first or raise the second"
        if self.max_workers is not None and self.min_workers > self.max_workers:
            raise InvalidConfigError(
                f"topology.autoscale.min.workers, {self.min_workers}, is more than "
                f"topology.autoscale.max.workers, {self.max_workers}: {remedy}"
            )
        # Within a narrower band, two executors in place of one are below it at once.
        if 2 * self.low > self.high:
            raise InvalidConfigError(
                f"topology.autoscale.utilization.min, {self.low}, is more than half of "
                f"topology.autoscale.utilization.max, {self.high}: {remedy}"
            )


FOLDER_KEY = "topology.folder"


@dataclass(frozen=True, slots=True)
class FileSettings(Settings):
    """Files and archives that travel with a topology, and the folder of those that do not."""

    folder: Annotated[str | None, FOLDER_KEY]
    files: Annotated[list[str], "topology.files"]
    archives: Annotated[list[str], "topology.archives"]
    blobs: Annotated[dict[str, Any] | None, "topology.blobstore.map"]


@dataclass(frozen=True, slots=True)
class MemorySettings(Settings):
    """Memory of one worker process."""

    limit_mb: Annotated[float | None, "worker.memory.limit.mb"]


@dataclass(frozen=True, slots=True)
class BuilderSettings(Settings):
    """The function that built a topology, for tests made from its failures."""

    function: Annotated[str | None, "topology.builder"]
    arguments: Annotated[dict[str, Any], "topology.builder.arguments"]


@dataclass(frozen=True, slots=True)
class UpgradeSettings(Settings):
    """Settings of a gray upgrade, of the new code's configuration (S0.6)."""

    workers: Annotated[list[str] | None, "topology.upgrade.workers"]
    component: Annotated[str | None, "topology.upgrade.component"]
    worker_num: Annotated[int, "topology.upgrade.worker.num"]
    ttl_ms: Annotated[int, "topology.upgrade.ttl"]
    shadow_component: Annotated[str | None, "topology.upgrade.shadow.component"]
    shadow_tuples: Annotated[int, "topology.upgrade.shadow.tuples"]
    is_forced: Annotated[bool, "topology.upgrade.force"]
    takes_back: Annotated[bool, "topology.upgrade.rollback.enable"]
    least_executed: Annotated[int, "topology.upgrade.rollback.min.executed"]
    failed_share: Annotated[float, "topology.upgrade.rollback.failed.share"]
    deaths: Annotated[int, "topology.upgrade.rollback.deaths"]
    latency_factor: Annotated[float, "topology.upgrade.rollback.latency.factor"]
