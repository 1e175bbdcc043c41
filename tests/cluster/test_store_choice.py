"""The store of a new topology: named, or the one with the fewest workers; unknown and unreached
ones are refused in a sentence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import SupervisorInfo, TopologyBase
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.cluster.store_choice import check_kept, choose_stores


def base(store: str, workers: int, status: TopologyStatus = TopologyStatus.ACTIVE) -> TopologyBase:
    return TopologyBase(f"t-{workers}-1", "t", 0, status, workers, {}, "", "", store=store)


def host(name: str, problem: str = "", **others: str) -> SupervisorInfo:
    return SupervisorInfo(name, name, 0, 0, (6700,), store_problem=problem, other_stores=others)


HOSTS = [host("h1", b="", c=""), host("h2", b="", c="")]


@pytest.mark.parametrize(
    ("bases", "hosts", "chosen"),
    [
        ([], HOSTS, "a"),
        ([base("a", 1)], HOSTS, "b"),
        ([base("a", 1), base("b", 1)], HOSTS, "c"),
        ([base("a", 2), base("b", 1), base("c", 2)], HOSTS, "b"),
        # of an earlier version: in the home store
        ([base("", 2), base("b", 1), base("c", 1)], HOSTS, "b"),
        ([base("a", 9, TopologyStatus.KILLED), base("b", 1), base("c", 1)], HOSTS, "a"),
        ([base("a", 1), base("gone", 0)], HOSTS, "b"),
        # slots that were started with one store
        ([base("a", 1)], [host("h1", b="", c=""), host("old")], "a"),
        ([base("a", 1)], [host("h1", b="cut", c=""), host("h2", b="", c="")], "c"),
        ([], [host("h1", "cut", b="", c="")], "b"),
        ([base("a", 1)], [], "b"),
    ],
)
def test_the_store_with_the_fewest_workers_is_taken_among_those_that_every_host_reaches(
    bases: list[TopologyBase], hosts: list[SupervisorInfo], chosen: str
) -> None:
    assert choose_stores("new", 1, None, ("a", "b", "c"), bases, hosts) == (chosen,)


def test_a_cluster_with_one_store_records_no_name() -> None:
    assert choose_stores("new", 1, None, ("",), [base("", 3)], [host("h1")]) == ("",)


def test_a_topology_may_name_its_store_however_full_it_is() -> None:
    assert choose_stores("new", 1, "c", ("a", "b", "c"), [base("c", 100)], HOSTS) == ("c",)
    assert choose_stores("new", 1, "a", ("a", "b", "c"), [base("a", 100)], [host("old")]) == ("a",)


@pytest.mark.parametrize(
    ("wanted", "stores", "hosts", "words"),
    [
        (
            "d",
            ("a", "b"),
            HOSTS,
            r"topology\.redis\.store: new names the store 'd'; the cluster's stores are a, b$",
        ),
        ("", ("a", "b"), HOSTS, r"names the store ''"),
        ("", ("",), [], r"the cluster's stores are none: sparkstorm\.redis\.urls is not set$"),
        (
            "b",
            ("a", "b"),
            [host("h1", b=""), host("old")],
            r"which the slots of host old do not know: start their driver again",
        ),
    ],
)
def test_a_store_that_cannot_be_had_is_refused(
    wanted: str, stores: tuple[str, ...], hosts: list[SupervisorInfo], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        choose_stores("new", 1, wanted, stores, [], hosts)


def test_new_code_stays_in_its_store() -> None:
    check_kept("t", None, ["b"], "a")
    check_kept("t", "b", ["b"], "a")
    check_kept("t", "a", [""], "a")
    check_kept("t", "a,b", ["", "b"], "a", 2)
    sentence = r"the data of t are in the store 'b' and stay there.*savepoint"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_kept("t", "a", ["b"], "a")
    with pytest.raises(InvalidConfigError, match=r"t lies in 2 and stays there, .* say 1: take"):
        check_kept("t", None, ["a", "b"], "a")


@pytest.mark.parametrize(
    ("bases", "hosts", "chosen"),
    [
        ([], HOSTS, ("a", "b")),
        ([base("a", 5)], HOSTS, ("b", "c")),
        ([replace(base("a", 5), cells=("a", "b"))], HOSTS, ("c", "b")),
        ([replace(base("a", 4), cells=("a", "c")), base("", 1)], HOSTS, ("b", "c")),
        ([], [host("h1", "cut", b="", c="")], ("b", "c")),
    ],
)
def test_cells_get_the_stores_with_the_fewest_workers_of_all_topologies(
    bases: list[TopologyBase], hosts: list[SupervisorInfo], chosen: tuple[str, ...]
) -> None:
    assert choose_stores("new", 2, None, ("a", "b", "c"), bases, hosts) == chosen


@pytest.mark.parametrize(
    ("cells", "wanted", "hosts", "words"),
    [
        (4, None, HOSTS, "every host knows and reaches 3 of the cluster's 3: add servers"),
        (3, None, [host("h1", b="cut", c="")], "reaches 2 of the cluster's 3: .* to 2$"),
        (2, "a", HOSTS, "names 'a': name 2 stores with commas between them"),
        (2, "b,b", HOSTS, "names 'b,b': name 2 stores"),
        (2, "a,d", HOSTS, "names the store 'd'"),
    ],
)
def test_cells_without_stores_are_refused(
    cells: int, wanted: str | None, hosts: list[SupervisorInfo], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        choose_stores("new", cells, wanted, ("a", "b", "c"), [], hosts)
