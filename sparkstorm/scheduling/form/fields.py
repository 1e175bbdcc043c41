"""Strict reading of JSON objects: every field is asked for by name and kind, what is left over is an error."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sparkstorm.errors import InvalidConfigError, show

T = TypeVar("T")
_MISSING = object()


MOST_DIGITS = 300  # of an integer; a float holds no more, and Python refuses to read more than 4,300
MOST_LEVELS = 60  # of lists and objects in each other; readers, texts of errors and writers recurse
_Path: TypeAlias = "tuple[_Path, str | int] | None"  # the holder's path, and the name or number of the value in it


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """A literal that is no number of ours, as an error's words."""

    words: str


def parse(text: str | bytes) -> object:
    """JSON without its leniencies: no NaN, no infinity, no name twice in one object, bounded numbers and nesting.

    InvalidConfigError names the field, or the place in the text where it is no JSON.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer, parse_float=_float)
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidConfigError("not JSON: lists and objects are nested too deeply") from None
    except ValueError as error:
        raise InvalidConfigError(f"not JSON: {error}") from None
    _check(value, None, 0)
    return value


def _constant(word: str) -> _NoNumber:
    return _NoNumber(f"{word} is no number")


def _integer(digits: str) -> object:
    return int(digits) if len(digits) <= MOST_DIGITS else _NoNumber(f"an integer of {len(digits):,} digits is too large")


def _float(digits: str) -> object:
    found = float(digits)
    return found if math.isfinite(found) else _NoNumber(f"{digits:.20} is too large for a number")


def _check(value: object, path: _Path, level: int) -> None:
    """InvalidConfigError for the first literal that is no number of ours, and for nesting that is too deep."""
    if isinstance(value, _NoNumber):
        raise InvalidConfigError(f"{_shown(path)}: {value.words}")
    if not isinstance(value, (dict, list)):
        return
    if level >= MOST_LEVELS:
        raise InvalidConfigError(f"{_shown(path)}: more than {MOST_LEVELS} lists and objects in each other")
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, (dict, list, _NoNumber)):
            _check(each, (path, name), level + 1)


def _shown(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name:.60}")
    text = "".join(reversed(parts)).removeprefix(".") or "problem"
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidConfigError(f"not JSON: {show(twice)} occurs twice in an object")
    return found


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
        return {name: read(each, f"{where}.{name:.60}") for name, each in mapping(value, where).items()}

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
            raise InvalidConfigError(f"{self._where or 'problem'}: unknown field {show(sorted(self._left)[0])}")


def no_duplicates(names: list[str], where: str) -> None:
    """InvalidConfigError when a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidConfigError(f"{where}: {show(name)} occurs twice")
        seen.add(name)
