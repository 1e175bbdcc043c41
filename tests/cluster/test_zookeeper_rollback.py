"""Checks that a session outlives a ZooKeeper that was emptied or put back to an older state, and
ends before a silent one.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.extensions.embedded import ZooKeeperServer
from tests.waiting import wait_until

pytestmark = pytest.mark.nightly

WITHIN_S = 60.0  # kazoo alone asks such a server for ever
ENDS_S = 30.0


@pytest.mark.parametrize("is_emptied", [True, False], ids=["emptied", "put back"])
def test_a_server_without_what_a_session_has_seen_gets_a_new_session(
    is_emptied: bool, own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    data, older = own_zookeeper.data_dir / "zookeeper-data", tmp_path / "older"
    user, password = own_zookeeper.identity
    store = ZooKeeperStateStore(
        ZooKeeperAddress(
            own_zookeeper.hosts, "/storm", user, password, 4_000, request_timeout_ms=60_000
        )
    )
    try:
        store.put("/before", b"x")
        own_zookeeper.stop()
        shutil.copytree(data, older)
        own_zookeeper.restart()
        for number in range(50):
            store.put(f"/forgotten/{number}", b"x")
        own_zookeeper.stop()
        shutil.rmtree(data)
        if not is_emptied:
            shutil.copytree(older, data)
        own_zookeeper.restart()
        began = time.monotonic()
        store.put_ephemeral("/after", b"x")
        assert time.monotonic() - began < WITHIN_S
        assert (store.rollbacks, store.session_epoch) == (1, 1)
        assert (store.get("/before") is None) is is_emptied
        assert store.get("/forgotten/49") is None
    finally:
        store.close()


def test_a_restarted_server_with_all_its_data_keeps_its_sessions(
    own_zookeeper: ZooKeeperServer,
) -> None:
    user, password = own_zookeeper.identity
    store = ZooKeeperStateStore(
        ZooKeeperAddress(own_zookeeper.hosts, "/storm", user, password, 30_000)
    )
    try:
        store.put_ephemeral("/here", b"x")
        own_zookeeper.kill()
        time.sleep(2.5)  # long enough for a look at the server
        own_zookeeper.restart()
        assert store.get("/here") is not None
        assert (store.rollbacks, store.session_epoch) == (0, 0)
    finally:
        store.close()


def test_sessions_end_soon_although_their_server_is_silent(own_zookeeper: ZooKeeperServer) -> None:
    user, password = own_zookeeper.identity
    address = ZooKeeperAddress(own_zookeeper.hosts, "/storm", user, password, 30_000)
    stores = [ZooKeeperStateStore(address) for _ in range(2)]
    stores[0].put("/here", b"x")
    pid = int((own_zookeeper.data_dir / "zookeeper.pid").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for store in stores:
            store.hurry()
            for _ in range(5):
                with pytest.raises(StoreUnavailableError):
                    store.get("/here")
            store.close()
        # kazoo alone: some 14 s for each end, and 2 s for each request
        assert time.monotonic() - began < ENDS_S
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(
        lambda: not any(each.name == "zookeeper-end" for each in threading.enumerate()),
        "the end of the sessions",
    )
