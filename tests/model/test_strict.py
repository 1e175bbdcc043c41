"""Strict reading by type hints: defaults, names in JSON, bounds, and the path in every error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.strict import (
    UnfitValueError,
    named_errors,
    one_of,
    path_text,
    read_as,
    reader_of,
    whole,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    name: str
    port: Annotated[int, whole(0, 9)] = 1
    colour: Colour = Colour.RED
    kind: Annotated[str, one_of(("big", "small"))] = "big"

    def __post_init__(self) -> None:
        if self.name == "none":
            raise UnfitValueError("is reserved", "name")


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    source: str = field(default="here", metadata={"key": "from"})
    limits: Mapping[str, float] = field(default_factory=dict)
    by_number: Mapping[int, bool] = field(default_factory=dict)
    note: str | None = None


def test_defaults_fill_what_is_absent_and_metadata_names_the_field() -> None:
    assert read_as(Whole, {"parts": [{"name": "a"}]}) == Whole((Part("a"),))
    assert read_as(
        Whole,
        {"parts": [], "from": "x", "limits": {"cpu": 1}, "by_number": {"7": True}, "note": None},
    ) == Whole((), "x", {"cpu": 1.0}, {7: True})
    assert (
        read_as(Whole, {"parts": [{"name": "a", "colour": "blue"}]}).parts[0].colour is Colour.BLUE
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "root: expected an object, got 7"),
        ({}, "parts: missing"),
        ({"parts": [], "source": "x"}, "root: unknown field 'source'"),
        ({"parts": {}}, "parts: expected a list, got {}"),
        ({"parts": [{"name": "a"}, {"name": 1}]}, "parts[1].name: expected a text, got 1"),
        (
            {"parts": [{"name": "a", "port": 10}]},
            "parts[0].port: expected an integer from 0 to 9, got 10",
        ),
        (
            {"parts": [{"name": "a", "port": True}]},
            "parts[0].port: expected an integer from 0 to 9, got True",
        ),
        (
            {"parts": [{"name": "a", "colour": ["red"]}]},
            "parts[0].colour: expected one of red, blue, got ['red']",
        ),
        (
            {"parts": [{"name": "a", "kind": "odd"}]},
            "parts[0].kind: expected one of big, small, got 'odd'",
        ),
        ({"parts": [{"name": "none"}]}, "parts[0].name: is reserved"),
        ({"parts": [], "limits": {"cpu": "much"}}, "limits.cpu: expected a number, got 'much'"),
        (
            {"parts": [], "by_number": {"seven": True}},
            "by_number: expected an object keyed by whole numbers, got 'seven'",
        ),
        (
            {"parts": [], "by_number": {"7": True, "07": False}},
            "by_number: expected an object keyed by whole numbers, got '07'",
        ),
        (
            {"parts": [], "by_number": {"7" * 30: True}},
            f"by_number: expected an object keyed by whole numbers, got '{'7' * 30}'",
        ),
        ({"parts": [], "by_number": {"7": 1}}, "by_number.7: expected true or false, got 1"),
    ],
)
def test_an_error_names_the_path(value: Any, text: str) -> None:
    with pytest.raises(InvalidConfigError) as error, named_errors(InvalidConfigError, "root"):
        read_as(Whole, value)
    assert str(error.value) == text


def test_all_fields_may_be_demanded_in_spite_of_defaults() -> None:
    with pytest.raises(UnfitValueError, match="missing") as error:
        read_as(
            Whole,
            {"parts": [{"name": "a"}], "from": "", "limits": {}, "by_number": {}, "note": None},
            needs_all=True,
        )
    assert error.value.path == ["parts", 0, "port"]


def test_long_paths_are_cut() -> None:
    assert path_text(["a", 0, "b"]) == "a[0].b"
    assert len(path_text(["x" * 1000] * 10)) < 200


def test_a_hint_that_cannot_be_read_is_a_mistake_of_the_program() -> None:
    for hint in (complex, dict[str, int], tuple[int, str]):
        with pytest.raises(TypeError, match="no value can be read as"):
            reader_of(hint)
