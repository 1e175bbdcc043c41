"""Hundreds of seeds of the whole cluster: whatever strikes whom, results are exact, every tree is
settled, every request ends.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, StatefulBolt, Tuple
from sparkstorm.common.model.requests import Outcome, OutcomeState, Request, RequestKind
from sparkstorm.common.model.topology import Topology
from sparkstorm.control_plane.nimbus.cleanup import TopologyCleanup
from sparkstorm.data_plane.executor import state
from sparkstorm.testing import CaptureBolt, FeederSpout, SimulationError, simulate
from sparkstorm.testing.__main__ import main
from sparkstorm.testing.faults import KIND_BY_NAME, KINDS, Fault, Kind, Scale, draw_faults
from sparkstorm.testing.faulty_cluster import FaultyCluster
from sparkstorm.testing.trial import Trial
from sparkstorm.testing.trial_requests import Client
from sparkstorm.testing.trials import Trials
from tests.sim.topologies import small_loop, small_to_target, subject
from tests.topologies import Count, Split, building

pytestmark = pytest.mark.sampled

SIZES = {
    "word_count": 10,
    "fan_out_fan_in": 10,
    "flaky": 6,
    "loop": 6,
    "batching": 4,
    "flaky_windows": 8,
    "stream_joins": 8,
    "look_ups": 12,
    "flaky_days": 8,
    "awaiting": 12,
}
ROWS = [["the quick brown fox"], ["the lazy dog"], ["the end"]]


def word_count() -> Topology:
    builder = building(lines=FeederSpout(["line"]))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return builder.build()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        "word_count",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SIZES if name != "word_count"),
    ],
)
def test_nothing_is_lost_or_doubled_or_left_open(name: str, first: int) -> None:
    report = simulate(subject(name, SIZES[name]), range(first, first + 20))
    assert report.runs == 20 and report.faults > 40


def test_a_user_simulates_a_topology_with_rows_for_its_spouts() -> None:
    assert (
        simulate(
            word_count(), range(5), sources={"lines": ROWS}, kinds=["KILL_WORKER", "LOSE_NODE"]
        ).runs
        == 5
    )


def test_hosts_that_are_cut_from_redis_lose_and_double_nothing() -> None:
    assert (
        simulate(
            word_count(), range(6), sources={"lines": ROWS}, kinds=["CUT_FROM_REDIS", "KILL_NIMBUS"]
        ).runs
        == 6
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kinds": ["NOPE"]}, "'NOPE' is no kind of fault; there are "),
        ({"seeds": ["x"]}, "seeds: expected whole numbers, got 'x'"),
        ({"sources": {"nope": ROWS}}, "sources: 'nope' is no spout; there are lines"),
        (
            {"sources": {"lines": [["a", "b"]]}},
            r"a row of 'lines' has 1 fields, not 2 as in \['a', 'b'\]",
        ),
        ({"only": [99]}, "only: seed 0 has no fault 99"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(word_count, **{"seeds": [0], "sources": {"lines": ROWS}, **arguments})


def test_a_function_that_returns_no_topology_is_named() -> None:
    sentence = "expected a function that returns a Topology, it returned a dict"
    with pytest.raises(ValueError, match=sentence):
        simulate(dict, [0])  # type: ignore[arg-type]


def test_a_refused_submission_is_shown_with_its_reason() -> None:
    sentence = r"(?s)a run without faults fails: .*unknown key topology\.workerz"
    with pytest.raises(SimulationError, match=sentence):
        simulate(word_count, [0], sources={"lines": ROWS}, conf={"topology.workerz": 1})


def test_a_state_that_is_not_compared_is_named() -> None:
    class Chance(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state[tup["line"]] = random.random()

    def build() -> Topology:
        builder = building(lines=FeederSpout(["line"]))
        builder.set_bolt("chance", Chance()).shuffle_grouping("lines")
        return builder.build()

    report = simulate(build, [0], sources={"lines": ROWS})
    assert str(report).endswith(
        "; not compared, as it differs between two runs without faults: the state of chance"
    )


def test_many_processes_share_the_seeds() -> None:
    assert simulate(word_count, range(6), sources={"lines": ROWS}, processes=2).runs == 6


def test_faults_of_a_seed_are_independent_of_each_other() -> None:
    scale = Scale(8_000, 40, 20, 40)
    drawn = draw_faults(7, scale)
    assert drawn == draw_faults(7, scale) != draw_faults(8, scale)
    names = {fault.kind.name for seed in range(400) for fault in draw_faults(seed, scale)}
    assert names == {kind.name for kind in KINDS}


class Lossy(Count):
    """Forgets what it has in memory of every fourth word: a bolt whose attribute should have been
    state.
    """

    def prepare(self, conf: Any, context: Any) -> None:
        self.seen = 0

    def execute(self, tup: Any, collector: Any) -> None:
        self.seen += 1
        if self.seen > 2:
            super().execute(tup, collector)


def lossy() -> Topology:
    builder = building(lines=FeederSpout(["line"]))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("count", Lossy()).global_grouping("split")
    return builder.build()


def test_a_failing_seed_is_shrunk_and_its_line_runs_it_again() -> None:
    with pytest.raises(SimulationError, match="state of 'count'") as caught:
        simulate(lossy, range(50), sources={"lines": ROWS})
    match = re.search(
        r"seed (\d+), 1 of (\d+) faults.*seeds=\[\1\], only=\[(\d+)\]", str(caught.value), re.DOTALL
    )
    assert match is not None, str(caught.value)
    seed, number = int(match[1]), int(match[3])
    with pytest.raises(SimulationError, match=f"seed {seed}, 1 of "):
        simulate(lossy, [seed], sources={"lines": ROWS}, only=[number])
    assert simulate(lossy, [seed], sources={"lines": ROWS}, only=[]).faults == 0


PROGRAM = """
import sys
from sparkstorm.testing.trial import Trial
from sparkstorm.testing.trials import Trials
from tests.sim.topologies import small_word_count
from tests.topologies import Count, Split
trials = Trials(small_word_count())
for seed in (11, 23, 42):
    trial = Trial(trials.subject, seed, trials.faults(seed), trials.reference)
    trial.run()
    print(seed, trial.cluster.simulation.steps, trial.cluster.now_ms, *trial.cluster.log, sep="; ")
"""


def test_a_seed_does_the_same_in_every_process() -> None:
    root = Path(__file__).parents[2]
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].count("no more faults") == 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_fault_strikes(kind: Kind) -> None:
    trials = Trials(subject("word_count", 6), [kind], most_faults=4)
    for seed in range(20):
        trial = Trial(trials.subject, seed, trials.faults(seed), trials.reference)
        trial.run()
        if any(
            line.partition(": ")[2].startswith((kind.name, f"the end of {kind.name}"))
            for line in trial.cluster.log
        ):
            return
    raise AssertionError(f"{kind.name} has struck in no run")


def test_the_command_line_prints_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "tests.sim.topologies:small_loop",
                "tests.sim.topologies:small_flaky",
                "--seeds",
                "4",
                "--processes",
                "1",
            ]
        )
        == 0
    )
    assert re.findall(r"(small_\w+): (\d) seeds, \d+ faults, nothing lost", capsys.readouterr().out) == [
        ("small_loop", "2"), ("small_flaky", "2"),
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        main(["tests.sim.test_simulate:__name__"])
    assert "__name__ is of type str; name a function that returns" in capsys.readouterr().err


def test_rows_that_are_captured_after_a_crash_may_come_twice_but_states_are_exact() -> None:
    capture = CaptureBolt()

    def captured() -> Topology:
        builder = building(lines=FeederSpout(["line"]))
        builder.set_bolt("capture", capture).shuffle_grouping("lines")
        return builder.build()

    simulate(captured, range(5), sources={"lines": ROWS})
    assert {values[0] for values in capture.values} == {row[0] for row in ROWS}


@pytest.mark.parametrize("name", ["word_count", "flaky"])
def test_states_whose_changes_are_kept_at_each_turn_are_those_of_a_run_without_faults(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_LEAST_TO_KEEP", 0)
    assert simulate(subject(name, 10), range(12)).faults > 20


# 134: Nimbus dies and ZooKeeper goes back to the state before a submission, whose code is gone then.
# 1327: Redis is emptied while a hot deploy is under way.
# 1504: ZooKeeper and Redis are emptied both.
# 160220: Redis is emptied while a submission is under way whose Nimbus has died.
def test_rows_are_written_again_only_where_what_was_lost_was_named_or_nothing_was_left() -> None:
    simulate(small_to_target(), seeds=[134, 1327, 1504, 160220])


# 300149: Redis is emptied while everything is at rest, and only spouts would be asked.
def test_a_worker_at_rest_notices_that_its_store_was_emptied() -> None:
    simulate(subject("flaky", 6), seeds=[300149])


# 160614: the only node that had the code is replaced right after Redis was emptied.
# 170906: Redis is emptied while a rebalance is under way whose Nimbus has died.
def test_a_topology_whose_code_is_lost_is_named_and_can_be_killed_and_submitted_anew() -> None:
    simulate(small_loop(), seeds=[160614, 170906])


@pytest.mark.parametrize(("emptied_ms", "is_excused"), [(6_500, True), (1, False), (4_000, False)])
def test_an_emptied_redis_is_no_excuse_for_data_that_nimbus_has_deleted(
    emptied_ms: int, is_excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = TopologyCleanup._compare_with_data

    def delete(self: TopologyCleanup, *arguments: Any) -> bool:
        done = compare(self, *arguments)
        for topology_id in self.forgotten:
            self._hooks.store(topology_id, "").retire(topology_id)
        self.forgotten = {}
        return done

    monkeypatch.setattr(TopologyCleanup, "_compare_with_data", delete)
    trials = Trials(small_to_target())
    faults = [
        Fault(KIND_BY_NAME["REDIS_EMPTIED"], emptied_ms, 0, 0),
        Fault(KIND_BY_NAME["ZOOKEEPER_EMPTIED"], 6_500, 0, 0),
    ]
    problem = trials.problem(0, faults)
    assert ("rows too many" not in problem) == is_excused, problem


def test_a_request_that_expired_before_any_nimbus_could_take_it_up_has_ended() -> None:
    cluster = FaultyCluster(1, (), {})
    client = Client(cluster, random.Random(1))
    now_ms = cluster.now_ms
    request = Request("1" * 32, RequestKind.ACTIVATE, "main", now_ms, now_ms)
    client.ask(lambda: request, "an activation")
    [(pending, _)] = client._open.values()
    expired = Outcome(pending.id, OutcomeState.EXPIRED, now_ms, error="it expired")
    assert cluster.storm_state.create_outcome(expired)
    assert client._step(now_ms) is None
    assert client.unfinished() == [] and cluster.log == ["0 ms: an activation: it expired"]
