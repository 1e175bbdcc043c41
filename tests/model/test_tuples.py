"""The tuple as user code sees it."""

from __future__ import annotations

import pytest

from sparkstorm.common.model.topology import TICK_STREAM
from sparkstorm.common.model.tuples import Source, Tuple


def of(stream: str) -> Tuple:
    return Tuple((7,), 0, Source("lines", 1, stream, ("number",)))


def test_a_tick_is_told_from_data_without_a_call() -> None:
    assert of(TICK_STREAM).is_tick is True
    assert of("default").is_tick is False, "a method would be true for every tuple"


def test_the_former_call_fails_loudly() -> None:
    with pytest.raises(TypeError, match="'bool' object is not callable"):
        of("default").is_tick()  # type: ignore[operator]


def test_no_tuple_can_be_taken_for_its_own_predicate() -> None:
    predicates = [name for name in dir(Tuple) if name.startswith(("is_", "has_"))]
    assert predicates and all(isinstance(getattr(Tuple, name), property) for name in predicates)
