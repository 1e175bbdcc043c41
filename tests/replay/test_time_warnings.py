"""Warnings of windows and timers: random topologies with real lateness, live under several
interleavings, and replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from sparkstorm.api import Effects
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, LocalResults, replay_locally
from sparkstorm.replay.plan import components_in_order
from sparkstorm.testing import CaptureBolt, LocalCluster
from sparkstorm.testing.complete import _captured
from sparkstorm.testing.components import fed
from tests.replay.test_warnings import kind_of
from tests.replay.timed_topologies import KEEPING, TIMES_AS_KEYS, random_topology, with_feeders

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

CASES = 240
CONF = {"topology.max.retries": 1, "topology.workers": 2}
Outcome = tuple[dict[str, Counter[str]], Counter[str], Counter[str]]
TIMES = (None, EventTime("ts", in_order=False))


def outcome(
    topology: Topology, id: str, values_of: Any, states: Mapping[int, Any], letters: Any
) -> Outcome:
    """Return what a component left: rows by stream, state per key, values put aside."""
    return (
        {
            stream: Counter(map(repr, values_of(id, stream)))
            for stream in topology.components[id].streams
        },
        Counter(repr(pair) for state in states.values() for pair in state.items()),
        Counter(repr(letter.values) for letter in letters if letter.component == id),
    )


def replay_options(topology: Topology, seed: int) -> dict[str, Any]:
    return {
        "conf": CONF,
        "name": "test",
        "effects": {c.id: Effects.RUN for c in topology.bolts},
        "event_time": TIMES[seed % 2],
    }


def replayed(topology: Topology, rows: Any, seed: int) -> LocalResults:
    given = replay_options(topology, seed)
    given["partitions"] = (1, 3)[seed // 2 % 2]
    try:
        return replay_locally(topology, rows, **given)
    except ReplayFailedError:
        return replay_locally(topology, rows, **given, skip_bad=True)


def outcomes_of_replay(topology: Topology, found: LocalResults) -> dict[str, Outcome]:
    def values_of(id: str, stream: str) -> Any:
        return found.outputs.get(id if stream == "default" else f"{id}:{stream}", ())

    states = found.states_by_task
    return {
        c.id: outcome(topology, c.id, values_of, states.get(c.id, {}), found.dead_letters)
        for c in topology.bolts
    }


def outcomes_of_live_run(topology: Topology, rows: Any, seed: int) -> dict[str, Outcome]:
    capture = CaptureBolt()
    feeders = {id: fed(topology.components[id].streams, of) for id, of in rows.items()}
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(_captured(with_feeders(topology, feeders), {}, capture), CONF)
        cluster.run_until_idle()
        letters = cluster.dead_letters
        return {
            c.id: outcome(topology, c.id, capture.values_of, cluster.state_by_task(c.id), letters)
            for c in topology.bolts
        }


def differing(
    topology: Topology, one: Mapping[str, Outcome], other: Mapping[str, Outcome]
) -> list[str]:
    """The components that differ although what they were sent is equal."""
    unequal = {id for id in one if one[id] != other[id]}
    return [
        id
        for id in components_in_order(topology)
        if id in unequal and not any(s.component in unequal for s in topology.components[id].inputs)
    ]


def compared(seed: int, *given: Any) -> tuple[Topology, set[str], LocalResults]:
    """A random topology, the components that differ in any of two live runs from the replay, and
    the replay.
    """
    topology, rows = random_topology(Random(seed), *given)
    found = replayed(topology, rows, seed)
    mine = outcomes_of_replay(topology, found)
    unequal = {
        id
        for n in range(2)
        for id in differing(topology, mine, outcomes_of_live_run(topology, rows, 2 * seed + n))
    }
    return topology, unequal, found


def test_differences_of_bolts_that_keep_more_carry_warnings_too() -> None:
    """Folds with states and attributes, timers set by timers, first tries that fail, times as
    keys.
    """
    tally: Counter[str] = Counter()
    for seed in range(CASES, CASES + 60):
        tally[kind_of(seed, *compared(seed, ["a", *TIMES_AS_KEYS], KEEPING))] += 1
    assert tally["unequal, warned"] >= 2


@pytest.mark.parametrize("block", range(6))
def test_every_difference_carries_a_warning_of_its_component(block: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(block * CASES // 6, (block + 1) * CASES // 6):
        tally[kind_of(seed, *compared(seed))] += 1
    assert tally["unequal, warned"] >= 2
    assert tally["equal"] > 2 * tally["equal, warned"], "most equal results carry no warning"
