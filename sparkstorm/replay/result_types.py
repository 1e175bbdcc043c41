"""Owns the types of Arrow columns against the codec's values: which inputs are refused, how results are typed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkstorm.errors import ReplayFailedError

_PLAIN = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
          pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def problem_with(kind: pa.DataType) -> str:
    """What keeps a column's type out of the codec's closed set, or nothing."""
    if any(is_kind(kind) for is_kind in _PLAIN):
        return ""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return problem_with(kind.value_type)
    if pa.types.is_struct(kind):
        return next((p for field in kind if (p := problem_with(field.type))), "")
    if pa.types.is_map(kind):
        return problem_with(kind.key_type) or problem_with(kind.item_type)
    return f"{kind} is none of true/false, whole and floating numbers, text, bytes, lists, mappings; cast it"


def typed_array(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    """A result's column; ReplayFailedError names the column and the mend when a value does not fit."""
    is_array = isinstance(values, pa.Array)
    if (made := _plain_structs(values, kind, name)) is not None:
        return made
    if pa.types.is_nested(kind) and not (is_array and values.type == kind):
        values = [_fitted(value, kind) for value in (values.to_pylist() if is_array else values)]
    try:
        return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        raise ReplayFailedError(f"column '{name}' does not hold {kind} throughout ({str(error)[:200]}); "
                                "declare another type for it") from error


def _plain_structs(values: Any, kind: pa.DataType, name: str) -> pa.Array | None:
    """Keys of several plain fields, as they mostly are: column by column. None when these are anything else."""
    if not pa.types.is_struct(kind) or not isinstance(values, list) or not values or not set(map(type, values)) <= {list, tuple}:
        return None
    if any(pa.types.is_nested(field.type) for field in kind) or set(map(len, values)) != {kind.num_fields}:
        return None
    columns = [typed_array(column, field.type, name) for column, field in zip(zip(*values, strict=True), kind, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _fitted(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(key, _fitted(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_struct(kind):
        items = value if isinstance(value, dict) else {f.name: v for f, v in zip(kind, value, strict=False)}
        return {field.name: _fitted(items.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_fitted(item, kind.value_type) for item in value]
    return value


def seen_type(values: Any, name: str) -> pa.DataType:
    """The type that holds these values (a list or an array); ReplayFailedError when no one type does."""
    if isinstance(values, pa.Array):
        return values.type
    try:
        kind = pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        try:  # lists of a fixed make, as keys of several fields are
            kind = pa.array([{f"_{i}": v for i, v in enumerate(value, 1)} for value in values]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise ReplayFailedError(f"column '{name}' holds values of several types ({str(error)[:200]}); "
                                    "declare its type, or have the bolt emit one") from error
    return kind


def merged_type(one: pa.DataType, other: pa.DataType, name: str) -> pa.DataType:
    """A type that holds both; ReplayFailedError when there is none."""
    try:
        return pa.unify_schemas([pa.schema([(name, one)]), pa.schema([(name, other)])],
                                promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ReplayFailedError(f"column '{name}' holds {one} here and {other} there; declare its type") from error


def definite_type(kind: pa.DataType) -> pa.DataType:
    """Text where nothing was seen: a frame's column must have some type."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(definite_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, definite_type(field.type)) for field in kind])
    return kind
