"""Trials of submitted code by a supervisor: which code is tried, when, and with what verdict."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.requests import Outcome, OutcomeState, Request, RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.code_trials import CodeTrials
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.supervisor import Supervisor, SupervisorDuties
from sparkstorm.control_plane.supervisor.worker_process import child_environment
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.data_plane.user_code.trial import CodeTrial
from tests.blobs.test_trial import topology
from tests.waiting import wait_until

KEY = b"k" * 32


class Held:
    """A trial that ends when the test says so."""

    def __init__(self, path: Path) -> None:
        self.code, self.verdict, self.is_closed = path.read_bytes(), None, False  # type: bytes, str | None, bool

    def poll(self) -> str | None:
        return self.verdict

    def close(self) -> None:
        self.is_closed = True


class Host:
    """A supervisor with trials on a store in memory."""

    def __init__(self, folder: Path) -> None:
        self.state = StormState(LocalStateStore(LocalStateTree()), KEY)
        self.blobs = BlobStore(self.state, LocalBytesStore(), KEY)
        self.dir = NodeDir(folder, "n1")
        assert self.dir.try_claim(6700) is not None
        self.started: list[Held] = []
        self.refuses = False
        self.trials = CodeTrials(self.state, self.blobs, self.dir, 6700, self.start)

    def start(self, path: Path) -> Held:
        if self.refuses:
            raise OSError("no more processes")
        self.started.append(Held(path))
        return self.started[-1]

    def ask(self, number: int, code: bytes) -> str:
        """Make a request with that code; return the key."""
        key, name = self.blobs.put(code, 0), f"t{number}"
        base = TopologyBase(f"{name}-1-1", name, 0, TopologyStatus.ACTIVE, 1, {"a": 1}, key, "conf")
        self.state.create_request(
            Request(
                f"{number:032x}",
                RequestKind.SUBMIT,
                name,
                0,
                60_000,
                f"{name}-1-1",
                base=base,
                outline_key="outline",
            )
        )
        return key

    def decide(self, number: int) -> None:
        assert self.state.create_outcome(Outcome(f"{number:032x}", OutcomeState.REFUSED, 1))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_code_of_an_undecided_request_is_tried_once_and_its_verdict_goes_with_the_decision(
    host: Host,
) -> None:
    supervisor = Supervisor(SupervisorDuties("host-a", 6700), host.dir, host.state, host.trials)

    def published() -> object:
        info = host.state.read_supervisor("n1")
        return info and info.trials

    supervisor.step(0, {})
    assert published() == {}
    key = host.ask(1, b"code")
    host.ask(2, b"code")
    for now_ms in (1, 2):
        supervisor.step(now_ms, {})
    (trial,) = host.started
    assert trial.code == b"code" and published() == {}
    trial.verdict = "no module 'x'"
    supervisor.step(3, {})
    assert published() == {key: "no module 'x'"} and trial.is_closed
    host.decide(1)
    supervisor.step(4, {})
    assert published() == {key: "no module 'x'"}
    host.decide(2)
    supervisor.step(5, {})
    assert published() == {} and len(host.started) == 1


def test_four_trials_run_at_once_and_one_of_a_decided_request_is_killed(host: Host) -> None:
    for number in range(6):
        host.ask(number, b"code %d" % number)
    host.trials.step(0)
    assert len(host.started) == 4
    host.decide(int(host.started[0].code.split()[1]))
    host.trials.step(1)
    assert host.started[0].is_closed
    host.trials.step(2)
    assert len(host.started) == 5 and not any(each.is_closed for each in host.started[1:])
    host.trials.close()
    assert all(each.is_closed for each in host.started)


def test_a_process_that_the_machine_refuses_is_no_verdict_and_is_tried_again(host: Host) -> None:
    host.refuses = True
    host.ask(1, b"code")
    host.trials.step(0)
    host.refuses = False
    host.trials.step(2_999)
    assert host.trials.verdicts == {} and host.started == []
    host.trials.step(3_000)
    assert len(host.started) == 1


def test_code_without_the_clusters_signature_is_never_opened(host: Host) -> None:
    key = host.ask(1, b"code")
    BlobStore(StormState(host.state.store, KEY), host.blobs._bytes, b"x" * 32).put(b"code", 0)
    host.trials.step(0)
    assert host.started == []
    assert host.trials.verdicts == {
        key: f"blob {key} does not carry this cluster's signature of code; it was not opened"
    }


@pytest.mark.slow
def test_a_real_trial_has_the_modules_of_the_workers_and_names_one_that_they_lack(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "only_some_have_it.py").write_text("def helper():\n    pass\n")
    monkeypatch.syspath_prepend(str(packages))
    import only_some_have_it  # type: ignore[import-not-found]

    code = pack_topology(topology(only_some_have_it.helper), ["tests"])
    start = lambda path: CodeTrial(path, child_environment(), scratch=host.dir.tmp)  # noqa: E731 - short
    trials = CodeTrials(host.state, host.blobs, host.dir, 6700, start)
    key = host.ask(1, code)
    wait_until(lambda: trials.step(0), "a verdict")
    assert trials.verdicts == {key: ""}
    monkeypatch.undo()
    trials = CodeTrials(host.state, host.blobs, host.dir, 6700, start)
    wait_until(lambda: trials.step(0), "a verdict")
    where = f"is neither installed on host {socket.gethostname()} nor sent along with the topology"
    assert f"module 'only_some_have_it' {where}" in trials.verdicts[key]
    assert len(trials.verdicts[key].splitlines()) == 1
    assert list(host.dir.tmp.iterdir()) == []
