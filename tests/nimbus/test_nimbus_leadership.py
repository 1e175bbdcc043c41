"""Tells whose office may be taken before its session ends."""

import os
import subprocess
import sys

import pytest

from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.cluster.nimbus_state import NimbusInfo, Submission
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.nimbus.leader_election import depose_dead_leader, end_dead_submissions, own_name


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


def test_names_that_dead_processes_of_this_host_were_submitting_are_free_again() -> None:
    tree = LocalStateStore()
    former = StormState(LocalStateStore(tree.tree))
    owners = {"dead": f"{os.uname().nodename}:{dead_pid()}", "alive": own_name(), "far": "elsewhere:1", "old": ""}
    for name, owner in owners.items():
        assert former.begin_submission(name, Submission(f"{name}-1-1", 1, owner))
    state = StormState(tree)
    assert end_dead_submissions(state) == ["dead"]
    assert sorted(state.submissions()) == ["alive", "far", "old"]
    assert state.begin_submission("dead", Submission("dead-2-2", 2, own_name()))
