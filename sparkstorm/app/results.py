"""Results of a finished run: the state of one component, written to a file, its greatest values shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.names import file_name
from sparkstorm.model.tagged import to_json

DEAD_LETTERS = "dead-letters.jsonl"


def collect(results: Mapping[str, Any], handle: TopologyHandle, say: Callable[[str], None]) -> Path | None:
    """Write `component`'s keys and values as JSON lines below `directory` and say the `top` ones.

    InvalidConfigError when the file cannot be written; nothing of the run is lost by it.
    """
    component = results.get("component")
    if component is None:
        return None
    pairs = sorted(handle.key_values(component), key=_rank)
    file = result_folder(results, handle.topology_id) / _file_of(component)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", errors="backslashreplace") as out:
            out.writelines(f"{_line(key, value)}\n" for key, value in pairs)
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


def _file_of(component: str) -> str:
    name = f"{file_name(component)}.jsonl"
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
