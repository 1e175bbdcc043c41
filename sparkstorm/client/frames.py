"""States as Arrow tables, with the columns `key` and `value`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparkstorm.model.tagged import to_json

if TYPE_CHECKING:
    from pyarrow import Array, Table


def state_table(pairs: Iterable[tuple[Any, Any]]) -> Table:
    """Return the keys and values of a state as a table; keys that are tuples of one length are STRUCT (_1, _2, ...).

    A column whose values have no type in common holds their JSON (`sparkstorm.replay.read_json` reads it back).
    """
    import pyarrow as pa

    found = list(pairs)
    return pa.table({"key": _array([_plain(key) for key, _ in found]), "value": _array([value for _, value in found])})


def _plain(key: Any) -> Any:
    return {f"_{n}": part for n, part in enumerate(key, 1)} if type(key) is tuple else key


def _array(values: Sequence[Any]) -> Array:
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    is_record = kinds == {dict} and len({tuple(value) for value in values if value is not None}) == 1
    if (len(kinds) <= 1 and (is_record or kinds.isdisjoint({dict, list}))) or kinds == {list}:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    return pa.array([None if value is None else to_json(value) for value in values], pa.string())
