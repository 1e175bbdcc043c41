"""Live equals replay, as docs/architecture.md defines it: random topologies of the class, on
LocalCluster and replayed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import Effects
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import LocalResults, read_value, replay, replay_locally
from sparkstorm.testing import complete_topology
from tests.replay.random_topologies import Partial, Rows, random_topology

# 300 meet each shape of bolt some twenty times
CASES = int(os.environ.get("SPARKSTORM_EQUALITY_CASES", "300"))
BLOCKS = 3
CONF = {"topology.max.retries": 1}


def multiset(rows: Any) -> Counter[str]:
    return Counter(map(repr, rows))


def merged(
    topology: Topology, component: str, states: Mapping[int, Mapping[Any, Any]]
) -> list[Mapping[Any, Any]]:
    """States in the order of their tasks; partial results are put together."""
    if not isinstance(topology.components[component].instance, Partial):
        return [dict(states[task]) for task in sorted(states)]
    total: Counter[Any] = Counter()
    for state in states.values():
        for (_, key), value in state.items():
            total[key] += value
    return [total]


def assert_equal_to_live(topology: Topology, rows: Rows, replayed: LocalResults, seed: int) -> None:
    live = complete_topology(topology, rows, conf=CONF, seed=seed)
    for component in topology.bolts:
        for stream, declared in component.streams.items():
            if not declared.direct:  # a capture cannot listen to direct streams
                name = component.id if stream == "default" else f"{component.id}:{stream}"
                assert multiset(replayed[name]) == multiset(live.values(component.id, stream)), name
        if component.id in replayed.states:
            states = merged(topology, component.id, replayed.states_by_task[component.id])
            assert [state for state in states if state] == [
                state
                for state in merged(topology, component.id, live.state_by_task(component.id))
                if state
            ], component.id
    parked = Counter((d.component, d.stream, repr(d.values)) for d in live.dead_letters)
    assert Counter((d.component, d.stream, repr(d.values)) for d in replayed.dead_letters) == parked


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_replay_gives_what_the_live_run_gives(block: int) -> None:
    for seed in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        random = Random(seed)
        topology, rows = random_topology(random)
        effects = {c.id: Effects.RUN for c in topology.bolts}
        columns = random.random() < 0.7
        try:  # values are executed at once in replays that put nothing aside
            replayed = replay_locally(
                topology, rows, conf=CONF, name="test", effects=effects, columns=columns
            )
        except ReplayFailedError:
            replayed = replay_locally(
                topology,
                rows,
                conf=CONF,
                name="test",
                effects=effects,
                skip_bad=True,
                columns=columns,
            )
        try:
            assert_equal_to_live(topology, rows, replayed, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.sampled
@pytest.mark.system
@pytest.mark.parametrize(
    ("seed", "skip_bad"),
    [(7, True), (21, True), (77, True), (219, False), (1251, False), (1549, False)],
)
def test_spark_gives_what_the_local_twin_gives(
    spark: SparkSession, seed: int, skip_bad: bool
) -> None:
    """Topologies that put nothing aside have data that Spark itself divides."""
    random = Random(seed)
    topology, rows = random_topology(random, ["a", "b", "ä", "", None])
    frames = {
        id: spark.createDataFrame(of, "key string, value int, ts bigint").coalesce(1)
        for id, of in rows.items()
    }
    effects = {c.id: Effects.RUN for c in topology.bolts}
    local = replay_locally(topology, rows, conf=CONF, effects=effects, skip_bad=skip_bad)
    results = replay(topology, frames, conf=CONF, effects=effects, skip_bad=skip_bad)
    for name in results:
        if name.endswith("!state"):
            component = name.removesuffix("!state")
            found: dict[int, dict[Any, Any]] = {
                task: {} for task in local.states_by_task[component]
            }
            for row in results[name].collect():
                found[row.task][_key(row.key)] = row.value
            result = merged(topology, component, found)
            assert result == merged(topology, component, local.states_by_task[component])
        else:
            cells = (tuple(map(read_value, row)) for row in results[name].collect())
            assert multiset(map(_plain, cells)) == multiset(local[name]), name
    assert len(results.dead_letters) == len(local.dead_letters)


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, tuple) else key


def _plain(value: Any) -> Any:
    """A Spark row as the codec's values."""
    if hasattr(value, "asDict") and value.__fields__[0] == "_1":  # a list of a fixed make
        return list(map(_plain, value))
    if hasattr(value, "asDict"):
        return {name: _plain(item) for name, item in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
