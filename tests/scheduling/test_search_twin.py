"""The caches of the search for slots change no answer: a search without them takes the same
steps.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.conformance.shapes import SHAPES
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.attempt import Attempt
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.node_order import NodeMap
from sparkstorm.control_plane.scheduling.resource.resources import Vector, minus, plus
from sparkstorm.control_plane.scheduling.resource.search import Search, SearchResult
from sparkstorm.control_plane.scheduling.resource.strategies import strategy_of
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory.form.storm_problem import problem_from
from tests.tiers import examples

SEEDS = st.integers(0, 10**9)
STATES = 150


class Forgetful(Attempt):
    """Tries every port of every node, every time."""

    def shut_nodes(self, executor: ExecutorId) -> set[str]:
        """Nothing is known to be shut."""
        return set()


def searched(
    kind: type[Attempt], view: ClusterView, topology: TopologyView
) -> tuple[SearchResult, dict[Any, Any]]:
    ledger, options = ResourceLedger(view), strategy_of(topology)
    attempt = kind(topology, ledger, Constraints(topology) if options.constrained else None)
    executors = [
        each for each in sorted(attempt.missing) if each not in attempt.free_ackers
    ] + attempt.free_ackers
    result = Search(attempt, NodeMap(ledger), options, STATES).place(executors)
    return result, dict(attempt.slot_by_executor)


def views(seed: int, shape: str = "small") -> list[tuple[ClusterView, TopologyView]]:
    problem = problem_from(SHAPES[shape]["resource-aware"](Random(seed)))
    view = problem.first.view(problem.conf)
    return [
        (view, each) for each in view.topologies.values() if view.placement(each.id).num_missing
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("seed", [13, 16, 20, 21, 25, 29, 39])
def test_nodes_known_to_be_shut_are_counted_as_if_they_were_tried(seed: int, shape: str) -> None:
    """Seeds of searches that step back past such nodes."""
    for view, topology in views(seed, shape):
        assert searched(Attempt, view, topology) == searched(Forgetful, view, topology)


def left_node_after_node(ledger: ResourceLedger) -> Vector:
    left = ledger.shape.zero
    for node in sorted(ledger.alive):
        left, _ = minus(plus(left, ledger.offer(node)), ledger.taken(node))
    return left


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_what_the_cluster_has_left_is_the_same_sum_to_the_last_bit(seed: int) -> None:
    for view, topology in views(seed):
        ledger = ResourceLedger(view)
        assert ledger.left_in_cluster() == left_node_after_node(ledger)
        attempt = Attempt(topology, ledger, None)
        Search(attempt, NodeMap(ledger), strategy_of(topology), STATES).place(
            sorted(attempt.missing)
        )
        assert ledger.left_in_cluster() == left_node_after_node(ledger)
        attempt.undo()
        assert ledger.left_in_cluster() == left_node_after_node(ledger)


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_a_workers_load_as_it_grew_is_what_its_executors_add_up_to(seed: int) -> None:
    for view, topology in views(seed):
        ledger = ResourceLedger(view)
        attempt = Attempt(topology, ledger, None)
        Search(attempt, NodeMap(ledger), strategy_of(topology), STATES).place(
            sorted(attempt.missing)
        )
        for slot, executors in attempt.executors_by_slot.items():
            assert ledger._taken[slot.node][slot.port] == ledger.worker(topology, executors)[0]
