"""Owns strict reading of JSON objects: every field is asked for by name and kind, what is left over is an error."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sparkstorm.errors import InvalidConfigError

T = TypeVar("T")
_MISSING = object()


def parse(text: str) -> object:
    """JSON without its leniencies: no NaN, no infinity, no name twice in one object; InvalidConfigError otherwise."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidConfigError(f"not JSON: {twice!r} occurs twice in an object")
    return found


def _no_constant(word: str) -> object:
    raise InvalidConfigError(f"not JSON: {word} is no number")


def show(value: object) -> str:
    """A value for an error text, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def wrong(where: str, expected: str, value: object) -> InvalidConfigError:
    """The error for a value of the wrong kind."""
    return InvalidConfigError(f"{where}: expected {expected}, got {show(value)}")


def integer(value: object, where: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise wrong(where, f"an integer from {least} to {most}", value)
    return value


def number(value: object, where: str) -> float:
    """A finite number, not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e15 or math.isnan(value):
        raise wrong(where, "a number that is not negative", value)
    return float(value)


def text(value: object, where: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(where, "a text", value)
    return value


def switch(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return value


def list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    """A reader of lists from a reader of their members."""

    def reader(value: object, where: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise wrong(where, "a list", value)
        return tuple(read(each, f"{where}[{at}]") for at, each in enumerate(value))

    return reader


def map_of(read: Callable[[object, str], T]) -> Callable[[object, str], dict[str, T]]:
    """A reader of objects with free names from a reader of their values."""

    def reader(value: object, where: str) -> dict[str, T]:
        return {name: read(each, f"{where}.{name}") for name, each in mapping(value, where).items()}

    return reader


def port(value: object, where: str) -> int:
    """A port; small labels are allowed, slots are not sockets."""
    return integer(value, where, 0, 65535)


class Fields:
    """The fields of one object, taken one by one; `done` complains about those nobody asked for."""

    def __init__(self, value: object, where: str) -> None:
        self._left = dict(mapping(value, where))
        self._where = where

    def has(self, name: str) -> bool:
        """Whether a field is there and not yet taken."""
        return name in self._left

    def take(self, name: str, read: Callable[[object, str], T], default: object = _MISSING) -> T:
        """The value of a field; `default` when it is absent, an error when there is no default."""
        where = f"{self._where}.{name}" if self._where else name
        value = self._left.pop(name, _MISSING)
        if value is not _MISSING:
            return read(value, where)
        if default is _MISSING:
            raise InvalidConfigError(f"{where}: missing")
        return default  # type: ignore[return-value]  # the caller's own default

    def done(self) -> None:
        """InvalidConfigError when a field is left."""
        if self._left:
            raise InvalidConfigError(f"{self._where or 'problem'}: unknown field {sorted(self._left)[0]!r}")


def no_duplicates(names: list[str], where: str) -> None:
    """InvalidConfigError when a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidConfigError(f"{where}: {name!r} occurs twice")
        seen.add(name)
