"""Tells what a look at a cluster finds, over the whole simulated cluster that Nimbus's tests
use.
"""

import pytest

from sparkstorm.common.clock import SystemClock
from sparkstorm.common.model.assignment import ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress, TaskCounts
from sparkstorm.extensions.laboratory import Scene
from sparkstorm.notebook.live import Inspector
from tests.nimbus.nimbus_bench import Bench


def inspector_of(bench: Bench) -> Inspector:
    return Inspector(bench.state, bench.blobs, bench.conf)


def test_a_look_has_every_supervisor_slot_executor_and_task() -> None:
    bench = Bench(nodes=3)
    topology_id = bench.submit()
    bench.tick()
    look = inspector_of(bench).look()
    assert look.supervisors().column("used") == [2, 1, 1]
    assert look.topologies().rows[0]["workers"] == 4
    slots = look.slots()
    assert len(slots) == 6 and slots.column("state").count("RUNNING") == 4
    up_secs = {
        str(slot): (look.now_ms - beat.start_ms) / 1000
        for slot, beat in look.beat_by_slot().items()
    }
    assert {row["slot"]: row["up_secs"] for row in slots.rows if row["state"]} == up_secs
    assert sorted(look.executors().column("executor")) == sorted(map(str, bench.slots(topology_id)))
    assert look.tasks().column("task") == list(range(1, 14))
    assert None not in look.tasks().column("slot")
    assert "RUNNING" in look.picture(title="now").text


def test_a_scene_has_measurements_where_they_are_asked_for() -> None:
    bench = Bench(nodes=2)
    topology_id = bench.submit(topology__workers=2)
    bench.advance(5)
    tasks = {2: TaskCounts("lines", emitted=600)}
    edges = {("lines", "default", "split"): EdgeCounts(600, 600)}

    def counts(base: TopologyBase) -> list[CountRecords]:
        now_ms = SystemClock().now_ms()
        slot = str(bench.slots(base.topology_id)[ExecutorId(2, 2)])
        record = Progress(tasks, started_ms=now_ms - 300_000, now_ms=now_ms, edges=edges)
        return [CountRecords({slot: record})]

    with Inspector(bench.state, bench.blobs, bench.conf, counts) as inspector:
        assert inspector.look().scene.topologies[0].measured is None
        scene = Scene.from_text(inspector.look(measures=True).scene.to_text())
    measured = next(each for each in scene.topologies if each.id == topology_id).measured
    assert measured is not None
    assert measured.flows[0].rows_per_s == pytest.approx(2.0, rel=0.01)


def test_two_looks_tell_what_moved_and_who_is_gone() -> None:
    bench = Bench(nodes=3)
    topology_id = bench.submit(topology__workers=2)
    inspector = inspector_of(bench)
    before, was = inspector.look(), bench.slots(topology_id)
    bench.service.rebalance("wc", RebalanceOptions(3), wait_secs=0)
    bench.advance(2)
    after, now = inspector.look(), bench.slots(topology_id)
    result = {row["executor"] for row in after.moved_since(before).rows}
    assert result == {str(each) for each in now if now[each] != was[each]}
    lost = next(iter(now.values())).node
    bench.supervisors[lost].die()
    bench.advance(60)
    later = inspector.look()
    assert lost not in later.supervisors().column("supervisor")
    assert ">gone<" in later.picture(after).text


def test_an_executor_that_is_new_but_whose_tasks_stay_has_not_moved() -> None:
    bench = Bench(nodes=3)
    topology_id = bench.submit(topology__workers=2)
    inspector = inspector_of(bench)
    bench.service.rebalance(
        "wc", RebalanceOptions(executors_by_component={"count": 1}), wait_secs=0
    )
    bench.advance(2)
    before, was = inspector.look(), slots_of_tasks(bench, topology_id)
    bench.service.rebalance(
        "wc", RebalanceOptions(executors_by_component={"count": 4}), wait_secs=0
    )
    bench.advance(2)
    after, now = inspector.look(), slots_of_tasks(bench, topology_id)
    moved_tasks = {task for task in now if now[task] != was[task]}
    moved = {row["executor"] for row in after.moved_since(before).rows}
    assert moved == {
        str(each) for each in bench.slots(topology_id) if moved_tasks & set(each.tasks)
    }
    assert after.picture(before).text.count("(moved)") == len(moved)


def slots_of_tasks(bench: Bench, topology_id: str) -> dict[int, WorkerSlot]:
    return {
        task: slot for executor, slot in bench.slots(topology_id).items() for task in executor.tasks
    }


def test_a_slot_that_is_assigned_though_nobody_offers_it_is_in_the_table() -> None:
    bench = Bench(nodes=2)
    topology_id = bench.submit()
    lost = next(iter(bench.slots(topology_id).values()))
    bench.supervisors[lost.node].die()
    rows = {row["slot"]: row for row in inspector_of(bench).look().slots().rows}
    assert rows[str(lost)]["offered"] is False and rows[str(lost)]["topology"] == topology_id
    assert (
        rows[str(WorkerSlot("node-0" if lost.node == "node-1" else "node-1", 6700))]["offered"]
        is True
    )


def test_a_scene_of_a_live_cluster_is_a_short_cluster_file_without_what_is_default() -> None:
    bench = Bench(nodes=3)
    topology_id = bench.submit(topology__priority=3)
    scene = inspector_of(bench).look().scene
    assert scene.topologies[0].conf["topology.priority"] == 3 and len(scene.topologies[0].conf) < 12
    assert scene.assignments[topology_id] == bench.slots(topology_id)
    assert type(scene).from_text(scene.to_text()).assignments == scene.assignments


def test_the_tree_is_told_node_by_node_without_signatures() -> None:
    bench = Bench()
    topology_id = bench.submit()
    rows = {row["path"]: row for row in inspector_of(bench).tree().rows}
    assert rows[f"/assignments/{topology_id}"]["begins"].startswith('{"code_by_slot"')
    assert not any(row["begins"].startswith("sparkstorm-2") for row in rows.values())
    result = set(inspector_of(bench).tree("/supervisors").column("path"))
    assert result == {"/supervisors/node-0", "/supervisors/node-1"}


def test_waiting_for_what_never_comes_ends_with_what_was_seen() -> None:
    bench = Bench()
    bench.submit()
    with pytest.raises(TimeoutError, match="wc-1-"):
        inspector_of(bench).wait(lambda look: False, timeout_secs=0)
    assert inspector_of(bench).wait(lambda look: len(look.slots()) == 4).reading.bases
