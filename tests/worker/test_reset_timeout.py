"""reset_timeout: a tree that a bolt still works on does not time out, and its latency is counted
from its emission.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import Tuple
from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.testing import FeederSpout
from tests.topologies import ran, running
from tests.worker.building import Collecting, chain

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])


class Slow(Collecting):
    """Keeps every input; a tick resets the time-out of "slow" and acks what is 65 s old."""

    outputs = ()

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        super().prepare(conf, context, collector)
        self.kept: list[tuple[Tuple, int]] = []

    def execute(self, tup: Tuple) -> None:
        if not tup.is_tick:
            self.kept.append((tup, self.context.now_ms()))
            return
        for kept, since_ms in [each for each in self.kept if each[0][0] == "slow"]:
            if self.context.now_ms() - since_ms >= 65_000:
                self.collector.ack(kept)
                self.kept.remove((kept, since_ms))
            else:
                self.collector.reset_timeout(kept)


CONF = {
    "topology.message.timeout.secs": 10,
    "topology.tick.tuple.freq.secs": 3,
    "topology.delivery.guarantee": "at-least-once",
}


@WORKERS
def test_a_tree_is_kept_open_for_as_long_as_its_bolt_asks_for(workers: int) -> None:
    spout = FeederSpout()
    with running(chain(spout, Slow()), {**CONF, "topology.workers": workers}) as cluster:
        spout.feed(["slow"], message_id="slow")
        spout.feed(["forgotten"], message_id="forgotten")
        cluster.advance(40)
        assert (spout.acked, spout.failed) == ([], ["forgotten"])
        cluster.advance(40)
        assert (spout.acked, spout.failed) == (["slow"], ["forgotten"])


def test_a_restart_of_the_spouts_worker_forgets_no_reset() -> None:
    spout = FeederSpout()
    with running(chain(spout, Slow()), {**CONF, "topology.workers": 3}) as cluster:
        spout.feed(["slow"], message_id="slow")
        cluster.advance(26)
        cluster.kill_worker("spout")
        cluster.advance(3)
        assert spout.failed == []
        cluster.advance(60)
        assert (spout.acked, spout.failed) == (["slow"], [])


def test_a_tuple_that_is_not_open_is_named_and_changes_nothing() -> None:
    class Late(Collecting):
        outputs = ()

        def execute(self, tup: Tuple) -> None:
            self.collector.ack(tup)
            self.collector.reset_timeout(tup)

    spout = FeederSpout()
    with ran(chain(spout, Late()), spout, [1]) as cluster:
        assert spout.acked == [0]
        assert [error.text for error in cluster.errors] == [
            "reset_timeout of a tuple that is not outstanding: Tuple(spout#3/default: value=1)"
        ]


def test_a_renewed_message_keeps_its_birth_for_the_latency_and_times_out_from_its_renewal() -> None:
    pending = Pending()
    for root in (1, 2):
        pending.add(root, None, 0)
    pending.take_delta()
    pending.renew([1, 99], 8)
    assert pending.take_delta() == [[[1, None, 0, 8]], [], []] and pending.take_delta() == []
    restarted = Pending()
    restarted.load([[[1, None, 0], [2, None, 0]], []], [[[[1, None, 0, 8]], [], []]])
    for each in (pending, restarted):
        assert each.expire(10, 10, None) == [2]
        assert each.expire(17, 10, None) == []
    assert pending.settle([1], [], 17).count_by_latency == {17: 1}
    assert restarted.expire(18, 10, None) == [1]
    assert restarted.snapshot()[0] == []
