"""Names that code uses beyond its arguments: attributes of its bolt, globals, effects. PURE.

Law: code that is not understood uses something. A replay calls user code apart from its task only
where nothing is used that the task, or anybody else, could see changed.

Left out: a call on a copy of the bolt. A shallow copy shares what it holds, a deep one cannot be
made of connections, and neither isolates globals and files.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from inspect import getattr_static
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_NAMES = (
    "abs all any ascii bin bool bytes callable chr dict divmod enumerate filter float format frozenset hash hex int "
    "isinstance issubclass iter len list map max min next oct ord pow range repr reversed round set slice sorted str sum "
    "tuple type zip"
)
_HARMLESS = frozenset(getattr(builtins, name) for name in _NAMES.split())
_LIBRARY = (
    "_bisect _collections _datetime _decimal _functools _heapq _operator _statistics bisect collections copy datetime "
    "decimal fractions functools heapq itertools json math operator re statistics zlib"
)
_MODULES = frozenset(_LIBRARY.split())
_TIMES = datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone
_PLAIN = {int, float, bool, str, bytes, type(None), Decimal, re.Pattern, *_TIMES}
# Of the bytecode: what binds a name outside of the function, changes an attribute, or suspends.
_EFFECTS = (
    "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_", "YIELD_", "LOAD_SUPER", "LOAD_BUILD_CLASS",
)  # fmt: skip
_NO_STEPS = "CACHE", "PRECALL", "PUSH_NULL"
_MISSING: Any = object()


class Use(NamedTuple):
    """A name that code uses beyond its arguments."""

    name: str
    is_own: bool
    """Of the bolt: an attribute that may change, or the bolt as a whole."""


def uses_of(bolt: Any, *methods: str) -> Iterator[Use]:
    """Yield what methods of a bolt use beyond their arguments, with the functions that they call;
    values that cannot change are no use.
    """
    seen: set[CodeType] = set()
    for name in methods:
        yield from _of_attribute(bolt, name, seen)


def _of_attribute(bolt: Any, name: str, seen: set[CodeType]) -> Iterator[Use]:
    value = getattr_static(bolt, name, _MISSING)
    is_method = type(value) is FunctionType and name not in getattr(bolt, "__dict__", ())
    if is_method:
        yield from _of_function(value, bolt, seen)
    elif isinstance(value, staticmethod):
        yield from _of_value(name, value.__func__, seen, True)
    else:
        yield from _of_value(name, value, seen, True)


def _of_value(name: str, value: Any, seen: set[CodeType], is_own: bool = False) -> Iterator[Use]:
    if type(value) is FunctionType:
        yield from _of_function(value, None, seen)
    elif type(value) is partial and value.func.__module__ == "copy":
        return  # whatever it copies
    elif not _is_harmless(value):
        yield Use(name, is_own)


def _is_harmless(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_harmless, value))
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    if isinstance(value, type | BuiltinFunctionType | FunctionType):
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        is_known = value in _HARMLESS or value.__module__ in _MODULES
        return is_known or (is_error and value.__module__ == "builtins")
    return type(value) in _PLAIN


def _of_function(function: FunctionType, bolt: Any, seen: set[CodeType]) -> Iterator[Use]:
    code = function.__code__
    if code in seen:
        return
    seen.add(code)
    if bolt is not None and not code.co_argcount:
        yield Use(function.__name__, True)
        return
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _of_value(function.__name__, value, seen)
    for inner_code in _codes(code):
        yield from _of_code(inner_code, function, bolt, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _of_code(
    code: CodeType, function: FunctionType, bolt: Any, seen: set[CodeType]
) -> Iterator[Use]:
    outer = function.__code__
    own = outer.co_varnames[0] if bolt is not None else None
    free = dict(zip(outer.co_freevars, function.__closure__ or (), strict=True))
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NO_STEPS]
    is_of_bolt = False  # what the next attribute is taken of
    for step in steps:
        name = step.argval
        follows = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if is_of_bolt and not follows:
            yield Use(f"{own}", True)  # handed on, or changed
        elif is_of_bolt:
            yield from _of_attribute(bolt, name, seen)
        elif step.opname.startswith(_EFFECTS) or (step.opname == "STORE_DEREF" and name in free):
            yield Use(str(name), False)
        elif follows and name.startswith("__"):
            yield Use(name, False)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = function.__globals__.get(name, getattr(builtins, name, _MISSING))
            yield from _of_value(name, value, seen, value is super)
        elif step.opname == "LOAD_DEREF" and name in free:
            yield from _of_cell(name, free[name], seen)
        is_const = step.opname == "LOAD_CONST"  # its value may look like a name, or be a tuple
        names = () if is_const else name if type(name) is tuple else (name,)
        is_of_bolt = (
            own is not None and names[-1:] == (own,) and step.opname.startswith("LOAD_FAST")
        )
        is_named = own is not None and own in names
        if is_named and not is_of_bolt and step.opname != "MAKE_CELL":
            yield Use(f"{own}", True)


def _of_cell(name: str, cell: Any, seen: set[CodeType]) -> Iterator[Use]:
    try:
        yield from _of_value(name, cell.cell_contents, seen)
    except ValueError:  # nothing was bound to it yet
        yield Use(name, False)
