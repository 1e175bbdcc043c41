"""Values of tuples and state as JSON that reads back exactly: bytes, special floats and other mappings carry a tag."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

from sparkstorm.errors import CodecError

_MARK = "$"


def to_json(value: Any) -> str:
    """Return one line of JSON for a value of the codec's closed set; CodecError for any other.

    None, truth values, whole numbers, finite floats, text, lists and mappings from text are plain JSON. The rest is an object
    with one key: `$bytes` (base64), `$float` (nan, inf, -inf), `$map` (pairs, for mappings with other keys).
    """
    try:
        return json.dumps(_tagged(value), ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise CodecError("values nest too deeply") from error


def from_json(text: str) -> Any:
    """Return the value that `to_json` was given; CodecError when the text is not its own."""
    try:
        return _plain(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise CodecError(f"not a value written by to_json: {error}") from error


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list | tuple):
        return [_tagged(each) for each in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith(_MARK) for key in value):
            return {key: _tagged(each) for key, each in value.items()}
        return {"$map": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    raise CodecError(f"a {type(value).__name__} is no value of tuples or state")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith(_MARK):
        return {key: _plain(each) for key, each in value.items()}
    return _READERS[tag](value[tag]) if len(value) == 1 and tag in _READERS else _refuse(tag)


def _map(pairs: Any) -> dict[Any, Any]:
    return {_plain(key): _plain(each) for key, each in pairs}


def _refuse(tag: str) -> Any:
    raise ValueError(f"unknown tag {tag:.40}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[str, Callable[[Any], Any]] = {"$bytes": _bytes, "$float": float, "$map": _map}
