"""Parser of declared types of fields and states, written as in Spark's SQL: "bigint",
"map<string,array<double>>".

Only types whose values a tuple can carry: true/false, numbers, text, bytes, dates, timestamps,
lists, mappings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY = "any"
"""Type of a field that is declared without one: it is taken from the values."""
_NAMES = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
}
_DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),([0-9]{1,2})\)")
_TOKEN = re.compile(r"\s*(?:(decimal\([0-9]+, ?[0-9]+\))|`((?:[^`]|``)+)`|([<>,:])|([^\s<>,:`]+))")
_MOST_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type: its name, and names and types of its parts (array: element; map: key, value; struct:
    its fields).
    """

    name: str
    parts: tuple[tuple[str, ColumnType], ...] = ()

    def __str__(self) -> str:
        if not self.parts:
            return self.name
        is_struct = self.name == "struct"
        return f"{self.name}<{','.join(f'{name}:{kind}' if is_struct else str(kind) for name, kind in self.parts)}>"


def parse_type(text: str) -> ColumnType:
    """Return the type that a text declares; ValueError says in one sentence what is wrong.

    >>> str(parse_type("MAP<string, array<long>>"))
    'map<string,array<bigint>>'
    """
    reader = _Reader(text)
    kind = reader.type()
    reader.end()
    return kind


def parse_columns(text: str) -> list[tuple[str, ColumnType]]:
    """Return the names and types of "word string, n bigint"; ValueError says in one sentence what
    is wrong.
    """
    reader = _Reader(text)
    columns = reader.fields()
    reader.end()
    return columns


class _Reader:
    """Recursive-descent parser of one declaration."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{text!r:.60} is no text of a type")
        self._text = text
        self._tokens: list[tuple[str, bool]] = []  # with whether it is quoted
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"'{text[:60]}' has a backtick without its pair")
            decimal, quoted, mark, word = match.groups()
            word = word or (decimal and decimal.replace(" ", ""))
            self._tokens.append(
                (quoted.replace("``", "`"), True) if quoted is not None else (mark or word, False)
            )
            position = match.end()
        self._place = self._depth = 0

    def type(self) -> ColumnType:
        name, is_quoted = self._next("a type")
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ValueError(f"'{self._text[:60]}' nests deeper than {_MOST_DEPTH}")
        word = "" if is_quoted else name.lower()
        if word in ("array", "map", "struct"):
            made = ColumnType(word, self._parts(word))
        elif (match := _DECIMAL.fullmatch(word)) and int(match[2]) <= int(match[1]) <= 38:
            made = ColumnType(word)
        elif word in _NAMES:
            made = ColumnType(_NAMES[word])
        else:
            raise ValueError(
                f"'{name[:60]}' is no type that values can have; there are {', '.join(sorted(set(_NAMES.values())))}, "
                "decimal(p,s), array<...>, map<...,...> and struct<name:...>"
            )
        self._depth -= 1
        return made

    def fields(self) -> list[tuple[str, ColumnType]]:
        fields: list[tuple[str, ColumnType]] = []
        while True:
            name, is_quoted = self._next("a name")
            if not is_quoted and name in "<>,:":
                raise ValueError(f"'{self._text[:60]}' has '{name}' where a name was expected")
            self._take(":")
            fields.append((name, self.type()))
            if not self._take(","):
                break
        folded = [name.lower() for name, _ in fields]
        twice = next((name for name, _ in fields if folded.count(name.lower()) > 1), None)
        if twice is not None:
            raise ValueError(
                f"'{self._text[:60]}' names '{twice}' twice (Spark does not tell upper from lower case)"
            )
        return fields

    def end(self) -> None:
        if self._place < len(self._tokens):
            raise ValueError(
                f"'{self._text[:60]}' goes on with '{self._tokens[self._place][0][:40]}' where it should end"
            )

    def _parts(self, word: str) -> tuple[tuple[str, ColumnType], ...]:
        self._expect("<")
        if word == "array":
            parts: tuple[tuple[str, ColumnType], ...] = (("element", self.type()),)
        elif word == "map":
            key = self.type()
            self._expect(",")
            parts = (("key", key), ("value", self.type()))
            if key.parts:
                raise ValueError(
                    f"'{self._text[:60]}': keys of a map are text, bytes, numbers or true/false, not {key}"
                )
        else:
            parts = tuple(self.fields())
        self._expect(">")
        return parts

    def _next(self, what: str) -> tuple[str, bool]:
        if self._place == len(self._tokens):
            raise ValueError(f"'{self._text[:60]}' ends where {what} was expected")
        self._place += 1
        return self._tokens[self._place - 1]

    def _take(self, mark: str) -> bool:
        is_next = self._place < len(self._tokens) and self._tokens[self._place] == (mark, False)
        self._place += is_next
        return is_next

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise ValueError(f"'{self._text[:60]}' lacks '{mark}'")
