"""Names as file names: one path component, never hidden, never too long, and different names never
meet in one file.
"""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.model.names import MAX_FILE_NAME_BYTES, file_name

ODD = [
    "",
    ".",
    "..",
    "...",
    "a/b",
    "/",
    "//",
    "../../etc",
    "-rf",
    ".hidden",
    "a-b",
    "a%2Fb",
    "%2F",
    "$<>()#",
    "café",
    "a b",
    "~",
    "a\nb",
    "a\x00b",
    "x" * 150,
    "/" * 150,
    "x" * 150 + "y",
    "\ud800",
]


@pytest.mark.parametrize("name", ["count", "word-count_2.1", "a.b", "_x", "a", "wc-1-1700000000"])
def test_a_plain_name_is_its_own_file_name(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize("name", ODD)
def test_any_name_becomes_one_visible_file_of_bounded_length(name: str) -> None:
    made = file_name(name)
    assert made and made not in (".", "..") and made[0] not in ".-"
    assert PurePosixPath("/folder", made).parent == PurePosixPath("/folder")
    assert len(made.encode()) <= MAX_FILE_NAME_BYTES and made.isascii() and made.isprintable()


def test_no_two_odd_names_share_a_file() -> None:
    assert [(a, b) for a, b in itertools.combinations(ODD, 2) if file_name(a) == file_name(b)] == []


@given(st.text(max_size=400), st.text(max_size=400))
def test_different_names_never_share_a_file(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)
