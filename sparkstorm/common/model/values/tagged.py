"""Tagged text: JSON from which every value that a tuple may carry is read back exactly, with its
type.

JSON's own forms stand for none, true/false, whole numbers, finite floats (always with a point or an
exponent), text, lists and mappings whose keys are text. Objects with one tag stand for the rest:
{"$float": "nan"}, {"$bytes": base64}, {"$map": [[key, value], ...]}, {"$date": text}, {"$datetime":
[text, zone, fold]}, {"$decimal": text}, {"$uuid": text}, {"$set": list}, {"$frozenset": list} and
{"$object": [class, fields]}; a mapping with a key that begins with "$" is written as $map too. In a
column of text the whole is wrapped, {"$value": ...}, which marks the cell as tagged.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values import value_types
from sparkstorm.common.model.values.codec import SCALARS, Codec
from sparkstorm.common.model.values.value_types import IMMUTABLE, RegisteredValue, WideMapping

MARK = '{"$value":'
_FLOATS = ("nan", "inf", "-inf")
_CODE_BY_TAG = {
    "$date": value_types.DATE,
    "$datetime": value_types.DATETIME,
    "$decimal": value_types.DECIMAL,
    "$uuid": value_types.UNIQUE_ID,
}
_TAG_BY_CODE = {code: tag for tag, code in _CODE_BY_TAG.items()}


_PLAIN: dict[type, Callable[[Any], str]] = {
    str: json.encoder.encode_basestring,
    int: int.__repr__,
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
}


def to_json(value: Any) -> str:
    """Return the JSON of one value, without the wrapping; tuples are written as lists."""
    try:
        return json.dumps(
            _jsonable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except RecursionError as error:
        raise CodecError("values nest too deeply") from error


def row_writer(fields: Sequence[str]) -> Callable[[Sequence[Any]], str]:
    """Return a function from a row's values to `to_json` of them by field, made for many rows of
    plain values.
    """
    if any(name.startswith("$") for name in fields):
        return lambda values: to_json(dict(zip(fields, values, strict=True)))
    heads = [to_json(name).replace("%", "%%") + ":%s" for name in fields]
    template = f"{{{','.join(heads)}}}"
    plain = _PLAIN

    def write(values: Sequence[Any]) -> str:
        return template % tuple([plain.get(type(value), to_json)(value) for value in values])

    return write


def from_json(text: str) -> Any:
    """Return the value that `to_json` wrote; CodecError for any other text.

    >>> from_json(to_json({1: [b"x", -0.0, None, True]}))
    {1: [b'x', -0.0, None, True]}
    """
    try:
        decoded = _decode(text)
        kind = type(decoded)
        if kind is float or (kind is str and decoded.isascii()):  # as most are: no look at them
            return decoded
        return Codec(is_lenient=True).normalise(decoded)
    except Exception as error:  # anything of hostile text: a zone that this host lacks, 1e300 years
        raise CodecError(
            f"{text[:60]!r} is no value as SparkStorm writes it: {str(error)[:200]}"
        ) from error


def tag_text(value: Any) -> str:
    """Return a value as the cell of a column of tagged text."""
    return f"{MARK}{to_json(value)}}}"


def is_tagged(cell: Any) -> bool:
    """Return whether a cell is tagged text."""
    return type(cell) is str and cell.startswith(MARK)


def read_value(cell: Any) -> Any:
    """Return the value behind a cell of a result: tagged text is read, any other cell is its own
    value.

    CodecError for damaged tagged text.

    >>> read_value(tag_text(2.5)), read_value("plain"), read_value(None)
    (2.5, 'plain', None)
    """
    if not is_tagged(cell):
        return cell
    if not cell.endswith("}"):
        raise CodecError(f"{cell[:60]!r} is no tagged text: its end is missing")
    return from_json(cell[len(MARK) : -1])


def _jsonable(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is list or kind is tuple:
        return [_jsonable(item) for item in value]
    if kind is dict or kind is WideMapping:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _jsonable(item) for key, item in value.items()}
        return {"$map": [[_jsonable(key), _jsonable(item)] for key, item in value.items()]}
    if kind in SCALARS:
        return value
    if kind is set or kind is frozenset:
        return {f"${kind.__name__}": [_jsonable(item) for item in sorted(value, key=Codec().pack)]}
    if kind in IMMUTABLE:
        code, content = value_types.encoded(value) or (0, None)
        return {_TAG_BY_CODE[code]: content if code != value_types.UNIQUE_ID else str(value)}
    if kind is RegisteredValue:
        return {"$object": [value.name, _jsonable(value.content)]}
    if (name := value_types.name_of(kind)) is not None:
        return {"$object": [name, _jsonable(Codec().normalise(value_types.content_of(value)))]}
    raise CodecError(f"a {kind.__name__} is no value of tuples or state")


def _object(pairs: list[tuple[str, Any]]) -> Any:
    if len(pairs) == 1 and pairs[0][0].startswith("$"):
        return _untagged(*pairs[0])
    mapping = dict(pairs)
    if len(mapping) != len(pairs) or any(key.startswith("$") for key in mapping):
        raise ValueError(f"an object with the keys {', '.join(key for key, _ in pairs)[:80]}")
    return mapping


def _untagged(tag: str, content: Any) -> Any:
    if tag == "$float" and isinstance(content, str) and content in _FLOATS:
        return float(content)  # a new one: two keys that are no number are two keys
    if tag == "$bytes" and isinstance(content, str):
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise ValueError(f"bytes that are not base64 ({error})") from error
    if tag in _CODE_BY_TAG:
        code = _CODE_BY_TAG[tag]
        return (
            UUID(content) if code == value_types.UNIQUE_ID else value_types.decoded(code, content)
        )
    if tag in ("$set", "$frozenset") and isinstance(content, list):
        return set(content) if tag == "$set" else frozenset(content)
    if tag == "$object" and isinstance(content, list) and len(content) == 2:
        name, fields = content
        return (
            value_types.made(name, fields)
            if value_types.is_registered(name)
            else RegisteredValue(str(name), fields)
        )
    if (
        tag == "$map"
        and isinstance(content, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in content)
    ):
        mapping = dict(content)
        if len(mapping) != len(content):
            raise ValueError("a mapping with a key twice")
        return mapping
    raise ValueError(f"an object with the tag {tag[:40]!r}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# made once: `json.loads` makes one for each text
_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant).decode
