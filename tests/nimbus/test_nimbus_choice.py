"""Tells how a topology gets the scheduler it names, what JStorm's does with live topologies, and
that a guest harms nobody.
"""

import os
import pwd
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.nimbus.guarded_scheduler import GuardedScheduler
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import Bench

HERE = "tests.nimbus.test_nimbus_choice"


def bench_of(nodes: int = 3, ports: Sequence[int] = (6700, 6701), **conf: Any) -> Bench:
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return Bench(
        nodes,
        ports,
        scheduler=chosen_scheduler({**default_conf().as_dict(), **named}, GuardedScheduler),
        **conf,
    )


def component_of(bench: Bench, topology_id: str, executor: ExecutorId) -> str:
    table = bench.state.read_tasks(topology_id)
    assert table
    return table.info_by_task[executor.first_task].component_id


def nodes_of(bench: Bench, topology_id: str) -> list[str]:
    return sorted({slot.node for slot in bench.slots(topology_id).values()})


def test_two_topologies_are_placed_by_two_schedulers() -> None:
    bench = bench_of(nodes=4)
    plain = bench.submit("plain")
    conf: dict[str, Any] = {
        "topology__scheduler": "jstorm",
        "isolation__scheduler__machines": ["host-3"],
        "topology__workers": 1,
    }
    isolated = bench.submit("isolated", **conf)
    assert nodes_of(bench, isolated) == ["node-3"]
    assert len(bench.slots(plain)) == 13
    bench.supervisors["node-0"].die()
    bench.advance(60)
    assert nodes_of(bench, isolated) == ["node-3"] and "node-0" not in nodes_of(bench, plain)
    assert not set(bench.slots(plain).values()) & set(bench.slots(isolated).values())


def test_a_choice_that_cannot_be_made_is_refused_at_submission() -> None:
    bench = bench_of()
    for name, words in (
        ("nonsense", "neither one of"),
        ("blacklist", "whole cluster"),
        (f"{HERE}.Rogue", "allowed"),
    ):
        with pytest.raises(InvalidConfigError, match=rf"^topology\.scheduler: .*{words}"):
            bench.submit("wc", topology__scheduler=name)
    assert bench.state.known_ids() == set()


def test_a_rebalance_may_choose_another_scheduler_but_none_that_there_is_not() -> None:
    bench = bench_of(nodes=4)
    topology_id = bench.submit(topology__workers=2)
    with pytest.raises(InvalidConfigError, match="neither one of"):
        bench.service.rebalance(
            "wc", RebalanceOptions(None, {}, {"topology.scheduler": "nonsense"})
        )
    conf: dict[str, Any] = {
        "topology.scheduler": "jstorm",
        "isolation.scheduler.machines": ["host-1"],
    }
    bench.service.rebalance("wc", RebalanceOptions(2, {}, conf, reassign=True), wait_secs=0)
    bench.advance(3)
    assert nodes_of(bench, topology_id) == ["node-1"]


def definition(host: str, port: int, **counts: int) -> dict[str, Any]:
    return {"hostName": host, "port": port, "componentToNum": counts}


def test_workers_are_where_the_user_defines_them() -> None:
    bench = bench_of(storm__scheduler="jstorm")
    wanted = [definition("host-2", 6701, count=4), definition("host-1", 6700, lines=1, split=2)]
    topology_id = bench.submit("wc", topology__workers=3, use__userdefine__assignment=wanted)
    found: dict[WorkerSlot, list[str]] = {}
    for executor, slot in sorted(bench.slots(topology_id).items()):
        found.setdefault(slot, []).append(component_of(bench, topology_id, executor))
    assert found[WorkerSlot("node-2", 6701)].count("count") == 4
    defined = found[WorkerSlot("node-1", 6700)]
    assert (defined.count("lines"), defined.count("split")) == (1, 2)


def test_a_topology_gets_its_old_places_back_when_it_asks_for_them() -> None:
    bench = bench_of(nodes=4, storm__scheduler="jstorm")
    bench.submit("other", topology__workers=1)
    old = bench.slots(bench.submit("wc", topology__workers=4))
    bench.service.kill("wc", 0)
    bench.service.kill("other", 0)
    bench.advance(30)
    afresh = bench.slots(bench.submit("wc", topology__workers=4))
    assert afresh != old
    bench.service.kill("wc", 0)
    bench.advance(30)
    again = bench.slots(bench.submit("wc", topology__workers=4, use__old__assignment=True))
    assert again == afresh


def test_under_jstorm_the_dead_move_the_living_stay_and_a_full_cluster_waits() -> None:
    bench = bench_of(nodes=3, storm__scheduler="jstorm")
    topology_id = bench.submit("wc", topology__workers=4)
    before = bench.slots(topology_id)
    lost = next(iter(before.values())).node
    bench.supervisors[lost].die()
    bench.advance(90)
    after = bench.slots(topology_id)
    assert all(after[each] == slot for each, slot in before.items() if slot.node != lost)
    assert len(after) == len(before) and lost not in {slot.node for slot in after.values()}
    second = next(iter(after.values())).node
    bench.supervisors[second].die()
    bench.advance(90)
    assert "no enough worker" in bench.nimbus.problems[topology_id]
    result = {slot.node for slot in bench.slots(topology_id).values()}
    assert result == set(bench.supervisors) - {lost, second}


def test_a_jstorm_rebalance_keeps_every_task_where_it_was_unless_told_to_reassign() -> None:
    bench = bench_of(nodes=4, storm__scheduler="jstorm")
    topology_id = bench.submit("wc", topology__workers=2)
    before = bench.slots(topology_id)
    bench.service.rebalance("wc", RebalanceOptions(3), wait_secs=0)
    bench.advance(3)
    assert bench.slots(topology_id) == before
    bench.service.rebalance("wc", RebalanceOptions(4, reassign=True), wait_secs=0)
    bench.advance(3)
    spread = bench.slots(topology_id)
    assert len(set(spread.values())) == 4
    with pytest.raises(FailedAssignTopologyError, match="there's no enough worker"):
        bench.service.rebalance("wc", RebalanceOptions(9), wait_secs=0)
    components = bench.state.error_components(topology_id)
    texts = [
        each.text
        for component in components
        for each in bench.state.read_errors(topology_id, component)
    ]
    assert any("rebalance given up: there's no enough worker" in text for text in texts)
    assert bench.slots(topology_id) == spread


class Rogue:
    """A plug-in that harms others on purpose: it raises, or leaves nonsense behind."""

    way = ""

    def prepare(self, conf: object) -> None:
        if self.way == "cannot be prepared":
            raise RuntimeError("no table")

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if self.way == "raises":
            raise RuntimeError("boom")
        if self.way == "ends the process":
            raise SystemExit(3)
        for topology_id, topology in topologies.items():
            cluster.unassign(topology_id)
            if self.way == "takes another's slot":
                cluster.assign(WorkerSlot("node-0", 6700), topology_id, topology.executors)
            if self.way == "invents executors":
                cluster.assign(cluster.available_slots()[0], topology_id, [ExecutorId(900, 900)])
            if self.way == "answers with text":
                answer: Any = {"executor": "slot"}
                cluster.set_assignment(topology_id, answer)


ROGUE: dict[str, Any] = {"storm__scheduler__allowed": [f"{HERE}.Rogue"]}


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("raises", r"Rogue failed: RuntimeError: boom"),
        ("ends the process", r"Rogue failed: .*SystemExit: 3"),
        ("takes another's slot", r"Rogue failed: .*node-0:6700, which is not offered"),
        ("invents executors", r"Rogue failed: .*900-900, which bad-.* does not have"),
        ("answers with text", r"Rogue failed: "),
    ],
)
def test_what_a_guest_does_wrong_costs_only_its_own_topology(
    way: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(nodes=2, ports=(6700, 6701, 6702), **ROGUE)
    good = bench.submit("good", topology__workers=3)
    before = bench.slots(good)
    assert WorkerSlot("node-0", 6700) in before.values()
    monkeypatch.setattr(Rogue, "way", way)
    with pytest.raises(FailedAssignTopologyError, match=words):
        bench.submit("bad", topology__workers=1, topology__scheduler=f"{HERE}.Rogue")
    assert bench.submit("fine", topology__workers=1)
    assert bench.slots(good) == before and "scheduler" not in bench.nimbus.problems


def test_a_guest_that_cannot_even_be_made_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rogue, "way", "cannot be prepared")
    bench = bench_of(**ROGUE)
    sentence = r"topology\.scheduler: .*Rogue cannot be made: RuntimeError: no table"
    with pytest.raises(InvalidConfigError, match=sentence):
        bench.submit("bad", topology__workers=1, topology__scheduler=f"{HERE}.Rogue")
    assert bench.state.known_ids() == set()


def test_a_guest_that_fails_later_leaves_its_own_topology_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Rogue,
        "schedule",
        lambda self, topologies, cluster: DefaultScheduler().schedule(topologies, cluster),
    )
    bench = bench_of(nodes=3, **ROGUE)
    topology_id = bench.submit("late", topology__workers=4, topology__scheduler=f"{HERE}.Rogue")
    before = bench.assignment_of(topology_id)
    assert len(before.slot_by_executor) == 13
    monkeypatch.undo()
    monkeypatch.setattr(Rogue, "way", "raises")
    lost = next(iter(before.slot_by_executor.values())).node
    with pytest.raises(FailedAssignTopologyError, match="boom"):
        bench.service.rebalance("late", RebalanceOptions(2), wait_secs=0)
    bench.advance(3)
    base = bench.base_of(topology_id)
    assert (base.num_workers, base.pending) == (4, None)
    assert bench.slots(topology_id) == before.slot_by_executor
    bench.supervisors[lost].die()
    bench.advance(60)
    assert "Rogue failed: RuntimeError: boom" in bench.nimbus.problems[topology_id]
    living = {each: slot for each, slot in before.slot_by_executor.items() if slot.node != lost}
    assert bench.slots(topology_id) == living


def test_evictions_of_one_scheduler_never_reach_anothers_topologies() -> None:
    bench = bench_of(nodes=1, ports=(6700, 6701))
    plain = bench.submit("plain", topology__workers=1, topology__priority=100)
    before = bench.slots(plain)
    greedy = bench.submit("greedy", topology__scheduler="resource-aware", topology__priority=0)
    bench.advance(30)
    assert bench.slots(plain) == before
    assert not set(bench.slots(greedy).values()) & set(before.values())


def test_blacklisted_hosts_are_among_the_problems_until_they_are_trusted_again() -> None:
    conf: dict[str, Any] = {
        "storm__scheduler": "blacklist",
        "blacklist__scheduler__tolerance__count": 2,
        "blacklist__scheduler__tolerance__time__secs": 50,
        "blacklist__scheduler__resume__time__secs": 60,
    }
    bench = bench_of(nodes=3, **conf)
    bench.submit("wc", topology__workers=2)
    bench.supervisors["node-2"].die()
    bench.advance(25)
    bench.supervisors["node-2"].is_up = True
    bench.advance(11)
    problem = bench.service.problems()["blacklist"]
    assert problem.startswith("host-2: a supervisor or a port was missing there too often")
    bench.advance(80)
    assert bench.service.problems() == {}


def test_a_dry_run_is_no_round_for_a_scheduler_that_counts_rounds() -> None:
    conf: dict[str, Any] = {
        "storm__scheduler": "blacklist",
        "blacklist__scheduler__tolerance__count": 3,
    }
    asked, left = (bench_of(nodes=3, **conf) for _ in range(2))
    for bench in (asked, left):
        bench.submit("wc", topology__workers=2)
        bench.supervisors["node-2"].die()
        bench.advance(11)
    for _ in range(5):
        asked.service.plan_rebalance("wc", RebalanceOptions(3))
    for bench in (asked, left):
        bench.supervisors["node-2"].is_up = True
        bench.tick()
        bench.service.rebalance("wc", RebalanceOptions(3), wait_secs=0)
        bench.advance(2)
    (first,), (second,) = asked.state.topology_ids(), left.state.topology_ids()
    assert asked.slots(first) == left.slots(second)
    assert "node-2" in {slot.node for slot in asked.slots(first).values()}


class Counting(DefaultScheduler):
    """A plug-in that counts its rounds, and keeps what cannot be copied where a test asks for
    it.
    """

    kept: Any = None
    made: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.made.append(self)
        self.rounds = 0
        self.lock = self.kept

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.rounds += 1
        super().schedule(topologies, cluster)


@pytest.mark.parametrize("kept", [None, threading.Lock()])
@pytest.mark.parametrize("chosen", ["storm__scheduler", "topology__scheduler"])
def test_a_dry_run_is_no_round_for_a_plugged_in_scheduler(
    chosen: str, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setattr(Counting, "kept", kept)
    name: dict[str, Any] = {chosen: f"{HERE}.Counting"}
    bench = bench_of(storm__scheduler__allowed=[f"{HERE}.Counting"], **name)
    topology_id = bench.submit(topology__workers=2, **name)
    bench.tick()
    own = Counting.made[-1]
    rounds = own.rounds
    assert rounds
    plan = bench.service.plan_rebalance("wc", RebalanceOptions(3))
    assert own.rounds == rounds
    assert len(set(plan.after.values())) == 3 != len(set(bench.slots(topology_id).values()))


def test_a_topology_belongs_to_whoever_submits_it_so_that_the_resource_aware_scheduler_takes_it() -> (
    None
):
    bench = bench_of(storm__scheduler="resource-aware")
    for supervisor in bench.supervisors.values():
        supervisor.resources = {
            "supervisor.cpu.capacity": 400.0,
            "supervisor.memory.capacity.mb": 4096.0,
        }
        supervisor.step(bench.clock.now_ms())
    topology_id = bench.submit(topology__workers=2)
    assert bench.base_of(topology_id).owner == pwd.getpwuid(os.geteuid()).pw_name
    assert len(bench.slots(topology_id)) == 11


def test_a_host_that_is_cut_from_redis_or_lost_again_and_again_is_blacklisted_with_its_name() -> (
    None
):
    """Single rounds within the window add up, one of each kind here; a cut that is shorter than the
    time-out is none.
    """
    bench = bench_of(
        nodes=3, storm__scheduler="blacklist", sparkstorm__worker__store__timeout__secs=5
    )
    bench.submit("wc", topology__workers=2)
    host = bench.supervisors["node-2"]

    def cut(seconds: int) -> None:
        bench.advance(41)
        host.store_problem = "the network is cut"
        bench.advance(seconds)
        host.store_problem = ""
        bench.advance(1)

    for _ in range(4):
        cut(4)
    assert "blacklist" not in bench.nimbus.problems
    cut(8)
    bench.advance(41)
    host.die()
    bench.advance(8)
    host.is_up = True
    bench.advance(11)
    assert "blacklist" not in bench.nimbus.problems, "two are tolerated"
    cut(8)
    bench.advance(11)
    assert bench.nimbus.problems["blacklist"].startswith(
        "host-2: a supervisor or a port was missing there too often"
    )
    bench.service.rebalance("wc", RebalanceOptions(3, reassign=True), 0)
    bench.advance(30)
    assert "node-2" not in nodes_of(bench, bench.state.topology_ids()[0])


def test_a_host_that_is_cut_from_its_driver_is_named_at_once_and_keeps_its_workers() -> None:
    bench = bench_of(nodes=3, nimbus__monitor__freq__secs=60)
    bench.submit("wc", topology__workers=3)
    bench.advance(10)
    (topology_id,) = bench.state.topology_ids()
    before = bench.state.read_assignment(topology_id)
    host = bench.supervisors["node-2"]
    host.driver_problem = "no answer within 1 s"
    bench.advance(2)
    (sentence,) = bench.service.problems_of(topology_id)
    words = r"host-2 does not reach the driver at head:7300 since .*: no answer within 1 s; workers"
    assert re.match(words, sentence), sentence
    host.store_problem = "the network is cut"
    bench.advance(2)
    (sentence,) = bench.service.problems_of(topology_id)
    assert "host-2 does not reach Redis" in sentence and re.search(words, sentence), sentence
    host.store_problem = ""
    bench.advance(60)
    assert bench.state.read_assignment(topology_id) == before
    host.driver_problem = ""
    bench.advance(2)
    assert bench.service.problems_of(topology_id) == []


# -- a plugged-in scheduler that loops for ever ----------------------------------------------------


class Sticky:
    """Works, until told to stick; then it waits for its release with the cluster in its hands."""

    def __init__(self) -> None:
        self.sticks = False
        self.release = threading.Event()
        self._good = DefaultScheduler()

    def prepare(self, conf: object) -> None:
        self.conf = conf

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if self.sticks:
            self.release.wait(60)
        self._good.schedule(topologies, cluster)


def test_a_guarded_scheduler_gets_the_configuration() -> None:
    inner, conf = Sticky(), {"storm.scheduler": "mine"}
    GuardedScheduler(inner).prepare(conf)
    assert inner.conf is conf


def test_a_guarded_scheduler_decides_as_it_would_alone() -> None:
    plain, guarded = Bench(nodes=3), Bench(nodes=3, scheduler=GuardedScheduler(DefaultScheduler()))
    assert plain.slots(plain.submit()) == guarded.slots(guarded.submit())


def test_a_scheduler_that_loops_for_ever_costs_one_round_and_changes_nothing() -> None:
    sticky = Sticky()
    bench = Bench(nodes=4, scheduler=GuardedScheduler(sticky, limit_ms=50))
    topology_id = bench.submit("first", topology__workers=2)
    before = bench.state.read_assignment(topology_id)
    sticky.sticks = True
    with pytest.raises(FailedAssignTopologyError, match="did not come back within 50 ms"):
        bench.submit("second", topology__workers=2)
    with pytest.raises(FailedAssignTopologyError, match="still busy"):
        bench.submit("third", topology__workers=2)
    bench.advance(20)
    assert bench.state.read_assignment(topology_id) == before
    sticky.sticks = False
    sticky.release.set()
    assert bench.wait_until(lambda: "scheduler" not in bench.nimbus.problems, 60_000)
    assert bench.submit("fourth", topology__workers=2)
