"""Tells whose office may be taken before its session ends."""

import os
import subprocess
import sys

import pytest

from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.cluster.nimbus_state import NimbusInfo
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.nimbus.leader_election import depose_dead_leader, own_name


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_dead_process_of_this_host_is_deposed() -> None:
    tree = LocalStateStore()
    StormState(LocalStateStore(tree.tree)).try_lead(NimbusInfo(f"{os.uname().nodename}:{dead_pid()}", 1))
    state = StormState(tree)
    assert depose_dead_leader(state)
    assert state.try_lead(NimbusInfo(own_name(), 2))


@pytest.mark.parametrize("owner", [own_name(), "elsewhere:1", "nonsense", f"{os.uname().nodename}:", f"{os.uname().nodename}:x"])
def test_the_living_the_distant_and_the_nameless_keep_their_office(owner: str) -> None:
    state = StormState(LocalStateStore())
    state.try_lead(NimbusInfo(owner, 1))
    assert not depose_dead_leader(state)
    assert state.read_leader() == NimbusInfo(owner, 1)


def test_nobody_is_deposed_where_nobody_leads() -> None:
    assert not depose_dead_leader(StormState(LocalStateStore()))
