"""Tells what a submission makes of sizes and settings before anything is stored."""

import pytest

from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.normalise import (
    check_own_conf,
    normalise_conf,
    normalise_topology,
    validate_sizes,
)
from sparkstorm.common.model.topology import Component, Topology

CLUSTER = {**default_conf().as_dict(), "storm.local.dir": "here"}


def bolt(parallelism: int, num_tasks: int | None = None, **conf: object) -> Topology:
    own = {key.replace("__", "."): value for key, value in conf.items()}
    return Topology({"b": Component("b", "bolt", None, parallelism, num_tasks, own)})


@pytest.mark.parametrize(
    ("topology", "conf", "executors", "tasks"),
    [
        (bolt(3), {}, 3, 3),
        (bolt(3, 6), {}, 3, 6),
        (bolt(3, 6), {"topology.max.task.parallelism": 2}, 2, 2),
        (
            bolt(3, 6, topology__max__task__parallelism=4),
            {"topology.max.task.parallelism": 2},
            3,
            4,
        ),
        (bolt(3, topology__tasks=5), {}, 3, 5),
        (bolt(3), {"topology.bolt.parallelism": {"b": 7}}, 7, 7),
        (bolt(3, 6), {"topology.bolt.parallelism": {"b": 2, "other": 9}}, 2, 6),
        (bolt(3, 6), {"topology.bolt.parallelism": {"b": 8}}, 8, 8),
        (bolt(3), {"topology.spout.parallelism": {"b": 7}}, 3, 3),
    ],
)
def test_parallelism_is_made_definite(
    topology: Topology, conf: dict[str, object], executors: int, tasks: int
) -> None:
    made = normalise_topology(topology, conf).components["b"]
    assert (made.parallelism, made.num_tasks) == (executors, tasks)


def test_the_cluster_keeps_its_own_keys_and_repeating_them_is_fine() -> None:
    result = check_own_conf({"storm.local.dir": "here", "topology.workers": 2}, CLUSTER, "wc")
    assert result == {"topology.workers": 2}
    sentence = r"configuration of wc: storm\.local\.dir belongs to the cluster"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_own_conf({"storm.local.dir": "there"}, CLUSTER, "wc")


def test_the_stored_settings_are_whole_and_hold_no_secret_of_the_cluster() -> None:
    cluster = {**CLUSTER, "sparkstorm.redis.password": "secret", "topology.message.timeout.secs": 7}
    made = normalise_conf(cluster, {"topology.workers": 3, "app.colour": "red"})
    assert made["topology.message.timeout.secs"] == 7
    assert made["app.colour"] == "red"
    assert made["topology.acker.executors"] == 3
    assert not any(key.startswith(("sparkstorm.redis", "storm.zookeeper")) for key in made)


@pytest.mark.parametrize("workers", [None, 0, -1, "2", True])
def test_workers_are_a_whole_number_from_one(workers: object) -> None:
    sentence = r"There is no topology\.workers in configuration of wc-1-1"
    with pytest.raises(InvalidConfigError, match=sentence):
        validate_sizes({"topology.workers": workers}, "wc-1-1")


@pytest.mark.parametrize("ackers", [-1, "1", True])
def test_ackers_are_a_whole_number_from_zero(ackers: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"Invalid topology\.acker\.executors"):
        validate_sizes({"topology.workers": 1, "topology.acker.executors": ackers}, "wc-1-1")


@pytest.mark.parametrize("ackers", [None, 0, 3])
def test_no_ackers_and_unsaid_ackers_are_fine(ackers: object) -> None:
    validate_sizes({"topology.workers": 1, "topology.acker.executors": ackers}, "wc-1-1")
