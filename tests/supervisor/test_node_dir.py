"""A node's folder: claims that die with their holder, and small states that are never half
written.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.control_plane.supervisor.node_dir import LocalState, NodeDir
from sparkstorm.control_plane.supervisor.supervisor import LocalBeat
from tests.waiting import wait_until

BEAT = LocalBeat("t", 6700, (1, 2), 5)


def test_a_port_has_one_holder(tmp_path: Path) -> None:
    first, second = NodeDir(tmp_path, "n1"), NodeDir(tmp_path, "n1")
    claim = first.try_claim(6700)
    assert claim is not None and second.try_claim(6700) is None
    claim.release()
    assert second.try_claim(6700) is not None


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
