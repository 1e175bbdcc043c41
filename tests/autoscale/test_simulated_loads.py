"""A sample of the seeds of `python -m benchmarks.autoscale`."""

from __future__ import annotations

import pytest

from benchmarks.autoscale import KINDS, STAYS, Result, run, table

NAMED = ("hot key", "slow sink")


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plans_do_not_oscillate_and_backlogs_go_in_time(kind: str) -> None:
    first = KINDS.index(kind)
    for result in (run(seed) for seed in (first, first + len(KINDS))):
        assert result.kind == kind
        assert result.turns <= 1, result
        assert not result.is_wrongly_down, result
        if kind in STAYS:
            assert result.steps <= 3, result
        if kind in NAMED:
            assert result.named, result
        elif kind != "no lag":
            assert not result.named and not result.is_late, result


def test_the_table_has_a_line_for_each_kind_that_ran() -> None:
    made = Result("step", 0, 2, 1, 3, True, ("x",), False)
    assert table([made, made]).splitlines()[2:] == ["| step | 2 | 2.0 | 1 | 3 | 2 | 2 | 0 |"]
