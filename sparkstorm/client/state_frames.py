"""State of a bolt of a live topology as a table: pandas, Arrow, or Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparkstorm.model.values.tagged import tag_text
from sparkstorm.worker.tasks.kept import Kept

if TYPE_CHECKING:
    import pyarrow as pa


def state_table(kept: Iterable[tuple[int, Kept]]) -> pa.Table:
    """Return columns task, key and value, a row per key; values without a common type become tagged text."""
    import pyarrow as pa

    tasks: list[int] = []
    keys: list[Any] = []
    values: list[Any] = []
    for task, each in kept:
        for key, value in each.state.every_pair():
            tasks.append(task)
            keys.append(list(key) if isinstance(key, tuple) else key)
            values.append(value)
    return pa.table({"task": pa.array(tasks, pa.int32()), "key": _column(keys), "value": _column(values)})


def state_frame(kept: Iterable[tuple[int, Kept]], spark: Any = None) -> Any:
    """Return the table as a Spark DataFrame of that session, else as a pandas one, else (without pandas) as an Arrow table."""
    table = state_table(kept)
    if spark is not None:
        return spark.createDataFrame(table)
    try:
        return table.to_pandas()
    except ImportError:
        return table


def _column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    try:
        if len(kinds) > 1 or dict in kinds:
            raise pa.ArrowInvalid
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([tag_text(value) for value in values], pa.string())
