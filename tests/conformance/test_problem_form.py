"""The JSON form of problems is read strictly; each mistake is named; the command answers all
problems in order.
"""

import copy
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.conformance.problems import GENERATORS
from sparkstorm.cli import main
from sparkstorm.common.config import keys
from sparkstorm.extensions.laboratory.form.fields import _READ
from sparkstorm.extensions.laboratory.form.solve import answer_to, solve
from sparkstorm.extensions.laboratory.form.storm_problem import problem_from
from tests.key_use import ROOT, strings_of

Problem = dict[str, Any]
WORKED = Path(__file__).parents[2] / "benchmarks" / "conformance" / "worked"


def problem(**more: Any) -> Problem:
    base: Problem = {
        "scheduler": "even",
        "supervisors": [{"id": "s1", "host": "h1", "ports": [1, 2]}],
        "topologies": [
            {
                "id": "t",
                "name": "t",
                "components": [{"id": "in", "kind": "spout", "executors": [[1, 2], [3, 3]]}],
            }
        ],
    }
    return {**base, **more}


def jstorm(**more: Any) -> Problem:
    base: Problem = {
        "scheduler": "jstorm",
        "supervisors": [{"id": "s1", "host": "h1", "ports": [1, 2]}],
        "topology": {"id": "t", "components": [{"id": "in", "kind": "spout", "parallelism": 2}]},
    }
    return {**base, **more}


def error_of(text: str) -> str:
    answer, well_formed = answer_to(text)
    assert not well_formed
    found = json.loads(answer)
    assert list(found) == ["error"]
    return str(found["error"])


def measured(**more: Any) -> Problem:
    """A problem whose topology has these measurements."""
    asked = problem()
    asked["topologies"][0]["measured"] = {"version": 1, **more}
    return asked


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": 2}, "measured.version: expected version 1 of the form of measurements, got 2"),
        ({"window": 1}, "measured: unknown field 'window'; did you mean 'window_secs'?"),
        (
            {"flows": [{"from": "in", "to": "inn"}]},
            "measured.flows[0].to: no component is called 'inn'; did you mean 'in'?",
        ),
        (
            {"flows": [{"from": "in", "to": "in", "byte_per_s": 1}]},
            "measured.flows[0]: unknown field 'byte_per_s'; did you mean 'bytes_per_s'?",
        ),
        (
            {"flows": [{"from": "in", "to": "in", "rows_per_s": rows} for rows in (1, 2)]},
            "measured.flows[1]: 'in' to 'in' on stream 'default' occurs twice",
        ),
        (
            {"flows": [{"from": "in", "to": "in"}]},
            "measured.flows[0].stream: 'in' reads no stream 'default' of 'in', only none",
        ),
        ({"tasks": {"4": {}}}, "measured.tasks: task 4 is in no executor"),
        ({"tasks": {"0": {}}}, "measured.tasks: task 0 is in no executor"),
        ({"tasks": {"1": {}, "01": {}}}, "measured.tasks: expected an object keyed by whole numb"),
        ({"tasks": {"9" * 5000: {}}}, "measured.tasks: expected an object keyed by whole numbers"),
        ({"tasks": {"1": {"busy": 1.5}}}, "measured.tasks.1.busy: expected a number from 0 to 1"),
        ({"tasks": {"1": {"cpu": -1}}}, "measured.tasks.1.cpu: expected a number that is not neg"),
    ],
)
def test_a_mistake_in_measurements_is_named(given: Problem, words: str) -> None:
    assert words in error_of(json.dumps(measured(**given)))


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted({*GENERATORS} - {"jstorm"}))
def test_schedulers_that_ask_for_no_measurements_answer_the_same_with_them(name: str) -> None:
    for seed in range(8):
        dice = Random(seed)
        bare = GENERATORS[name](Random(seed))
        asked = copy.deepcopy(bare)
        for each in asked.get("topologies", ()):
            components = each["components"]
            tasks = [first for part in components for first, _ in part["executors"]]
            rate = {"rows_per_s": 9.0, "bytes_per_s": dice.uniform(0, 1e6)}
            names = {part["id"] for part in components}
            ends = {
                (source["from"], source.get("stream", "default"), part["id"])
                for part in components
                for source in part.get("inputs", ())
                if source["from"] in names
            }
            flows = [{"from": a, "stream": b, "to": c, **rate} for a, b, c in sorted(ends)]
            loads = {str(task): {"cpu": dice.uniform(0, 300)} for task in tasks}
            each["measured"] = {"version": 1, "flows": flows, "tasks": loads}
        for each in asked.get("supervisors", ()):
            each["measured"] = {"cores": 1, "steal": 0.9}
        assert solve(asked) == solve(bare)


def test_rows_are_sorted_and_every_topology_has_a_key() -> None:
    empty = {"id": "z", "name": "z", "components": []}
    asked = problem()
    asked["topologies"].append(empty)
    assert solve(asked)["assignments"] == {
        "t": [
            {"executor": [1, 2], "node": "s1", "port": 1},
            {"executor": [3, 3], "node": "s1", "port": 1},
        ],
        "z": [],
    }


SUPERVISOR, TOPOLOGY = ("supervisors", 0), ("topologies", 0)
PART, JSTORM_PART = (*TOPOLOGY, "components", 0), ("topology", "components", 0)
MAP, DEFINED = "topology.component.resources.map", "use.userdefine.assignment"
SAME_CPU = {"supervisor.cpu.capacity": 100, "cpu.pcore.percent": 200}
SAME_PART = {"topology.component.cpu.pcore.percent": 1, "cpu.pcore.percent": 2}


def changed(asked: Problem, path: Sequence[str | int], change: Mapping[str, Any]) -> str:
    """Return the problem with other fields at a place."""
    place: Any = asked
    for key in path:
        place = place[key]
    place.update(change)
    return json.dumps(asked)


@pytest.mark.parametrize(
    ("path", "change", "text"),
    [
        ((), {"colour": "red"}, "problem: unknown field 'colour'"),
        ((), {"scheduler": "odd"}, "scheduler: expected one of even"),
        ((), {"scheduler": "isolation"}, "isolation.scheduler.machines"),
        ((), {"inner": "blacklist"}, "inner: expected one of"),
        ((), {"inner": ["even"]}, "inner: expected one of"),
        ((), {"conf": {MAP: SAME_PART}}, "cpu.pcore.percent are the same resource"),
        ((), {"assignments": {"u": []}}, "assignments: no topology is called 'u'"),
        (
            (),
            {"assignments": {"t": [{"executor": [1, 2], "node": "s1", "port": 1}] * 2}},
            "assignments.t: executor [1, 2] occurs twice",
        ),
        ((), {"rounds": [{"topology": []}]}, "rounds[0]: unknown field 'topology'"),
        ((), {"dead_ports": {"s1": [70000]}}, "dead_ports.s1[0]"),
        (SUPERVISOR, {"port": 1}, "supervisors[0]: unknown field 'port'"),
        (SUPERVISOR, {"ports": [True]}, "supervisors[0].ports[0]: expected an integer"),
        (SUPERVISOR, {"ports": [-1]}, "supervisors[0].ports[0]"),
        (SUPERVISOR, {"resources": {"cpu": "much"}}, "supervisors[0].resources.cpu"),
        (
            SUPERVISOR,
            {"resources": SAME_CPU},
            "supervisors[0].resources: supervisor.cpu.capacity and cpu.pcore.percent are the same",
        ),
        (TOPOLOGY, {"conf": {"topology.workers": "3"}}, "conf['topology.workers']"),
        (TOPOLOGY, {"uptime_secs": -1}, "topologies[0].uptime_secs"),
        (PART, {"tasks": 1}, "components[0]: unknown field 'tasks'"),
        (PART, {"kind": "pump"}, "kind: expected one of spout"),
        (PART, {"executors": [[2, 1]]}, "executors[0]: expected [first"),
        (PART, {"executors": [[1, 3], [3, 4]]}, "task 3 is in two"),
        (
            PART,
            {"inputs": [{"from": "__system"}, {"from": "inn"}]},
            "components[0].inputs[1].from: no component is called 'inn'; did you mean 'in'?",
        ),
        (
            PART,
            {"inputs": [{"from": "__a", "grouping": "fields"}, {"from": "__a"}]},
            "components[0].inputs[1]: stream 'default' of '__a' occurs twice",
        ),
        (
            PART,
            {"inputs": [{"from": "__a", "grouping": "shufle"}]},
            "inputs[0].grouping: expected one of shuffle, load_aware_shuffle",
        ),
        (
            PART,
            {"inputs": [{"from": "__a", "grouping": "shufle"}]},
            "got 'shufle'; did you mean 'shuffle'?",
        ),
        (
            TOPOLOGY,
            {"conf": {"topology.wokers": 3}},
            "topologies[0].conf: unknown key 'topology.wokers'; did you mean 'topology.workers'?",
        ),
        ((), {"conf": {"isolation.scheduler.machine": {}}}, "mean 'isolation.scheduler.machines'?"),
        (
            PART,
            {"conf": {"topology.component.cpu.pcore.precent": 9}},
            "did you mean 'topology.component.cpu.pcore.percent'?",
        ),
        (
            (),
            {"dead_ports": {"ss1": [1]}},
            "dead_ports: no supervisor is called 'ss1'; did you mean 's1'?",
        ),
        ((), {"dead_ports": {"s1": [3]}}, "dead_ports.s1: 3 is not one of its ports"),
        (
            (),
            {"rounds": [{}, {"dead_ports": {"x": []}}]},
            "rounds[1].dead_ports: no supervisor is called 'x'",
        ),
        (
            (),
            {"scheduler": "traffic", "conf": {"traffic.scheduler.search.budget": -1}},
            "traffic.scheduler.search.budget: must be at least 1000, got -1",
        ),
        (
            (),
            {"scheduler": "traffic", "conf": {"traffic.scheduler.min.gian": 0.1}},
            "unknown key traffic.scheduler.min.gian; did you mean traffic.scheduler.min.gain?",
        ),
    ],
)
def test_each_mistake_is_named(path: Sequence[str | int], change: Any, text: str) -> None:
    assert text in error_of(changed(problem(), path, change))


# No scheduler of ours reads these, and they are more like those that one reads than any others are.
STORMS = (
    "topology.ras.constraint.max.time.secs",
    "topology.bolt.wait.strategy",
    "topology.worker.childopts",
    "topology.max.task.parallelism",
    "topology.worker.shared.thread.pool.size",
)


@pytest.mark.parametrize("key", STORMS)
def test_keys_of_storm_that_no_scheduler_reads_are_legal(key: str) -> None:
    asked = problem(conf={key: 1, "mine.too": 1})
    asked["topologies"][0]["conf"] = {key: 1}
    assert solve(asked) == solve(problem())


# a problem's own field, resources of a supervisor, and keys whose scheduler checks them itself
NO_SETTINGS = re.compile(
    r"storm\.scheduler|supervisor\.(cpu|memory)\.capacity.*|traffic\.scheduler\..*"
)


def test_each_key_that_a_scheduler_reads_may_be_meant_by_a_misspelled_one() -> None:
    read = {
        text
        for path in (ROOT / "sparkstorm/control_plane/scheduling").rglob("*.py")
        for text in strings_of(path)
        if text in keys()
    }
    assert len(read) > 30
    assert {key for key in read - _READ if not NO_SETTINGS.fullmatch(key)} == set()


@pytest.mark.parametrize("spelled", ["local_or_shuffle", "LOCAL_OR_SHUFFLE", "localOrShuffle"])
def test_a_grouping_may_be_spelled_as_storm_does(spelled: str) -> None:
    asked = problem()
    asked["topologies"][0]["components"].append(
        {
            "id": "out",
            "kind": "bolt",
            "executors": [[4, 4]],
            "inputs": [{"from": "in", "grouping": spelled}],
        }
    )
    (topology,) = problem_from(asked).first.topologies
    assert topology.components[1].inputs[0].grouping == "local_or_shuffle"


def test_a_port_stays_dead_while_its_supervisor_is_missing() -> None:
    asked = problem(dead_ports={"s1": [1]}, rounds=[{"supervisors": []}, {}])
    assert len(solve(asked)["rounds"]) == 2


@pytest.mark.parametrize("field", ["supervisors", "scheduler"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    asked = problem()
    asked.pop(field)
    assert f"{field}: missing" in error_of(json.dumps(asked))


@pytest.mark.parametrize(("field", "id"), [("supervisors", "s1"), ("topologies", "t")])
def test_what_occurs_twice_is_named(field: str, id: str) -> None:
    asked = problem()
    asked[field].append(asked[field][0])
    assert f"{field}: '{id}' occurs twice" in error_of(json.dumps(asked))


LIVING = [{"node": "s1", "host": "h1", "port": port, "tasks": [port]} for port in (1, 2)]


@pytest.mark.parametrize(
    ("path", "change", "text"),
    [
        ((), {"assign_type": "OLD"}, "assign_type: expected one of NEW"),
        ((), {"speed": 1}, "problem: unknown field 'speed'"),
        (("topology",), {"speed": 1}, "topology: unknown field 'speed'"),
        ((), {"tasks": {"one": "in"}}, "tasks: expected a task id"),
        ((), {"tasks": {"1": "in", "01": "in"}}, "tasks: expected a task id, got '01'"),
        (
            JSTORM_PART,
            {"inputs": [{"from": "a"}, {"from": "a"}]},
            "components[0].inputs[1]: stream 'default' of 'a' occurs twice",
        ),
        (
            JSTORM_PART,
            {"inputs": [{"from": "a", "grouping": "feilds"}]},
            "inputs[0].grouping: expected one of shuffle",
        ),
        ((), {"conf": {"topology.wokers": 2}}, "conf: unknown key 'topology.wokers'"),
        ((), {"tasks": {"1": "out"}}, "tasks: task 1: no component is called 'out'"),
        (SUPERVISOR, {"available": [9]}, "supervisors[0].available: 9 is not one of its ports"),
        (JSTORM_PART, {"parallelism": 2_000_000}, "more than 1000000 tasks"),
        ((), {"old_workers": [{"node": "s1"}]}, "old_workers[0].host: missing"),
        (
            (),
            {"assign_type": "MONITOR", "old_workers": LIVING, "dead_tasks": [1]},
            "supervisors[0].available: 2 is offered, but a worker of old_workers lives there",
        ),
        ((), {"conf": {DEFINED: [{"port": 0}]}}, f"{DEFINED}[0].componentToNum: missing"),
        (
            (),
            {"conf": {DEFINED: [{"componentToNum": {}}]}},
            f"{DEFINED}[0].port: missing (0 is any)",
        ),
    ],
)
def test_mistakes_in_jstorm_problems_are_named_too(
    path: Sequence[str | int], change: Any, text: str
) -> None:
    assert text in error_of(changed(jstorm(), path, change))


ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    {"": None},
    ["a"],
    [2, 1],
)


def parts_of(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        found for key, each in inside for found in [(*path, key), *parts_of(each, (*path, key))]
    ]


@pytest.mark.parametrize(
    "name", ["even", "isolation", "multitenant", "resource-aware", "blacklist", "jstorm"]
)
def test_whatever_stands_in_a_field_there_is_an_answer(name: str) -> None:
    """Every part of a good problem in turn becomes something odd, or is left out: an answer or a
    named error, never a crash.
    """
    text = (WORKED / f"{name}.problem.json").read_text()
    for at, path in enumerate(parts_of(json.loads(text))):
        for odd in (ODD[at % len(ODD)], ODD[(at + 5) % len(ODD)], ...):
            asked = inner = json.loads(text)
            for key in path[:-1]:
                inner = inner[key]
            if odd is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            answer, well_formed = answer_to(json.dumps(asked))
            assert well_formed or list(json.loads(answer)) == ["error"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '"x"',
        '{"a": 1, "a": 2}',
        '{"scheduler": NaN}',
        "[" * 100_000,
        "1" * 5_000,
        '{"scheduler": Infinity}',
    ],
)
def test_what_is_not_a_json_object_is_an_error(text: str) -> None:
    assert error_of(text)


def test_null_in_a_conf_means_the_default() -> None:
    asked = problem(conf={"topology.workers": None})
    assert len({row["port"] for row in solve(asked)["assignments"]["t"]}) == 1


def test_the_clusters_conf_lies_under_the_topologys() -> None:
    asked = problem(conf={"topology.workers": 2})
    assert len({row["port"] for row in solve(asked)["assignments"]["t"]}) == 2
    asked["topologies"][0]["conf"] = {"topology.workers": 1}
    assert len({row["port"] for row in solve(asked)["assignments"]["t"]}) == 1


def test_later_rounds_keep_what_they_do_not_replace() -> None:
    asked = problem(rounds=[{}, {"supervisors": [{"id": "s2", "host": "h2", "ports": [5]}]}, {}])
    nodes = [each["assignments"]["t"][0]["node"] for each in solve(asked)["rounds"]]
    assert nodes == ["s1", "s2", "s2"]


def test_worker_resources_are_checked_and_accepted() -> None:
    asked = problem(
        worker_resources={
            "t": [{"node": "s1", "port": 1, "memory_on_heap_mb": 768.0, "cpu": 100.0}]
        }
    )
    assert "assignments" in solve(asked)
    asked["worker_resources"]["t"][0]["gpu"] = 1
    assert "unknown field 'gpu'" in error_of(json.dumps(asked))


def test_jstorm_tasks_may_be_named() -> None:
    asked = jstorm(tasks={"7": "in", "9": "in"})
    assert [row["tasks"] for row in solve(asked)["workers"]] == [[7], [9]]


def test_workers_are_counted_as_jstorm_does_whatever_system_components_are_listed() -> None:
    """JStorm adds its master itself, and its ackers by the conf: both count, listed or not."""
    asked = jstorm(conf={"topology.workers": 2, "topology.master.single.worker": True})
    asked["supervisors"][0]["ports"] = [1, 2, 3]
    asked["topology"]["components"][0]["parallelism"] = 4
    assert len(solve(asked)["workers"]) == 3
    asked["topology"]["components"].append(
        {"id": "__topology_master", "kind": "system", "parallelism": 1}
    )
    assert len(solve(asked)["workers"]) == 3
    few = jstorm(conf={"topology.workers": 9, "topology.acker.executors": 0})
    few["topology"]["components"].append({"id": "__acker", "kind": "system", "parallelism": 3})
    assert len(solve(few)["workers"]) == 2


def test_two_nodes_of_one_host_with_one_port_are_told_apart_by_their_ids() -> None:
    supervisors = [{"id": name, "host": "h", "ports": [1]} for name in ("s9", "s1")]
    for _ in range(5):
        one = solve(jstorm(supervisors=supervisors, conf={"topology.workers": 1}))["workers"]
        assert [(row["node"], row["tasks"]) for row in one] == [("s1", [1, 2])]
    both = solve(jstorm(supervisors=supervisors, conf={"topology.workers": 2}))["workers"]
    assert [(row["node"], row["tasks"]) for row in both] == [("s1", [1]), ("s9", [2])]
    old = [{"node": row["node"], "host": "h", "port": 1, "tasks": row["tasks"]} for row in both]
    again = jstorm(
        supervisors=supervisors,
        assign_type="REBALANCE",
        old_workers=old,
        conf={"topology.workers": 2},
    )
    assert sorted(task for row in solve(again)["workers"] for task in row["tasks"]) == [1, 2]


def test_a_failed_assignment_is_an_answer_not_an_error() -> None:
    asked = jstorm(conf={"topology.workers": 2, "jstorm.reserve.workers": 5})
    answer, well_formed = answer_to(json.dumps(asked))
    assert well_formed
    assert json.loads(answer)["failed"].startswith("there's no enough worker. allocWorkerNum=2")


@pytest.mark.parametrize(("spare", "evicted"), [(1.0, []), (0.0, ["small"])])
def test_evicted_are_those_who_ran_and_run_no_more(spare: float, evicted: list[str]) -> None:
    """An executor that gave way and found another place in the same round has only moved."""

    def topology(name: str, cpu: float, priority: int) -> Problem:
        asks = {
            "topology.component.resources.map": {"gpu": 0.5},
            "topology.component.cpu.pcore.percent": cpu,
        }
        part = {"id": "in", "kind": "spout", "executors": [[1, 1], [2, 2]], "conf": asks}
        return {
            "id": name,
            "name": name,
            "owner": "ann",
            "conf": {"topology.priority": priority},
            "components": [part],
        }

    def node(name: str, cpu: float, gpu: float) -> Problem:
        resources = {
            "supervisor.memory.capacity.mb": 2000.0,
            "supervisor.cpu.capacity": cpu,
            "gpu": gpu,
        }
        return {"id": name, "host": name, "ports": [1, 2], "resources": resources}

    asked = {
        "scheduler": "resource-aware",
        "supervisors": [node("a", 400.0, 1.0), node("b", 100.0, spare)],
        "topologies": [topology("great", 150.0, 0), topology("small", 10.0, 9)],
        "assignments": {"small": [{"executor": [at, at], "node": "a", "port": 1} for at in (1, 2)]},
    }
    answer = solve(asked)
    assert [row["node"] for row in answer["assignments"]["great"]] == ["a", "a"]
    result = [row["node"] for row in answer["assignments"]["small"]]
    assert result == ([] if evicted else ["b", "b"])
    assert answer["evicted"] == evicted


def test_the_command_answers_all_and_fails_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "problems.jsonl"
    lines.write_text("\n".join([json.dumps(problem()), "{", "", json.dumps(jstorm())]))
    assert main(["schedule", "--lines", str(lines)]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(each)[0] for each in answers] == ["assignments", "error", "workers"]
    assert answers[1]["error"].startswith(f"{lines}, line 2: not JSON: ")


def test_the_command_reads_files_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "one.json"
    one.write_text(json.dumps(problem(), indent=2))
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(jstorm(), indent=1).encode()))
    )
    assert main(["schedule", str(one), "-"]) == 0
    result = [sorted(json.loads(line))[0] for line in capsys.readouterr().out.splitlines()]
    assert result == ["assignments", "workers"]


def test_a_file_that_cannot_be_read_is_an_error_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(problem()))
    bad.write_bytes(b"\xff\xfe")
    assert main(["schedule", str(tmp_path / "none.json"), str(bad), str(good)]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(each)[0] for each in answers] == ["error", "error", "assignments"]
    assert answers[1]["error"].startswith(f"{bad}: not UTF-8: ")
