"""Configuration: the keys (defaults.yaml), the reading and checking of files and overrides, the
frozen result.

Keys are Storm's wherever Storm has one; precedence as in Storm: defaults, file, overrides, a
component's own settings.
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from sparkstorm.common.errors import InvalidConfigError

Value: TypeAlias = Any  # None, bool, int, float, str, and lists and string-keyed dicts of these

OWN_PREFIX = "app."  # keys of the user's own; SparkStorm neither reads nor checks them
_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 32
_HIDDEN = "********"
_MS_PER_UNIT = {"ms": 1, "s": 1000}
_WORD_BY_TYPE = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a map",
}
_ACCEPTED_BY_TYPE: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "list": (list,),
    "map": (dict,),
    "any": (bool, int, float, str, list, dict),
}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Key:
    """Entry of one key in defaults.yaml."""

    name: str
    scope: str  # "cluster" or "topology"
    default: Value
    type: str
    doc: str
    unit: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # texts that are values as well, for any type
    secret: bool = False
    # where the default is null or empty; elsewhere the default is one
    example: Value = None

    def text(self) -> str:
        """Return the key with its values, default and effect, in three lines; where the default is
        null or empty, a fourth with an example.
        """
        bounds = [f"at least {self.min:g}"] if self.min is not None else []
        bounds += [f"at most {self.max:g}"] if self.max is not None else []
        values = ", ".join(self.choices) if self.choices else ", ".join([self._expected(), *bounds])
        default = _in_a_line(self.default)
        secrecy = ", kept secret" if self.secret else ""
        scope = "each topology" if self.scope == "topology" else "the cluster"
        text = f"{self.name}: {self.doc}\n    values: {values}\n    default: {default}; set for {scope}{secrecy}"
        if self.example is None:
            return text
        return f"{text}\n    example: {_in_a_line({self.name: self.example})[1:-1]}"

    @property
    def is_time(self) -> bool:
        """Return whether the values are lengths of time."""
        return self.unit in _MS_PER_UNIT

    def problem(self, value: Value, in_range: bool = True) -> str:
        """Return what is wrong with a value for this key, or nothing; without `in_range` any number
        of its type will do.
        """
        if value is None:
            return "" if self.default is None else f"expected {self._expected()}, got null"
        if isinstance(value, str) and value in self.words:
            return ""
        accepted = isinstance(value, _ACCEPTED_BY_TYPE[self.type])
        if not accepted or (isinstance(value, bool) and self.type in ("integer", "number")):
            return f"expected {self._expected()}, got {'a secret' if self.secret else _describe(value)}"
        if self.choices and value not in self.choices:
            return f"expected one of {', '.join(self.choices)}, got {value!r}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"expected a finite number, got {value}"
        return self._range_problem(value) if in_range and self.type in ("integer", "number") else ""

    def _expected(self) -> str:
        word = _WORD_BY_TYPE[_ACCEPTED_BY_TYPE[self.type][-1]] if self.type != "any" else "a value"
        return " or ".join([f"{word} ({self.unit})" if self.unit else word, *self.words])

    def _range_problem(self, value: float) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.min is not None and value < self.min:
            return f"must be at least {self.min:g}{unit}, got {value}"
        if self.max is not None and value > self.max:
            return f"must be at most {self.max:g}{unit}, got {value}"
        return ""


def _in_a_line(value: Value) -> str:
    """Return a value as YAML has it in one line."""
    if value is None:
        return "null"
    return str(yaml.safe_dump(value, default_flow_style=True, width=1_000)).split("\n")[0]


class Conf(Mapping[str, Value]):
    """A complete, checked configuration: a dict that cannot be changed; `as_dict` gives plain JSON.

    Lists and maps come out as copies, so nothing a component does to one reaches another component.
    """

    __slots__ = ("_containers", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values: dict[str, Value] = dict(values)
        # keys whose values must be copied, found at the first access
        self._containers: tuple[str, ...] | None = None

    def __getitem__(self, key: str) -> Value:
        try:
            value = self._values[key]
        except KeyError:
            raise KeyError(f"{key} is not in the configuration{_suggestion(key)}") from None
        return copy.deepcopy(value) if isinstance(value, (list, dict)) else value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        changed = {
            name: value
            for name, value in self.without_secrets().items()
            if value != _default_of(name)
        }
        return f"Conf({changed!r} over the defaults)"

    def __reduce__(self) -> tuple[type[Conf], tuple[dict[str, Value]]]:
        return Conf, (self._values,)

    def as_dict(self) -> dict[str, Value]:
        """A copy in plain values, fit for JSON and for the codec; secrets included."""
        if self._containers is None:
            self._containers = tuple(
                name for name, value in self._values.items() if isinstance(value, (list, dict))
            )
        # most values are scalars: one by one they would be most of a worker's start
        copied = dict(self._values)
        for name in self._containers:
            copied[name] = copy.deepcopy(copied[name])
        return copied

    def without_secrets(self) -> dict[str, Value]:
        """The same with every password hidden, for logs, pages and records that others may read."""
        return {
            name: _HIDDEN if name in secret_keys() and value is not None else value
            for name, value in self.as_dict().items()
        }

    def for_slots(self) -> dict[str, Value]:
        """Return the configuration without secrets: slots and workers get addresses and passwords
        apart from it.
        """
        return {
            name: None if name in secret_keys() else value for name, value in self.as_dict().items()
        }

    def for_clients(self) -> dict[str, Value]:
        """Return what differs from the defaults, without secrets and keys of the user's own."""
        shown = {
            name: value for name, value in self.as_dict().items() if not name.startswith(OWN_PREFIX)
        }
        return {
            name: value
            for name, value in shown.items()
            if name not in secret_keys() and value != _default_of(name)
        }

    def integer(self, name: str) -> int:
        """The value of an integer key; TypeError when it is null or no integer key."""
        value = self[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {_describe(value)}, not an integer")
        return value

    def text(self, name: str) -> str:
        """The value of a string key; TypeError when it is null or no string key."""
        value = self[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {_describe(value)}, not a string")
        return value

    def flag(self, name: str) -> bool:
        """The value of a boolean key; TypeError when it is null or no boolean key."""
        value = self[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {_describe(value)}, not a boolean")
        return value

    def millis(self, name: str) -> int:
        """The value of a time key in whole milliseconds, for any unit; TypeError when it is null or
        no time.
        """
        value = self[name]
        key = keys()[name]
        if not key.is_time or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {_describe(value)}, not a time")
        return milliseconds(key, value)


def milliseconds(key: Key, value: float) -> int:
    """Return the value of a time key in whole milliseconds; a time above zero is never less than
    one.
    """
    millis = round(value * _MS_PER_UNIT[key.unit])
    return max(millis, 1) if value > 0 else millis


@functools.cache
def keys() -> Mapping[str, Key]:
    """Every key there is, by name, in the order of defaults.yaml."""
    text = (
        resources.files("sparkstorm.common").joinpath("defaults.yaml").read_text(encoding="utf-8")
    )
    key_by_name = {}
    for scope, entries in yaml.load(text, _Loader).items():
        for name, fields in entries.items():
            fields |= {field: tuple(fields.get(field, ())) for field in ("choices", "words")}
            key_by_name[name] = Key(name=name, scope=scope, **fields)
    return key_by_name


@functools.cache
def unsupported_keys() -> Mapping[str, str]:
    """Return keys of Storm, JStorm and earlier versions that are not supported, each with what to
    do instead.
    """
    text = (
        resources.files("sparkstorm.common")
        .joinpath("unsupported.yaml")
        .read_text(encoding="utf-8")
    )
    reason_by_key: dict[str, str] = yaml.load(text, _Loader)
    return reason_by_key


@functools.cache
def secret_keys() -> frozenset[str]:
    """Names of the keys whose values are passwords, or may hold one."""
    return frozenset(name for name, key in keys().items() if key.secret)


@functools.cache
def default_conf() -> Conf:
    """The configuration with every key at its default."""
    return Conf({name: key.default for name, key in keys().items()})


def merge(*layers: Mapping[str, Value]) -> Conf:
    """The defaults under the given layers, of which later ones win; raises InvalidConfigError as
    `check` does.
    """
    values = default_conf().as_dict()
    for layer in layers:
        values.update(layer.as_dict() if isinstance(layer, Conf) else check(layer, "the settings"))
    return Conf({name: value for name, value in values.items() if name not in unsupported_keys()})


def load_conf(path: str | Path) -> dict[str, Value]:
    """Read and check one YAML file of keys; defaults are not mixed in.

    Raises InvalidConfigError naming the file, and the line where there is one.
    """
    values, lines = read_yaml(path)
    return check(values, str(path), lines)


def read_yaml(path: str | Path) -> tuple[dict[str, Value], dict[str, int]]:
    """Return the mapping in a YAML file, and the line of each key; nothing is checked but that it
    is a plain mapping.

    Raises InvalidConfigError as `load_conf` does.
    """
    return parse_yaml(_read_text(Path(path)), path)


def compose_yaml(text: str, path: str | Path) -> Any:
    """Return the root node of a text, whose nodes know their lines; None when it is empty."""
    _refuse_hostile(text, str(path))
    try:
        return _Loader(text).get_single_node()
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidConfigError(f"{path} is not YAML: {_yaml_reason(error)}") from error


def parse_yaml(text: str, path: str | Path) -> tuple[dict[str, Value], dict[str, int]]:
    """Return the mapping in a text, and the line of each key; `path` is for errors, which are those
    of `read_yaml`.
    """
    node = compose_yaml(text, path)
    try:
        values = None if node is None else _Loader(text).construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidConfigError(f"{path} is not YAML: {_yaml_reason(error)}") from error
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise InvalidConfigError(f"{path}: expected lines of `key: value`, got {_describe(values)}")
    return values, _line_by_key(node, str(path))


def check(
    values: Mapping[str, Value], source: str, lines: Mapping[str, int] | None = None
) -> dict[str, Value]:
    """Return a copy of `values` when every key is known and every value fits.

    Raises InvalidConfigError naming `source` (and the line, where `lines` knows it), the key and
    the nearest known.
    """
    checked = {}
    for name, value in values.items():
        line = (lines or {}).get(str(name))
        where = source if line is None else f"{source}, line {line}"
        checked[name] = _check_one(name, value, where)
    return checked


def explain(pattern: str) -> list[str]:
    """Return a text for each key that `pattern` names, in the order of defaults.yaml; `*` and `?`
    are wildcards.

    Keys of Storm and JStorm that are not supported come with a replacement. InvalidConfigError when
    nothing has such a name, with the nearest key.
    """
    texts = [key.text() for key in keys().values() if fnmatch.fnmatchcase(key.name, pattern)]
    rest = unsupported_keys()
    texts += [
        f"{name}: not supported: {rest[name]}"
        for name in rest
        if fnmatch.fnmatchcase(name, pattern)
    ]
    if not texts:
        raise InvalidConfigError(f"no key is named {pattern}{_suggestion(pattern)}")
    return texts


def unsupported_among(names: Iterable[str]) -> list[str]:
    """Return a sentence for each of the names that is not supported, for a warning."""
    return [
        f"{name} is not supported: {unsupported_keys()[name]}"
        for name in names
        if name in unsupported_keys()
    ]


def parse_override(argument: str) -> tuple[str, Value]:
    """Key and checked value of a command line's `key=value`; the value is read as YAML, so `3` is a
    number.

    Raises InvalidConfigError quoting the argument.
    """
    name, equals, text = argument.partition("=")
    name = name.strip()
    if not equals or not name:
        shown = next(
            (f"{key}{_HIDDEN}" for key in secret_keys() if argument.startswith(key)), argument
        )
        raise InvalidConfigError(f"-c {shown}: expected key=value")
    key = keys().get(name)
    if key is not None and key.type == "string" and text not in ("", "~", "null"):
        # a name such as 007 or `no` stays what was typed
        return name, _check_one(name, text, f"-c {name}={_HIDDEN if key.secret else text}")
    # misspelled
    is_secret = key.secret if key else bool(difflib.get_close_matches(name, secret_keys(), 1, 0.7))
    source = f"-c {name}={_HIDDEN if is_secret else text}"
    _refuse_hostile(text, source)
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidConfigError(
            f"{source}: the value is not YAML: {_yaml_reason(error)}"
        ) from error
    return name, _check_one(name, value, source)


def _check_one(name: object, value: Value, where: str) -> Value:
    if not isinstance(name, str):
        raise InvalidConfigError(f"{where}: a key must be a string, got {_describe(name)}")
    value = _plain(value, f"{where}: {name}", 0)
    if name.startswith(OWN_PREFIX) or name in unsupported_keys():
        return value
    key = keys().get(name)
    if key is None:
        hint = _nested_hint(name, value) or _suggestion(name)
        raise InvalidConfigError(f"{where}: unknown key {name}{hint}")
    if problem := key.problem(value):
        raise InvalidConfigError(f"{where}: {name}: {problem}")
    return value


def _plain(value: Value, where: str, depth: int) -> Value:
    """A copy of the value in JSON's types; InvalidConfigError for anything else (a YAML date,
    say).
    """
    if depth > _MAX_DEPTH:
        raise InvalidConfigError(f"{where}: nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, depth + 1) for item in value]
    if isinstance(value, Mapping):
        if odd := [item for item in value if not isinstance(item, str)]:
            raise InvalidConfigError(
                f"{where}: keys of a map must be strings, got {_describe(odd[0])}"
            )
        return {item: _plain(inner, where, depth + 1) for item, inner in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidConfigError(
        f"{where}: {type(value).__name__} is no type of a configuration; quote it to make it a string"
    )


def _nested_hint(name: str, value: Value) -> str:
    if isinstance(value, dict) and any(key.startswith(f"{name}.") for key in keys()):
        inner = next(iter(value), "key")
        return f": keys are written whole, as in `{name}.{inner}: …`"
    return ""


def _suggestion(name: str) -> str:
    known_keys = keys()
    near = sorted(
        (key for key in known_keys if key.endswith(f".{name}")), key=len
    ) or difflib.get_close_matches(name, known_keys, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else f" (keys of your own begin with {OWN_PREFIX})"


def _default_of(name: str) -> Value:
    key = keys().get(name)
    return None if key is None else key.default


def _describe(value: object) -> str:
    word = _WORD_BY_TYPE.get(type(value), type(value).__name__)
    if value is None:
        return word
    shown = repr(value)
    return f"{word}, {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidConfigError(
            f"{path} is larger than {_MAX_FILE_BYTES} bytes: this is no configuration file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidConfigError(f"{path}, line {line}: not UTF-8 text") from error


def _refuse_hostile(text: str, source: str) -> None:
    """Refuse YAML with aliases (they multiply) or deep nesting, by its flat list of events, before
    objects are made of it.
    """
    depth = 0
    try:
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > _MAX_DEPTH:
                raise InvalidConfigError(f"{source}: nested deeper than {_MAX_DEPTH} levels")
            if isinstance(event, yaml.AliasEvent):
                raise InvalidConfigError(
                    f"{source}, line {event.start_mark.line + 1}: aliases (*name) are not accepted"
                )
    except yaml.YAMLError as error:
        raise InvalidConfigError(f"{source} is not YAML: {_yaml_reason(error)}") from error


def _yaml_reason(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return reason if mark is None else f"{reason} at line {mark.line + 1}, column {mark.column + 1}"


def _line_by_key(node: Any, source: str) -> dict[str, int]:
    """The line of each key; InvalidConfigError for one that is written twice, of which YAML would
    drop the first.
    """
    lines: dict[str, int] = {}
    for key_node, _ in node.value:
        name = str(key_node.value)
        line = key_node.start_mark.line + 1
        if name in lines:
            raise InvalidConfigError(
                f"{source}, line {line}: {name} is set a second time (first in line {lines[name]})"
            )
        lines[name] = line
    return lines
