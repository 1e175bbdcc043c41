"""Owns the closed set of values that tuples and state may carry, and their bytes (msgpack).

Laws: what `normalise` returns is what the other side of a hop reads, so placement never changes a result; a value
outside the set is a CodecError that says which, never a silent conversion; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ormsgpack

from sparkstorm.errors import CodecError, MalformedFrameError

SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_OPTIONS = ormsgpack.OPT_NON_STR_KEYS
_STRICT = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS | ormsgpack.OPT_PASSTHROUGH_DATETIME | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_ENUM | ormsgpack.OPT_PASSTHROUGH_UUID | _OPTIONS
)
_KEYS = frozenset({str, int, bool, bytes, type(None), float})
_MAX_DEPTH = 64


class Codec:
    """Packs and unpacks values; registered types travel as tagged values (Storm's topology.kryo.register)."""

    def __init__(self, serializers: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] | None = None) -> None:
        registered = dict(serializers or {})
        self._tag_by_type = {kind: (tag, encode) for kind, (tag, encode, _) in registered.items()}
        self._decode_by_tag = {tag: decode for tag, _, decode in registered.values()}

    def normalise(self, value: Any, depth: int = 0) -> Any:
        """The value as every reader will see it: tuples become lists; raises CodecError for anything outside the set."""
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
        if kind in self._tag_by_type:
            return value
        raise CodecError(_unknown(value))

    def pack(self, value: Any) -> bytes:
        """Bytes of a normalised value."""
        try:
            return ormsgpack.packb(value, default=self._encode, option=_STRICT)
        except (TypeError, ValueError) as error:
            raise CodecError(str(error)) from error

    def unpack(self, data: bytes | memoryview) -> Any:
        """Value of bytes from outside; MalformedFrameError when they are not ours."""
        try:
            return ormsgpack.unpackb(data, option=_OPTIONS, ext_hook=self._decode)
        except (ValueError, TypeError) as error:
            raise MalformedFrameError(f"not a packed value: {error}") from error

    def _key(self, key: Any) -> Any:
        if type(key) not in _KEYS:
            raise CodecError(f"a mapping key of type {type(key).__name__}; keys are text, bytes, numbers, true/false or none")
        return self.normalise(key)

    def _encode(self, value: Any) -> Any:
        entry = self._tag_by_type.get(type(value))
        if entry is None:
            raise CodecError(_unknown(value))
        tag, encode = entry
        return ormsgpack.Ext(1, self.pack([tag, encode(value)]))

    def _decode(self, code: int, data: bytes) -> Any:
        content = self.unpack(data) if code == 1 else None
        if not isinstance(content, list) or len(content) != 2 or content[0] not in self._decode_by_tag:
            raise MalformedFrameError(f"a value of unregistered type {content[0] if isinstance(content, list) and content else code!r}")
        return self._decode_by_tag[content[0]](content[1])


def _checked_int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CodecError(f"the whole number {value if abs(value) < 10**30 else '…'} does not fit 64 bits; send it as text")


def _checked_text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CodecError(f"text that is not valid UTF-8 ({error.reason} at {error.start}); decode it with errors='replace'") from error
    return value


def _unknown(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    hint = "; use .item()" if hasattr(value, "item") and hasattr(value, "dtype") else ""
    return (f"a value of type {name}, which is not one of none, true/false, 64-bit numbers, text, bytes, lists and mappings"
            f"{hint or '; convert it, or register a serializer (topology.serializers)'}")
