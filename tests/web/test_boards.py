"""The board and the alert rules: generated, and about metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from sparkstorm.web.boards import ALERTS, BOARD, ROWS, RULES, board, texts
from sparkstorm.web.metrics import FAMILIES
from tests.web.served import served

_NAME = re.compile(r"sparkstorm_\w+")
_MONITORING = Path(__file__).parents[2] / "conf" / "monitoring"


def expressions() -> list[str]:
    charts = [expr for row in ROWS.values() for chart in row for expr in chart.lines.values()]
    return [
        *charts,
        *(each.expr for each in ALERTS),
        "label_values(sparkstorm_topology_info, topology)",
    ]


def test_the_files_are_those_that_the_generator_writes() -> None:
    assert {
        path.name: path.read_text(encoding="utf-8") for path in _MONITORING.iterdir()
    } == texts()


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
    named = {name for expr in expressions() for name in _NAME.findall(expr)}
    assert len(named) > 20 and named <= known
    written = json.dumps(json.loads(texts()[BOARD])) + texts()[RULES]
    assert named == set(_NAME.findall(written))


def test_most_of_them_have_values_in_a_running_cluster() -> None:
    with served() as at:
        at.run.feed(20)
        at.run.feed(2, "bad")
        there = set(_NAME.findall(at.client.get("/metrics").text))
    named = {name for expr in expressions() for name in _NAME.findall(expr)}
    # of real drivers; of what is held back
    there |= {"sparkstorm_nimbus_leader", "sparkstorm_component_paused_ratio"}
    absent = {name.removeprefix("sparkstorm_") for name in named - there}
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
    made = board()
    panels: list[dict[str, Any]] = made["panels"]
    assert [each["id"] for each in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for each in panels:
        at = each["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        for target in each.get("targets", ()):
            assert target["expr"].count("(") == target["expr"].count(")") and target["expr"].count(
                "{"
            ) == target["expr"].count("}")


def test_the_rules_are_yaml_with_a_sentence_each() -> None:
    (group,) = yaml.safe_load(texts()[RULES])["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(ALERTS)
    for rule in group["rules"]:
        assert re.fullmatch(r"\d+[sm]", rule["for"]) and rule["labels"]["severity"] in (
            "warning",
            "critical",
        )
        by = re.findall(r"by \(([^)]*)\)", rule["expr"])
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert not by or label in by[0].replace(",", " ").split()
