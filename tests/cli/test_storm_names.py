"""Checks that commands of `storm` are taken by their names, or answered by what to do instead."""

from __future__ import annotations

import pytest

from sparkstorm.cli.__main__ import GROUPS, STORM_ELSEWHERE, STORM_VERBS, main, parser

_VERBS = {verb for modules in GROUPS.values() for known in modules.values() for verb in known}


@pytest.mark.parametrize(("theirs", "ours"), STORM_VERBS.items())
def test_a_command_with_another_name_here_is_taken_for_our_verb(
    theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert theirs not in _VERBS and ours in _VERBS
    with pytest.raises(SystemExit) as ended:
        main([theirs, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: sparkstorm {ours} ")


@pytest.mark.parametrize(("theirs", "instead"), STORM_ELSEWHERE.items())
def test_a_command_that_no_verb_is_like_is_answered_by_what_to_do(
    theirs: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert theirs not in _VERBS
    with pytest.raises(SystemExit) as ended:
        main([theirs, "topology.jar"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"Storm's {theirs} is here: {instead}\n")


def test_options_of_storm_are_those_of_the_verbs_with_the_same_name() -> None:
    asked = parser().parse_args(
        ["rebalance", "words", "-w", "5", "-n", "4", "-e", "count=3", "-e", "split=2"]
    )
    assert (asked.wait, asked.workers, asked.executors) == (5, 4, ["count=3", "split=2"])
    assert parser().parse_args(["kill", "words", "-w", "0"]).wait == 0
    asked = parser().parse_args(["monitor", "words", "-i", "2", "-m", "count"])
    assert (asked.interval, asked.component) == (2, "count")
