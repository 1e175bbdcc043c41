"""New code next to the code that runs, over what a live task was given: what differs is found, row
by row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.common.errors import InvalidTopologyError, RecordingError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.extensions.recording.shadow import check_shadow, compare_versions
from sparkstorm.testing import FeederSpout, LocalCluster, Nothing

pytestmark = [pytest.mark.slow, pytest.mark.sampled]


class Running(StatefulBolt):
    """Emits a running total; from some total on the code of a version is wrong, or fails."""

    outputs = ("total",)

    def __init__(self, wrong_every: int = 0, fails_at: int = 0, key: str = "total") -> None:
        self.wrong_every, self.fails_at, self.key = wrong_every, fails_at, key

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        total = self.state.add(self.key, tup.values[0])
        if self.fails_at and total == self.fails_at:
            raise ValueError("not this one")
        collector.emit((-total if self.wrong_every and total % self.wrong_every == 0 else total,))


class Helped(Running):
    """Opens only where a module is that is nowhere."""

    def __reduce__(self) -> Any:
        return __import__, ("a_module_that_is_nowhere",)


def build(running: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", FeederSpout(["n"]))
    builder.set_bolt("running", running).global_grouping("numbers")
    builder.set_bolt("end", Nothing()).shuffle_grouping("running")
    return builder.build()


def code(running: Any) -> tuple[bytes, dict[str, Any]]:
    return pack_topology(build(running), ["tests"]), {"topology.workers": 1, "topology.id": "x-1-1"}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The recording of a live task: 300 ones."""
    topology = build(Running())
    conf = {"topology.record.components": ["running"], "topology.record.directory": str(tmp_path)}
    with LocalCluster() as cluster:
        cluster.submit(topology, conf)
        spout = topology.components["numbers"].instance
        for _ in range(300):
            spout.feed([1])
        cluster.run_until_idle()
    (folder,) = tmp_path.rglob("task-*")
    return folder


def test_one_percent_of_different_answers_is_found_and_refuses_the_upgrade(recording: Path) -> None:
    same = compare_versions(code(Running()), code(Running()), recording)
    assert (same.compared, same.different, same.differences) == (300, 0, ())
    check_shadow("words", same, 300)
    with pytest.raises(InvalidTopologyError, match="300 tuples were compared, 301 are asked for"):
        check_shadow("words", same, 301)
    found = compare_versions(code(Running()), code(Running(wrong_every=100)), recording)
    assert (found.compared, found.different) == (300, 3)
    assert [(each.number, each.part, each.old, each.new) for each in found.differences] == [
        (n, "emitted", {"default": [[n]]}, {"default": [[-n]]}) for n in (100, 200, 300)
    ]
    words = r"3 of 300 recorded tuples come out differently with the new code; first running#\d, row 100 \(1,\): emitted"
    with pytest.raises(InvalidTopologyError, match=words):
        check_shadow("words", found, 0)


def test_a_failure_and_another_state_are_differences(recording: Path) -> None:
    fails = compare_versions(code(Running()), code(Running(fails_at=7)), recording)
    assert (fails.differences[0].number, fails.differences[0].part) == (7, "emitted")
    other = compare_versions(code(Running()), code(Running(key="sum")), recording, 50)
    assert other.different == other.compared >= 50
    assert {each.part for each in other.differences} == {"changed state"}


def test_what_cannot_be_compared_is_said_in_one_sentence(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no recording"):
        compare_versions(code(Running()), code(Running()), tmp_path / "nowhere")
    sentence = r"the new code cannot be stepped through: .*a_module_that_is_nowhere"
    with pytest.raises(WorkerFailedError, match=sentence):
        compare_versions(code(Running()), code(Helped()), recording)
