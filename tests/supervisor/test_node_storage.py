"""Laws of a node's storage, on disk and in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.control_plane.blobs.named import BlobUse
from sparkstorm.control_plane.supervisor.base import NodeStorage
from sparkstorm.control_plane.supervisor.local import MemoryDisk, MemoryNodeDir
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.supervisor import LocalBeat

BEAT = LocalBeat("t", 6700, (1, 2), 5)
Open = Callable[[], NodeStorage]


@pytest.fixture(params=["disk", "memory"])
def of_process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the storage of one node as another process sees it."""
    disk = MemoryDisk("n1")
    yield (
        (lambda: NodeDir(tmp_path, "n1"))
        if request.param == "disk"
        else (lambda: MemoryNodeDir(disk))
    )
    disk.close()


def test_a_port_has_one_holder_until_it_is_released(of_process: Open) -> None:
    first, second = of_process(), of_process()
    claim = first.try_claim(6700)
    assert claim is not None and claim.is_held and second.try_claim(6700) is None
    assert second.try_claim(6701) is not None
    assert first.live_ports(own=6700) == [6700, 6701]
    claim.release()
    assert (second.ports(), second.live_ports(own=6701)) == ([6700, 6701], [6701])
    assert second.try_claim(6700) is not None


def test_the_duties_have_one_holder(of_process: Open) -> None:
    first, second = of_process().duties_lock(), of_process().duties_lock()
    assert first.try_take() and first.try_take() and not second.try_take()
    first.release()
    assert second.try_take() and not first.is_held


def test_records_outlive_the_process(of_process: Open) -> None:
    of_process().worker_state(6700).put("heartbeat", BEAT)
    found = of_process()
    assert found.worker_state(6700).get("heartbeat", LocalBeat) == BEAT
    assert found.worker_state(6701).get("heartbeat", LocalBeat) is None


def test_a_blob_has_its_newest_version_for_every_process_until_nothing_uses_its_topology(
    of_process: Open,
) -> None:
    use, first, second = BlobUse("rules", "local"), of_process(), of_process()
    first.keep_code("t", "c0de", 6700, 10_000, lambda key: b"")
    folder = first.keep_blob("t", use, "k1", lambda key: b"one")
    assert (folder / "local").read_bytes() == b"one"
    assert second.keep_blob("t", use, "k2", lambda key: b"two") == folder
    assert first.keep_blob("u", use, "k1", lambda key: b"one") != folder
    assert (folder / "local").read_bytes() == b"two"
    with pytest.raises(StoreInconsistentError, match="is no blob key"):
        first.keep_blob("t", use, "../k", lambda key: b"x")
    first.keep_code("t", "c0de", 6700, 10_000, lambda key: b"")
    first.forget_code((), before_ms=15_000)
    assert not folder.exists()


def test_code_is_fetched_once_and_forgotten_when_nothing_uses_it(of_process: Open) -> None:
    fetched: list[str] = []

    def fetch(key: str) -> bytes:
        fetched.append(key)
        return key.encode()

    storage = of_process()
    key = "6ed9c7c0d5ba2c4a9a1d27f6c30dc52c9a6d2a1c3c9d8c3d1f9a5c0e8f7a6b5c"
    path = storage.keep_code("t", key, 6700, 10_000, fetch)
    assert storage.has_code(path) and storage.read_code(path) == key.encode()
    storage.keep_code("u", key, 6700, 20_000, fetch)
    storage.forget_code({"t"}, before_ms=15_000)
    storage.forget_code((), before_ms=10_000)
    assert storage.has_code(path)
    storage.forget_code({"u"}, before_ms=15_000)
    assert not storage.has_code(path) and storage.read_code(path) is None


def test_the_locks_of_a_dead_process_are_free() -> None:
    disk = MemoryDisk("n1")
    dead, other = MemoryNodeDir(disk), MemoryNodeDir(disk)
    assert dead.try_claim(6700) is not None and dead.duties_lock().try_take()
    dead.die()
    assert other.duties_lock().try_take() and other.live_ports(own=6701) == []
    assert other.try_claim(6700) is not None
