"""Folders by value, as Hive and Spark lay them out: `day=2026-11-29/country=FR/`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.names import read_names
from sparkstorm.common.model.strict import near_name

DAY = "day"
NULL = "__HIVE_DEFAULT_PARTITION__"
_MOST_KNOWN = 10_000  # folders whose names are kept
_MOST_NAME_BYTES = 255  # of Linux's file systems
# Spark's ExternalCatalogUtils.escapePathName
_UNSAFE = {
    chr(code): f"%{code:02X}" for code in (*range(1, 0x20), *map(ord, "\"#%'*/:=?\\{[]^\x7f"))
}
_ESCAPES = str.maketrans(_UNSAFE)


class Layout:
    """Folders of rows: by the calendar day of the field `day_of` in a zone, then by the fields
    `partition_by`, which the files themselves leave out.
    """

    def __init__(self, partition_by: str | Sequence[str], day_of: str | None, zone: str) -> None:
        self.fields = read_names("FileSink", "partition_by", partition_by or ())
        self.day_of = day_of
        self._folders: dict[tuple[Any, ...], str] = {}
        if len(set(self.fields)) < len(self.fields):
            raise InvalidConfigError("FileSink: partition_by names a field twice")
        if day_of is not None and (day_of in self.fields or DAY in self.fields):
            raise InvalidConfigError(
                f"FileSink: day_of makes the folders day=...; partition_by has neither '{DAY}' nor '{day_of}' then"
            )
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise InvalidConfigError(
                f"FileSink: {zone!r:.40} is no time zone; write it as Europe/Berlin"
            ) from error

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the fields that make a folder."""
        return (*self.fields, *([] if self.day_of is None else [self.day_of]))

    @property
    def names(self) -> list[str]:
        """Return the names of a folder's parts, as they are written."""
        return [escaped(name) for name in (*([] if self.day_of is None else [DAY]), *self.fields)]

    def check(self, schema: Any) -> None:
        """Raise InvalidConfigError for a schema whose columns make no folders."""
        import pyarrow as pa

        for name in self.needs:
            if name not in schema.names:
                raise InvalidConfigError(
                    f"FileSink: folders are made by the field '{name}', which the schema lacks; it has "
                    f"{', '.join(schema.names)}{near_name(name, schema.names)}"
                )
        of_folders = (
            pa.types.is_string,
            pa.types.is_integer,
            pa.types.is_boolean,
            pa.types.is_date,
        )
        for name in self.fields:
            if not any(is_fit(schema.field(name).type) for is_fit in of_folders):
                raise InvalidConfigError(
                    f"FileSink: field '{name}' is {schema.field(name).type}; folders are named by texts, whole numbers, "
                    "booleans and dates"
                )
        if self.day_of is not None:
            kind = schema.field(self.day_of).type
            if not pa.types.is_integer(kind) and getattr(kind, "tz", None) is None:
                raise InvalidConfigError(
                    f"FileSink: day_of names '{self.day_of}', which is {kind}, no bigint of milliseconds and no timestamp"
                )
            if DAY in schema.names:
                raise InvalidConfigError(
                    f"FileSink: day_of makes the folders {DAY}=..., and the schema has a field '{DAY}'; rename it"
                )
        self.require_rest(schema.names)

    def require_rest(self, names: Sequence[str]) -> None:
        """Raise InvalidConfigError when the folders leave nothing to the files."""
        if not set(names) - set(self.fields):
            raise InvalidConfigError(
                "FileSink: partition_by names every field, so that the files have none; leave one out"
            )

    def places(self, fields: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the places among a row's fields of those that make folders, and of those that
        remain in the files.
        """
        rest = [place for place, name in enumerate(fields) if name not in self.fields]
        return [list(fields).index(name) for name in self.needs], rest

    def folder(self, values: Sequence[Any]) -> str:
        """Return the folder of the values of `needs`; ValueError for a value that names none."""
        day = "" if self.day_of is None else self._day(values[-1])
        named = values[: len(self.fields)]
        key = (day, *named, *map(type, named))  # 1, True and 1.0 are equal
        try:
            if (known := self._folders.get(key)) is not None:
                return known
        except TypeError:
            return self._named(day, named)  # a list or dict, which is refused
        if len(self._folders) >= _MOST_KNOWN:
            self._folders.clear()
        return self._folders.setdefault(key, self._named(day, named))

    def _named(self, day: str, values: Sequence[Any]) -> str:
        days = [] if self.day_of is None else [(DAY, day)]
        parts = [*days, *((n, _text(n, v)) for n, v in zip(self.fields, values, strict=True))]
        names = [f"{escaped(name)}={escaped(text) if text else NULL}" for name, text in parts]
        for name in names:
            if len(name.encode()) > _MOST_NAME_BYTES or "\0" in name:
                raise ValueError(
                    f"{name!r:.60} is no name of a folder: it has more than {_MOST_NAME_BYTES} bytes or a NUL"
                )
        return "/".join(names)

    def _day(self, value: Any) -> str:
        if value is None:
            return ""
        try:
            if isinstance(value, datetime) and value.tzinfo is not None:
                return value.astimezone(self._zone).date().isoformat()
            if type(value) is int:
                return datetime.fromtimestamp(value // 1000, self._zone).date().isoformat()
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(
                f"field '{self.day_of}' is {value}, in no day of the calendar"
            ) from error
        raise ValueError(
            f"field '{self.day_of}' is {value!r:.60}, no whole number of milliseconds and no time with a zone"
        )


def _text(name: str, value: Any) -> str:
    if value is None or type(value) is str:
        return value or ""
    if type(value) is bool:
        return str(value).lower()
    if type(value) is int or type(value) is date:
        return str(value)
    raise ValueError(
        f"field '{name}' is a {type(value).__name__}; folders are named by texts, whole numbers, booleans and dates"
    )


def escaped(text: str) -> str:
    """Return a text as part of a folder's name, as Spark writes it."""
    return text.translate(_ESCAPES)


def named_values(where: str, path: str, fields: Mapping[str, str], is_text: bool) -> dict[str, Any]:
    """Return the values of the fields that a file's folders name, by the types of the fields, in
    which a date is a text where the files are; InvalidConfigError for a name that is no value of
    its type.
    """
    readers = _READERS if is_text else {**_READERS, "date": date.fromisoformat}
    found: dict[str, Any] = {}
    for part in path.split("/")[:-1]:
        name, mark, text = part.partition("=")
        if mark and (name := unquote(name)) in fields:
            try:
                found[name] = None if text == NULL else readers[fields[name]](unquote(text))
            except (KeyError, ValueError) as error:
                raise InvalidConfigError(
                    f"{where}: the folder {part!r:.80} names no value of field '{name}', which is {fields[name]}"
                ) from error
    return found


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("any", "string", "date"), str),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": _boolean,
}


def filled(
    parse: Callable[[Any], tuple[Any, ...]], fields: Collection[str], named: Mapping[str, Any]
) -> Callable[[Any], tuple[Any, ...]]:
    """Return the parser of a record's fields that gives those that it lacks, or has as None, the
    values which the folders name. A record lacks all of `named` or none.
    """
    places = [(place, named[name]) for place, name in enumerate(fields) if name in named]
    if not places:
        return parse

    def values_of(record: Any) -> tuple[Any, ...]:
        values = list(parse(record))
        is_short = len(values) < len(fields)
        for place, value in places:
            if is_short:
                values.insert(place, value)
            elif values[place] is None:
                values[place] = value
        return tuple(values)

    return values_of
