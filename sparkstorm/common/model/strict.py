"""Strict reading of JSON values by type hints: dataclasses, lists, mappings, enums and bounded
scalars. PURE.

An unknown, missing or mistyped field is an error that names the path to it. A field with a default
may be absent; its metadata `key` is its name in JSON where that differs. `Annotated[T, reader]`
reads with a function of the caller's own.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from sparkstorm.common.errors import SparkStormError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.status import ADDED_LATER, JsonValue

_DEPTH_LIMIT = 64
_WHOLE = re.compile(r"0|[1-9][0-9]{0,18}")

T = TypeVar("T")
Reader: TypeAlias = Callable[[object], Any]


class UnfitValueError(ValueError):
    """A value that its hint does not allow; each list and object around it adds its part of the
    path.
    """

    def __init__(self, words: str, *path: str | int) -> None:
        super().__init__(words)
        self.words = words
        self.path = [*path]  # from the outside in

    def inside(self, part: str | int) -> "UnfitValueError":
        """Return the error with the name or index of the value in the list or object around it."""
        self.path.insert(0, part)
        return self


def expected(what: str, value: object) -> UnfitValueError:
    """Return the error for a value of another kind."""
    return UnfitValueError(f"expected {what}, got {show(value)}")


def near_name(name: object, names: Collection[str]) -> str:
    """Return "; did you mean 'x'?" for the name that is meant most likely; empty without one."""
    near = get_close_matches(str(name)[:60], names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def path_text(path: Collection[str | int]) -> str:
    """Return a path as a text like `a.b[0].c`, cut in the middle where it is long; empty for no
    path.
    """
    parts = [
        f"[{part}]"
        if isinstance(part, int)
        else part[:60]
        if part.startswith("[")
        else f".{part[:60]}"
        for part in path
    ]
    text = "".join(parts).removeprefix(".")
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"


@contextmanager
def named_errors(error: type[SparkStormError], root: str = "", prefix: str = "") -> Iterator[None]:
    """Raise `error` for an UnfitValueError: the prefix, the path (`root` if it is empty) and the
    words.
    """
    try:
        yield
    except UnfitValueError as unfit:
        where = path_text(unfit.path) or root
        raise error(
            f"{prefix}{where}: {unfit.words}" if where else f"{prefix}{unfit.words}"
        ) from None


def read_as(kind: type[T], value: object, needs_all: bool = False) -> T:
    """Return the value as the hint describes it; UnfitValueError for the first part that does not
    fit.

    With `needs_all` a field must be there although it has a default, unless it is one that was
    `ADDED_LATER`.
    """
    return cast(T, reader_of(cast(Hashable, kind), needs_all)(value))


@cache
def reader_of(hint: Hashable, needs_all: bool = False) -> Reader:
    """Return the reader of a hint; TypeError if there is none."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return cast(Reader, arguments[1])
    if is_free_json(hint):
        return _read_json
    if isinstance(hint, type) and origin is None:
        return _class_reader(hint, needs_all)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional_reader(reader_of(arguments[0], needs_all))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_reader(reader_of(arguments[0], needs_all))
    if origin is Mapping:
        return _mapping_reader(_key_reader(arguments[0]), reader_of(arguments[1], needs_all))
    raise TypeError(f"no value can be read as {hint}")


def _class_reader(kind: type, needs_all: bool) -> Reader:
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind, needs_all)
    if kind in (ExecutorId, WorkerSlot):
        return _text_reader(kind)
    if issubclass(kind, StrEnum):
        return one_of(kind)
    if kind in _SCALARS:
        return _scalar_reader(kind)
    raise TypeError(f"no value can be read as {kind}")


# -- readers for hints -----------------------------------------------------------------------------


def whole(least: int = 0, most: int = 2**31 - 1) -> Reader:
    """Return a reader of integers from `least` to `most`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise expected(f"an integer from {least} to {most}", value)
        return value

    return read


def one_of(choices: Collection[str] | type[StrEnum]) -> Reader:
    """Return a reader of one of these texts; of the members, where they are an enum's."""
    names = [str(choice) for choice in choices]

    def read(value: object) -> str:
        if value not in names:
            raise expected(f"one of {', '.join(names)}", value)
        return choices(value) if isinstance(choices, type) else str(value)

    return read


def _text_reader(kind: type) -> Reader:
    """Read a class that is written as a text, by its `parse`."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            raise expected("a text", value)
        try:
            return cast(Any, kind).parse(value)
        except ValueError as error:
            raise UnfitValueError(str(error)) from error

    return read


_SCALARS: Mapping[type, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}


def _scalar_reader(kind: type) -> Reader:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def read(value: object) -> object:
        # bool is an int to Python, but True is no port.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise expected(_SCALARS[kind], value)
        return kind(value)

    return read


# -- containers ------------------------------------------------------------------------------------


def _record_reader(kind: type, needs_all: bool) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.metadata.get("key", field.name): field for field in dataclasses.fields(kind)}
    readers = {key: reader_of(hints[field.name], needs_all) for key, field in fields.items()}
    later = {key for key, field in fields.items() if ADDED_LATER.items() <= field.metadata.items()}
    required = [
        key
        for key, field in fields.items()
        if (needs_all and key not in later)
        or field.default is field.default_factory is dataclasses.MISSING
    ]

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise expected("an object", value)
        for key in required:
            if key not in value:
                raise UnfitValueError("missing", key)
        if unknown := value.keys() - readers.keys():
            name = min(unknown)
            raise UnfitValueError(f"unknown field {show(name)}{near_name(name, readers)}")
        values = {}
        for key, item in value.items():
            try:
                values[fields[key].name] = readers[key](item)
            except UnfitValueError as error:
                raise error.inside(key) from error.__cause__
        return kind(**values)

    return read


def _optional_reader(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _tuple_reader(reader: Reader) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, list):
            raise expected("a list", value)
        items = []
        for index, item in enumerate(value):
            try:
                items.append(reader(item))
            except UnfitValueError as error:
                raise error.inside(index) from error.__cause__
        return tuple(items)

    return read


def _mapping_reader(read_key: Reader, reader: Reader) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise expected("an object", value)
        entries = {}
        for key, item in value.items():
            name = read_key(key)
            try:
                entries[name] = reader(item)
            except UnfitValueError as error:
                raise error.inside(key) from error.__cause__
        return entries

    return read


def _key_reader(hint: Hashable) -> Reader:
    return _read_int_key if hint is int else reader_of(hint)


def _read_int_key(value: object) -> int:
    # No other spelling: "01" and "1" would be one entry, and the last of them would win.
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise expected("an object keyed by whole numbers", value)
    return int(value)


# -- free JSON -------------------------------------------------------------------------------------


def is_free_json(hint: object) -> bool:
    """Return whether a hint is JsonValue."""
    # By shape: resolving a record's hints unrolls JsonValue's inner references, so it is not
    # identical any more.
    return get_origin(hint) in (Union, types.UnionType) and len(get_args(hint)) == len(
        get_args(JsonValue)
    )


def _read_json(value: object) -> object:
    _check_json(value, 0)
    return value


def _check_json(value: object, depth: int) -> None:
    if depth > _DEPTH_LIMIT:
        raise UnfitValueError(f"nested deeper than {_DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        for item in value.values():
            _check_json(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif not (
        value is None
        or isinstance(value, (int, str))
        or (isinstance(value, float) and math.isfinite(value))
    ):
        raise expected("a JSON value", value)
