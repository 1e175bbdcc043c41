"""The board and the alert rules: of the form that Grafana and Prometheus take, and about metrics
that there are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from sparkstorm.web import boards
from sparkstorm.web.metrics import FAMILIES
from tests.web.served import served

_NAME = re.compile(r"sparkstorm_\w+")


def _board() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((boards.MONITORING / "grafana.json").read_text())
    return board


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((boards.MONITORING / "alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _names() -> set[str]:
    texts = [path.read_text() for path in boards.MONITORING.iterdir()]
    return {name for text in texts for name in _NAME.findall(text)}


def test_the_files_are_copied_into_a_folder(tmp_path: Path) -> None:
    boards.main(str(tmp_path))
    boards.main(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"grafana.json", "alerts.yaml"}


def test_every_metric_that_they_name_is_in_the_exposition() -> None:
    suffixes: dict[str, tuple[str, ...]] = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_count", "_sum"),
    }
    known = {
        f"sparkstorm_{family.name}{suffix}"
        for family in FAMILIES
        for suffix in suffixes[family.kind]
    }
    assert len(_names()) > 20 and _names() <= known


def test_most_of_them_have_values_in_a_running_cluster() -> None:
    with served() as at:
        at.run.feed(20)
        at.run.feed(2, "bad")
        there = set(_NAME.findall(at.client.get("/metrics").text))
    # of real drivers; of what is held back
    there |= {"sparkstorm_nimbus_leader", "sparkstorm_component_paused_ratio"}
    absent = {name.removeprefix("sparkstorm_") for name in _names() - there}
    # a simulated store has no limit, simulated workers no memory, and this code no metrics of its
    # own
    assert absent <= {
        "store_fullness_ratio",
        "worker_memory_bytes",
        "worker_cpu_ratio",
        "user_counter_total",
        "user_gauge",
        "user_histogram_bucket",
    }


def test_the_board_is_one_that_grafana_lays_out() -> None:
    panels: list[dict[str, Any]] = _board()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["expr"].count("{") == target["expr"].count("}")


def test_each_rule_has_a_sentence_about_labels_that_it_has() -> None:
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert re.fullmatch(r"\d+[sm]", rule["for"])
        assert rule["labels"]["severity"] in (
            "warning",
            "critical",
        )
        by = re.findall(r"by \(([^)]*)\)", rule["expr"])
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert not by or label in by[0].replace(",", " ").split()
