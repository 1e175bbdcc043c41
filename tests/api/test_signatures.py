"""Methods that the runtime could not call, or that would do nothing when called, are refused when a
component is added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    Bolt,
    CombiningBolt,
    FoldingBolt,
    ReplayableSpout,
    Spout,
    StatefulBolt,
    TimedBolt,
    TopologyBuilder,
)
from sparkstorm.api.columns import ColumnBolt
from sparkstorm.common.errors import InvalidTopologyError


def of(base: type, **members: Any) -> Any:
    """An instance of a user's class."""
    return type("Mine", (base,), members)()


def basic(**members: Any) -> Any:
    return of(BasicBolt, **{"execute": lambda self, tup, collector: None, **members})


def added(instance: Any) -> None:
    builder = TopologyBuilder()
    (builder.set_spout if isinstance(instance, Spout) else builder.set_bolt)("mine", instance)


async def asynchronous(self: Any, tup: Any, collector: Any) -> None: ...


def generating(self: Any, tup: Any, collector: Any) -> Any:
    yield 1


def folding(**members: Any) -> Any:
    plain = {"execute": lambda s, w, c: None, "initial": lambda s: 0, "fold": lambda s, a, t: 0}
    return of(FoldingBolt, **{**plain, **members})


def takes_tuple(self: Any, tup: Any) -> None: ...


# what is added, and the end of the refusal
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: of(BasicBolt, execute=lambda self, tup: None),
        "component 'mine': Mine.execute(self, tup) cannot be called with 2 arguments (too many positional arguments); "
        "write execute(self, tup, collector)",
    ),
    (lambda: of(StatefulBolt, execute=takes_tuple), "write execute(self, tup, collector)"),
    (
        lambda: of(Bolt, execute=lambda self, tup, collector: None),
        "missing a required argument: 'collector'); write execute(self, tup)",
    ),
    (
        lambda: of(Bolt, execute=takes_tuple, prepare=lambda self, conf, context: None),
        "write prepare(self, conf, context, collector)",
    ),
    (lambda: basic(prepare=lambda self, a, b, c: None), "write prepare(self, conf, context)"),
    (lambda: of(BasicBolt, execute=lambda: None), "write execute(self, tup, collector)"),
    (lambda: basic(execute=lambda self, tup, collector, *, more: None), "argument: 'more'"),
    (lambda: basic(cleanup=lambda self, why: None), "write cleanup(self)"),
    (
        lambda: of(StatefulBolt, execute=lambda s, t, c: None, init_state=lambda self: None),
        "write init_state(self, state)",
    ),
    (
        lambda: of(Spout, open=lambda self, conf: None),
        "write open(self, conf, context, collector)",
    ),
    (lambda: of(Spout, next_tuple=lambda self, collector: None), "write next_tuple(self)"),
    (lambda: of(Spout, ack=lambda self: None), "write ack(self, message_id)"),
    (lambda: of(ReplayableSpout, restore=lambda self: None), "write restore(self, position)"),
    (
        lambda: of(Spout, is_exhausted=True),
        "Mine.is_exhausted is a bool, no method; write is_exhausted(self)",
    ),
    (lambda: of(Spout, is_exhausted=property(lambda self: True)), "is a bool, no method"),
    (lambda: folding(fold=lambda s, t: 0), "write fold(self, accumulator, tup)"),
    (lambda: folding(merge=lambda s, a: 0), "write merge(self, one, other)"),
    (
        lambda: of(TimedBolt, execute=lambda s, t, c: None, on_timer=lambda s, t: None),
        "write on_timer(self, timer, collector)",
    ),
    (
        lambda: of(CombiningBolt, pair=lambda s, t, c: None, combine=lambda s, a, b: a),
        "write pair(self, tup)",
    ),
    (
        lambda: of(ColumnBolt, execute_batch=lambda s, b, c: None),
        "write execute_batch(self, batch, source, collector)",
    ),
    (
        lambda: of(BasicBolt, execute=staticmethod(lambda self, tup, collector: None)),
        "cannot be called with 2 arguments",
    ),
    (lambda: basic(cleanup=functools.partial(lambda a, b: None, 1)), "write cleanup(self)"),
    (
        lambda: of(BasicBolt, execute=asynchronous),
        "Mine.execute is async, and the runtime does not await it",
    ),
    (
        lambda: of(BasicBolt, execute=generating),
        "Mine.execute is a generator (it has a yield), so its body would never",
    ),
    (
        lambda: of(BasicBolt),
        "Mine has no method execute; define execute(self, tup, collector)",
    ),
    (
        lambda: of(Bolt, excute=takes_tuple),
        "Mine has no method execute; define execute(self, tup)",
    ),
    (
        lambda: of(FoldingBolt, execute=lambda s, w, c: None, initial=lambda s: 0),
        "has no method fold; define fold(self, ",
    ),
    (lambda: of(ColumnBolt), "has no method execute_batch"),
    (
        lambda: basic(blocking=lambda self: False),
        "Mine.blocking is a method, and so always true",
    ),
    (
        lambda: basic(order_insensitive=lambda self: False),
        "write order_insensitive = True or False",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED)
def test_a_method_that_cannot_be_called_is_refused_with_the_mend(
    make: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        added(make())
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(self: Any, tup: Any, collector: Any) -> Any:
        return function(self, tup)

    return run


class WithoutSignature:
    """As functions of C may be."""

    __signature__ = "none"

    def __call__(self, *arguments: Any) -> None:
        pass


def assigned() -> Any:
    bolt = of(BasicBolt, execute=lambda self, tup, collector: None)
    bolt.execute = lambda tup, collector: None
    return bolt


def late() -> Any:
    bolt = BasicBolt()
    bolt.execute = lambda tup, collector: None  # type: ignore[method-assign]
    return bolt


LEGAL: dict[str, Callable[[], Any]] = {
    "any arguments": lambda: of(BasicBolt, execute=lambda self, *arguments: None),
    "defaults": lambda: of(BasicBolt, execute=lambda self, tup, collector=None, more=1: None),
    "other names": lambda: of(Bolt, execute=lambda me, row: None),
    "any keywords": lambda: of(BasicBolt, execute=lambda self, tup, collector, **more: None),
    "a decorator with the right signature": lambda: of(
        BasicBolt, execute=wrapped(lambda self, tup: None)
    ),
    "a partial": lambda: of(
        BasicBolt, execute=functools.partial(lambda one, tup, collector: None, 1)
    ),
    "a static method": lambda: of(BasicBolt, execute=staticmethod(lambda tup, collector: None)),
    "a class method": lambda: of(BasicBolt, execute=classmethod(lambda cls, tup, collector: None)),
    "no signature": lambda: of(BasicBolt, execute=WithoutSignature()),
    "set in __init__": assigned,
    "set on an instance": late,
    "a parent's execute": lambda: type("Child", (type(basic()),), {})(),
    "a spout that is only replayed": lambda: of(Spout),
    "pairs_of that yields": lambda: of(
        CombiningBolt,
        pair=lambda s, t: None,
        combine=lambda s, a, b: a,
        pairs_of=lambda self, batch: (yield),
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_whatever_can_be_called_is_legal(name: str) -> None:
    added(LEGAL[name]())


def test_a_custom_grouping_is_checked_as_well() -> None:
    builder = TopologyBuilder()
    declarer = builder.set_bolt("mine", basic())
    sentence = r"'mine': Mine\.choose_tasks\(self, values\) cannot .* write choose_tasks"
    with pytest.raises(InvalidTopologyError, match=sentence):
        declarer.custom_grouping(
            "lines", type("Mine", (), {"choose_tasks": lambda self, values: []})()
        )
    with pytest.raises(InvalidTopologyError, match=r"write prepare\(self, tasks\)"):
        declarer.custom_grouping(
            "lines",
            type(
                "Mine", (), {"choose_tasks": lambda self, t, v: [], "prepare": lambda self: None}
            )(),
        )
