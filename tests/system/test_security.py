"""A run as another user of the machine sees it: without a credential he gets nothing, and no secret
lies about in clear.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import tests.system.main_job as main_job
from sparkstorm.common.stores.connection import Connection, load_connection, signing_key
from tests.system.main_job import MainJob
from tests.waiting import LIMIT_S

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.system,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root can become another user: run this test as root"
    ),
]
OTHER_USER = Path(__file__).with_name("other_user.py")
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
ENDLESS = """
from sparkstorm.api import BasicBolt, Spout, TopologyBuilder

class Forever(Spout):
    outputs = ("number",)
    def next_tuple(self):
        self.collector.emit((1,))
    def open(self, conf, context, collector):
        self.collector = collector
        print("conf", dict(conf))

class Sink(BasicBolt):
    def execute(self, tup, collector):
        pass

def build():
    builder = TopologyBuilder()
    builder.set_spout("forever", Forever())
    builder.set_bolt("sink", Sink()).shuffle_grouping("forever")
    return builder.build()
"""
JOB = """
name: forever
topology: forever:build
topology.workers: 2
storm.zookeeper.auth.password: a-password-of-the-configuration
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[MainJob]:
    """A running job in folders that everybody may enter, started as by hand: nothing names an
    address of the machine.
    """
    # pytest's own is closed to others
    folder = Path(tempfile.mkdtemp(prefix="sparkstorm-test-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "scratch").mkdir()
    plain = {**main_job.environment(), "TMPDIR": str(folder / "scratch")}
    del plain["SPARK_LOCAL_IP"]
    monkeypatch.setattr(main_job, "environment", lambda: plain)
    (folder / "forever.py").write_text(ENDLESS)
    (folder / "job.yaml").write_text(JOB)
    (folder / "job.yaml").chmod(0o600)
    made = MainJob(folder / "run", folder / "job.yaml")
    yield made
    made.close()
    shutil.rmtree(folder)


def listening(pids: set[int]) -> list[tuple[str, int]]:
    """Local address (in the kernel's hexadecimal) and port of every TCP socket on which one of the
    processes listens.
    """
    mine = {link for pid in pids for link in links(pid)}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    found = [
        row[1].rpartition(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine
    ]
    return [(host, int(port, 16)) for host, _, port in found]


def links(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # a process that has ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # a file that is closed meanwhile
                yield os.readlink(entry.path)


def environment_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # a process that has ended
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def holding(folder: Path, secrets: dict[str, str]) -> list[tuple[str, str]]:
    """Files with a secret in clear, and which."""
    files = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    found = []
    for path in files:
        # Redis renames its files while it rewrites them; others are sockets
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            found += [
                (path.name, name) for name, secret in secrets.items() if secret.encode() in data
            ]
    return found


def secrets_of(at: Connection) -> dict[str, str]:
    return {
        "secret": at.secret,
        "key": signing_key(at.secret).hex(),
        "redis": at.redis.password,
        "zookeeper": at.zookeeper.password,
    }


def check_stores(at: Connection) -> None:
    with redis.Redis(port=at.redis.port) as client, pytest.raises(redis.AuthenticationError):
        client.info()
    other = KazooClient(at.zookeeper.hosts, auth_data=[("digest", "somebody:else")])
    other.start(LIMIT_S)
    for path in (
        "",
        at.zookeeper.root,
        f"{at.zookeeper.root}/storms",
        f"{at.zookeeper.root}/tickets",
    ):
        with pytest.raises(NoAuthError):
            other.get_children(path or "/")
        with pytest.raises(NoAuthError):
            other.create(f"{path}/x")
    other.stop()
    other.close()


def test_another_user_gets_nothing_and_no_secret_lies_in_clear(run: MainJob) -> None:
    run.start()
    sight = run.sight()
    run.workers(sight, 2)
    sight.close()
    storm_local, scratch = run.folder / "storm-local", run.folder.parent / "scratch"
    at = load_connection(storm_local / "connection.json")
    secrets = secrets_of(at)
    pids = {run.pid, *run.tree()}
    sockets = listening(pids)
    assert len(sockets) >= 4 and [host for host, _ in sockets if host not in LOOPBACK] == []

    asked = {
        "addresses": [("127.0.0.1", port) for _, port in sockets],
        "pids": sorted(pids),
        "folders": [str(storm_local), str(scratch)],
        "files": ["/files/forever.py"],
    }
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(OTHER_USER), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    got = json.loads(answer.stdout)
    commands = got.pop("commands")
    assert {kind: sorted(found) for kind, found in got.items() if found} == {}
    assert set(got) == {"blocks", "streams", "read", "environ", "memory"}
    assert [
        name
        for name, secret in secrets.items()
        if any(secret in command for command in commands.values())
    ] == []
    check_stores(at)

    # what root sees: the connection file, and the one password that Redis itself needs
    result = {place for place in holding(run.folder, secrets) if place[0] != "connection.json"}
    assert result == {("redis.conf", "redis")}
    environments = b"".join(map(environment_of, pids))
    assert [name for name, secret in secrets.items() if secret.encode() in environments] == []
