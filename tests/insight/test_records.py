"""Records of the read model as JSON."""

from __future__ import annotations

import json
import math

from sparkstorm.common.model.heartbeats import Counts
from sparkstorm.control_plane.insight.records import CountWindow, CulpritView, Latency, to_json


def test_a_record_becomes_plain_json_without_nan() -> None:
    window = CountWindow(
        60.0, Counts(emitted=3), emitted_per_s=math.nan, busy=math.inf, complete=Latency(1, 2.0)
    )
    found = to_json(
        {
            7: window,
            "who": CulpritView("slow", "count", "it is slow"),
            "list": (
                {
                    "b",
                },
                [None, True],
            ),
        }
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["7"]["counts"]["emitted"] == 3
    assert found["7"]["emitted_per_s"] is None
    assert found["7"]["busy"] is None
    assert found["7"]["complete"]["p50_ms"] is None
    assert found["who"] == {"fault": "slow", "component": "count", "sentence": "it is slow"}
    assert found["list"] == [["b"], [None, True]]
