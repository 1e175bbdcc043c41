"""Opening of a cluster by its connection file: what may be wrong with it, and that neither Spark
nor Java is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import connect
from sparkstorm.common.errors import (
    InvalidConfigError,
    NotAliveError,
    ReadOnlyConnectionError,
    StoreUnavailableError,
)
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.connection import (
    VIEWER,
    Connection,
    ReadOnlyConnection,
    ZooKeeperEndpoint,
    new_secret,
    read_only_path,
    save_connection,
)
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from tests.client.bare import bare, ended

QUICK = {"storm.zookeeper.connection.timeout": 1_000, "storm.zookeeper.retry.times": 0}


@pytest.fixture
def file(tmp_path: Path, redis_server: RedisServer, zookeeper_server: ZooKeeperServer) -> Path:
    """The connection file of a cluster without topologies."""
    user, password = zookeeper_server.identity
    root = f"/{tmp_path.name}"
    redis = RedisAddress(redis_server.host, redis_server.port, redis_server.password)
    keeper = ZooKeeperEndpoint(zookeeper_server.hosts, root, user, password)
    save_connection(tmp_path / "connection.json", Connection(redis, keeper, new_secret()))
    save_connection(read_only_path(tmp_path / "connection.json"), ReadOnlyConnection(redis, keeper))
    return tmp_path / "connection.json"


@pytest.mark.system
def test_a_client_needs_neither_spark_nor_java(file: Path) -> None:
    program = """
import shutil
import sparkstorm.api, sparkstorm.cli.__main__
from sparkstorm.client import connect
with connect(sys.argv[1]) as cluster:
    assert cluster.topologies() == [] and cluster.problems() == {} and cluster.dead_letters() == {}
assert shutil.which("java") is None and not {"pyspark", "py4j"} & set(sys.modules)
try:
    import pyspark
except ImportError:
    print("done without")
"""
    assert ended(bare(program, str(file), folder=file.parent)) == (0, "done without\n", "")


@pytest.mark.system
def test_a_cluster_is_named_by_path_mapping_or_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, Any] = json.loads(file.read_text())
    bare_content = {
        key: value for key, value in content.items() if key in ("redis", "zookeeper", "secret")
    }
    for connection in (file, str(file), content, bare_content):
        with connect(connection) as cluster:
            assert cluster.topologies() == [] and not cluster.is_read_only
    monkeypatch.setenv("SPARKSTORM_CLUSTER", str(file))
    with (
        connect() as cluster,
        pytest.raises(NotAliveError, match="topology words is not alive; no topology runs here"),
    ):
        cluster.topology("words")


@pytest.mark.system
def test_everything_that_changes_something_is_refused_over_a_read_only_connection(
    file: Path,
) -> None:
    with connect(read_only_path(file)) as cluster:
        assert cluster.is_read_only and cluster.topologies() == []
        handle = cluster.handle("words-1-1")
        assert handle.status() is None and handle.progress().executed == 0
        for change in (
            handle.kill,
            handle.activate,
            handle.deactivate,
            handle.restart,
            handle.delete_data,
            handle.dead_letters.drop,
            lambda: handle.dead_letters.replay([]),
            lambda: handle.set_log_level({}),
            lambda: handle.rebalance(None),  # type: ignore[arg-type]
            lambda: handle.plan_rebalance(None),  # type: ignore[arg-type]
            lambda: handle.update(None),  # type: ignore[arg-type]
            lambda: cluster.submit("words", None),  # type: ignore[arg-type]
        ):
            sentence = r"use the cluster's connection\.json"
            with pytest.raises(ReadOnlyConnectionError, match=sentence):
                change()


def test_a_connection_that_is_none_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARKSTORM_CLUSTER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no contexts
    with pytest.raises(InvalidConfigError, match="set SPARKSTORM_CLUSTER"):
        connect()
    with pytest.raises(InvalidConfigError, match=r"nothing\.json cannot be read: No such file"):
        connect(tmp_path / "nothing.json")
    odd = tmp_path / "odd.json"
    odd.touch(0o600)
    for content in ("{}", "[]", "words: 3", '{"format": 1, "kind_of_record": "Connection"}', ""):
        odd.write_text(content)
        sentence = r"odd\.json.*not the connection file of a cluster"
        with pytest.raises(InvalidConfigError, match=sentence):
            connect(odd)
    odd.chmod(0o644)
    with pytest.raises(InvalidConfigError, match="can be read by others: chmod 600"):
        connect(odd)
    with pytest.raises(InvalidConfigError, match="redis: missing"):
        connect({"zookeeper": {}, "secret": "00"})


def test_a_wait_for_zookeeper_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = ZooKeeperEndpoint("127.0.0.1:1", "/storm", VIEWER, "x")
    gone = Connection(RedisAddress("127.0.0.1", 1), keeper, new_secret())
    save_connection(tmp_path / "connection.json", gone)
    with pytest.raises(StoreUnavailableError):
        connect(
            tmp_path / "connection.json", {**QUICK, "storm.zookeeper.connection.timeout": 1_500}
        )
    assert caplog.messages == ["waiting up to 1.5 s for ZooKeeper at 127.0.0.1:1 ..."]


def test_a_cluster_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = Connection(
        RedisAddress("127.0.0.1", 1),
        ZooKeeperEndpoint("127.0.0.1:1", "/storm", VIEWER, "x"),
        new_secret(),
    )
    save_connection(tmp_path / "connection.json", gone)
    with pytest.raises(
        StoreUnavailableError,
        match=r"the cluster of .*/connection\.json is not running.* ZooKeeper at 127\.0\.0\.1:1/storm "
        r"does not answer within 1000 ms .*`sparkstorm cluster`.*starts it",
    ):
        connect(tmp_path / "connection.json", QUICK)
    for hosts, root in (
        ("127.0.0.1:abc", "/storm"),
        ("127.0.0.1:1", "storm"),
        ("127.0.0.1:1", "/../x"),
    ):
        save_connection(
            tmp_path / "odd.json",
            Connection(gone.redis, ZooKeeperEndpoint(hosts, root, ""), new_secret()),
        )
        sentence = r"no ZooKeeper is at .*see storm\.zookeeper\.servers"
        with pytest.raises(InvalidConfigError, match=sentence):
            connect(tmp_path / "odd.json", QUICK)
    unborn = Connection(RedisAddress("127.0.0.1", 0), ZooKeeperEndpoint("", "/", ""), new_secret())
    save_connection(tmp_path / "connection.json", unborn)
    with pytest.raises(InvalidConfigError, match="has not been up yet"):
        connect(tmp_path / "connection.json")
