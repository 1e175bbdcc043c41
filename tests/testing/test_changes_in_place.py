"""Values of a state that user code changes in place without putting them back are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Source

ROWS = [("a", n) for n in range(4)]


class Keeps(StatefulBolt):
    """Begins with a list or a mapping, and calls a function of the state, the key and a number."""

    def __init__(self, first: Any, change: Callable[[Any, Any, int], Any]) -> None:
        self.first = first
        self.change = change

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["key"] not in self.state:
            self.state.put(tup["key"], self.first)
        self.change(self.state, tup["key"], tup["n"])


def puts(state: Any, key: Any, n: int) -> None:
    value = state.get(key)
    value.append(n)
    state.put(key, value)


def deletes(state: Any, key: Any, n: int) -> None:
    state.get(key).append(n)
    del state[key]


def fails(state: Any, key: Any, n: int) -> None:
    puts(state, key, n)
    if n == 2:
        raise ValueError("two")


def state_of(first: Any, change: Callable[[Any, Any, int], Any]) -> Mapping[Any, Any]:
    builder = TopologyBuilder()
    builder.set_spout("rows", Source("key", "n"))
    builder.set_bolt("keeps", Keeps(first, change)).fields_grouping("rows", "key")
    return complete_topology(builder.build(), {"rows": ROWS}).state("keeps")


@pytest.mark.parametrize(
    ("first", "change"),
    [
        ([], lambda state, key, n: state.get(key).append(n)),
        ([], lambda state, key, n: state[key].append(n)),
        ({}, lambda state, key, n: state[key].update({str(n): n})),
        ([[]], lambda state, key, n: state[key][0].append(n)),
        ({1}, lambda state, key, n: state[key].add(n)),
        ([], lambda state, key, n: state[key].append(object())),
    ],
)
def test_a_change_that_is_not_put_back_is_named(first: Any, change: Any) -> None:
    with pytest.warns(UserWarning, match="component 'keeps', state key 'a': .* state.put") as seen:
        assert state_of(first, change) == {"a": first}
    assert len(seen) == 1


@pytest.mark.parametrize("change", [puts, deletes, fails])
def test_a_change_that_is_put_back_deleted_or_undone_is_not_named(change: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state_of([], change)


def test_a_value_that_is_unequal_to_itself_is_not_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state_of([float("nan")], lambda state, key, n: state.get(key))
