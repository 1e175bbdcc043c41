"""Ticks, which a topology may have for all its bolts, are no rows of ready bolts."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.streams import CalendarBolt, local_day
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.streams.joining import LEFT, RIGHT
from tests.streams.test_as_of_join import joined as as_of
from tests.streams.test_calendar import Members
from tests.streams.test_interval_join import joined as interval
from tests.streams.test_lookup import COUNTRIES, located


def fetch(keys: Any) -> Any:
    return dict.fromkeys(keys, COUNTRIES["ann"])


BOLTS: dict[str, Any] = {
    "interval": interval("left", 0, 9),
    "as of": as_of("left", 9),
    "calendar": CalendarBolt(Members(), local_day("UTC")).with_timestamp_field("at"),
    "look-up": located(fetch, key="k", keep=["k"]),
}


@pytest.mark.parametrize("name", BOLTS)
def test_ticks_are_no_rows(name: str) -> None:
    builder = TopologyBuilder()
    builder.set_spout("left", FeederSpout(LEFT))
    builder.set_spout("right", FeederSpout(RIGHT))
    is_join = name in ("interval", "as of")
    builder.set_bolt("bolt", BOLTS[name], inputs=["left", "right"] if is_join else ["left"])
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {"topology.tick.tuple.freq.secs": 1})
        cluster.advance(ms=5_000)
        assert (cluster.errors, cluster.dead_letters) == ([], [])
