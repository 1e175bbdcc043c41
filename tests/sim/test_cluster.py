"""Redis Clusters under a count: slots that are moved under load, nodes that die or are told to hand
over.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
import redis

from sparkstorm.data_plane.transport.servers.slots import slot_of
from tests.sim.fail_over import Strike, Trial, freeze, kill, kill_behind
from tests.sim.watched_redis import Server, until
from tests.transport.cluster_redis import ClusterRedis, Node

pytestmark = [pytest.mark.system, pytest.mark.nightly]
TOPOLOGY = "test"
SLOT = slot_of("{test}")
TIMEOUT_MS = 2000
"""Silence after which nodes take a primary for dead; in production several seconds."""


class TopologysNodes(ClusterRedis):
    """A cluster as the servers of one topology: the primary is that of its slot."""

    def primary(self) -> Node:
        """Return the node that has the slot."""
        return self.node_of(f"{TOPOLOGY}-1-1")

    def other(self, server: Server) -> Node:
        """Return the replica of that node, or the node whose replica it is."""
        pair = [self.primaries[0], *self.replicas]
        return next(other for other in pair if other is not server)

    def until_promoted(self, server: Server | None = None) -> None:
        """Wait until a node, that one if given, has the slot and takes commands."""

        def is_promoted() -> bool:
            primary = self.primary()
            return primary.answers() and primary.role() == "master" and server in (None, primary)

        until(is_promoted, "no node has the slot")
        self.until_working()

    def make_whole(self) -> None:
        """Bring a node that died back, as the replica that the cluster makes of it."""
        for node in self.nodes:
            if node.process is None:
                node.start()
        if self.replicas:
            until(self.other(self.primary()).is_linked, "the primary has no replica")
        self.until_working()


def move(watched: TopologysNodes, primary: Server, dice: random.Random) -> None:
    """The slot goes to another primary, key by key, as slowly as many keys would."""
    target = next(other for other in watched.primaries if other is not primary)
    assert isinstance(primary, Node)
    watched.begin_move(SLOT, primary, target)
    time.sleep(dice.uniform(0, 0.1))
    moved = watched.move_keys(SLOT, primary, target, lambda: time.sleep(dice.uniform(0, 0.05)))
    assert moved > 10, "the topology's keys were not here"
    time.sleep(dice.uniform(0, 0.1))
    watched.end_move(SLOT, target)


def migrate(watched: TopologysNodes, primary: Server, dice: random.Random) -> None:
    """The slot goes to another primary as a whole, where the server can: Valkey from 9.0 on."""
    target = next(other for other in watched.primaries if other is not primary)
    assert isinstance(primary, Node)
    words = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", target.id)
    try:
        primary(*words)
    except redis.ResponseError:
        move(watched, primary, dice)
    watched.until_promoted(target)


def hand_over(watched: TopologysNodes, primary: Server, dice: random.Random) -> None:
    """The replica is told to take over, as for a new version of the node."""
    replica = watched.other(primary)
    replica("CLUSTER", "FAILOVER")
    watched.until_promoted(replica)


def test_a_count_is_exact_while_its_slot_moves_to_and_fro(tmp_path: Path) -> None:
    nodes = TopologysNodes(tmp_path, home=f"{TOPOLOGY}-1-1")
    trial = Trial(tmp_path, watched=nodes)
    with contextlib.closing(trial):
        dice = random.Random(3)
        for kind in (move, migrate, move, migrate):
            trial.fail_over(kind, dice)
        sums = trial.finish()
        # each time all was there: nobody had to begin again from an older state
        assert sums.numbers > 50 and sums.rolled_back == 0
        assert not trial.running.deaths, "a worker waits while its slot moves"
        assert nodes.primary() is nodes.primaries[0]


def test_a_count_is_exact_over_fail_overs_of_the_slots_primary(tmp_path: Path) -> None:
    nodes = TopologysNodes(
        tmp_path, primaries=3, replicas=1, home=f"{TOPOLOGY}-1-1", timeout_ms=TIMEOUT_MS
    )
    trial = Trial(tmp_path, watched=nodes)
    kinds: list[Strike] = [kill, hand_over, kill_behind, freeze]
    with contextlib.closing(trial):
        dice = random.Random(5)
        for kind in kinds:
            trial.fail_over(kind, dice)
        assert trial.finish().numbers > 50
