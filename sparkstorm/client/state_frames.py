"""State of a bolt of a live topology as a table: pandas, Arrow, or Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparkstorm.api.value_columns import natural_array
from sparkstorm.client.task_records import StoredTask
from sparkstorm.common.model.values.tagged import is_tagged, tag_text

if TYPE_CHECKING:
    import pyarrow as pa


def state_table(stored: Iterable[tuple[int, StoredTask]]) -> pa.Table:
    """Return columns task, key and value, a row per key; values without a common type that gives
    each back become tagged text.
    """
    import pyarrow as pa

    tasks: list[int] = []
    keys: list[Any] = []
    values: list[Any] = []
    for task, task_state in stored:
        for key, value in task_state.state.every_pair():
            tasks.append(task)
            keys.append(list(key) if isinstance(key, tuple) else key)
            values.append(value)
    return pa.table(
        {"task": pa.array(tasks, pa.int32()), "key": _column(keys), "value": _column(values)}
    )


def state_frame(stored: Iterable[tuple[int, StoredTask]], spark: Any = None) -> Any:
    """Return the table as a Spark DataFrame of that session, else as a pandas one, else (without
    pandas) as an Arrow table.
    """
    table = state_table(stored)
    if spark is not None:
        return spark.createDataFrame(table)
    try:
        return table.to_pandas()
    except ImportError:
        return table


def _column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    array = None if any(map(is_tagged, values)) else natural_array(values)
    if array is None or pa.types.is_struct(array.type):
        return pa.array([tag_text(value) for value in values], pa.string())
    return array
