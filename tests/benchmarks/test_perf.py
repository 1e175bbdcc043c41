"""The verdict of `make perf`: growth beyond the noise of the trees' own rounds, and nothing
else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from benchmarks.perf import (
    FLOOR,
    PROBES,
    Verdict,
    commit_before,
    judge,
    live_probes,
    main,
    replay_probes,
    show,
)


def noisy(level: float, noise: float, seed: int, rounds: int = 7) -> list[float]:
    random = Random(seed)
    return [level * math.exp(random.gauss(0, noise)) for _ in range(rounds)]


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        pytest.param([10, 10, 10], [10, 10, 10], False, id="equal"),
        pytest.param([10, 10, 10], [10.2, 10.2, 10.2], False, id="within the floor"),
        pytest.param([10, 10, 10], [10.5, 10.5, 10.5], True, id="beyond it, without noise"),
        pytest.param([10, 10, 10], [5, 5, 5], False, id="better"),
        pytest.param(
            [10, 14, 9, 13, 10], [11.5, 16, 10, 15, 11.5], False, id="growth that the spread hides"
        ),
        pytest.param(
            [10, 10.1, 9.9, 10.1, 10],
            [11.5, 11.6, 11.4, 11.6, 11.5],
            True,
            id="the same growth where it is quiet",
        ),
        pytest.param([10, 11, 12, 13, 14], [10, 11, 12, 13, 14], False, id="drift of both"),
        pytest.param(
            [10, 10, 30, 10, 10], [10, 10, 10, 10, 30], False, id="outliers of single rounds"
        ),
    ],
)
def test_growth_beyond_noise_is_worse(
    before: Sequence[float], after: Sequence[float], is_worse: bool
) -> None:
    assert judge(before, after).is_worse is is_worse


def test_the_figures_are_medians_and_the_ratio_is_that_of_the_rounds() -> None:
    found = judge([1, 2, 4], [1.5, 3, 6])
    assert (found.before, found.after, found.ratio) == (2, 3, 1.5)
    assert found.noise > FLOOR
    assert judge([3, 3, 3], [3, 3, 3]).noise == FLOOR


def test_noise_is_three_standard_errors_of_the_median_of_ratios() -> None:
    step = 0.02
    alternating = [math.exp(step * (i % 2)) for i in range(5)]
    single = 1.4826 * step / math.sqrt(2)
    result = judge(alternating, alternating).noise
    assert result == pytest.approx(math.expm1(3 * 1.2533 * math.sqrt(2) * single / math.sqrt(5)))


def test_equal_trees_rarely_fail_and_a_fifth_more_is_seen() -> None:
    seeds = range(400)
    false_alarms = sum(
        judge(noisy(1, 0.04, 2 * seed), noisy(1, 0.04, 2 * seed + 1)).is_worse for seed in seeds
    )
    seen = sum(
        judge(noisy(1, 0.04, 2 * seed), noisy(1.2, 0.04, 2 * seed + 1)).is_worse for seed in seeds
    )
    assert false_alarms <= 8  # 2 %: a spread estimated from twelve steps is itself uncertain
    assert seen >= 360


def test_fewer_than_three_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds are too few"):
        judge([1, 1], [1, 1])


def test_the_table_says_which_costs_are_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert not show(
        {"words: CPU": Verdict(1.0, 1.2, 1.2, 0.05), "latency: p50": Verdict(2.0, 1.0, 0.5, 0.05)}
    )
    said = capsys.readouterr().out
    assert "| words: CPU | 1.00 | 1.20 | 1.200 | 5.0% | **worse** |" in said
    assert "| latency: p50 | 2.00 | 1.00 | 0.500 | 5.0% | better |" in said
    assert said.endswith("worse beyond noise: words: CPU\n")
    assert show({"words: CPU": Verdict(1.0, 1.0, 1.0, 0.05)})


@pytest.mark.parametrize(
    ("head", "base", "is_changed", "expected"),
    [
        ("b", "a", False, "a"),
        ("b", "a", True, "a"),
        ("a", "a", True, "a"),
        ("a", "a", False, "HEAD~1"),
    ],
)
def test_a_branch_is_compared_with_where_it_left_main(
    head: str, base: str, is_changed: bool, expected: str
) -> None:
    assert commit_before(head, base, is_changed) == expected


def test_probes_have_the_names_that_only_takes(tmp_path: Path) -> None:
    assert tuple(live_probes(None, 0.001)) == PROBES["live"]
    assert tuple(replay_probes(None, tmp_path, 0.001)) == PROBES["replay"]


def test_a_probe_that_does_not_exist_is_refused_with_the_names_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["perf", "--only", "64 tasks"])
    with pytest.raises(SystemExit):
        main()
    assert "'words, 64 tasks'" in capsys.readouterr().err
