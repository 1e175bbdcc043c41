"""Settings: values of keys in typed records, defaults from defaults.yaml alone, mistakes named."""

from __future__ import annotations

import math

import pytest

from sparkstorm.common.config import keys
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.settings import (
    AutoscaleSettings,
    ComponentSettings,
    DeliverySettings,
    EpochSettings,
    NimbusSettings,
    Settings,
    SubmissionSettings,
    SupervisorSettings,
    WorkerSettings,
    WorkerTimers,
)

KINDS: list[type[Settings]] = [
    AutoscaleSettings,
    ComponentSettings,
    DeliverySettings,
    EpochSettings,
    NimbusSettings,
    SubmissionSettings,
    SupervisorSettings,
    WorkerSettings,
    WorkerTimers,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_configuration_gives_the_defaults_of_the_file(kind: type[Settings]) -> None:
    assert kind.of({}) == kind.of({name: key.default for name, key in keys().items()})


def test_times_are_milliseconds_whatever_the_unit_of_the_key() -> None:
    conf = {"topology.message.timeout.secs": 1.5, "topology.sleep.spout.wait.strategy.time.ms": 7}
    settings = WorkerSettings.of(conf)
    assert (settings.message_timeout_ms, settings.spout_sleep_ms) == (1500, 7)


def test_zero_means_zero() -> None:
    conf = {
        "topology.retry.backoff.ms": 0,
        "topology.max.retries": 0,
        "topology.sleep.spout.wait.strategy.time.ms": 0,
        "supervisor.worker.shutdown.sleep.secs": 0,
    }
    assert (DeliverySettings.of(conf).back_off_ms, DeliverySettings.of(conf).retries) == (0, 0)
    assert WorkerSettings.of(conf).spout_sleep_ms == 0
    assert WorkerTimers.of(conf).soft_kill_ms == 0


def test_a_short_time_is_not_rounded_to_none() -> None:
    assert ComponentSettings.of({"topology.tick.tuple.freq.secs": 0.001}).tick_ms == 1
    assert ComponentSettings.of({}).tick_ms is None


def test_a_component_has_its_own_values_over_those_of_its_topology() -> None:
    conf, own = {"topology.max.spout.pending": 10}, {"topology.max.spout.pending": 3}
    assert ComponentSettings.of(conf, own).max_spout_pending == 3
    assert ComponentSettings.of(conf, {"topology.max.spout.pending": None}).max_spout_pending == 10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topology.max.retries", -1),
        ("topology.max.retries", "3"),
        ("topology.max.retries", True),
        ("topology.retry.backoff.ms", math.inf),
        ("topology.retry.backoff.ms", None),
        ("topology.delivery.guarantee", "sometimes"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_its_key(
    key: str, value: object
) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        DeliverySettings.of({key: value})


@pytest.mark.parametrize(
    ("own", "expected"), [(None, 30_000), (10, 30_000), (60, 60_000), (900, 600_000)]
)
def test_a_topology_may_ask_for_more_patience_with_its_workers_but_not_without_bounds(
    own: float | None, expected: int
) -> None:
    assert WorkerTimers.of({"topology.worker.timeout.secs": own}).timeout_ms == expected


def test_retries_belong_to_exactly_once() -> None:
    assert DeliverySettings.of({"topology.delivery.guarantee": "at-least-once"}).retries == 0
    assert DeliverySettings.of({}).retries == 3


def test_the_periods_of_nimbus_come_from_their_keys() -> None:
    conf = {
        "nimbus.monitor.freq.secs": 1,
        "nimbus.task.timeout.secs": 2,
        "nimbus.task.launch.secs": 3,
        "nimbus.supervisor.timeout.secs": 4,
        "worker.max.timeout.secs": 5,
        "task.cleanup.timeout.sec": 0.5,
        "nimbus.topology.blobstore.deletion.delay.ms": 7,
        "nimbus.request.timeout.secs": 8,
        "nimbus.trial.wait.secs": 10,
        "task.heartbeat.frequency.secs": 9,
        "nimbus.reassign": False,
        "nimbus.topology.validator": "rules:check",
        "sparkstorm.worker.store.timeout.secs": 11,
        "nimbus.measurements.window.secs": 120,
    }
    assert NimbusSettings.of(conf) == NimbusSettings(
        1000,
        9000,
        2000,
        3000,
        4000,
        5000,
        500,
        7,
        8000,
        10_000,
        False,
        "rules:check",
        11_000,
        120_000,
    )


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        (
            {"topology.autoscale.min.workers": 3, "topology.autoscale.max.workers": 2},
            "topology.autoscale.min.workers, 3, is more than topology.autoscale.max.workers, 2: "
            "lower the first or raise the second",
        ),
        (
            {"topology.autoscale.utilization.min": 0.9},
            "topology.autoscale.utilization.min, 0.9, is more than half of "
            "topology.autoscale.utilization.max, 0.8: lower the first or raise the second",
        ),
        (
            {"topology.autoscale.utilization.max": 0.7},
            "topology.autoscale.utilization.min, 0.4, is more than half of "
            "topology.autoscale.utilization.max, 0.7: lower the first or raise the second",
        ),
    ],
)
def test_limits_of_scaling_that_contradict_each_other_are_refused(
    conf: dict[str, float], words: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        AutoscaleSettings.of(conf)
    assert str(caught.value) == words


def test_limits_of_scaling_may_be_equal() -> None:
    conf = {"topology.autoscale.min.workers": 2, "topology.autoscale.max.workers": 2}
    assert AutoscaleSettings.of(conf).max_workers == 2
