"""Laws of a node's storage, on disk and in memory."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.control_plane.blobs.named import BlobUse
from sparkstorm.control_plane.supervisor.base import NodeStorage
from sparkstorm.control_plane.supervisor.local import MemoryDisk, MemoryNodeDir
from sparkstorm.control_plane.supervisor.node_dir import LocalState, NodeDir
from sparkstorm.control_plane.supervisor.supervisor import LocalBeat
from tests.waiting import wait_until

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


# -- a node's folder -------------------------------------------------------------------------------


def test_nodes_and_ports_are_claimed_apart(tmp_path: Path) -> None:
    claims = [
        NodeDir(tmp_path, node).try_claim(port) for node in ("n1", "n2") for port in (6700, 6701)
    ]
    assert None not in claims


def test_looking_who_lives_takes_no_claim_away(tmp_path: Path) -> None:
    node_dir = NodeDir(tmp_path, "n1")
    claim = node_dir.try_claim(6701)
    assert claim is not None
    assert node_dir.live_ports(own=6701) == [6701]
    other = node_dir.try_claim(6702)
    assert other is not None and node_dir.live_ports(own=6702) == [6701, 6702]
    other.release()
    assert (node_dir.ports(), node_dir.live_ports(own=6701)) == ([6701, 6702], [6701])


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from sparkstorm.control_plane.supervisor.node_dir import NodeDir\n"
        f"claim = NodeDir(Path({str(tmp_path)!r}), 'n1').try_claim(6700); print(claim is not None, flush=True)\n"
        "time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"True\n"
        assert NodeDir(tmp_path, "n1").try_claim(6700) is None
    finally:
        holder.kill()
        holder.communicate()
    wait_until(lambda: NodeDir(tmp_path, "n1").try_claim(6700) is not None, "free port")


def test_a_node_name_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    NodeDir(tmp_path / "local", "../../evil")
    assert [path.name for path in tmp_path.iterdir()] == ["local"]


def test_local_state_keeps_records_by_name(tmp_path: Path) -> None:
    state = LocalState(tmp_path / "state")
    assert state.get("heartbeat", LocalBeat) is None
    state.put("heartbeat", BEAT)
    state.put("former", BEAT)
    assert LocalState(tmp_path / "state").get("heartbeat", LocalBeat) == BEAT
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"heartbeat": 1}', '{"heartbeat": {}}', "\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(StoreInconsistentError, match="state"):
        LocalState(path).get("heartbeat", LocalBeat)


def test_a_damaged_file_is_replaced_by_the_next_writer(tmp_path: Path) -> None:
    state = LocalState(tmp_path / "state")
    state.path.write_text("{")
    state.put("heartbeat", BEAT)
    assert state.get("heartbeat", LocalBeat) == BEAT
