"""Check of a component's methods when it is added: each must accept the runtime's arguments and run
when called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.combining import CombiningBolt
from sparkstorm.api.components import BasicBolt, Bolt
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import FoldingBolt, TimedBolt, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError, show

_API = "sparkstorm.api."
_FLAGS = ("blocking", "order_insensitive", "in_order", "keeps_expired", "state_keyed_by_grouping")
# Methods of a Bolt, and what an AsyncBolt has in their place
_OF_ASYNC = {"prepare": "start", "execute": "process", "cleanup": "stop"}
_MAY_BE_GENERATORS = ("pairs_of", "choose_tasks")  # their result is read through
# Not a spout's next_tuple: a topology that is only replayed never calls it.
_REQUIRED: dict[type, tuple[str, ...]] = {
    Bolt: ("execute",),
    BasicBolt: ("execute",),
    AsyncBolt: ("process",),
    ColumnBolt: ("execute_batch",),
    CombiningBolt: ("pair", "combine"),
    TimedBolt: ("execute",),
    WindowedBolt: ("execute",),
    FoldingBolt: ("initial", "fold"),
    TransactionalSink: ("write", "prepare", "commit"),
}


def check_methods(id: str, instance: Any) -> None:
    """Refuse a component whose methods cannot be called as the runtime does; InvalidTopologyError
    names method and fix.
    """
    kind = type(instance).__name__
    for name, model in _called(type(instance)):
        _check_method(
            f"component '{id}': {kind}.{name}",
            getattr(instance, name),
            name,
            _parameters(model),
            is_awaited=inspect.iscoroutinefunction(model),
        )
    for base, names in _REQUIRED.items():
        for name in names:
            if (
                isinstance(instance, base)
                and getattr(type(instance), name) is vars(base)[name]
                and name not in vars(instance)
            ):
                written = ", ".join(("self", *_parameters(vars(base)[name])))
                raise InvalidTopologyError(
                    f"component '{id}': {kind} has no method {name}; define {name}({written})"
                )
    for name, other in _OF_ASYNC.items() if isinstance(instance, AsyncBolt) else ():
        owner = next(cls for cls in type(instance).__mro__ if name in vars(cls))
        # A mixin's is for the bolt's own use.
        if owner is not AsyncBolt and issubclass(owner, AsyncBolt):
            raise InvalidTopologyError(
                f"component '{id}': {kind}.{name} is never called, since {kind} is an AsyncBolt; write async def {other}"
            )
    for flag in (*_FLAGS, *(("ordered",) if isinstance(instance, AsyncBolt) else ())):
        value = getattr(instance, flag, False)
        if callable(value):
            raise InvalidTopologyError(
                f"component '{id}': {kind}.{flag} is a method, and so always true; write {flag} = True or False"
            )
        if not isinstance(value, bool):  # a text such as "no" would be true
            raise InvalidTopologyError(
                f"component '{id}': {kind}.{flag} is {show(value)}; write {flag}=True or {flag}=False"
            )


def check_grouping(id: str, custom: Any) -> None:
    """Refuse a custom grouping that cannot be called as the runtime does."""
    kind = type(custom).__name__
    _check_method(
        f"component '{id}': {kind}.choose_tasks",
        custom.choose_tasks,
        "choose_tasks",
        ("task", "values"),
    )
    if (prepare := getattr(custom, "prepare", None)) is not None:
        _check_method(f"component '{id}': {kind}.prepare", prepare, "prepare", ("tasks",))


def _called(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods that the runtime calls: those of the nearest class of the API, by name."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith(_API):
            continue
        for name, method in vars(base).items():
            is_called = (
                inspect.isfunction(method)
                and not name.startswith(("_", "with_"))
                and name not in ("add", "time_conf")
            )
            if is_called and name not in seen:
                seen.add(name)
                yield name, method


def _parameters(model: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(model).parameters)[1:]


def _check_method(
    where: str, method: Any, name: str, wanted: tuple[str, ...], is_awaited: bool = False
) -> None:
    remedy = f"write {name}({', '.join(('self', *wanted))})"
    if not callable(method):
        raise InvalidTopologyError(f"{where} is a {type(method).__name__}, no method; {remedy}")
    inner = method.func if isinstance(method, functools.partial) else method
    if is_awaited:
        _check_awaited(where, inner, remedy)
    elif inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidTopologyError(
            f"{where} is async, and the runtime does not await it; {remedy} with a plain def"
        )
    elif inspect.isgeneratorfunction(inner) and name not in _MAY_BE_GENERATORS:
        raise InvalidTopologyError(
            f"{where} is a generator (it has a yield), so its body would never run; use collector.emit"
        )
    try:
        signature = inspect.signature(method, follow_wrapped=False)
    except (TypeError, ValueError):  # some callables of C have none: the call itself will show it
        # a method without self
        if inspect.ismethod(method) and inspect.isfunction(method.__func__):
            raise InvalidTopologyError(f"{where} takes no self; {remedy}") from None
        return
    try:
        # Spout.fail may take the failure as well
        if not (name == "fail" and accepts(method, *wanted, "failure")):
            signature.bind(*wanted)
    except TypeError as error:
        given = f"({', '.join(filter(None, ('self', str(signature)[1:].rpartition(')')[0])))})"
        raise InvalidTopologyError(
            f"{where}{given} cannot be called with {len(wanted)} arguments ({error}); {remedy}"
        ) from None


def _check_awaited(where: str, method: Any, remedy: str) -> None:
    """Refuse a method that is no coroutine function, where the runtime awaits it."""
    if inspect.isasyncgenfunction(method):
        raise InvalidTopologyError(
            f"{where} is an async generator (it has a yield), which is not awaited; use collector.emit"
        )
    if not inspect.iscoroutinefunction(method):
        raise InvalidTopologyError(
            f"{where} is no coroutine function, and the runtime awaits it; {remedy} with async def"
        )


def accepts(method: Callable[..., Any], *arguments: str) -> bool:
    """Return whether a method can be called with so many arguments."""
    try:
        inspect.signature(method, follow_wrapped=False).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True
