"""Two topologies over two real Redis servers: each has its data in one of them, follows its record,
and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from sparkstorm.client.connect import connect
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.config import merge
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.requests import topology_name
from sparkstorm.driver.cluster import Cluster, context_conf
from sparkstorm.extensions.embedded import RedisServer, start_redis
from sparkstorm.testing.servers.processes import command_of, descendants
from tests.system.gated_count import build, expected_counts

pytestmark = [pytest.mark.system, pytest.mark.nightly]
LIMIT_S = 600.0
OWN = {"topology.workers": 2, "topology.acker.executors": 1, "topology.max.spout.pending": 500}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two-stores")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[dict[str, RedisServer]]:
    with contextlib.ExitStack() as opened:
        made = {
            name: start_redis(folder / name, password=f"secret-of-{name}", maxmemory_mb=64)
            for name in ("near", "far")
        }
        for server in made.values():
            opened.callback(server.stop)
        yield made


@pytest.fixture(scope="module")
def cluster(folder: Path, servers: dict[str, RedisServer]) -> Iterator[Cluster]:
    urls = [
        f"redis://:{server.password}@{server.host}:{server.port}#{name}"
        for name, server in servers.items()
    ]
    settings = {
        "storm.local.dir": str(folder / "local"),
        "sparkstorm.redis.urls": urls,
        "sparkstorm.supervisors": 2,
        "sparkstorm.slots.per.supervisor": 2,
        "nimbus.monitor.freq.secs": 1,
    }
    conf = merge(settings)
    # The JVM of this process may remember the master of an earlier module's session.
    with (
        SparkContext(conf=context_conf(conf).setMaster("local[5]")) as context,
        Cluster.open(conf, context) as opened,
    ):
        yield opened


def until(condition: Callable[[], bool], words: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, words
        time.sleep(0.1)


def names_in(server: RedisServer) -> dict[str, set[str]]:
    """Return the parts of the keys of each topology that a server holds, by the topology's name."""
    found: dict[str, set[str]] = {}
    with server.client() as client:
        for name in map(bytes.decode, client.scan_iter(match="{*")):
            topology_id, _, part = name.partition(":")
            found.setdefault(topology_name(topology_id).strip("{}"), set()).add(part)
    return found


def counted(handle: TopologyHandle) -> Counter[str]:
    """Let the topology end, and return its counts."""
    until(
        lambda: handle.progress().is_drained, f"{handle.topology_id} goes on: {handle.problems()}"
    )
    return Counter(dict(handle.key_values("count")))


def nodes_of(state: Any, path: str = "") -> Iterator[bytes]:
    for name in state.children(path or "/"):
        found = state.get(f"{path}/{name}")
        if found is not None:
            yield found.data
        yield from nodes_of(state, f"{path}/{name}")


def test_two_topologies_keep_to_their_own_store_and_are_exact(
    cluster: Cluster, servers: dict[str, RedisServer], folder: Path
) -> None:
    corpus, gate = folder / "words.txt", folder / "gate"
    corpus.write_text("".join(f"word{n % 97} {n % 13} the quick fox\n" for n in range(400)))
    topology = build([str(corpus)], str(gate))

    sentence = r"names the store 'third'; the cluster's stores are near, far"
    with pytest.raises(InvalidConfigError, match=sentence):
        cluster.submit("lost", topology, {**OWN, "topology.redis.store": "third"})
    first = cluster.submit("first", topology, OWN)
    second = cluster.submit("second", topology, OWN)
    bases = [cluster.state.read_base(each.topology_id) for each in (first, second)]
    assert [base.store if base else None for base in bases] == ["near", "far"]
    for handle in (first, second):
        until(
            lambda handle=handle: handle.progress().acked > 500,  # type: ignore[misc]
            f"{handle.topology_id} does not begin",
        )

    with pytest.raises(InvalidConfigError, match=r"in the store 'far' and stay there"):
        cluster.submit(
            "second",
            topology,
            {**OWN, "topology.redis.store": "near", "topology.hot.deploy.enable": True},
        )
    old_id = second.topology_id
    second = cluster.submit("second", topology, {**OWN, "topology.hot.deploy.enable": True})
    heir = cluster.state.read_base(second.topology_id)
    assert second.topology_id != old_id and heir is not None and heir.store == "far"
    until(lambda: second.progress().acked > 500, "the heir does not begin")

    held = {name: names_in(server) for name, server in servers.items()}
    # What was refused has a tombstone in each store, since it may have sown a state in any.
    refused = [found.pop("lost") for found in held.values()]
    assert refused == [{"ended"}, {"ended"}]
    assert held["near"].keys() == {"first"} and held["far"].keys() == {"second"}
    assert {"cursor", "fence", "steps", "progress"} <= held["near"]["first"] & held["far"]["second"]
    secrets = [server.password.encode() for server in servers.values()]
    assert not [
        data for data in nodes_of(cluster.state.store) if any(secret in data for secret in secrets)
    ]
    commands = "\n".join(command_of(pid) for pid in descendants(os.getpid()))
    assert not [secret for secret in secrets if secret.decode() in commands]

    with connect(folder / "local" / "connection.json") as client:  # as another process sees them
        seen = {each.name: each.progress().acked for each in client.topologies()}
        assert seen.keys() == {"first", "second"} and all(seen.values())
    gate.touch()
    for handle in (first, second):
        counts = counted(handle)
        assert counts == expected_counts([corpus], counts)
        handle.kill(0)
        until(lambda handle=handle: handle.status() is None, f"{handle.topology_id} does not end")  # type: ignore[misc]
    # A late heartbeat of an ended topology is swept by an end in every store, for the sweep does not
    # know which one it had: a tombstone of it may be in the other one too.
    left = {name: names_in(server) for name, server in servers.items()}
    result = {name for found in left.values() for each in found.values() for name in each}
    assert result == {"ended"}
    assert left["near"].keys() >= {"first", "lost"} and left["far"].keys() >= {"second", "lost"}
