"""Evidence that a bolt keeps state in its attributes: digests of them before and after inputs, on a
sample.

A digest covers the pickled value, hence nested lists, mappings and objects: 64 kB of each
attribute, and of each attribute of an object in one. Objects of the runtime (collector, context,
state, timers) are left out. Not detected: changes of module globals, of objects that cannot be
pickled, and changes that are reverted between two digests.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any
from zlib import crc32

from sparkstorm.common.model.tuples import Source, Tuple

# Inputs with a look after each; then looks are twice as far apart each time. A change by a bolt is
# seen soon; a look at every input would pickle its attributes for each.
_SAMPLE = 16
# Of an attribute: a bolt may hold a model of gigabytes, which would be pickled at each look.
# Twice as much costs twice the time of a look, half would miss more changes in long lists.
_MOST_BYTES = 64 * 1024
_EXECUTE = "execute"
_OPAQUE = "_thread", "threading", "_io", "socket", "ssl", "logging", "_contextvars"
_OURS = tuple(f"sparkstorm.{part}." for part in ("api", "common.windowing", "data_plane", "replay"))


class Attributes:
    """Watch over one bolt's attributes; `changed` names the first that was seen to change."""

    __slots__ = ("changed", "_bolt", "_before", "_inputs", "_next_look", "_sampled")

    def __init__(self, bolt: Any) -> None:
        self.changed = ""
        self._bolt = bolt
        self._before: dict[str, Any] | None = None
        self._inputs = 0
        self._next_look = 0
        self._sampled = 0  # inputs with their own look; -1 when there are to be no more

    def begin(self) -> None:
        """Take the digest that later ones are compared with; changes by `prepare` do not count."""
        self._before = dict(_digests(self._bolt))
        # Set on the instance, for the sample only. Executing the first inputs one by one instead
        # would cut batches, and try a failed input again before the rest of its batch.
        if _EXECUTE not in getattr(self._bolt, "__dict__", {_EXECUTE: None}) and hasattr(
            self._bolt, _EXECUTE
        ):
            self._bolt.execute = self._sampling(self._bolt.execute)
        else:
            self._sampled = -1

    def look(self, inputs: int, is_last: bool = False) -> None:
        """Count inputs and compare digests when due; most calls only compare two numbers."""
        self._inputs += inputs
        if self._sampled >= 0 and (self._sampled >= _SAMPLE or is_last or self.changed):
            del self._bolt.execute
            self._sampled = -1
        if is_last or self._inputs >= self._next_look:
            self._next_look = 2 * self._inputs
            self._compare()

    def _sampling(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Return the bolt's `execute` with a comparison after each of its first calls."""

        def watched(*arguments: Any) -> Any:
            try:
                return execute(*arguments)
            finally:
                if 0 <= self._sampled < _SAMPLE:
                    self._sampled += 1
                    self._compare()

        return watched

    def _compare(self) -> None:
        if self.changed or self._before is None:
            return
        now = dict(_digests(self._bolt))
        if now != self._before:
            self.changed = min(
                name
                for name in now.keys() | self._before.keys()
                if now.get(name) != self._before.get(name)
            )


def _digests(bolt: Any) -> Iterator[tuple[str, Any]]:
    """Yield digests of the instance's attributes, and of data attributes of the user's classes."""
    for name, value in getattr(bolt, "__dict__", {}).items():
        if name != _EXECUTE and not _is_ours(value):
            yield name, _digest(value)
    for kind in type(bolt).__mro__:
        if kind.__module__.startswith(("sparkstorm.api.", "builtins", "abc", "typing")):
            continue
        for name, value in vars(kind).items():
            if type(value) in (list, dict, set, int, float, str) and not name.startswith("__"):
                yield f"{kind.__name__}.{name}", _digest(value)


def _is_ours(value: Any) -> bool:
    module = type(value).__module__
    return module.startswith(_OURS) and not isinstance(value, Tuple | Source)


def _digest(value: Any, is_inner: bool = False) -> Any:
    """Return a small value that is equal as long as the value is; for an object, the digests of its
    attributes.
    """
    inner = getattr(value, "__dict__", None)
    if isinstance(inner, dict) and not is_inner and not callable(value):
        own = {name: _digest(part, is_inner=True) for name, part in inner.items()}
        return type(value).__name__, own, _checksum(value)
    size = len(value) if isinstance(value, list | dict | set | bytes | str) else 0
    return type(value).__name__, size, _checksum(value)


def _checksum(value: Any) -> int:
    sink = _Sink()
    try:
        _Pickler(sink, protocol=5).dump(value)
    except _Full:
        pass
    # User code, or an object that cannot be pickled. What is left is which one it is.
    except Exception:
        return id(value)
    return sink.crc


class _Full(Exception):
    pass


class _Sink:
    """File object that keeps only a checksum."""

    def __init__(self) -> None:
        self.crc = 0
        self._left = _MOST_BYTES

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.crc = crc32(part[: self._left], self.crc)
        self._left -= len(part)
        if self._left <= 0:
            raise _Full
        return len(part)


class _Pickler(pickle.Pickler):
    """Pickler of tuples as their values, and of objects that cannot be pickled as their names."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Tuple):
            return "tuple", value.values, value.source.task, value.source.channel
        if isinstance(value, type | FunctionType | MethodType):
            return "code", value.__qualname__, id(value)
        if isinstance(value, GeneratorType):
            return (
                "generator",
                id(value),
                value.gi_frame.f_lasti if value.gi_frame is not None else -1,
            )
        module = type(value).__module__
        return (
            ("opaque", id(value))
            if module in _OPAQUE or isinstance(value, Source) or _is_ours(value)
            else None
        )
