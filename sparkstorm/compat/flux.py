"""Flux documents: Storm's YAML form of a topology, for Python classes and shell components.

`sparkstorm run`, `submit` and `show` take such a file as they take a job file.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sparkstorm.api.builder import Declarer, TopologyBuilder
from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import BasicBolt, Effects, StatefulBolt
from sparkstorm.common.config import parse_yaml
from sparkstorm.common.errors import InvalidConfigError, SparkStormError, reason_of, show
from sparkstorm.common.model.topology import Grouping, Topology
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.compat.flux_keys import check_keys
from sparkstorm.compat.shell import TICK_KEY, ShellBolt, ShellSpout

_MOST_BYTES = 10 << 20
_PLACE = re.compile(r"\$\{([^}\n]+)\}")
# a line whose value is one place and nothing else
_ALONE = re.compile(r"(\s*(?:- )?(?:[\w.'\"-]+:\s+)?)(\$\{[^}\n]+\})\s*")
_KINDS = {
    "shuffle",
    "load_aware_shuffle",
    "all",
    "global",
    "none",
    "direct",
    "local_or_shuffle",
    "fields",
    "custom",
    "partial_key",
}


class LogInfoBolt(BasicBolt):
    """Flux's bolt that prints each tuple to the worker's log."""

    effects = Effects.MUTE

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Print a tuple."""
        print(f"info: {tup!r}", flush=True)


class TestWordCounter(StatefulBolt):
    """Storm's bolt that counts the first value of its input, and emits it with its count."""

    outputs = ("word", "count")
    __test__ = False

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count a word."""
        count = self.state.get(tup[0], 0) + 1
        self.state.put(tup[0], count)
        collector.emit((tup[0], count))


_STORMS: Mapping[str, type] = {
    "org.apache.storm.flux.wrappers.bolts.LogInfoBolt": LogInfoBolt,
    "org.apache.storm.testing.TestWordCounter": TestWordCounter,
}
_SHELLS: Mapping[str, type] = {"FluxShellSpout": ShellSpout, "FluxShellBolt": ShellBolt}
_LOADS = {
    "onHeapMemoryLoad": "topology.component.resources.onheap.memory.mb",
    "offHeapMemoryLoad": "topology.component.resources.offheap.memory.mb",
    "cpuLoad": "topology.component.cpu.pcore.percent",
}


def is_flux_document(path: str | Path) -> bool:
    """Return whether a file is a Flux document rather than a job file; its text alone is looked
    at.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    keys = set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
    return "topology" not in keys and not keys.isdisjoint({"topologySource", "spouts", "streams"})


def job_of_flux(path: str | Path, substituted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job file in place of a Flux document: its name, its configuration and
    the factory here.
    """
    document = read_flux(path, **substituted)
    config = document.get("config") or {}
    if not isinstance(config, dict):
        raise InvalidConfigError(f"{path}: config: expected keys and values, got {show(config)}")
    arguments = {"file": os.path.abspath(path), **substituted}
    return {
        **config,
        "name": document.get("name", Path(path).stem),
        "topology": f"{__name__}:build",
        "arguments": arguments,
    }


def read_flux(
    path: str | Path, filter: str | None = None, environment: bool = False
) -> dict[str, Any]:
    """Return a Flux document with its properties substituted and its includes merged;
    InvalidConfigError names file and place.
    """
    properties = read_properties(filter) if filter else {}
    document = _read(Path(path), properties, environment)
    for included in _list(document, "includes", str(path)):
        if not isinstance(included, dict) or not isinstance(included.get("file"), str):
            raise InvalidConfigError(
                f"{path}: includes: expected entries with a 'file', got {show(included)}"
            )
        other_path = Path(path).parent / included["file"]
        other = _read(other_path, properties, environment)
        if other.get("includes"):
            raise InvalidConfigError(
                f"{other_path}: an included file includes others; name them all in {path}"
            )
        _merge(document, other, bool(included.get("override", False)), str(other_path))
    return document


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a properties file: lines `name=value`, with comments after `#` or `!`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(
            f"{path}: the properties cannot be read: {reason_of(error)}"
        ) from error
    properties = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.strip().partition("=")
        if not name or name[0] in "#!":
            continue
        if not sign:
            raise InvalidConfigError(
                f"{path}, line {number}: expected name=value, got {show(line.strip())}"
            )
        properties[name.strip()] = value.strip()
    return properties


def build(file: str, filter: str | None = None, environment: bool = False) -> Topology:
    """Build the topology of a Flux document; its classes are imported from its own folder too."""
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return _Builder(file, read_flux(file, filter, environment)).build()


def _read(path: Path, properties: Mapping[str, str], use_environment: bool) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    text = "\n".join(
        _filled(f"{path}, line {n}", line, properties, use_environment)
        for n, line in enumerate(text.split("\n"), 1)
    )
    check_keys(text, path)
    return parse_yaml(text, path)[0]


def _filled(where: str, line: str, properties: Mapping[str, str], use_environment: bool) -> str:
    if line.lstrip().startswith("#"):
        return line

    def value(match: re.Match[str]) -> str:
        name, bracket, index = match[1].partition("[")
        if name.startswith("ENV-") and use_environment and name[4:] in os.environ:
            return os.environ[name[4:]]
        if name not in properties:
            how = (
                "give --env-filter and set it"
                if name.startswith("ENV-")
                else "give --filter FILE with a line for it"
            )
            raise InvalidConfigError(f"{where}: ${{{match[1]}}} has no value; {how}")
        if not bracket:
            return properties[name]
        try:
            return str(json.loads(properties[name])[int(index.rstrip("]"))])
        except (ValueError, IndexError, TypeError) as error:
            raise InvalidConfigError(
                f"{where}: ${{{match[1]}}}: {name} is no list with such an element"
            ) from error

    filled = _PLACE.sub(value, line)
    alone = _ALONE.fullmatch(line)
    return filled if alone is None else alone[1] + _as_scalar(_PLACE.sub(value, alone[2]))


def _as_scalar(text: str) -> str:
    """Return a text as YAML reads it whole: quoted where it would be cut, or be no scalar."""
    try:
        read, _ = parse_yaml(f"value: {text}", "value")
        is_whole = not isinstance(read["value"], str | dict | list) or text[:1] in ("'", '"')
        return text if is_whole or read["value"] == text else json.dumps(text)
    except InvalidConfigError:
        return json.dumps(text)


def _merge(into: dict[str, Any], other: Mapping[str, Any], override: bool, path: str) -> None:
    """Merge an included document: by key or id what the main one has wins, unless `override`;
    streams are appended.
    """
    if "config" in other:
        mine = into.get("config") or {}
        theirs = other["config"] or {}
        into["config"] = {**mine, **theirs} if override else {**theirs, **mine}
    for section in ("components", "spouts", "bolts"):
        mine = {_id(entry, section, path): entry for entry in _list(into, section, path)}
        theirs = {_id(entry, section, path): entry for entry in _list(other, section, path)}
        first, last = (mine, theirs) if override else (theirs, mine)
        # references look back
        order = [*theirs, *mine] if section == "components" else [*mine, *theirs]
        into[section] = [{**first, **last}[id] for id in dict.fromkeys(order)]
    into["streams"] = [*_list(into, "streams", path), *_list(other, "streams", path)]


def _list(document: Mapping[str, Any], section: str, path: str) -> list[Any]:
    entries = document.get(section) or []
    if not isinstance(entries, list):
        raise InvalidConfigError(f"{path}: {section}: expected a list, got {show(entries)}")
    return entries


def _id(entry: Any, section: str, path: str) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise InvalidConfigError(
            f"{path}: {section}: each entry has an 'id', but {show(entry)} has none"
        )
    return str(entry["id"])


class _Builder:
    """Objects of one document, made in its order."""

    def __init__(self, path: str, document: Mapping[str, Any]) -> None:
        self._path = path
        self._document = document
        self._objects: dict[str, Any] = {}

    def build(self) -> Topology:
        for entry in _list(self._document, "components", self._path):
            id = _id(entry, "components", self._path)
            self._objects[id] = self._object(entry, f"component '{id}'")
        if self._document.get("workerHooks"):
            raise InvalidConfigError(
                f"{self._path}: workerHooks: name hooks in topology.worker.hooks of config instead"
            )
        if source := self._document.get("topologySource"):
            return self._from_source(source)
        if not self._document.get("spouts"):
            raise InvalidConfigError(f"{self._path}: spouts: a topology needs at least one")
        builder = TopologyBuilder()
        declarers: dict[str, Declarer] = {}
        for section in ("spouts", "bolts"):
            for entry in _list(self._document, section, self._path):
                id = _id(entry, section, self._path)
                add = builder.set_spout if section == "spouts" else builder.set_bolt
                instance = self._object(entry, f"{section[:-1]} '{id}'")
                tasks = entry.get("numTasks", -1)
                declarers[id] = add(
                    id,
                    instance,
                    entry.get("parallelism", 1),
                    num_tasks=None if tasks == -1 else tasks,
                    conf=_conf(entry, instance),
                )
        for stream in _list(self._document, "streams", self._path):
            self._connect(stream, declarers)
        return builder.build()

    def _from_source(self, source: Any) -> Topology:
        if self._document.get("spouts") or self._document.get("bolts"):
            raise InvalidConfigError(
                f"{self._path}: topologySource stands instead of spouts, bolts and streams; drop one of them"
            )
        made = self._object(source, "topologySource")
        name = source.get("methodName", "getTopology")
        method = getattr(made, name, None)
        if not callable(method):
            raise InvalidConfigError(
                f"{self._path}: topologySource: {source.get('className')} has no method {name}"
            )
        topology = self._call(method, [self._document.get("config") or {}], "topologySource")
        if not isinstance(topology, Topology):
            raise InvalidConfigError(
                f"{self._path}: topologySource: {name} returned a {type(topology).__name__}; return builder.build()"
            )
        return topology

    def _connect(self, stream: Any, declarers: Mapping[str, Declarer]) -> None:
        if not isinstance(stream, dict) or not {"from", "to", "grouping"} <= stream.keys():
            raise InvalidConfigError(
                f"{self._path}: streams: each has 'from', 'to' and 'grouping', but not {show(stream)}"
            )
        where = f"{self._path}: stream '{stream['from']}' to '{stream['to']}'"
        grouping = stream["grouping"]
        if stream["to"] not in declarers or stream["from"] not in declarers:
            end = "to" if stream["to"] not in declarers else "from"
            raise InvalidConfigError(
                f"{where}: there is no component '{stream[end]}'; there are {', '.join(declarers)}"
            )
        kind = str(grouping.get("type", "")).lower() if isinstance(grouping, dict) else ""
        if kind not in _KINDS:
            raise InvalidConfigError(
                f"{where}: grouping {show(grouping)} has no 'type' of {', '.join(sorted(_KINDS)).upper()}"
            )
        custom = self._object(grouping.get("customClass"), where) if kind == "custom" else None
        made = Grouping(kind, tuple(grouping.get("args") or ()), custom)  # type: ignore[arg-type]
        declarers[stream["to"]].grouping(
            stream["from"], made, grouping.get("streamId") or "default"
        )

    def _object(self, described: Any, where: str) -> Any:
        """Make an object: class, constructor or factory, properties, configuration methods."""
        if not isinstance(described, dict) or not isinstance(described.get("className"), str):
            raise InvalidConfigError(
                f"{self._path}: {where}: expected a 'className', got {show(described)}"
            )
        name = described["className"]
        if shell := _SHELLS.get(name.rpartition(".")[2]):
            return self._shell(shell, described, where)
        made_by = self._class(name, where)
        if factory := described.get("factory"):
            made_by = getattr(made_by, factory, None)
            if not callable(made_by):
                raise InvalidConfigError(f"{self._path}: {where}: {name} has no method {factory}")
        arguments = self._values(
            described.get("factoryArgs" if factory else "constructorArgs"), where
        )
        made = self._call(
            made_by, arguments, where, self._mapped(described.get("constructorKwargs") or {})
        )
        for entry in _list(described, "properties", self._path):
            self._set(made, entry, where)
        for entry in _list(described, "configMethods", self._path):
            method = getattr(made, entry["name"], None)
            if not callable(method):
                raise InvalidConfigError(
                    f"{self._path}: {where}: {name} has no method {entry['name']}"
                )
            self._call(method, self._values(entry.get("args"), where), where)
        return made

    def _set(self, made: Any, described: Mapping[str, Any], where: str) -> None:
        """Set a property: by its method `set_NAME`, else an attribute that is there."""
        name = str(described["name"])
        given = {key: part for key, part in described.items() if key != "name"}
        if len(given) != 1:
            raise InvalidConfigError(
                f"{self._path}: {where}: property {show(name)} has one of value, ref and reflist, not {len(given)}"
            )
        value = self._value(given.get("value", given), where)
        setter = getattr(made, f"set_{name}", None)
        if callable(setter):
            self._call(setter, [value], where)
        elif hasattr(made, name):
            setattr(made, name, value)
        else:
            known_names = [
                attribute.removeprefix("set_") for attribute in (*vars(made), *dir(type(made)))
            ]
            near = get_close_matches(name, known_names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidConfigError(
                f"{self._path}: {where}: {type(made).__name__} has no property {show(name)}{hint}"
            )

    def _shell(self, kind: type, described: Mapping[str, Any], where: str) -> Any:
        """Make a component of another language: constructorArgs are its command and fields."""
        for key in ("properties", "factory", "factoryArgs", "constructorKwargs"):
            if key in described:
                raise InvalidConfigError(
                    f"{self._path}: {where}: a shell component has no {key}; it takes constructorArgs and configMethods"
                )
        arguments = self._values(described.get("constructorArgs"), where)
        outputs: dict[str, Any] = {"default": list(arguments[1])} if len(arguments) > 1 else {}
        settings: dict[str, Any] = {}
        for entry in _list(described, "configMethods", self._path):
            args = self._values(entry.get("args"), where)
            if entry["name"] == "setDefaultStream":
                outputs["default"] = list(args[0])
            elif entry["name"] == "setNamedStream":
                outputs[args[0]] = list(args[1])
            elif entry["name"] == "addComponentConfig":
                settings[args[0]] = args[1]
            else:
                raise InvalidConfigError(
                    f"{self._path}: {where}: a shell component has no method {entry['name']}"
                )
        return kind(arguments[0] if arguments else [], outputs, settings=settings)

    def _class(self, name: str, where: str) -> Any:
        if name in _STORMS:
            return _STORMS[name]
        if name.startswith(("org.apache.", "java.", "com.")):
            raise InvalidConfigError(
                f"{self._path}: {where}: {name} is a Java class and no JVM runs components here; "
                "name a Python class as package.module.Class"
            )
        module, _, attribute = name.replace(":", ".").rpartition(".")
        if not module:
            raise InvalidConfigError(
                f"{self._path}: {where}: className '{name}' has no module; write package.module.Class"
            )
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise InvalidConfigError(
                f"{self._path}: {where}: module '{module}' was not found: {error}"
            ) from error
        except AttributeError as error:
            raise InvalidConfigError(
                f"{self._path}: {where}: module '{module}' has no '{attribute}'"
            ) from error

    def _call(
        self,
        what: Any,
        arguments: Sequence[Any],
        where: str,
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return what(*arguments, **(named or {}))
        except SparkStormError:
            raise
        except Exception as error:  # a user's class may raise anything
            name = getattr(what, "__qualname__", repr(what))
            raise InvalidConfigError(
                f"{self._path}: {where}: {name} raised {type(error).__name__}: {error}"
            ) from error

    def _values(self, arguments: Any, where: str) -> list[Any]:
        if arguments is not None and not isinstance(arguments, list):
            raise InvalidConfigError(
                f"{self._path}: {where}: arguments are a list, not {show(arguments)}"
            )
        return [self._value(argument, where) for argument in arguments or []]

    def _mapped(self, named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(value, name) for name, value in named.items()}

    def _value(self, value: Any, where: str) -> Any:
        """Return a value with the objects that it refers to, at any depth."""
        if isinstance(value, list):
            return [self._value(item, where) for item in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"ref"}:
            return self._referred(value["ref"], where)
        if value.keys() == {"reflist"}:
            return [self._referred(id, where) for id in value["reflist"]]
        return {key: self._value(item, where) for key, item in value.items()}

    def _referred(self, id: Any, where: str) -> Any:
        if id not in self._objects:
            raise InvalidConfigError(
                f"{self._path}: {where}: ref '{id}' names no component before it"
            )
        return self._objects[id]


def _conf(described: Mapping[str, Any], instance: Any) -> dict[str, Any]:
    """Keys of the component: its loads, and a shell bolt's tick, by which a child that acks late is
    read.
    """
    settings = {
        key: described[name] for name, key in _LOADS.items() if described.get(name, -1) != -1
    }
    if isinstance(instance, ShellBolt):
        settings |= {
            TICK_KEY: 1,
            **{key: value for key, value in instance.settings.items() if key == TICK_KEY},
        }
    return settings
