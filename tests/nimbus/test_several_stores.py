"""Nimbus over several stores: which one a topology's end and its heir go to, and that a store that
is away stops no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.assignment import SupervisorInfo
from tests.nimbus.nimbus_bench import Bench
from tests.nimbus.test_hot_deploy import Keeper


class Store(Keeper):
    """A store that can be away, and counts how often it was asked then."""

    is_away, asked = False, 0

    def retire(self, topology_id: str) -> None:
        if self.is_away:
            self.asked += 1
            raise StoreUnavailableError("Redis at far:1 did not come back")
        super().retire(topology_id)

    def unended(self) -> dict[str, int]:
        self.retire("nothing")
        return {}


def cluster(**stores: Store) -> Bench:
    """Return a cluster whose stores are these, the first its home store, and whose hosts know and
    reach them all.
    """
    bench = Bench(nodes=4, topology__workers=1)
    home, *others = stores
    hooks = bench.nimbus.hooks
    hooks.home = home
    hooks.retirement = stores[home]
    hooks.other_stores = {each: stores[each] for each in others}
    for each in bench.supervisors.values():
        register = each.state.register_supervisor

        def with_stores(info: SupervisorInfo, register: Any = register) -> None:
            register(replace(info, other_stores=dict.fromkeys(others, "")))

        each.state.register_supervisor = with_stores  # type: ignore[method-assign]
    bench.tick()
    return bench


def store_of(bench: Bench, topology_id: str) -> str:
    base = bench.base_of(topology_id)
    return base.store


def kill(bench: Bench, name: str) -> None:
    bench.service.kill(name, 0)
    bench.advance(30)


def test_topologies_are_dealt_out_and_each_ends_in_its_own_store() -> None:
    near, far = Store(), Store()
    bench = cluster(near=near, far=far)
    ids = [bench.submit(name, topology__workers=1) for name in ("one", "two", "three")]
    assert [store_of(bench, each) for each in ids] == ["near", "far", "near"]
    kill(bench, "two")
    assert far.calls[-1:] == [(ids[1],)] and (ids[1],) not in near.calls
    kill(bench, "one")
    assert near.calls[-1:] == [(ids[0],)] and (ids[0],) not in far.calls
    assert store_of(bench, bench.submit("four", topology__workers=1)) == "far"


def test_a_named_store_is_recorded_and_an_unknown_one_leaves_nothing_behind() -> None:
    bench = cluster(near=Store(), far=Store())
    assert (
        store_of(bench, bench.submit("one", topology__workers=1, topology__redis__store="far"))
        == "far"
    )
    sentence = r"two names the store 'third'; the cluster's stores are near, far"
    with pytest.raises(InvalidConfigError, match=sentence):
        bench.submit("two", topology__workers=1, topology__redis__store="third")
    bench.advance(10)
    assert len(bench.state.known_ids()) == len(bench.state.topology_ids()) == 1


@pytest.mark.parametrize("inherits", [True, False])
def test_a_hot_deploy_stays_in_its_store(inherits: bool) -> None:
    from tests.nimbus.nimbus_bench import wordcount

    near, far = Store(), Store()
    bench = cluster(near=near, far=far)
    old = bench.submit("one", topology__workers=1, topology__redis__store="far")
    far.data[old] = {"streams"}
    topology = wordcount() if inherits else wordcount(split=3)
    new = bench.submit(
        "one", topology, b"new code", topology__workers=1, topology__hot__deploy__enable=True
    )
    bench.advance(30)
    assert store_of(bench, new) == "far" and old in far.gone and old not in near.gone
    assert far.data == ({new: {"streams"}} if inherits else {})
    sentence = r"in the store 'far' and stay there, so its new code cannot name 'near'"
    with pytest.raises(InvalidConfigError, match=sentence):
        bench.submit(
            "one", topology, b"c", topology__hot__deploy__enable=True, topology__redis__store="near"
        )
    assert bench.state.topology_ids() == [new]


def test_a_store_that_is_away_keeps_its_killed_topology_and_stops_no_other() -> None:
    near, far = Store(), Store()
    bench = cluster(near=near, far=far)
    one, two = (bench.submit(name, topology__workers=1) for name in ("one", "two"))
    far.is_away = True
    bench.service.kill("two", 0)
    bench.advance(30)
    assert bench.state.topology_ids() == sorted([one, two])
    assert (
        "cannot be deleted yet: Redis at far:1 did not come back" in bench.service.problems()[two]
    )
    assert far.asked <= 8, "each question costs the others two seconds"
    three = bench.submit("three", topology__workers=1, topology__redis__store="near")
    bench.service.kill("one", 0)
    bench.advance(30)
    assert bench.state.topology_ids() == sorted([two, three])
    far.is_away = False
    bench.advance(30)
    assert bench.state.topology_ids() == [three] and two in far.gone
    assert two not in bench.service.problems()


def test_a_topology_whose_store_was_removed_is_named_and_stays_until_the_store_is_back() -> None:
    near, far = Store(), Store()
    bench = cluster(near=near, far=far)
    bench.submit("one", topology__workers=1)
    two = bench.submit("two", topology__workers=1)
    bench.nimbus.hooks.other_stores = {}
    bench.advance(2)
    assert (
        f"the data of {two} are in the store 'far', which is not known here (near)"
        in bench.service.problems()[two]
    )
    kill(bench, "two")
    assert two in bench.state.topology_ids()
    assert "cannot be deleted yet" in bench.service.problems()[two]
    bench.nimbus.hooks.other_stores = {"far": far}
    bench.advance(30)
    assert two not in bench.state.topology_ids() and two in far.gone and two not in near.gone
