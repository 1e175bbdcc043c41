"""Names that code uses beyond its arguments, by its bytecode."""

from __future__ import annotations

from typing import Any

from sparkstorm.api import fold, spout, tumbling
from sparkstorm.replay.code_uses import uses_of
from sparkstorm.streams import stream


@spout("word", "at_ms")
def lines() -> list[Any]:
    return []


class Plain:
    limit = 3

    def constants(self, value: Any) -> Any:
        first, *_ = value
        return [first, *(() if first == "self" else ("self", 1))]

    def handed_on(self, value: Any) -> Any:
        return [self, value]

    def attribute(self, value: Any) -> Any:
        return value + self.limit

    def changed(self, value: Any) -> Any:
        self.limit = value


def test_constants_are_no_use_though_they_are_tuples_or_look_like_the_bolt() -> None:
    assert list(uses_of(Plain(), "constants")) == []
    assert list(uses_of(Plain(), "attribute")) == []


def test_a_function_of_a_function_bolt_uses_nothing() -> None:
    @fold(window=tumbling(seconds=10), key="word", time="at_ms", initial=0)
    def total(accumulator: int, tup: Any) -> int:
        return accumulator + 1

    topology = stream(lines).key_by("word").through(total).build()
    assert list(uses_of(topology.components["total"].instance, "initial", "fold")) == []


def test_the_bolt_as_a_whole_and_a_changed_attribute_are() -> None:
    for name in ("handed_on", "changed"):
        assert any(use.is_own for use in uses_of(Plain(), name))
