"""The checks of `sparkstorm doctor` without a name: what is wrong is named with its remedy."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.cli import main
from sparkstorm.common.config import merge
from sparkstorm.common.model import compiled
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.connection import (
    Connection,
    ReadOnlyConnection,
    ZooKeeperEndpoint,
    new_secret,
    save_connection,
)
from sparkstorm.driver import machine_checks
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer


def faults(conf: dict[str, Any], environ: dict[str, str]) -> dict[str, str]:
    found = machine_checks.findings(merge(conf), None, environ)
    return {each.subject: each.text for each in found if not each.is_well}


def test_a_java_that_is_missing_is_named(tmp_path: Path) -> None:
    assert (
        "Java 17 or newer is needed (none was found): install one"
        in faults({}, {"PATH": str(tmp_path)})["Java"]
    )


def test_a_row_path_that_was_not_built_is_a_fault_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "core", None)
    assert "row path" in faults({}, {}) and "row path" not in faults({}, {"SPARKSTORM_PURE": "1"})


def test_settings_of_spark_that_contradict_are_named_with_their_place(tmp_path: Path) -> None:
    Path(tmp_path, "spark-defaults.conf").write_text(
        "# ours\nspark.speculation  true\nspark.master local[2]\n"
    )
    environ = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.speculation=false pyspark-shell",
    }
    where = f"{tmp_path / 'spark-defaults.conf'}, line 2"
    text = (
        "spark.speculation is true, but slots need false: each is one long task; take it out there"
    )
    assert faults({}, environ)["Spark settings"] == f"{where}: {text}"
    environ = {
        "SPARK_CONF_DIR": "/nowhere",
        "PYSPARK_SUBMIT_ARGS": "--conf spark.dynamicAllocation.enabled=true pyspark-shell",
    }
    assert faults({}, environ)["Spark settings"].startswith(
        "PYSPARK_SUBMIT_ARGS: spark.dynamicAllocation.enabled is true"
    )


def test_a_port_that_is_taken_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = faults({"sparkstorm.embedded.redis.port": port}, {})
    assert f"port {port} on 127.0.0.1" in found["port"]
    assert "sparkstorm.embedded.redis.port" in found["port"]


@pytest.mark.parametrize(
    ("theirs_ms", "is_well", "text"),
    [
        (10_050, True, "within 0 ms"),
        (10_600, True, "within 500 ms"),
        (13_100, False, "is 3.0 s ahead of this host"),
        (7_000, False, "is 3.0 s behind this host"),
    ],
)
def test_the_time_of_the_question_is_no_difference_of_clocks(
    theirs_ms: float, is_well: bool, text: str
) -> None:
    found = machine_checks._clock(theirs_ms, 10_000, 10_100, "host:1")
    assert (found.is_well, text in found.text) == (is_well, True)


@pytest.mark.system
def test_the_servers_of_a_cluster_are_checked(
    redis_server: RedisServer,
    zookeeper_server: ZooKeeperServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = RedisAddress(redis_server.host, redis_server.port, redis_server.password)
    keeper = ZooKeeperEndpoint(zookeeper_server.hosts, "/of-the-doctor", *zookeeper_server.identity)
    save_connection(tmp_path / "connection.json", Connection(at, keeper, new_secret()))
    assert main(["doctor", "--cluster", str(tmp_path / "connection.json"), "--json"]) in (0, 1)
    found = {each["subject"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["Python"]["text"].endswith(sys.executable)
    result = [found[name]["is_well"] for name in ("Redis", "clock", "ZooKeeper")]
    assert result == [True, True, True]
    assert f"at {at.host}:{at.port}, noeviction" in found["Redis"]["text"]
    # a viewer of any name
    save_connection(tmp_path / "viewer.json", ReadOnlyConnection(at, keeper))
    found = {
        each.subject: each
        for each in machine_checks.findings(merge({}), str(tmp_path / "viewer.json"), {})
    }
    assert found["Redis"].is_well and "a viewer cannot ask" in found["Redis"].text


@pytest.mark.system
def test_servers_that_do_not_answer_and_policies_that_lose_data_are_named(
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_checks, "_WAIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        conf = {
            "sparkstorm.redis.url": f"redis://127.0.0.1:{port}",
            "storm.zookeeper.servers": [f"127.0.0.1:{port}"],
        }
        Path(tmp_path, "conf.yaml").write_text(json.dumps(conf))
        assert main(["doctor", "--conf", str(tmp_path / "conf.yaml")]) == 1
    out = capsys.readouterr().out
    assert f"Redis at 127.0.0.1:{port} cannot be used" in out
    assert "does not answer within 500 ms" in out
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            url = f"redis://:{redis_server.password}@{redis_server.host}:{redis_server.port}"
            found = faults({"sparkstorm.redis.url": url}, {})
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert "its maxmemory-policy is allkeys-lru, it must be noeviction" in found["Redis"]
