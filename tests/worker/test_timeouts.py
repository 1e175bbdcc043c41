"""Attacks on the rule that a tuple that waits is not a failed tuple."""

from __future__ import annotations

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.testing import FeederSpout, LocalCluster, SlowBolt
from tests.topologies import Count
from tests.worker.building import Pass


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_an_old_tuple_that_waits_behind_younger_ones_is_not_given_up(seed: int) -> None:
    """Two ways of different length meet: behind the head of a stream lies what is older than the
    head.
    """
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fast", Pass()).shuffle_grouping("spout")
    builder.set_bolt("slow", SlowBolt(40, Pass())).shuffle_grouping("spout")
    builder.set_bolt("meet", SlowBolt(18, Count())).global_grouping("fast").global_grouping("slow")
    with LocalCluster(seed=seed, slots=8) as cluster:
        conf = {"topology.workers": 6, "topology.message.timeout.secs": 2, "topology.epoch.rows": 3}
        cluster.submit(builder.build(), conf)
        fed = 0
        for _ in range(300):
            spout.feed([fed])
            fed += 1
            cluster.advance(ms=25)
        cluster.run_until_idle()
        assert (spout.failed, len(spout.acked)) == ([], fed)
