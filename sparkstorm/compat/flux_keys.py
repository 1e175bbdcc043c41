"""Keys of a Flux document, level by level: one that Flux does not have is refused with its line.

Storm's Flux refuses them too, since its YAML reader fills Java beans (flux-core's model package,
whose fields are listed here). Read as a plain mapping, `streamid` for `streamId` would mean the
default stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sparkstorm.common.config import compose_yaml
from sparkstorm.common.errors import InvalidConfigError, show


class Level(NamedTuple):
    """Name and keys of a mapping; a key's level, or that of its entries, is None for any value."""

    what: str
    keys: Mapping[str, Level | None]
    required: tuple[str, ...] = ()


def _any(*keys: str) -> dict[str, Level | None]:
    return dict.fromkeys(keys)


PROPERTY = Level("a property", _any("name", "value", "ref", "reflist"), ("name",))
METHOD = Level("a configMethod", _any("name", "args"), ("name",))
_OBJECT: dict[str, Level | None] = {
    **_any("id", "className", "constructorArgs", "constructorKwargs", "factory", "factoryArgs"),
    "properties": PROPERTY,
    "configMethods": METHOD,
}
_VERTEX = {
    **_OBJECT,
    **_any("parallelism", "numTasks", "onHeapMemoryLoad", "offHeapMemoryLoad", "cpuLoad"),
}
GROUPING = Level(
    "a grouping",
    {**_any("type", "streamId", "args"), "customClass": Level("a customClass", _OBJECT)},
    ("type",),
)
DOCUMENT = Level(
    "a Flux document",
    {
        **_any("name", "config", "workerHooks"),
        "components": Level("a component", _OBJECT),
        "includes": Level("an include", _any("file", "resource", "override")),
        "spouts": Level("a spout", _VERTEX),
        "bolts": Level("a bolt", _VERTEX),
        "streams": Level(
            "a stream", {**_any("id", "name", "from", "to"), "grouping": GROUPING}, ("from", "to")
        ),
        "topologySource": Level("a topologySource", {**_OBJECT, **_any("methodName")}),
    },
)


def check_keys(text: str, path: Path) -> None:
    """Raise InvalidConfigError for a key that its level does not have, that is there twice, or that
    is missing, and for an id that two entries have.
    """
    document = compose_yaml(text, path)
    if not isinstance(document, yaml.MappingNode):
        return
    _check(document, DOCUMENT, path)
    ids: dict[str, int] = {}
    for section, entries in document.value:
        if section.value in ("components", "spouts", "bolts"):
            for entry in getattr(entries, "value", ()):
                _note_id(entry, ids, path)


def _note_id(entry: Any, ids: dict[str, int], path: Path) -> None:
    pairs = entry.value if isinstance(entry, yaml.MappingNode) else ()
    for key, value in pairs:
        if key.value != "id" or not isinstance(value, yaml.ScalarNode):
            continue
        line = _line(key)
        if value.value in ids:
            raise InvalidConfigError(
                f"{path}, line {line}: the id {show(value.value)} is that of line {ids[value.value]} too; ids are unique"
            )
        ids[value.value] = line


def _check(node: Any, level: Level, path: Path) -> None:
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            _check(entry, level, path)
        return
    if not isinstance(node, yaml.MappingNode):
        return  # what is expected there is told where it is used
    seen: dict[str, int] = {}
    for key, value in node.value:
        name = str(key.value)
        where = f"{path}, line {_line(key)}"
        if name not in level.keys:
            near = get_close_matches(name, level.keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(level.keys))}"
            raise InvalidConfigError(f"{where}: {show(name)} is no key of {level.what}; {hint}")
        if name in seen:
            raise InvalidConfigError(f"{where}: {name} is in line {seen[name]} too")
        seen[name] = _line(key)
        if (below := level.keys[name]) is not None:
            _check(value, below, path)
    for name in level.required:
        if name not in seen:
            raise InvalidConfigError(f"{path}, line {_line(node)}: {level.what} needs a {name!r}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
