"""The laboratory: scenes from a generator, a file or records, scheduled and compared; and the choice of schedulers."""

import json

import pytest

from sparkstorm.errors import InvalidConfigError
from sparkstorm.scheduling.catalogue import BUILT_IN, scheduler_by_name
from sparkstorm.scheduling.even import EvenScheduler
from sparkstorm.scheduling.laboratory import Scene, compare, generate, moved
from tests.scheduling.clusters import executors, singles, slot, supervisor, topology


def test_a_generated_scene_can_be_scheduled_and_measured() -> None:
    scene = generate(num_nodes=4, num_topologies=2, executors_each=9, workers_each=3).scheduled("even")
    measures = scene.measures()
    assert (measures["executors"], measures["unplaced"], measures["workers"]) == (18, 0, 6)
    assert (measures["most_workers_on_a_node"], measures["fewest_workers_on_a_node"]) == (2, 1)
    assert 0 < measures["crossing_nodes"] < 1


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
    assert (row["memory_mb_taken"], row["memory_mb_offered"], row["cpu_taken"]) == (384.0, 65536.0, 30.0)


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
    scene = Scene.from_records([supervisor("a", 1)], [asked], {"t": {executors((1, 1))[0]: slot("a:1")}})
    assert [row["node"] for row in scene.scheduled("default").rows()] == ["a", "a"]


@pytest.mark.parametrize("name", [*BUILT_IN, "blacklist"])
def test_every_scheduler_is_found_by_its_word(name: str) -> None:
    conf = {"isolation.scheduler.machines": {"t": 1}}
    assert scheduler_by_name(name, conf) is not scheduler_by_name(name, conf)


def test_a_users_scheduler_is_plugged_in_from_the_allow_list() -> None:
    """S4.5."""
    path = "sparkstorm.scheduling.even.EvenScheduler"
    with pytest.raises(InvalidConfigError, match=r"neither one of .* nor listed in storm\.scheduler\.allowed"):
        scheduler_by_name(path, {})
    assert isinstance(scheduler_by_name(path, {"storm.scheduler.allowed": [path]}), EvenScheduler)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no.such.module.Scheduler", "cannot import"),
        ("json.Scheduler", "cannot import"),
        ("nodots", "cannot import"),
        ("json.JSONDecoder", "lacks prepare"),
    ],
)
def test_a_plug_in_that_is_none_is_refused(path: str, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=text):
        scheduler_by_name(path, {"storm.scheduler.allowed": [path]})
