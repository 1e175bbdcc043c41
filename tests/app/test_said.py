"""Sentences of a run at its beginning and its end."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.client.handle import TopologyProgress
from sparkstorm.common.config import merge
from sparkstorm.common.stores.addresses import not_configured
from sparkstorm.driver.console import RunConsole, first_late_line, progress_text
from sparkstorm.driver.own_cluster import starting_text
from sparkstorm.driver.results import sum_text

REDIS = {"sparkstorm.redis.url": "redis://localhost"}
ZOOKEEPER = {"storm.zookeeper.servers": ["localhost"]}


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, "starting Spark, Redis and ZooKeeper for topology 'words' ..."),
        (REDIS, "starting Spark and ZooKeeper for topology 'words' on your Redis ..."),
        (ZOOKEEPER, "starting Spark and Redis for topology 'words' on your ZooKeeper ..."),
        (REDIS | ZOOKEEPER, "starting Spark for topology 'words' on your Redis and ZooKeeper ..."),
    ],
)
def test_a_run_names_what_it_starts_and_what_it_is_given(conf: dict[str, Any], said: str) -> None:
    assert starting_text("topology 'words'", not_configured(merge(conf))) == said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 4_501_499], ", the sum of their values is 4,501,500"),
        ([], ""),
        ([1, "a"], ""),
        ([True, False], ""),
        ([1, 2.5], ""),
    ],
)
def test_a_sum_is_called_a_sum_and_only_whole_numbers_have_one(
    values: list[Any], said: str
) -> None:
    assert sum_text(values) == said


def test_a_store_that_lost_its_tail_makes_no_negative_speed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = RunConsole()
    for executed in (1000, 400):
        console.show(
            TopologyProgress(
                0, 0, 0, executed, 0, 0, 0, 0, None, None, is_settled=False, is_drained=False
            )
        )
    console.total(
        TopologyProgress(0, 0, 0, 400, 0, 0, 0, 0, None, None, is_settled=True, is_drained=True)
    )
    assert "-" not in capsys.readouterr().out


def test_records_that_went_to_the_stream_bad_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"lines": 12, "clicks": 1_000}
    progress = TopologyProgress(
        0, 0, 0, 0, 0, 0, 0, 0, None, None, is_settled=True, is_drained=True, bad=bad
    )
    RunConsole().total(progress)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "1,000 records went to the stream bad of clicks",
        "12 records went to the stream bad of lines",
    ]
    assert "  bad 1,012" in progress_text(progress, 0)


def test_the_first_late_tuples_are_named_without_a_number_that_still_grows() -> None:
    line = first_late_line("sum")
    assert line.startswith("component 'sum': tuples come too late for its windows")
    assert not any(letter.isdecimal() for letter in line)


def test_late_tuples_are_in_the_last_line_with_their_share_and_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late = {"sum": (6_878, 9_999)}
    progress = TopologyProgress(
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        None,
        None,
        is_settled=True,
        is_drained=True,
        late=late,
        held={"batch": 1},
    )
    RunConsole().total(progress)
    total, share, held = capsys.readouterr().out.splitlines()
    assert total.endswith("0 parked, 6,878 late")
    assert share.startswith(
        "component 'sum': 6,878 of 9,999 tuples (68.8 %) came too late for its windows"
    )
    assert held == "component 'batch' holds 1 input that it has neither acked nor failed"
    assert "  late 6,878" in progress_text(progress, 0)
