"""Declared types: Spark's words for what values can be, parsed without Spark; every mistake is one
sentence.
"""

from __future__ import annotations

import pytest

from sparkstorm.common.model.values.column_types import parse_columns, parse_type


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bigint", "bigint"),
        (" LONG ", "bigint"),
        ("Array<Map<string,real>>", "array<map<string,float>>"),
        (
            "struct<a:int, `b c` binary,`d``e`:array< short >>",
            "struct<a:int,b c:binary,d`e:array<smallint>>",
        ),
    ],
)
def test_types_are_read_in_sparks_words(text: str, meant: str) -> None:
    assert str(parse_type(text)) == meant


def test_columns_have_names_and_types() -> None:
    assert [
        (n, str(t)) for n, t in parse_columns("word string, n: bigint, `a.b` map<string,int>")
    ] == [
        ("word", "string"),
        ("n", "bigint"),
        ("a.b", "map<string,int>"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no text of a type"),
        ("number", "'number' is no type"),
        ("decimal(5,6)", "is no type"),
        ("interval", "is no type"),
        ("array", "lacks '<'"),
        ("array<int", "lacks '>'"),
        ("map<string>", "lacks ','"),
        ("int int", "goes on with 'int'"),
        ("map<array<int>,int>", "keys of a map are text"),
        ("struct<a:int,A:int>", "names 'a' twice"),
        ("`int`", "'int' is no type"),
        ("struct<:int>", "has ':' where a name was expected"),
        ("`int", "a backtick without its pair"),
        ("array<" * 20 + "int" + ">" * 20, "nests deeper than 16"),
    ],
)
def test_what_is_no_type_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_type(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("word", "ends where a type was expected"),
        ("a int,", "ends where a name was expected"),
        ("a int b int", "goes on with 'b'"),
        ("a int, A bigint", "names 'a' twice"),
    ],
)
def test_columns_that_are_none_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_columns(text)
