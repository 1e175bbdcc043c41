"""Scenes out of cluster traces, in the traces' formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.extensions.laboratory import Scene, compare, from_alibaba, from_google

MACHINES = """m_1,0,1,10,96,100,USING
m_2,0,1,10,96,50,USING
m_2,900,1,11,48,50,USING
m_3,0,2,11,96,,USING
""".splitlines()
# a join of two maps, a job of independent tasks, one without requests, and one beyond `jobs`
TASKS = """M1,4,j_1,1,Terminated,10,20,50,0.5
M2,2,j_1,1,Terminated,10,20,100.0,0.39
J3_1_2,1,j_1,1,Terminated,20,30,100,0.5
R4_3_9,1,j_1,1,Terminated,30,40,100,0.5
task_LTg0MTUwNz,2,j_2,2,Terminated,10,20,100,0.3
MergeTask,1,j_2,2,Failed,10,20,50,0.3
M1,300,j_3,1,Running,10,0,,
M1,1,j_4,1,Terminated,10,20,100,0.5
""".splitlines()


def test_a_job_of_alibabas_trace_is_a_topology_with_the_edges_of_its_names() -> None:
    scene = from_alibaba(MACHINES, TASKS, jobs=3, memory_mb=1000, most_executors=60)
    first, second, third = scene.supervisors
    result = first.resources
    assert result == {"supervisor.cpu.capacity": 9600.0, "supervisor.memory.capacity.mb": 1000.0}
    assert (second.rack, second.resources["supervisor.cpu.capacity"]) == ("rack-11", 4800.0)
    assert third.resources["supervisor.memory.capacity.mb"] == 0.0
    join, single, wide = scene.topologies
    widths = {part.id: len(part.executors) for part in join.components}
    assert widths == {"M1": 4, "M2": 2, "J3_1_2": 1, "R4_3_9": 1}
    edges = {part.id: [each.component for each in part.inputs] for part in join.components}
    assert edges == {"M1": [], "M2": [], "J3_1_2": ["M1", "M2"], "R4_3_9": ["J3_1_2"]}
    assert join.num_workers == 6  # 4 x 50 %, and 4 of 100 %
    memory = "topology.component.resources.onheap.memory.mb"
    assert {part.id: part.conf[memory] for part in join.components}["M2"] == pytest.approx(3.9)
    assert {part.kind for part in single.components} == {"spout"}
    assert len(wide.executors) == 60


def test_a_collection_of_googles_trace_is_a_topology_of_one_component() -> None:
    machines = [
        {"machine_id": 1, "type": 1, "switch_id": "a", "capacity": {"cpus": 0.5, "memory": 0.25}},
        {"machine_id": "2", "type": "ADD", "switch_id": "b", "capacity": {"cpus": 1, "memory": 1}},
        {"machine_id": 1, "type": 2},
        {"machine_id": 3, "type": 1, "capacity": None},
    ]
    request = {"cpus": 0.015625, "memory": 0.01}
    events = [
        {"collection_id": 7, "instance_index": 0, "type": 0, "resource_request": request},
        {"collection_id": 7, "instance_index": 0, "type": 6, "resource_request": None},
        {"collection_id": 7, "instance_index": 1, "type": 0, "resource_request": request},
        {"collection_id": 8, "instance_index": 0, "type": 0},
    ]
    scene = from_google(map(json.dumps, machines), ["", *map(json.dumps, events)], 1, 1000)
    assert [(each.id, each.rack) for each in scene.supervisors] == [("2", "rack-b"), ("3", "rack-")]
    [topology] = scene.topologies
    [part] = topology.components
    assert (topology.id, len(part.executors), topology.num_workers) == ("7", 2, 2)
    assert part.conf["topology.component.cpu.pcore.percent"] == 100.0


@pytest.mark.parametrize(
    ("machines", "tasks", "text"),
    [
        (["m_1,0,1"], [], r"machine_meta.csv, line 1: 3 columns; the trace has machine_id, "),
        (["m_1,0,1,10,x,1,USING"], [], r"machine_meta.csv, line 1: could not convert .*'x'"),
        (["m_1,0,1,10,-1,1,USING"], [], r"machine_meta.csv, line 1: -1, 1 are no amounts"),
        (["m\r_1,0,1,10,1,1"], [], r"machine_meta.csv, line 1: it is no CSV \(new-line char"),
        ([",0,1,10,1,1"], [], r"machine_meta.csv, line 1: machine_id is empty"),
        ([], ["M1,1,,1,T,1,2"], r"batch_task.csv, line 1: job_name is empty"),
        ([], ["M1,nan,j,1,T,1,2"], r"batch_task.csv, line 1: nan, ,  are no amounts"),
    ],
)
def test_a_line_that_is_none_of_the_trace_is_named(
    machines: list[str], tasks: list[str], text: str
) -> None:
    with pytest.raises(InvalidConfigError, match=text):
        from_alibaba(machines, tasks)


def test_a_header_empty_lines_and_carriage_returns_are_no_machines() -> None:
    header = "machine_id,time_stamp,failure_domain_1,failure_domain_2,cpu_num,mem_size,status\r\n"
    lines = [header, "\r\n", "  \n", *(f"{line}\r\n" for line in MACHINES)]
    assert from_alibaba(lines, TASKS) == from_alibaba(MACHINES, TASKS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"jobs": "3"}, "jobs: expected an integer from 1"),
        ({"most_executors": 0}, "most_executors: expected an integer from 1"),
        ({"slots": 70_000}, "slots: expected an integer from 1 to 58836, got 70000"),
        ({"memory_mb": float("nan")}, "memory_mb: more than 0 and up to 10.15 is needed, not nan"),
    ],
)
def test_an_argument_that_no_scene_can_have_is_named(arguments: dict[str, Any], text: str) -> None:
    for read in (from_alibaba, from_google):
        with pytest.raises(InvalidConfigError, match=text):
            read([], [], **arguments)


def test_of_a_task_with_several_lines_the_last_one_counts() -> None:
    tasks = ["M1,4,j,1,Waiting,10,20,50,0.5", "M1,2,j,1,Terminated,10,20,50,0.5"]
    (topology,) = from_alibaba([], tasks).topologies
    assert [(part.id, len(part.executors)) for part in topology.components] == [("M1", 2)]


def test_an_event_without_the_id_of_its_machine_is_named() -> None:
    with pytest.raises(InvalidConfigError, match="machine_events, line 1: machine_id is missing"):
        from_google(['{"machineId": "1", "capacity": {"cpus": 0.5}}'], [])


@pytest.mark.parametrize("line", ["{", "[1]", '{"machine_id": 1, "capacity": {"cpus": "x"}}'])
def test_an_event_that_is_none_is_named(line: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"machine_events, line 1: "):
        from_google([line], [])


def test_a_trace_is_scheduled_and_written_as_a_cluster_file() -> None:
    scene = from_alibaba(MACHINES, TASKS, jobs=2)
    assert Scene.from_text(scene.to_text()).rows() == scene.rows()
    for row in compare(scene, ["default", "even", "resource-aware"]):
        assert not row["reason"] and row["unplaced"] == 0, row
