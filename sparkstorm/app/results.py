"""Owns the results of a finished run: the state of one component, written to a file, its greatest values shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.app.handle import TopologyHandle


def collect(results: Mapping[str, Any], handle: TopologyHandle, say: Callable[[str], None]) -> Path | None:
    """Write `component`'s keys and values as JSON lines below `directory` and say the `top` ones."""
    component = results.get("component")
    if component is None:
        return None
    folder = Path(results.get("directory", "results"), handle.topology_id).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pairs = sorted(handle.key_values(component), key=_rank)
    file = folder / f"{component}.jsonl"
    with file.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.writelines(f"{_line(key, value)}\n" for key, value in pairs)
    for key, value in pairs[: results.get("top", 10)]:
        say(f"{value:>12,}  {key}" if isinstance(value, int) else f"  {key}: {value}")
    say(f"{len(pairs):,} keys{sum_text([value for _, value in pairs])}; results are in {file}")
    return file


def sum_text(values: Sequence[Any]) -> str:
    """The sum of values that are all whole numbers, named as one; nothing for any others, whose sum would be of a part."""
    are_numbers = bool(values) and all(type(value) is int for value in values)
    return f", the sum of their values is {sum(values):,}" if are_numbers else ""


def _rank(pair: tuple[Any, Any]) -> tuple[float, str]:
    key, value = pair
    return (-value if isinstance(value, int | float) else 0, str(key))


def _line(key: Any, value: Any) -> str:
    return json.dumps([key, value], ensure_ascii=False, default=repr)
