"""Checks hosting without any server: specs that travel whole, secrets that do not show, pauses that
grow.
"""

from pathlib import Path

import pytest
from pyspark import SparkConf

from sparkstorm.common.errors import (
    InvalidConfigError,
    SlotsUnavailableError,
    StoreInconsistentError,
)
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.slot_spec import RestartPause, SlotSpec, StateAddress
from sparkstorm.driver.hosting.spark import SPARK_CONF, _shortage, slot_conf
from tests.supervisor.local_slots import LocalSlots

SPEC = SlotSpec(
    StateAddress("zk:2181", "/storm", "user", "zk-secret"),
    RedisAddress("redis", 6379, "redis-secret"),
    "/local",
    "/logs",
    2,
    ("node-1", "node-2"),
    hmac_key="ab12",
    conf={"sparkstorm.redis.password": "conf-secret", "topology.workers": 3},
)


def test_a_spec_travels_whole() -> None:
    assert SlotSpec.from_json(SPEC.to_json()) == SPEC
    assert b"\n" not in SPEC.to_json()


def test_a_spec_shows_no_secret() -> None:
    assert not any(
        secret in repr(SPEC) for secret in ("zk-secret", "redis-secret", "ab12", "conf-secret")
    )


def test_a_damaged_spec_is_refused_by_field() -> None:
    with pytest.raises(StoreInconsistentError, match="slots_per_node"):
        SlotSpec.from_json(SPEC.to_json().replace(b'"slots_per_node":2', b'"slots_per_node":"2"'))


def test_the_first_death_costs_no_pause_early_ones_ever_more_and_a_long_life_forgives() -> None:
    pause = RestartPause(first_ms=200, longest_ms=1_000, young_ms=10_000)
    assert [pause.after_ms(5) for _ in range(6)] == [0, 200, 400, 800, 1_000, 1_000]
    assert [pause.after_ms(10_000), pause.after_ms(5)] == [0, 200]


def test_slots_without_room_are_refused_before_anything_starts() -> None:
    slots = LocalSlots(SPEC, 5)
    sentence = "5 slots are wanted, but the nodes have only 4 ports"
    with pytest.raises(SlotsUnavailableError, match=sentence):
        slots.start()
    assert slots.running() == 0


def test_spark_gets_what_slots_need() -> None:
    conf = slot_conf(SparkConf(loadDefaults=False))
    assert {name: conf.get(name) for name in SPARK_CONF} == dict(SPARK_CONF)
    name = "spark.executor.extraJavaOptions"
    assert conf.get(name) is None
    on_one = SparkConf(loadDefaults=False).setMaster("local-cluster[2,2,512]")
    assert (slot_conf(on_one).get(name) or "").startswith("-XX:TieredStopAtLevel=1")
    assert slot_conf(on_one.set(name, "-Xss2m")).get(name) == "-Xss2m"


@pytest.mark.parametrize(
    ("master", "silence"),
    [("local[3]", "7d"), ("local-cluster[2,2,512]", None), ("spark://head:7077", None)],
)
def test_the_one_executor_of_a_local_master_is_never_lost(master: str, silence: str | None) -> None:
    name = "spark.storage.blockManagerHeartbeatTimeoutMs"
    conf = SparkConf(loadDefaults=False).setMaster(master)
    assert slot_conf(conf).get(name) == silence
    assert slot_conf(conf.set(name, "1h")).get(name) == "1h"


def test_executors_of_this_machine_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    root = str(Path(__file__).parents[2])
    result = slot_conf(SparkConf(loadDefaults=False)).get("spark.executorEnv.PYTHONPATH")
    assert result == f"{root}:/users/own"


@pytest.mark.parametrize("name", ["spark.speculation", "spark.dynamicAllocation.enabled"])
def test_settings_that_would_double_or_reap_slots_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        slot_conf(SparkConf(loadDefaults=False).set(name, "true"))


@pytest.mark.parametrize(
    ("master", "words"),
    [
        (
            "local[1]",
            [
                "local[1] offers 1: start with --master local[3] or more",
                "sparkstorm.slots.per.supervisor",
            ],
        ),
        ("local-cluster[1,2,1024]", ["offers 2: add executors or cores"]),
        ("local-cluster[3,2,1024]", ["offers 1: add", "if executors were only late"]),
        (
            "spark://head:7077",
            [
                "offers 1: add executors or cores",
                "sparkstorm.supervisors",
                "sparkstorm.slots.start.timeout.ms",
            ],
        ),
    ],
)
def test_too_few_cores_are_named_with_the_keys_to_change(master: str, words: list[str]) -> None:
    said = _shortage(master, 1, 3)
    assert all(word in said for word in words), said
