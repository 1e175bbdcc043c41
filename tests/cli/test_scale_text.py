"""Text of `sparkstorm scale`: its last line agrees with the lines above it."""

from __future__ import annotations

import pytest

from sparkstorm.cli.changes import scale_text
from sparkstorm.extensions.autoscale.model import ComponentPlan, Plan


@pytest.mark.parametrize(
    ("bottleneck", "shortage", "end"),
    [
        ("", "", "nothing to change: 2 workers and these executors do"),
        ("a hot key", "", "nothing that scaling can change: 2 workers and these executors stay"),
        ("", "no free slot", "nothing that scaling can change: 2 workers and these executors"),
    ],
)
def test_a_plan_without_a_change_does_not_call_a_bottleneck_enough(
    bottleneck: str, shortage: str, end: str
) -> None:
    part = ComponentPlan("count", 10.0, 20.0, 0.5, 10.0, 2, 2, "it keeps up", bottleneck)
    last = scale_text(Plan((part,), 2, 2, "enough", shortage)).splitlines()[-1]
    assert last.startswith(end)
