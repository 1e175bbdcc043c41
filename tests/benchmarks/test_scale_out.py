"""Arithmetic of many hosts: by hand for round figures, whatever was measured."""

from __future__ import annotations

import pytest

from benchmarks.scale_out import Cost, Fleet, Hosts, Load, fleet, topology_rate, workers_a_store
from benchmarks.two_stores import verdict

SMALL = Load("small", Cost(worker=7.0, store=0.7), bytes=0.0)
LARGE = Load("large", Cost(worker=7.0, store=7.0), bytes=10_000.0)


def test_a_store_that_may_be_full_to_seven_tenths_is_fed_by_so_many_workers() -> None:
    assert workers_a_store(SMALL) == pytest.approx(7)
    assert topology_rate(SMALL) == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("load", "hosts", "found"),
    [
        # 10 x 8 cores at 8 us: 7 for the worker, 1 for the share of a store that may be 70 % full
        (SMALL, Hosts(10, 9, 25), Fleet(1e7, 70, 10, 0.0, "cores")),
        # a unit is sent twice, and one in ten stays: 18 kB over 10 hosts of 0.9 GB/s each
        (LARGE, Hosts(10, 101, 7.2), Fleet(5e5, 4, 5, 7.2, "network")),
        (SMALL, Hosts(1, 9, 25), Fleet(1e6, 7, 1, 0.0, "cores")),
    ],
)
def test_hosts_end_at_their_cores_or_at_their_network(
    load: Load, hosts: Hosts, found: Fleet
) -> None:
    at = fleet(load, hosts)
    assert at.rate == pytest.approx(found.rate) and at.gbits == pytest.approx(found.gbits)
    assert (at.workers, at.stores, at.ends_at) == (found.workers, found.stores, found.ends_at)


def test_what_a_byte_costs_is_the_difference_and_never_less_than_nothing() -> None:
    assert Cost(10, 5, 4, 1).less(Cost(4, 6, 4, 0)).per(2) == Cost(3, 0, 0, 0.5)
    assert Cost.median([Cost(1, 1), Cost(2, 9), Cost(3, 2)]) == Cost(2, 2)


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        # one slow round of each changes nothing
        ([1.0, 1.0, 9.0], [1.0, 1.02, 1.0], (1.0, True)),
        ([1.0, 1.0, 1.0], [1.1, 1.1, 0.2], (0.909, False)),
    ],
)
def test_two_stores_pass_when_they_do_nearly_as_much_per_cpu(
    one: list[float], two: list[float], found: tuple[float, bool]
) -> None:
    share, is_enough = verdict(one, two)
    assert (round(share, 3), is_enough) == found
