"""Codec: the closed set of values that tuples and state may carry, and their bytes (msgpack).

Laws: `normalise` returns what the receiving worker reads, so that placement never changes a result; a value outside the
set is a CodecError that names it, never a silent conversion; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ormsgpack

from sparkstorm.errors import CodecError, MalformedFrameError
from sparkstorm.model.unfolding import MAX_CONTAINERS, require_bounded

SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
Serializers = Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]
"""By type: its tag, the function to a value of the closed set, and the function back."""

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
    """Packer of values; registered types are packed as tagged values (Storm's topology.kryo.register)."""

    def __init__(self, serializers: Serializers | None = None) -> None:
        registered = dict(serializers or {})
        self._tag_by_type = {kind: (tag, encode) for kind, (tag, encode, _) in registered.items()}
        self._decode_by_tag = {tag: decode for tag, _, decode in registered.values()}
        self._depth = 0  # of registered values inside registered values being read
        self._fault: Exception | None = None  # raised inside a hook: the packer only says that a hook failed

    def normalise(self, value: Any, depth: int = 0) -> Any:
        """Return the value as every receiver reads it (tuples become lists); CodecError for a value outside the set."""
        kind = type(value)
        if kind is int:
            return _checked_int(value)
        if kind is str:
            return _checked_text(value)
        if kind in SCALARS:
            return value
        if depth > _MAX_DEPTH:
            raise CodecError(f"values nest deeper than {_MAX_DEPTH}")
        if kind is list or kind is tuple:
            return [self.normalise(item, depth + 1) for item in value]
        if kind is dict:
            return {self._key(k): self.normalise(v, depth + 1) for k, v in value.items()}
        if kind in self._tag_by_type:  # there and back: a serializer may drop what does not matter to it
            return self.unpack(self.pack(value))
        raise CodecError(_unknown(value))

    def pack(self, value: Any) -> bytes:
        """Return the bytes of a normalised value."""
        try:
            packed = ormsgpack.packb(value, default=self._encode, option=_STRICT)
            require_bounded(packed)
        except (TypeError, ValueError, MalformedFrameError) as error:
            raise CodecError(self._explained(error)) from error
        return packed

    def unpack(self, data: bytes | memoryview, most: int = MAX_CONTAINERS) -> Any:
        """Return the value of received bytes; MalformedFrameError if they are damaged or hold more than `most` containers."""
        require_bounded(data, most)
        try:
            return ormsgpack.unpackb(data, option=_OPTIONS, ext_hook=self._decode)
        except (ValueError, TypeError) as error:
            raise MalformedFrameError(f"not a packed value: {self._explained(error)}") from error

    def _key(self, key: Any) -> Any:
        if type(key) not in _KEYS:
            raise CodecError(f"a mapping key of type {type(key).__name__}; keys are text, bytes, numbers, true/false or none")
        return self.normalise(key)

    def _encode(self, value: Any) -> Any:
        entry = self._tag_by_type.get(type(value))
        if entry is None:
            self._fault = CodecError(_unknown(value))
            raise self._fault
        try:
            return ormsgpack.Ext(_REGISTERED, self.pack([entry[0], entry[1](value)]))
        except Exception as error:  # user code
            self._fault = CodecError(f"the serializer of {_name(value)} failed: {error}")
            raise self._fault from error

    def _decode(self, code: int, data: bytes) -> Any:
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:  # each level copies what it holds
                raise MalformedFrameError(f"values nest deeper than {_MAX_DEPTH}")
            tag, content = self.unpack(data) if code == _REGISTERED else (code, None)
            if code == _REGISTERED and tag in self._decode_by_tag:
                return self._decode_by_tag[tag](content)
            self._fault = MalformedFrameError(f"a value of unregistered type {tag!r:.60}")
        except Exception as error:  # user code, on bytes from outside
            self._fault = MalformedFrameError(f"a value of a registered type cannot be read: {str(error)[-200:]}")
        finally:
            self._depth -= 1
        raise self._fault

    def _explained(self, error: Exception) -> str:
        fault, self._fault = self._fault, None
        return str(fault or error)


def _checked_int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CodecError(f"the whole number {value if abs(value) < 10**30 else '…'} does not fit 64 bits; send it as text")


def _checked_text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CodecError(
                f"text that is not valid UTF-8 ({error.reason} at {error.start}); decode it with errors='replace'"
            ) from error
    return value


def _unknown(value: Any) -> str:
    mend = "convert it, or register a serializer (topology.serializers)"
    if hasattr(value, "dtype") and hasattr(value, "item"):  # numpy
        mend = "use .tolist()" if getattr(value, "shape", ()) else "use .item()"
    return (
        f"a value of type {_name(value)}, which is not one of none, true/false, 64-bit numbers, text, bytes, "
        f"lists and mappings; {mend}"
    )


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
