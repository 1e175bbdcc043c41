"""Declared columns of a replay's results: by the caller's `types`, else by the streams' and states'
own declarations. PURE.

Declarations go by name and are checked before anything runs; InvalidTopologyError names the result
and the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from sparkstorm.api.components import Stateful
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.values.column_types import ANY, parse_columns, parse_type
from sparkstorm.replay.job import STATE_MARK, result_names
from sparkstorm.replay.plan import Plan
from sparkstorm.replay.results.types import arrow_type

STATE_FIELDS = ("key", "value")
Columns = Sequence[tuple[str, pa.DataType | None]]
"""Names and types of a result's columns; a type that is None is found from the values."""


def declared_columns(plan: Plan, types: Mapping[str, str]) -> dict[str, Columns]:
    """Return the columns of every result of bolts, by the result's name; `types` win over what
    components declare.
    """
    own = dict(_own_columns(plan))
    for name, text in types.items():
        if name not in own:
            why = (
                "it is data, which has the types of its input"
                if name in result_names(plan)
                else "there is no such result"
            )
            raise InvalidTopologyError(
                f"types of '{name}': {why}; there are {', '.join(sorted(own))}"
            )
        own[name] = _by_name(name, text, [field for field, _ in own[name]])
    return own


def _own_columns(plan: Plan) -> Iterator[tuple[str, Columns]]:
    for name, feed in result_names(plan).items():
        component = plan.topology.components[feed.spout]
        if component.kind != "spout":
            stream = component.streams[feed.stream]
            yield (
                name,
                [(field, _own_type(stream.types.get(field, ANY))) for field in stream.fields],
            )
    for bolt in plan.topology.bolts:
        if isinstance(bolt.instance, Stateful):
            kinds = (bolt.instance.state_key_type, bolt.instance.state_type)
            yield (
                bolt.id + STATE_MARK,
                [(f, _own_type(k or ANY)) for f, k in zip(STATE_FIELDS, kinds, strict=True)],
            )


def _own_type(text: str) -> pa.DataType | None:
    # No error to translate: the text was checked when the topology was built.
    return None if text == ANY else arrow_type(parse_type(text))


def _by_name(name: str, text: str, fields: Sequence[str]) -> Columns:
    try:
        declared = parse_columns(text)
    except ValueError as error:
        raise InvalidTopologyError(f"types of '{name}': {error}") from error
    names = [column for column, _ in declared]
    unknown = [column for column in names if column not in fields]
    missing = [field for field in fields if field not in names]
    if unknown or missing:
        said = f"'{unknown[0]}' is no column" if unknown else f"column '{missing[0]}' has no type"
        raise InvalidTopologyError(
            f"types of '{name}': {said}; its columns are {', '.join(fields)}"
        )
    # By name, another order would change nothing. But it is what swapped names look like, and Spark
    # itself matches by position where it writes into tables.
    if names != list(fields):
        raise InvalidTopologyError(
            f"types of '{name}' name its columns in another order ({', '.join(names)}) than they have "
            f"({', '.join(fields)}): were names swapped?"
        )
    return [(column, arrow_type(kind)) for column, kind in declared]
