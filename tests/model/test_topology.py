"""Checks what the topology as data answers: subscribers, cycles; and which names are legal."""

from __future__ import annotations

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import (
    Component,
    Grouping,
    Stream,
    Subscription,
    Topology,
    validate,
    validate_name,
)


def bolt(id: str, *sources: str, streams: tuple[str, ...] = ("default",)) -> Component:
    inputs = tuple(Subscription(source, "default", Grouping("shuffle")) for source in sources)
    return Component(
        id, "bolt", None, streams={name: Stream(["v"]) for name in streams}, inputs=inputs
    )


def spout(id: str) -> Component:
    return Component(id, "spout", None, streams={"default": Stream(["v"])})


def topology(*components: Component) -> Topology:
    return Topology({c.id: c for c in components})


def test_spouts_and_bolts_are_told_apart() -> None:
    made = topology(spout("s"), bolt("b", "s"), bolt("c", "b"))
    assert [c.id for c in made.spouts] == ["s"]
    assert [c.id for c in made.bolts] == ["b", "c"]
    assert [c.id for c in made] == ["s", "b", "c"]


def test_subscribers_come_by_id_whatever_the_order_they_were_added_in() -> None:
    made = topology(bolt("z", "s"), spout("s"), bolt("a", "s"), bolt("m", "a"))
    assert [id for id, _ in made.subscribers("s", "default")] == ["a", "z"]
    assert made.subscribers("s", "other") == []
    assert made.subscribers("z", "default") == []


def components_of(made: Topology) -> set[frozenset[str]]:
    """The strongly connected components as sets of ids."""
    number_by_id = made.cycles()
    assert set(number_by_id) == set(made.components)
    ids_by_number: dict[int, set[str]] = {}
    for id, number in number_by_id.items():
        ids_by_number.setdefault(number, set()).add(id)
    return set(map(frozenset, ids_by_number.values()))


def test_a_graph_without_cycles_has_every_component_by_itself() -> None:
    result = components_of(topology(spout("s"), bolt("a", "s"), bolt("b", "s", "a")))
    assert result == {frozenset("s"), frozenset("a"), frozenset("b")}


def test_cycles_are_found_nested_joined_and_apart() -> None:
    made = topology(
        spout("s"),
        bolt("a", "s", "c"),
        bolt("b", "a"),
        bolt("c", "b"),
        bolt("d", "c", "e"),
        bolt("e", "d"),
        bolt("self", "self", "s"),
        bolt("out", "e"),
    )
    assert components_of(made) == {
        frozenset("s"),
        frozenset("abc"),
        frozenset("de"),
        frozenset(["self"]),
        frozenset(["out"]),
    }


def test_two_loops_through_one_component_are_one_cycle() -> None:
    made = topology(
        spout("s"), bolt("hub", "s", "left", "right"), bolt("left", "hub"), bolt("right", "hub")
    )
    assert frozenset(["hub", "left", "right"]) in components_of(made)


def test_a_long_chain_does_not_exhaust_the_stack() -> None:
    made = topology(
        spout("s"), bolt("b0", "s", "b4999"), *(bolt(f"b{n}", f"b{n - 1}") for n in range(1, 5000))
    )
    assert {len(each) for each in components_of(made)} == {1, 5000}


@pytest.mark.parametrize("name", ["wc", "word-count_2.1", "a1", "_a", "7a"])
def test_good_names_are_accepted(name: str) -> None:
    validate_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a/b",
        "ä",
        "12",
        "null",
        "a\n",
        "{x}",
        ".",
        "..",
        "...",
        ".a",
        "-a",
        "--fresh",
        "../a",
    ],
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopologyError, match="is not a valid topology name: use letters"):
        validate_name(name)


def test_a_component_that_is_kept_under_another_id_is_still_checked() -> None:
    with pytest.raises(InvalidTopologyError, match="component id 'a b' is not valid"):
        validate(topology(spout("s"), bolt("a b", "s")))


def test_a_topology_without_a_spout_is_refused() -> None:
    sentence = r"needs at least one spout; add one with set_spout"
    with pytest.raises(InvalidTopologyError, match=sentence):
        validate(topology(bolt("b", "b")))


def test_a_spout_with_inputs_is_refused() -> None:
    odd = Component(
        "t", "spout", None, streams={}, inputs=(Subscription("s", "default", Grouping("shuffle")),)
    )
    sentence = "spout 't' may not declare inputs; make it a bolt or drop them"
    with pytest.raises(InvalidTopologyError, match=sentence):
        validate(topology(spout("s"), odd))
