"""Results of a finished run: the states of components, each written to a file, their greatest values shown."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.names import file_name
from sparkstorm.model.values.tagged import to_json

DEAD_LETTERS = "dead-letters.jsonl"
RESULT_FORMATS = ("jsonl", "csv", "parquet")


def collect(results: Mapping[str, Any], handle: TopologyHandle, say: Callable[[str], None]) -> Path | None:
    """Write the keys and values of each component below `directory`, and say the `top` ones; return the first file.

    `format`: "jsonl" (the default), "csv" with a header, or "parquet", whose columns are `key` and `value`.
    InvalidConfigError when the file cannot be written; nothing of the run is lost by it.
    """
    files = [_collect(component, results, handle, say) for component in result_components(results)]
    return files[0] if files else None


def result_components(results: Mapping[str, Any]) -> list[str]:
    """Return the components whose states are results: `component`, and those of the list `components`."""
    named = [results["component"]] if "component" in results else []
    return list(dict.fromkeys([*named, *results.get("components", ())]))


def _collect(component: str, results: Mapping[str, Any], handle: TopologyHandle, say: Callable[[str], None]) -> Path:
    pairs, kind = sorted(handle.key_values(component), key=_rank), results.get("format", "jsonl")
    file = result_folder(results, handle.topology_id) / _file_of(component, kind)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, kind, pairs)
    except OSError as error:
        raise InvalidConfigError(
            f"results cannot be written to {file}: {error.strerror}; mend that or name another `results: {{directory: ...}}`, "
            "and give the same command again"
        ) from error
    for key, value in pairs[: results.get("top", 10)]:
        say(f"{value:>12,}  {key}" if isinstance(value, int) else f"  {key}: {value}")
    say(f"{len(pairs):,} keys{sum_text([value for _, value in pairs])}; results are in {file}")
    return file


def result_folder(results: Mapping[str, Any], topology_id: str) -> Path:
    """Return the folder of one run's results."""
    return Path(results.get("directory", "results"), file_name(topology_id)).resolve()


def _write(file: Path, kind: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(_table(pairs), file)
        return
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        if kind == "csv":
            rows = csv.writer(out, lineterminator="\n")
            rows.writerow(("key", "value"))
            rows.writerows((_cell(key), _cell(value)) for key, value in pairs)
        else:
            out.writelines(f"{_line(key, value)}\n" for key, value in pairs)


def _cell(value: Any) -> Any:
    """A cell of CSV: text and numbers as they are, others as JSON."""
    return value if value is None or type(value) in (str, int, float) else to_json(value)


def _file_of(component: str, kind: str) -> str:
    name = f"{file_name(component)}.{kind}"
    return name if name != DEAD_LETTERS else f"%{name}"  # no quoted id begins like this: that file is the run's own


def sum_text(values: Sequence[Any]) -> str:
    """The sum of values that are all whole numbers, named as one; nothing for any others, whose sum would be of a part."""
    are_numbers = bool(values) and all(type(value) is int for value in values)
    return f", the sum of their values is {sum(values):,}" if are_numbers else ""


def _rank(pair: tuple[Any, Any]) -> tuple[float, str]:
    key, value = pair
    return (-value if isinstance(value, int | float) else 0, str(key))


def _line(key: Any, value: Any) -> str:
    """Return one line of JSON that reads back exactly (`sparkstorm.replay.read_json`); other values are tagged objects."""
    return to_json([key, value])


def _table(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return the keys and values of a state as a table; keys that are tuples of one length are STRUCT (_1, _2, ...).

    A column whose values have no type in common holds their JSON (`sparkstorm.replay.read_json` reads it back).
    """
    import pyarrow as pa

    found = list(pairs)
    return pa.table({"key": _array([_plain(key) for key, _ in found]), "value": _array([value for _, value in found])})


def _plain(key: Any) -> Any:
    return {f"_{n}": part for n, part in enumerate(key, 1)} if type(key) is tuple else key


def _array(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    is_record = kinds == {dict} and len({tuple(value) for value in values if value is not None}) == 1
    if (len(kinds) <= 1 and (is_record or kinds.isdisjoint({dict, list}))) or kinds == {list}:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    return pa.array([None if value is None else to_json(value) for value in values], pa.string())
