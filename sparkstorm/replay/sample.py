"""Owns the checker of determinism: a sample runs twice through the local twin, and what differs is named.

A bolt that reads the wall clock or rolls dice without a seed gives other results the second time, though its input is the
same. What is found first in the order of the graph is the culprit: what stands behind it differs for its sake.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.api.components import Effects
from sparkstorm.model.topology import Topology
from sparkstorm.replay.inputs import EventTime
from sparkstorm.replay.local import LocalResults, replay_locally
from sparkstorm.replay.plan import components_in_order


def check_sample(
    topology: Topology,
    inputs: Mapping[str, Sequence[Sequence[Any]]],
    *,
    conf: Mapping[str, Any] | None = None,
    event_time: EventTime | None = None,
    effects: Mapping[str, Effects] | None = None,
) -> str | None:
    """The first component, in the order of the graph, whose output or state differs between two runs; none when none does."""
    runs = []
    for seed in (1, 2):
        random.seed(seed)  # dice that somebody else has seeded would fall alike
        runs.append(replay_locally(topology, inputs, conf=conf, event_time=event_time, effects=effects, skip_bad=True))
    return next((id for id in components_in_order(topology) if _differs(topology, id, *runs)), None)


def _differs(topology: Topology, id: str, one: LocalResults, other: LocalResults) -> bool:
    names = [id if stream == "default" else f"{id}:{stream}" for stream in topology.components[id].streams]
    return one.states_by_task.get(id) != other.states_by_task.get(id) or any(
        _multiset(one.outputs.get(name, ())) != _multiset(other.outputs.get(name, ())) for name in names
    )


def _multiset(rows: Any) -> Counter[str]:
    return Counter(map(repr, rows))
