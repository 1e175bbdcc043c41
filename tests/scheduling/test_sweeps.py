"""Sweeps: the same rows from any number of processes, their means, and what is written of them."""

import csv
import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from sparkstorm.common.errors import InvalidConfigError, SparkStormError
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.extensions.laboratory import Scene, Sweep, compare, generate, latex, sweep
from sparkstorm.extensions.laboratory.form.solve import answer_to
from sparkstorm.extensions.laboratory.optimum import distance
from sparkstorm.notebook.bars import bars
from tests.scheduling.clusters import topology as _topology

SMALL: dict[str, list[Any]] = {
    "num_nodes": [3],
    "num_topologies": [1],
    "executors_each": [10],
    "workers_each": [3],
}


class Faulty:
    """A scheduler of a user that fails."""

    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: object, cluster: object) -> None:
        raise ValueError("not today")


class Mine(EvenScheduler):
    """A scheduler of a user."""


def swept(processes: int = 1, **more: Any) -> Sweep:
    return sweep(
        more.pop("schedulers", ["default", "even", "jstorm", f"{__name__}:Mine"]),
        more.pop("seeds", range(3)),
        SMALL | {"shapes": ["chain", ["star", "etl"]], "cluster": ["mixed"]} | more,
        processes=processes,
        progress=False,
    )


@pytest.mark.slow
def test_a_sweep_in_two_processes_gives_the_table_of_one() -> None:
    one = swept()
    assert len(one.rows) == 3 * 2 * 4
    assert [row["seed"] for row in one.rows[:9]] == [0] * 8 + [1]
    assert one.table().equals(swept(2).table())


def test_a_plug_in_by_module_and_class_answers_as_its_base() -> None:
    rows = swept(seeds=[1]).rows
    by_name = {row["scheduler"]: row for row in rows if row["shapes"] == "chain"}
    same = {key: value for key, value in by_name["even"].items() if key != "scheduler"}
    assert {**by_name[f"{__name__}:Mine"], "scheduler": "even"} == {"scheduler": "even", **same}


def test_a_scheduler_that_fails_has_rows_with_its_reason() -> None:
    found = swept(schedulers=["even", f"{__name__}:Faulty", "nobody"], seeds=[1])
    even, faulty, nobody = found.rows[:3]
    assert even["unplaced"] == 0 and even["reason"] is None
    assert faulty["bytes"] is None
    assert faulty["reason"].startswith("ValueError: not today (test_sweeps.py, line ")
    assert "'nobody' is neither one of" in nobody["reason"]
    (number,) = sweep([5], [1], progress=False).rows  # type: ignore[list-item]
    assert number["reason"] == "a scheduler is a name or module:Class, not 5"
    assert {tuple(row) for row in found.rows} == {tuple(even)}


def test_a_row_has_the_costs_of_a_placement_and_of_a_lost_node() -> None:
    (row,) = swept(schedulers=["default"], seeds=[2], shapes=["diamond"]).rows
    scene = generate(3, 1, 10, 3, seed=2, shapes="diamond", cluster="mixed").scheduled("default")
    assert row["workers"] == scene.measures()["workers"]
    assert 0 < row["bytes_between_nodes"] <= row["bytes"] and row["throughput"] > 0
    assert (row["moved_by_loss"], row["unplaced_by_loss"]) == (0, 0)
    assert row["crossing_by_least"] is None, "ten executors have too many placements"


def test_a_small_problem_is_compared_with_the_optimum() -> None:
    small: dict[str, Any] = {"executors_each": [7], "workers_each": [4], "used": [0.6]}
    small |= {"schedulers": ["default"], "shapes": ["random"], "cluster": ["racked"]}
    (row,) = swept(seeds=[3], **small).rows
    assert row["crossing_by_least"] >= 1.0
    scene = generate(3, 1, 7, 4, seed=3, shapes="random", cluster="racked", used=0.6)
    assert distance(scene) is None, "nothing is placed"
    ratios = distance(scene.scheduled("default"))
    assert ratios == (row["crossing_by_least"], row["busiest_by_least"])
    bare = Scene(scene.supervisors, (_topology("t", scene.topologies[0].components, 2),), {}, {})
    assert distance(bare.scheduled("default")) is None, "nothing was measured"


def test_one_scheduler_may_be_a_name_alone() -> None:
    (row,) = sweep("even", [1], {"num_nodes": [2]}, progress=False).rows
    assert row["scheduler"] == "even"


def test_time_is_in_a_row_where_it_is_asked_for() -> None:
    (row,) = sweep(["even"], [1], {"num_nodes": [2]}, timed=True, progress=False).rows
    assert row["seconds"] >= 0.0
    (row,) = sweep(["even"], [1], {"num_nodes": [2]}, progress=False).rows
    assert "seconds" not in row


@pytest.mark.slow
def test_what_cannot_be_swept_is_named_in_any_number_of_processes() -> None:
    with pytest.raises(InvalidConfigError, match="parameters: there is no 'shape', only num_nodes"):
        sweep(["even"], [1], {"shape": ["chain"]})
    with pytest.raises(InvalidConfigError, match=r"shapes is to have a list of values, .*chain"):
        sweep(["even"], [1], {"shapes": "chain"})
    with pytest.raises(InvalidConfigError, match=r"num_nodes is to have a list of values, .*4"):
        sweep(["even"], [1], {"num_nodes": 4})  # type: ignore[dict-item]
    for processes in (1, 2):
        with pytest.raises(SparkStormError, match="shapes: there is no 'chian', only chain"):
            sweep(["even"], [1, 2], {"shapes": ["chian"]}, processes=processes, progress=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seeds": "x"}, "seeds is to have a list of whole numbers, such as range(3), not 'x'"),
        ({"seeds": 5}, "seeds is to have a list of whole numbers, such as range(3), not 5"),
        ({"seeds": []}, "seeds is to have a list of whole numbers, such as range(3): none is"),
        ({"seeds": [1.5]}, "seeds: expected an integer from 0 to 9223372036854775807, got 1.5"),
        ({"seeds": ["1"]}, "seeds: expected an integer from 0 to 9223372036854775807, got '1'"),
        ({"seeds": [3, 4, 3]}, "seeds: 3 is given 2 times: give it once"),
        ({"seeds": [-1]}, "seeds: expected an integer from 0 to 9223372036854775807, got -1"),
        ({"schedulers": []}, "schedulers is to have a list of names or module:Class, such as"),
        ({"schedulers": 5}, "schedulers is to have a list of names or module:Class, such as"),
        ({"schedulers": [EvenScheduler]}, "go to other processes as JSON: Object of type"),
        ({"conf": {"a": {1, 2}}}, "go to other processes as JSON: Object of type set"),
        ({"conf": {"a": float("nan")}}, "go to other processes as JSON: Out of range float"),
        ({"conf": "a"}, "conf: a mapping of settings is needed, not 'a'"),
        ({"parameters": "shapes"}, "parameters: a mapping of lists by name is needed"),
        ({"parameters": {"shapes": []}}, "parameters: shapes is to have a list of values"),
        ({"processes": 0}, "processes: expected an integer from 1"),
    ],
)
def test_a_sweep_that_cannot_be_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        sweep(**({"schedulers": ["even"], "seeds": [1]} | arguments))  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_a_chain_of_one_executor_has_a_row_without_throughput() -> None:
    (row,) = sweep(
        "even", [1], {"shapes": ["chain"], "executors_each": [1], "num_topologies": [1]}
    ).rows
    assert (row["reason"], row["throughput"], row["unplaced"]) == (None, None, 0)
    assert row["moved_by_loss"] == 0


# -- results ---------------------------------------------------------------------------------------


def rows(**values: list[float | None]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"seed": seed, "scheduler": name, "cost": cost, "reason": None}
        for name, costs in values.items()
        for seed, cost in enumerate(costs)
    )


def test_means_have_the_width_of_their_interval() -> None:
    found = Sweep(rows(default=[2.0, 4.0], mine=[1.0, None]), ())
    first, second = found.summary(["cost"])
    assert (first["scheduler"], first["count"], first["cost"]) == ("default", 2, 3.0)
    assert first["cost_ci"] == pytest.approx(1.96)  # of a deviation of the square root of 2
    assert (second["count"], second["cost"], second["cost_ci"]) == (2, 1.0, 0.0)


def test_a_ratio_is_to_the_same_seed_and_one_by_nothing_is_left_out() -> None:
    found = Sweep(rows(default=[2.0, 0.0, 4.0], mine=[1.0, 5.0, 4.0]), ())
    first, second = found.summary(["cost"], ratios=["cost"])
    assert (first["cost"], second["cost"]) == (1.0, 0.75)
    with pytest.raises(InvalidConfigError, match="no row is of a scheduler 'even'"):
        found.summary(["cost"], ratios=["cost"], to="even")
    with pytest.raises(InvalidConfigError, match="columns: there is no 'costs', only seed"):
        found.summary(["costs"])
    with pytest.raises(InvalidConfigError, match="columns: scheduler has texts"):
        found.summary(["scheduler"])


def test_a_table_goes_to_csv_and_latex(tmp_path: Path) -> None:
    found = Sweep(rows(default=[2.0, 4.0], my_own=[None, None]), ())
    path = tmp_path / "rows.csv"
    found.to_csv(path)
    with path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [each["cost"] for each in read] == ["2", "4", "", ""]
    assert found.table().schema.field("cost").type == "double"
    text = latex(found.summary(["cost"]), "Cost in % & more")
    assert r"\caption{Cost in \% \& more}" in text and r"\begin{tabular}{lrr}" in text
    assert r"default & 2 & 3.00 $\pm$ 1.96 \\" in text and r"my\_own & 2 & -- \\" in text
    assert Sweep((), ()).table().num_rows == 0 and r"\toprule" in latex([])


def test_infinite_values_are_left_out_of_a_mean() -> None:
    found = Sweep(rows(default=[2.0, float("inf"), float("nan"), 4.0]), ())
    assert found.summary(["cost"])[0]["cost"] == 3.0


def test_odd_names_are_one_line_of_a_table_in_latex() -> None:
    text = latex([{"reason": "first\n\nsecond <a> \\x"}])
    assert r"first second \textless{}a\textgreater{} \textbackslash{}x \\" in text


def test_a_table_in_latex_has_the_columns_of_all_rows() -> None:
    text = latex([{"scheduler": "mine", "reason": "no"}, {"scheduler": "even", "moved": 2}])
    assert r"mine & no & -- \\" in text and r"even & -- & 2 \\" in text


def test_bars_of_a_column_that_is_not_there_are_refused() -> None:
    shown: list[dict[str, Any]] = [{"scheduler": "even"}, {"scheduler": "mine", "moved": 2}]
    for label, value in (("schedulr", "moved"), ("scheduler", "movd")):
        with pytest.raises(InvalidConfigError, match=r"columns: there is no .*; did you mean"):
            bars(shown, label, [value])
    assert "-" in bars(shown, "scheduler", ["moved"]).text


def test_bars_of_odd_values_are_a_picture() -> None:
    odd = [1e308, 0.0, -1.0, float("nan"), float("inf"), None]
    for values in ([odd[0], *odd], odd[1:], [-1.0, -2.0], [0], []):
        shown = [{"name": "a\x01<&b", "v": value} for value in values]
        root = fromstring(bars(shown, "name", ["v"]).text)
        widths = [float(each.get("width", "")) for each in root.iter() if each.tag.endswith("rect")]
        assert all(1 <= width <= 240 for width in widths[1:])


# -- the command's scheduler -----------------------------------------------------------------------


def test_a_problem_is_answered_by_the_scheduler_that_the_caller_names() -> None:
    problem = generate(2, 1, 3, 1).to_text("traffic")
    answer, is_fine = answer_to(problem, scheduler=f"{__name__}:Mine")
    assert is_fine and answer == answer_to(generate(2, 1, 3, 1).to_text("even"))[0]
    assert answer_to(problem, scheduler="nobody")[1] is False
    named = json.loads(problem) | {"scheduler": f"{__name__}:Mine"}
    answer, is_fine = answer_to(json.dumps(named))
    assert not is_fine and "scheduler" in answer, "a file names no code"
    answer, is_fine = answer_to('{"scheduler": "jstorm"}', scheduler="even")
    assert not is_fine and "leave --scheduler out" in answer


class Exits(Faulty):
    """A scheduler of a user that ends the process."""

    def schedule(self, topologies: object, cluster: object) -> None:
        """Print, and exit."""
        print("good bye")
        raise SystemExit(3)


def test_a_plug_in_that_prints_and_exits_has_an_answer_of_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer, is_fine = answer_to(
        generate(2, 1, 3, 1).to_text(), scheduler=f"{__name__}:Exits", where="a: "
    )
    assert not is_fine
    words = r"a: the scheduler failed, SystemExit: 3 \(test_sweeps\.py, line \d+\)"
    assert re.fullmatch(words, json.loads(answer)["error"])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "good bye\n")


@pytest.mark.slow
def test_a_plug_in_that_prints_and_exits_has_its_row_in_any_number_of_processes() -> None:
    name = f"{__name__}:Exits"
    for processes in (1, 2):
        found = swept(processes, schedulers=[name], seeds=[1, 2], shapes=["chain"])
        assert all("SystemExit: 3 (test_s" in row["reason"] for row in found.rows)
    (row,) = compare(generate(2, 1, 3, 1), [name])
    assert row["reason"].startswith("SystemExit: 3 (test_sweeps.py, line ")


class Clears(Faulty):
    """A scheduler of a user that empties its view."""

    def schedule(self, topologies: object, cluster: Any) -> None:
        """Take all topologies away."""
        cluster.topologies.clear()


class Odd(Faulty):
    """A scheduler of a user whose status is no text."""

    def schedule(self, topologies: object, cluster: Any) -> None:
        """Set it."""
        cluster.status["topology-00000"] = object


class Words(Faulty):
    """A scheduler of a user to which a slot is a text."""

    def schedule(self, topologies: object, cluster: Any) -> None:
        """Place the first executor."""
        for each in cluster.topologies.values():
            cluster.assign("node-00000:6700", each.id, each.executors[:1])


def test_a_slot_that_is_none_is_named() -> None:
    (row,) = compare(generate(2, 1, 3, 1), [f"{__name__}:Words"])
    assert row["reason"] == "a slot is a WorkerSlot, not 'node-00000:6700'"


class Writes(Faulty):
    """A scheduler of a user that writes to all configurations that it is shown."""

    def schedule(self, topologies: object, cluster: Any) -> None:
        """Add a key to each, and to what they contain."""
        for topology in cluster.topologies.values():
            for shown in (
                cluster.conf,
                topology.conf,
                *(part.conf for part in topology.components),
            ):
                shown.get("list", []).append(1)
                shown["mine"] = True


def test_a_plug_in_that_writes_to_its_view_leaves_the_scene_as_it_is() -> None:
    scene = replace(generate(2, 1, 3, 1), conf={"list": []})
    before = deepcopy(scene)
    scene.scheduled(f"{__name__}:Writes")
    assert scene == before


def test_a_plug_in_that_spoils_its_view_is_told_so() -> None:
    scene = generate(2, 1, 3, 1).scheduled("even")
    clears, odd = compare(scene, [f"{__name__}:Clears", f"{__name__}:Odd"])
    result = clears["reason"]
    assert result == "the scheduler took topology-00000 out of its view, which is to be read only"
    assert odd["reason"] == "the scheduler gave <class 'object'> as a status or reason: no text"
