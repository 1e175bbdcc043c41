"""Codec: the closed set of values that tuples and state may carry, and their bytes (msgpack, with
extensions).

Laws: `normalise` returns what the receiving worker reads, so that placement never changes a result;
a value outside the set is a CodecError that names it, never a silent conversion; nothing is
pickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

import ormsgpack

from sparkstorm.common.errors import CodecError, MalformedFrameError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.values import value_types
from sparkstorm.common.model.values.unfolding import MAX_MEMORY, require_bounded
from sparkstorm.common.model.values.value_types import IMMUTABLE, RegisteredValue, WideMapping

SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
KEYS = SCALARS | IMMUTABLE
"""Types of keys of states and groups."""
KEY_TYPES = "text, numbers, true/false, none, bytes, dates, datetimes, UUIDs and Decimals"
"""The same in words, for errors."""
if core is not None:
    core.set_value_types(Decimal, UUID, SafeUUID.unknown, ZoneInfo)
INT_MIN = -(2**63)
INT_MAX = 2**63 - 1

_OPTIONS = ormsgpack.OPT_NON_STR_KEYS
_STRICT = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | _OPTIONS
)
_KEYS = frozenset({str, int, bool, bytes, type(None), float})
_MAX_DEPTH = 64
_REGISTERED = 1  # msgpack extension code of registered types


class Codec:
    """Packer of values; those of registered classes are packed with their class's name (Storm's
    topology.kryo.register).
    """

    def __init__(self, is_lenient: bool = False) -> None:
        # values of classes that are not registered here are read as RegisteredValue
        self._is_lenient = is_lenient
        self._depth = 0  # of registered values inside registered values being read
        # raised inside a hook: the packer reports only that a hook failed
        self._fault: Exception | None = None
        self.rest: Callable[..., Any] = self._normalise_plain
        """Check of values that the core's `normalise` does not copy by itself."""
        self.normalise: Callable[..., Any] = (
            self.rest if core is None else partial(core.normalise, self.rest)
        )
        """Return the value as every receiver reads it (tuples become lists); CodecError for a value
        outside the set.
        """

    def _normalise_plain(self, value: Any, depth: int = 0) -> Any:
        """Twin of the core's `normalise`, which calls it for all but msgpack's own containers and
        scalars.
        """
        kind = type(value)
        if kind is int:
            return value if INT_MIN <= value <= INT_MAX else value_types.checked_int(value)
        if kind is str:
            return _checked_text(value)
        if kind in SCALARS:
            return value
        if depth > _MAX_DEPTH:
            raise CodecError(f"values nest deeper than {_MAX_DEPTH}")
        if kind is list or kind is tuple:
            return [self.normalise(item, depth + 1) for item in value]
        if kind is dict or kind is WideMapping:
            plain = {self._key(k): self.normalise(v, depth + 1) for k, v in value.items()}
            return plain if all(map(_is_plain_key, plain)) else WideMapping(plain)
        if kind in IMMUTABLE:
            return value_types.checked(value)
        if kind is set or kind is frozenset:
            return kind(self._element(item) for item in value)
        if value_types.name_of(kind) is not None or kind is RegisteredValue:
            packed = self.pack(value)
            try:
                # there and back: a class may make another value of its fields
                return self.unpack(packed)
            except MalformedFrameError as error:
                raise CodecError(
                    f"a value of type {_name(value)} that cannot be read back: {error}"
                ) from error
        if type(item := plain_scalar(value)) is not kind:
            return self.normalise(item, depth + 1)
        raise CodecError(_unknown(value))

    def pack(self, value: Any) -> bytes:
        """Return the bytes of a normalised value."""
        try:
            packed: bytes | None = None if core is None else core.pack(value)
            if packed is None:
                packed = self._pack_plain(value)
            require_bounded(packed)
        except (TypeError, ValueError, MalformedFrameError) as error:
            raise CodecError(self._explained(error)) from error
        return packed

    def _pack_plain(self, value: Any) -> bytes:
        """Twin of the core's `pack`, which leaves all but msgpack's own containers and scalars to
        it.
        """
        try:
            return ormsgpack.packb(value, default=self._encode, option=_STRICT)
        except (TypeError, ValueError) as error:
            if self._fault is not None or "64-bit" not in str(error):
                raise
            return ormsgpack.packb(self._shielded(value), default=self._encode, option=_STRICT)

    def unpack(self, data: bytes | memoryview, most: int = MAX_MEMORY) -> Any:
        """Return the value of received bytes; MalformedFrameError if they are damaged or weigh more
        than `most`.
        """
        require_bounded(data, most)
        if core is not None and (unpacked := core.unpack(data)) is not NotImplemented:
            return unpacked
        return self._unpack_plain(data)

    def _unpack_plain(self, data: bytes | memoryview) -> Any:
        """Twin of the core's `unpack`, which leaves extensions and damaged bytes to it."""
        try:
            return ormsgpack.unpackb(data, option=_OPTIONS, ext_hook=self._decode)
        except (ValueError, TypeError) as error:
            raise MalformedFrameError(f"not a packed value: {self._explained(error)}") from error

    def _key(self, key: Any) -> Any:
        key = plain_scalar(key)
        kind = type(key)
        if (
            kind in _KEYS
            or kind in IMMUTABLE
            or (value_types.name_of(kind) and issubclass(kind, Enum))
        ):
            return self.normalise(key)
        raise CodecError(
            f"a mapping key of type {kind.__name__}; keys are text, bytes, numbers, true/false, none, "
            "dates, UUIDs and registered enums"
        )

    def _element(self, item: Any) -> Any:
        try:
            return self._key(item)
        except CodecError as error:
            raise CodecError(
                str(error).replace("a mapping key of", "an element of a set of", 1)
            ) from error

    def _shielded(self, value: Any) -> Any:
        """Return the value with its wide numbers as extensions: the packer refuses them without
        asking.
        """
        kind = type(value)
        if kind is int and not INT_MIN <= value <= INT_MAX:
            return self._extension(value_types.WIDE_INT, str(value_types.checked_int(value)))
        if kind is list or kind is tuple:
            return [self._shielded(item) for item in value]
        return {key: self._shielded(item) for key, item in value.items()} if kind is dict else value

    def _built_in(self, value: Any) -> ormsgpack.Ext | None:
        kind = type(value)
        encoded = value_types.encoded(value)
        if encoded is not None:
            return self._extension(*encoded)
        if kind is WideMapping:
            return self._extension(value_types.MAPPING, [list(pair) for pair in value.items()])
        if kind is set or kind is frozenset:
            elements = sorted(value, key=self.pack)  # equal sets have equal bytes
            return self._extension(
                value_types.SET if kind is set else value_types.FROZEN_SET, elements
            )
        return (
            self._extension(_REGISTERED, [value.name, value.content])
            if kind is RegisteredValue
            else None
        )

    def _extension(self, code: int, content: Any) -> ormsgpack.Ext:
        return ormsgpack.Ext(code, self.pack(content))

    def _encode(self, value: Any) -> Any:
        try:
            if (extension := self._built_in(value)) is not None:
                return extension
            if (name := value_types.name_of(type(value))) is None:
                raise CodecError(_unknown(value))
        except CodecError as error:
            self._fault = error
            raise
        try:
            content = self.normalise(value_types.content_of(value))
            return self._extension(_REGISTERED, [name, content])
        except Exception as error:  # user code
            self._fault = CodecError(f"the serializer of {_name(value)} failed: {error}")
            raise self._fault from error

    def _decode(self, code: int, data: bytes) -> Any:
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:  # each level copies what it holds
                raise MalformedFrameError(f"values nest deeper than {_MAX_DEPTH}")
            unpacked = self.unpack(data)
            if code != _REGISTERED:
                return value_types.decoded(code, unpacked)
            tag, content = unpacked
            if value_types.is_registered(tag):
                return value_types.made(tag, content)
            if self._is_lenient and isinstance(tag, str):
                return RegisteredValue(tag, content)
            self._fault = MalformedFrameError(f"a value of unregistered type {tag!r:.60}")
        except Exception as error:  # user code, on bytes from outside
            self._fault = MalformedFrameError(
                f"a value of a registered type cannot be read: {str(error)[-200:]}"
            )
        finally:
            self._depth -= 1
        raise self._fault

    def _explained(self, error: Exception) -> str:
        fault = self._fault
        self._fault = None
        return str(fault or error)


def plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy's as a plain value, and any other value as it is (a longdouble,
    which has no plain number, too).
    """
    if type(value) in KEYS or not hasattr(value, "dtype") or getattr(value, "shape", None) != ():
        return value
    return value.item()


def no_key(value: Any) -> str:
    """Return what a value is that cannot be a key of a state or a part of one; empty for a key."""
    value = plain_scalar(value)
    if type(value) not in KEYS:
        return f"a {type(value).__name__}"
    return "NaN, which equals no key" if value != value else ""


def is_plain(value: Any) -> bool:
    """Return whether each receiver reads a value as it is, as far as its type and a look at it tell.
    Twin of the core's, which knows valid text that is no ASCII too.
    """
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return bool(INT_MIN <= value <= INT_MAX)
    return kind in SCALARS


def _checked_text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CodecError(
                f"text that is not valid UTF-8 ({error.reason} at {error.start}); decode it with errors='replace'"
            ) from error
    return value


def _is_plain_key(key: Any) -> bool:
    return type(key) in _KEYS and (type(key) is not int or INT_MIN <= key <= INT_MAX)


def _unknown(value: Any) -> str:
    remedy = "convert it"
    if dataclasses.is_dataclass(value) or isinstance(value, Enum):
        remedy = _registration(type(value))
    if hasattr(value, "dtype") and hasattr(value, "item"):  # numpy
        remedy = "use .tolist()" if getattr(value, "shape", ()) else "use .item()"
    return (
        f"a value of type {_name(value)}, which is not one of none, true/false, numbers, text, bytes, dates, datetimes with a "
        f"zone, Decimal, UUID, lists, sets, mappings and registered classes; {remedy}"
    )


def _registration(kind: type) -> str:
    # Another process finds neither the class of a script nor one inside of a function.
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        name = kind.__name__
        return (
            f"move {name} to the top level of a module of its own and register it: "
            f"topology.serializers: [MODULE:{name}]"
        )
    return f"register it: topology.serializers: [{kind.__module__}:{kind.__qualname__}]"


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
