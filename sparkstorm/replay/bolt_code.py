"""Signs in a bolt's code that its results depend on chance, or that they do not. PURE but for
reading sources.

Law: code that is not understood may do anything, so a doubt is a warning. Left out: tracing the
code while it runs, which a replay pays for at every row and which sees only the branches that were
taken.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from sparkstorm.api.components import Stateful
from sparkstorm.api.function_components import StatefulFunctionBolt

_CLOCKS = {
    ("context", "now_ms"),
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "monotonic"),
    ("time", "monotonic_ns"),
    ("time", "perf_counter"),
    ("time", "perf_counter_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
# Names, not calls: a name too many is one warning too many.
_CHANCES = {"random", "secrets", "uuid1", "uuid4", "urandom", "default_rng"}
_TELLING = {"time", "datetime", "random", "secrets", "uuid", "os", "posix"}
_OWN_TASK = {"task_id", "task_index", "worker_tasks"}
_ADDING = ("add", "add_batch")
_SHARED = {
    "component_tasks",
    "component_id",
    "topology_id",
    "conf",
    "now_ms",
    "component_by_task",
    "peers",
}
_REFLECTION = {
    "getattr",
    "setattr",
    "vars",
    "eval",
    "exec",
    "__dict__",
    "__getattribute__",
    "__class__",
    "locals",
}


_LIBRARY = (
    "sparkstorm.streams.",
    "sparkstorm.connectors.",
    "sparkstorm.compat.stateful_processor",
)


def names_in(bolt: Any) -> set[str]:
    """Return the names that the functions of a bolt's classes, and those in its attributes, use.

    So for the user's object that a bolt of ours calls: `wraps` names the attribute that has it.
    """
    # Bolts of ours have a text about the clock where it decides what they emit.
    kinds = [kind for kind in _own_classes(type(bolt)) if not kind.__module__.startswith(_LIBRARY)]
    places = [*map(vars, kinds), getattr(bolt, "__dict__", {})]
    names: set[str] = set()
    seen: set[CodeType] = set()
    for value in chain.from_iterable(namespace.values() for namespace in places):
        for function in _functions(value):
            _add_names(names, seen, function.__code__, function)
    if "now_ms" in names:
        names.add("context")  # under whatever name a bolt keeps it
    wraps = getattr(bolt, "wraps", "")
    return names | names_in(getattr(bolt, wraps)) if wraps else names


def clocks_in(names: set[str]) -> list[str]:
    """Return the calls among these names that read the wall clock."""
    return sorted(f"{module}.{name}" for module, name in _CLOCKS if {module, name} <= names)


def chances_in(names: set[str]) -> list[str]:
    """Return the sources of chance among these names."""
    return sorted(_CHANCES & names)


def own_tasks_in(names: set[str]) -> list[str]:
    """Return what tells a bolt which of its tasks it is."""
    return sorted(_OWN_TASK & names)


def only_adds(bolt: Stateful) -> bool:
    """Return whether the classes of a bolt, or its function, use the state for nothing but
    `state.add(...)` or `add_batch`, sums unused.

    Then neither its state nor what it emits for a tuple depends on former tuples' order. False
    where the source cannot be read, or where `self` or the state could be used elsewhere.
    """
    kind = type(bolt)
    if isinstance(bolt, StatefulFunctionBolt):
        return vars(bolt).get("migrate_state") is None and _function_only_adds(bolt.function)
    # Code that takes the state over can do with it what no look at the methods shows.
    if (
        kind.init_state is not Stateful.init_state
        or kind.migrate_state is not Stateful.migrate_state
    ):
        return False
    methods = [method for base in _own_classes(kind) for method in _methods(base)]
    return None not in methods and all(
        method is not None and _method_only_adds(method) for method in methods
    )


def may_keep_attributes(kind: type) -> bool:
    """Return whether a bolt's classes may keep something in attributes: whether what they execute
    uses `self` at all.

    True where the source cannot be read. Functions as bolts have no attributes.
    """
    for method in (method for base in _own_classes(kind) for method in _methods(base)):
        if method is None or not method.args.args:
            return True
        if method.name not in ("__init__", "prepare", "cleanup"):
            # The first argument under any name: self is a habit, not a rule.
            own = method.args.args[0].arg
            if any(isinstance(node, ast.Name) and node.id == own for node in ast.walk(method)):
                return True
    return False


def may_know_its_task(kind: type) -> bool:
    """Return whether the `prepare` of a bolt's classes uses more of its context than what is the
    same for all tasks.
    """
    for method in (method for base in _own_classes(kind) for method in _methods(base)):
        if method is None:
            return True
        if method.name == "prepare":
            context = method.args.args[2].arg if len(method.args.args) > 2 else ""
            shared = {
                id(n.value)
                for n in ast.walk(method)
                if isinstance(n, ast.Attribute) and n.attr in _SHARED
            }
            if not context or any(
                isinstance(n, ast.Name) and n.id == context and id(n) not in shared
                for n in ast.walk(method)
            ):
                return True
    return False


def _own_classes(kind: type) -> list[type]:
    """Return the user's classes among those that a class inherits from."""
    return [
        base
        for base in kind.__mro__
        if not base.__module__.startswith(("sparkstorm.api.", "builtins", "abc", "typing"))
    ]


def _methods(kind: type) -> Iterator[ast.FunctionDef | None]:
    """Yield the methods of a class as they are written; None where that is not known."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    # Classes typed at a prompt or made by a call have no source.
    except (OSError, TypeError, SyntaxError):
        body = None
    if not isinstance(body, ast.ClassDef):
        yield None
        return
    written = {
        statement.name: statement
        for statement in body.body
        if isinstance(statement, ast.FunctionDef)
    }
    for name, value in vars(kind).items():
        if isinstance(value, FunctionType) and name in written and not written[name].decorator_list:
            # The source does not show a method that was replaced after the class was made.
            is_itself = (
                value.__qualname__ == f"{kind.__qualname__}.{name}"
                and value.__module__ == kind.__module__
            )
            yield written[name] if is_itself else None
        # A decorator, property or foreign callable may do
        # anything: the class is then not known to be free.
        elif callable(value) or isinstance(value, property | staticmethod | classmethod):
            yield None


def _function_only_adds(function: Any) -> bool:
    """Return whether a function of a tuple and the state only adds to the state."""
    # What a decorator has wrapped is shown in place of the wrapper, which may do anything.
    if hasattr(function, "__wrapped__"):
        return False
    try:
        written = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return False
    if not isinstance(written, ast.FunctionDef) or len(written.args.args) != 2:
        return False
    state = written.args.args[1].arg
    added = _added_to(written)
    return not any(
        isinstance(node, ast.Name)
        and (node.id in _REFLECTION or (node.id == state and id(node) not in added))
        for node in ast.walk(written)
    )


def _added_to(written: ast.FunctionDef) -> set[int]:
    """Return the nodes to which something is added by its own statement."""
    # An expression statement: its value is dropped. A sum that is used depends on what came before.
    discarded = {id(node.value) for node in ast.walk(written) if isinstance(node, ast.Expr)}
    return {
        id(node.func.value)
        for node in ast.walk(written)
        if isinstance(node, ast.Call)
        and id(node) in discarded
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _ADDING
    }


def _method_only_adds(method: ast.FunctionDef) -> bool:
    if not method.args.args:
        return False
    own = method.args.args[0].arg
    added = _added_to(method)
    followed = {id(node.value) for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and (
            (node.attr == "state" and id(node) not in added) or node.attr in _REFLECTION
        ):
            return False
        if isinstance(node, ast.Name) and (
            node.id in _REFLECTION or (node.id == own and id(node) not in followed)
        ):
            return False
    return True


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that an attribute is, or wraps."""
    if isinstance(value, property):
        for part in (value.fget, value.fset):
            yield from _functions(part)
    while isinstance(value, staticmethod | classmethod | MethodType | partial):
        value = value.func if isinstance(value, partial) else value.__func__
    if isinstance(value, FunctionType):
        yield value


def _add_names(
    names: set[str], seen: set[CodeType], code: CodeType, function: FunctionType
) -> None:
    """Add the names that code uses, with those of what they are bound to: `from time import time_ns
    as now` is `time` and `time_ns`. Functions of the same package are followed.
    """
    if code in seen:
        return
    seen.add(code)
    names.update(code.co_names)
    package = (function.__module__ or "").partition(".")[0]
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            names.add(value.__name__)
        elif isinstance(value, FunctionType) and str(value.__module__).partition(".")[0] == package:
            _add_names(names, seen, value.__code__, value)
        elif isinstance(value, BuiltinFunctionType | MethodType | type) and (
            value.__module__ in _TELLING
        ):
            names |= {value.__module__, value.__name__}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _add_names(names, seen, inner, function)
