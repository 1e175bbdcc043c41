"""Checks refusals of a cluster before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstorm.common.config import merge
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.addresses import not_configured
from sparkstorm.driver import cluster
from sparkstorm.driver.cluster import refuse_remote_master


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_slots_on_other_hosts_cannot_use_servers_embedded_on_this_one(master: str) -> None:
    sentence = r"cannot reach the embedded redis and zookeeper.*sparkstorm\.redis\.url"
    with pytest.raises(InvalidConfigError, match=sentence):
        refuse_remote_master(master, ["zookeeper", "redis"])
    refuse_remote_master(master, [])


@pytest.mark.parametrize("master", ["local", "local[3]", "local-cluster[2,2,1024]"])
def test_masters_on_this_machine_may_use_embedded_servers(master: str) -> None:
    refuse_remote_master(master, ["redis"])


def test_what_will_be_embedded_is_known_before_it_is_started() -> None:
    assert not_configured(merge({})) == ["redis", "zookeeper"]
    assert not_configured(merge({"sparkstorm.redis.url": "redis://:s@r"})) == ["zookeeper"]
    assert (
        not_configured(
            merge({"sparkstorm.redis.url": "redis://:s@r", "storm.zookeeper.servers": ["z"]})
        )
        == []
    )


@pytest.mark.parametrize(
    "key", ["sparkstorm.redis.password.file", "storm.zookeeper.auth.password.file"]
)
def test_an_unfit_password_file_is_refused_before_spark_is_started(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, started = tmp_path / "password", list[str]()
    file.write_text("of-mine\n")
    file.chmod(0o644)
    monkeypatch.setattr(cluster, "new_context", lambda _: started.append("Spark"))
    settings = {
        "sparkstorm.redis.url": "redis://127.0.0.1:1",
        "storm.zookeeper.servers": ["127.0.0.1:1"],
        key: str(file),
    }
    with (
        pytest.raises(InvalidConfigError, match="password file"),
        cluster.Cluster.open(merge({**settings, "storm.local.dir": str(tmp_path / "local")})),
    ):
        pass
    assert started == []
