"""Texts and JSON of `sparkstorm upgrade`."""

import argparse
import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkstorm.cli.upgrades import _follow, roll_back, status_record, status_text
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.upgrade import UpgradeStage
from sparkstorm.extensions.upgrade.handle import UpgradeStatus
from sparkstorm.extensions.upgrade.live_shadow import ShadowFigures

A, B, C = (WorkerSlot("n", port) for port in (1, 2, 3))
RUNNING = UpgradeStatus(
    "wc-1-9", "UPGRADING", UpgradeStage.IN_PROGRESS, (B,), (A,), (C,), 2, 1_000, 3_601_000
)


LETTERS: Any = SimpleNamespace(count_of=lambda code: {"bad code": 1_200}.get(code, 0))
BACK = Failure(
    FailureKind.SYSTEM,
    "gray upgrade is rolled back: 'split' fails",
    "__topology_master",
    time_ms=5,
    code_version="bad code",
)


def followed(over: UpgradeStatus, before: Failure | None, output: str = "table") -> int:
    upgrade = SimpleNamespace(status=lambda: over, is_waiting=lambda: False)
    handle: Any = SimpleNamespace(upgrade=upgrade, dead_letters=LETTERS)
    return _follow(argparse.Namespace(timeout=1, no_wait=False, output=output), handle, before)


def test_an_upgrade_under_way_lists_its_workers() -> None:
    lines = status_text(RUNNING, 61_000).splitlines()
    assert (
        lines[0]
        == "wc-1-9 is UPGRADING: IN_PROGRESS, batch 2; began 1 min 0 s ago, ends in 59 min 0 s at the latest"
    )
    assert [line.split() for line in lines[1:]] == [
        ["worker", "state"],
        ["n:1", "upgrading"],
        ["n:2", "upgraded"],
        ["n:3", "remaining"],
    ]
    assert not RUNNING.is_resting and replace(RUNNING, upgrading=()).is_resting


def test_a_shadow_says_how_far_it_is() -> None:
    figures = ShadowFigures("split", 7, "key", 1200, 0, 5)
    shadowing = replace(RUNNING, stage=UpgradeStage.SHADOWING, shadow=figures, shadow_tuples=5000)
    text = "shadow of split#7: 1,200 tuples compared, 0 come out differently, 5 skipped; 5,000 without a difference are asked for"
    assert text in status_text(shadowing, 0).splitlines()


def test_a_rollback_says_why() -> None:
    back = replace(RUNNING, stage=UpgradeStage.ROLLING_BACK, rollback="component 'x' fails\x1b[31m")
    assert "it is taken back: component 'x' fails" in status_text(back, 0)
    assert "\x1b" not in status_text(back, 0)


def test_a_start_that_was_taken_back_fails_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    over = replace(RUNNING, stage=UpgradeStage.NONE, last_rollback=BACK)
    assert followed(over, None, "json") == 1
    assert capsys.readouterr().err == "gray upgrade is rolled back: 'split' fails\n"


def test_a_rollback_that_nimbus_reports_before_its_request_returns_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = replace(BACK, text="gray upgrade is rolled back: asked for by a request")

    class Upgrade:
        found = replace(RUNNING, stage=UpgradeStage.NONE)

        def roll_back(self) -> None:
            self.found = replace(self.found, last_rollback=error)

        def status(self) -> UpgradeStatus:
            return self.found

        def is_waiting(self) -> bool:
            return False

    handle = SimpleNamespace(upgrade=Upgrade(), dead_letters=LETTERS)
    cluster = SimpleNamespace(topology=lambda name: handle)
    monkeypatch.setattr(
        "sparkstorm.cli.upgrades.opened",
        lambda arguments, writes=False: contextlib.nullcontext(cluster),
    )
    arguments = argparse.Namespace(name="wc", timeout=1, no_wait=False, output="json")
    assert roll_back(arguments) == 0
    assert json.loads(capsys.readouterr().out)["last_rollback"]["text"] == error.text


def test_the_last_batch_says_that_the_upgrade_is_complete_and_not_that_none_is_under_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rollback of an earlier upgrade is not shown."""
    over = UpgradeStatus(
        "wc-1-9", "ACTIVE", UpgradeStage.NONE, (), (), (A, B, C), last_rollback=BACK
    )
    assert followed(over, BACK) == 0
    assert (
        capsys.readouterr().out
        == "wc-1-9 is ACTIVE; the gray upgrade is complete: all 3 workers run the new code\n"
    )
    assert followed(replace(over, other_code=(B, C)), BACK) == 0
    words = "the gray upgrade is complete: n:2, n:3 run other code than the rest, as they were when it was ended"
    assert words in capsys.readouterr().out


def test_a_rollback_says_how_many_tuples_its_code_has_parked_and_how_they_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    over = UpgradeStatus(
        "wc-1-9", "ACTIVE", UpgradeStage.NONE, (), (), (A, B, C), last_rollback=BACK
    )
    assert followed(over, None) == 1
    out = capsys.readouterr().out
    assert "1,200 tuples are dead letters of the code that was taken back" in out
    assert "`sparkstorm dead-letters replay wc-1-9 --all`" in out
    assert followed(replace(over, last_rollback=replace(BACK, code_version="other")), None) == 1
    assert "dead letters" not in capsys.readouterr().out


def test_without_an_upgrade_the_last_rollback_and_workers_on_other_code_are_named() -> None:
    error = replace(BACK, text="gray upgrade is rolled back: why", traceback="a row")
    rest = UpgradeStatus(
        "wc-1-9", "ACTIVE", UpgradeStage.NONE, (), (), (A,), other_code=(A,), last_rollback=error
    )
    text = status_text(rest, 0)
    assert "no gray upgrade is under way" in text and "other code than the rest runs at n:1" in text
    assert text.endswith("gray upgrade is rolled back: why\n  a row")
    record = status_record(rest)
    assert record["stage"] == "NONE"
    assert record["other_code"] == ["n:1"]
    assert record["remaining"] == ["n:1"]
    assert record["last_rollback"]["time_ms"] == 5
