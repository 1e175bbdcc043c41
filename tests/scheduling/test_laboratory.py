"""Laboratory: scenes from a generator, a file or records, scheduled and compared; schedulers by
name.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError, SparkStormError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.catalogue import BUILT_IN, scheduler_by_name
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.control_plane.scheduling.measured.measurements import (
    Flow,
    HostLoad,
    Measurements,
    TaskLoad,
)
from sparkstorm.control_plane.scheduling.records import Topologies, TopologyView
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory import Scene, compare, generate, moved
from sparkstorm.extensions.laboratory.form.solve import answer_to
from tests.scheduling.clusters import executors, singles, slot, supervisor, topology


def test_measurements_come_back_from_a_cluster_file() -> None:
    measured = Measurements(
        (Flow("read", "default", "split", 1000.0, 64_000.0),),
        {1: TaskLoad(1000.0, 0.0, 0.5, 60.0, 120.0), 2: TaskLoad(0.0, 990.0, 0.25, 30.0)},
        300_000,
        900_000,
        32_000.0,
    )
    made = generate(2, 1, 6, 2)
    scene = replace(
        made,
        supervisors=tuple(replace(each, measured=HostLoad(8.0, 0.05)) for each in made.supervisors),
        topologies=tuple(replace(each, measured=measured) for each in made.topologies),
    )
    again = Scene.from_text(scene.to_text())
    assert again.topologies[0].measured == measured
    assert again.supervisors[0].measured == HostLoad(8.0, 0.05)
    bare = json.loads(made.to_text())
    assert not any("measured" in each for each in (*bare["topologies"], *bare["supervisors"]))


def test_a_generated_scene_can_be_scheduled_and_measured() -> None:
    scene = generate(num_nodes=4, num_topologies=2, executors_each=9, workers_each=3).scheduled(
        "even"
    )
    measures = scene.measures()
    assert (measures["executors"], measures["unplaced"], measures["workers"]) == (18, 0, 6)
    assert (measures["most_workers_on_a_node"], measures["fewest_workers_on_a_node"]) == (2, 1)
    assert 0 < measures["crossing_nodes"] < 1


def test_executors_that_a_topology_no_longer_has_are_no_places_of_others() -> None:
    scene = generate(2, 1, 6, 2).scheduled("even")
    (placed,) = scene.assignments.values()
    first = min(placed)
    stale = {ExecutorId(70, 71) if each == first else each: slot for each, slot in placed.items()}
    rest = replace(scene, assignments={scene.topologies[0].id: stale})
    assert [row["unplaced"] for row in rest.unplaced()] == [1]


def test_a_status_ends_with_the_placement_that_it_is_of() -> None:
    placed = generate(2, 1, 6, 2).scheduled("even")
    scene = replace(placed, reason_by_topology={"topology-00000": "fully scheduled"})
    assert [row["reason"] for row in scene.without("node-00000").unplaced()] == [None]


def test_dead_ports_of_a_lost_node_are_not_in_the_file_of_the_rest() -> None:
    scene = replace(generate(2, 1, 6, 2), dead_ports={"node-00000": (6700,), "node-00001": (6700,)})
    rest = Scene.from_text(scene.without("node-00000").to_text())
    assert rest.dead_ports == {"node-00001": (6700,)}


def test_rows_name_every_executor_and_where_it_is() -> None:
    scene = generate(1, 1, 3, 1)
    assert [row["node"] for row in scene.rows()] == [None, None, None]
    placed = scene.scheduled("even").rows()
    assert placed[0] == {
        "topology": "topology-00000",
        "component": "read",
        "executor": "1-1",
        "tasks": 1,
        "node": "node-00000",
        "host": "host-00000",
        "port": 6700,
    }


def test_edges_count_pairs_of_tasks_that_cross() -> None:
    scene = generate(2, 1, 3, 2).scheduled("even")  # read and count on one node, split on the other
    crossing = {"pairs": 1, "crossing_workers": 1, "crossing_nodes": 1}
    assert scene.edges() == [
        {"topology": "topology-00000", "from": "split", "to": "count", **crossing},
        {"topology": "topology-00000", "from": "read", "to": "split", **crossing},
    ]
    assert generate(1, 1, 3, 1).scheduled("even").measures()["crossing_workers"] == 0


def test_nodes_show_resources_taken_and_offered() -> None:
    row = generate(1, 1, 3, 1).scheduled("resource-aware").nodes()[0]
    assert (row["slots"], row["workers"], row["executors"]) == (4, 1, 3)
    assert row["memory_mb_taken"] == 384.0
    assert row["memory_mb_offered"] == 65536.0
    assert row["cpu_taken"] == 30.0


def test_a_lost_node_and_what_moved_because_of_it() -> None:
    before = generate(3, 1, 6, 3).scheduled("default")
    after = before.without("node-00001").scheduled("default")
    changes = moved(before, after)
    assert len(changes) == 2
    assert all(row["before"].startswith("node-00001:") for row in changes)


def test_schedulers_are_compared_row_by_row() -> None:
    rows = compare(generate(3, 2, 6, 2), ["even", "default", "resource-aware"])
    assert [row["scheduler"] for row in rows] == ["even", "default", "resource-aware"]
    assert all(row["placed"] == 12 and row["moved"] == 0 and row["unplaced"] == 0 for row in rows)


def test_a_scene_survives_the_way_through_a_file() -> None:
    scene = generate(2, 2, 5, 2).scheduled("even")
    again = Scene.from_text(scene.to_text())
    assert again.assignments == scene.assignments
    assert again.measures() == scene.measures()
    assert json.loads(scene.to_text("isolation"))["scheduler"] == "isolation"


def test_a_scene_is_made_of_the_records_of_a_live_cluster() -> None:
    asked = topology("t", singles(2), 1)
    scene = Scene.from_records(
        [supervisor("a", 1)], [asked], {"t": {executors((1, 1))[0]: slot("a:1")}}
    )
    assert [row["node"] for row in scene.scheduled("default").rows()] == ["a", "a"]


@pytest.mark.parametrize("name", [*BUILT_IN, "blacklist"])
def test_every_scheduler_is_found_by_its_word(name: str) -> None:
    conf = {"isolation.scheduler.machines": {"t": 1}}
    assert scheduler_by_name(name, conf) is not scheduler_by_name(name, conf)


def test_a_users_scheduler_is_plugged_in_from_the_allow_list() -> None:
    """S4.5."""
    path = "sparkstorm.control_plane.scheduling.even.EvenScheduler"
    sentence = r"neither one of .* nor listed in storm\.scheduler\.allowed"
    with pytest.raises(InvalidConfigError, match=sentence):
        scheduler_by_name(path, {})
    assert isinstance(scheduler_by_name(path, {"storm.scheduler.allowed": [path]}), EvenScheduler)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no.such.module.Scheduler", "cannot import"),
        ("json.Scheduler", "cannot import 'json.Scheduler': json has no 'Scheduler'$"),
        ("json.JSONDecode", r"json has no 'JSONDecode'; did you mean 'JSONDecoder'\?"),
        ("nodots", "cannot import"),
        ("json.JSONDecoder", "lacks prepare"),
        ("../json.JSONDecoder", "cannot import"),
    ],
)
def test_a_plug_in_that_is_none_is_refused(path: str, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=text):
        scheduler_by_name(path, {"storm.scheduler.allowed": [path]})


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def x(:", r"SyntaxError: invalid syntax \(unfit\.py, line 1\)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)", "SystemExit: 2"),
    ],
)
def test_a_module_that_fails_as_it_is_imported_is_named(
    code: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unfit.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidConfigError, match=f"cannot import 'unfit.X': {text}"):
        scheduler_by_name("unfit.X", {"storm.scheduler.allowed": ["unfit.X"]})


class Number(DefaultScheduler):
    """Gives a number as the reason of a place."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        reason: Any = 5
        for each in topologies:
            (free, *_) = cluster.available_slots()
            cluster.assign(free, each, cluster.placement(each).missing(), reason)


def test_a_reason_that_is_no_text_is_named() -> None:
    scene = generate(2, 1, 6, 2)
    with pytest.raises(SparkStormError, match="gave 5 as a status or reason: no text"):
        scene.why(f"{__name__}:Number")


# -- everything of a problem, rebalances, reasons --------------------------------------------------


def test_a_scene_keeps_all_that_a_problem_says() -> None:
    problem = {
        "scheduler": "default",
        "supervisors": [
            {"id": "a", "host": "h1", "ports": [1, 2], "uptime_secs": 77},
            {"id": "b", "host": "h2", "ports": [1]},
        ],
        "dead_ports": {"a": [1]},
        "greylisted_hosts": ["h2"],
        "blacklisted_hosts": ["h3"],
        "topologies": [
            {
                "id": "t",
                "name": "t",
                "uptime_secs": 5,
                "conf": {"topology.workers": 3},
                "components": [
                    {"id": "in", "kind": "spout", "executors": [[1, 1], [2, 2], [3, 3]]}
                ],
            }
        ],
    }
    scene = Scene.from_text(json.dumps(problem))
    result = {f"{row['node']}:{row['port']}" for row in scene.scheduled("default").rows()}
    assert result == {"a:2", "b:1"}
    again = json.loads(scene.to_text())
    assert (again["dead_ports"], again["greylisted_hosts"]) == ({"a": [1]}, ["h2"])
    assert again["supervisors"][0]["uptime_secs"] == 77
    assert again["topologies"][0]["uptime_secs"] == 5
    assert Scene.from_text(scene.to_text()) == scene
    assert scene.view().greylisted_nodes == {"b"}
    assert scene.nodes()[0]["slots"] == 1


def test_rounds_are_no_scene() -> None:
    sentence = "rounds: a scene is one moment, and this problem has 2"
    with pytest.raises(InvalidConfigError, match=sentence):
        Scene.from_text(
            json.dumps(
                {"scheduler": "default", "supervisors": [], "topologies": [], "rounds": [{}, {}]}
            )
        )


class Faulty:
    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: object, cluster: object) -> None:
        raise KeyError("mine")


def test_a_scheduler_that_cannot_answer_has_a_row_with_its_sentence() -> None:
    conf = {"storm.scheduler.allowed": [f"{__name__}.Faulty"]}
    rows = compare(
        generate(2, 1, 3, 2), ["isolation", "even", "nobody", f"{__name__}.Faulty"], conf
    )
    assert [sorted(row) == ["reason", "scheduler"] for row in rows] == [True, False, True, True]
    assert rows[0]["reason"].startswith("isolation.scheduler.machines: expected a map")
    assert "'nobody' is neither one of" in rows[2]["reason"]
    assert rows[3]["reason"].startswith("KeyError: 'mine' (test_laboratory.py, line ")


@pytest.mark.parametrize("scheduler", ["default", "even", "jstorm"])
def test_a_rebalance_is_asked_of_any_scheduler(scheduler: str) -> None:
    scene = generate(4, 2, 12, 4).scheduled("default")
    wider = scene.rebalanced("topology-00000", num_workers=6, executors={"count": 2})
    after = wider.scheduled(scheduler)
    slots = set(after.assignments["topology-00000"].values())
    assert (len(slots), len(after.assignments["topology-00000"]), after.unplaced()) == (6, 10, [])
    assert after.assignments["topology-00001"] == scene.assignments["topology-00001"]
    assert scene.assignments == generate(4, 2, 12, 4).scheduled("default").assignments
    assert after.previous == {}


def test_a_rebalance_moves_what_it_must_and_one_that_reassigns_may_move_all() -> None:
    scene = generate(4, 1, 12, 4).scheduled("default")
    assert moved(scene, scene.rebalanced("topology-00000").scheduled("default")) == []
    assert (
        len(moved(scene, scene.rebalanced("topology-00000", num_workers=3).scheduled("jstorm")))
        < 12
    )
    again = scene.rebalanced("topology-00000", reassign=True)
    assert again.view().placement("topology-00000").num_workers == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topology_id": "nobody"}, "there is no topology 'nobody', only topology-00000"),
        (
            {"topology_id": "topology-00000", "executors": {"x": 1}},
            "executors: there is no component 'x', only count, read, split",
        ),
        (
            {"topology_id": "topology-00000", "executors": {"read": 9}},
            "executors.read: expected an integer from 1 to 1, got 9",
        ),
        (
            {"topology_id": "topology-00000", "num_workers": 0},
            "num_workers: expected an integer from 1",
        ),
    ],
)
def test_mistakes_in_a_rebalance_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigError) as error:
        generate(1, 1, 3, 1).rebalanced(**arguments)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("scheduler", "conf", "words"),
    [
        ("even", {}, "free slot 1 of the 2 that its missing executors are dealt to in turn"),
        ("default", {}, "nodes with most free slots first (node-00000: 4)"),
        ("blacklist", {}, "nodes with most free slots first"),
        (
            "isolation",
            {"isolation.scheduler.machines": {"topology-00000": 1}},
            "isolated: host-00000 is the next host for 2",
        ),
        ("multitenant", {}, "worker 2 of 2 in its pool, on the pool's next node (3 free ports)"),
        (
            "resource-aware",
            {},
            "node-00000 is number 1 in the order of nodes (most executors of the topology first",
        ),
        ("jstorm", {}, "best of the 2 workers with room: 0 tasks of read in it"),
    ],
)
def test_each_scheduler_says_why_an_executor_is_where_it_is(
    scheduler: str, conf: dict[str, Any], words: str
) -> None:
    scene = generate(3, 1, 9, 2)
    rows = scene.why(scheduler, conf)
    assert words in rows[0]["reason"]
    assert all(row["reason"] and "gives no reason" not in row["reason"] for row in rows)
    placed = scene.scheduled(scheduler, conf).rows()
    result = [(row["executor"], row["node"], row["port"]) for row in rows]
    assert result == [(r["executor"], r["node"], r["port"]) for r in placed]


def test_reasons_tell_who_stays_who_was_freed_and_who_has_no_place() -> None:
    scene = generate(3, 1, 9, 3).scheduled("default")
    result = {row["reason"] for row in scene.why("default")}
    assert result == {"runs here already, and nothing asks it to move"}
    assert any(
        "rebalance keeps it" in row["reason"]
        for row in scene.rebalanced("topology-00000").why("jstorm")
    )
    crowded = generate(2, 1, 6, 1).scheduled("even").rebalanced("topology-00000", num_workers=2)
    crowded = replace(crowded, previous={})  # more workers wanted, and no rebalance
    moved_out = "its worker had no place in an even distribution of 6 executors over 2; free slot 2 of the 2"
    assert sum(row["reason"].startswith(moved_out) for row in crowded.why("default")) == 3
    asked = replace(generate(1, 1, 9, 3), conf={"topology.component.cpu.pcore.percent": 9_000.0})
    asked = Scene.from_text(asked.to_text())
    result = {(row["node"], row["reason"][:27]) for row in asked.why("resource-aware")}
    assert result == {(None, "Not enough resources to sch")}


def test_a_file_says_of_executors_without_a_place_what_the_laboratory_says() -> None:
    """`schedule --why`: the scheduler's own words, after why the executor left its place."""
    greedy = replace(generate(1, 1, 9, 3), conf={"topology.component.cpu.pcore.percent": 9_000.0})
    full = generate(1, 2, 6, 4)  # two topologies, and slots for one
    for scene, scheduler, words in (
        (greedy, "resource-aware", "Not enough resources"),
        (full, "even", "No available slots"),
    ):
        answer = json.loads(answer_to(scene.to_text(scheduler).encode(), True)[0])
        in_file = [row["reason"] for rows in answer["why"].values() for row in rows]
        assert in_file == [row["reason"] for row in Scene.from_text(scene.to_text()).why(scheduler)]
        assert any(reason.startswith(words) for reason in in_file), in_file


class Packed(DefaultScheduler):
    """Places everything on the first free slot and says so."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        for each in cluster.topologies_to_schedule():
            for used in list(cluster.placement(each.id).executors_by_slot):
                cluster.free_slot(used, "packed anew")
            chosen = cluster.available_slots()[0]
            cluster.assign(
                chosen, each.id, cluster.placement(each.id).missing(), f"{chosen.node} is the first"
            )


class Lost(DefaultScheduler):
    """Places executors on a slot that no supervisor has."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        for each in topologies:
            cluster.assign(WorkerSlot("nowhere", 1), each, cluster.placement(each).missing())


def test_a_plug_in_that_breaks_the_rules_is_refused_as_on_a_cluster() -> None:
    scene = generate(2, 1, 6, 2)
    text = "the scheduler put topology-00000 on nowhere:1, which is not offered"
    result = compare(scene, [f"{__name__}:Lost"])
    assert result == [{"scheduler": f"{__name__}:Lost", "reason": text}]
    answer, well_formed = answer_to(scene.to_text(), scheduler=f"{__name__}:Lost")
    assert (json.loads(answer), well_formed) == ({"error": text}, False)


def test_a_plug_in_says_why_in_the_calls_by_which_it_places_and_frees() -> None:
    name = f"{__name__}.Packed"
    scene = replace(generate(1, 1, 3, 1), conf={"storm.scheduler.allowed": [name]})
    assert {row["reason"] for row in scene.why(name)} == {"node-00000 is the first"}
    (asked,) = scene.topologies
    running = {asked.id: dict.fromkeys(asked.executors, slot("node-00000:6703"))}
    hungry = replace(scene, topologies=(replace(asked, num_workers=2),), assignments=running)
    assert {row["reason"] for row in hungry.why(name)} == {"packed anew; node-00000 is the first"}


def test_a_node_that_refused_is_named_with_what_it_lacked() -> None:
    low = supervisor("a", 1, memory=4096.0, cpu=5.0)
    high = supervisor("b", 1, memory=4096.0, cpu=900.0)
    asked = topology(
        "t", singles(1), 1, owner="ann", conf={"topology.scheduler.favored.nodes": ["host-a"]}
    )
    (row,) = Scene.from_records([low, high], [replace_spout(asked)], {}).why("resource-aware")
    assert row["node"] == "b" and "refused by a (5 of 10 % CPU left)" in row["reason"]
    assert "b is number 2 in the order" in row["reason"] and "128 of 768 MB heap" in row["reason"]


def replace_spout(asked: TopologyView) -> TopologyView:
    return replace(
        asked, components=tuple(replace(part, kind="spout") for part in asked.components)
    )


def test_reasons_change_no_placement() -> None:
    for name in ("default", "resource-aware", "jstorm", "multitenant"):
        scene = generate(5, 3, 20, 4).scheduled("even").without("node-00002")
        result = [row["node"] for row in scene.why(name)]
        assert result == [row["node"] for row in scene.scheduled(name).rows()]


def test_a_seed_draws_uneven_nodes_and_the_same_ones_again() -> None:
    scene = generate(8, 1, 3, 1, seed=7)
    assert scene == generate(8, 1, 3, 1, seed=7) != generate(8, 1, 3, 1, seed=8)
    assert len({each.rack for each in scene.supervisors}) == 2
    assert len({len(each.ports) for each in scene.supervisors}) > 1
    memory = {each.resources["supervisor.memory.capacity.mb"] for each in scene.supervisors}
    assert memory <= {16384.0, 32768.0, 65536.0} and len(memory) > 1
