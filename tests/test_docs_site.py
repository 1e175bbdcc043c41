"""The documentation as a site: its pages, and the check of its links. `make docs` builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_site import SETTINGS, faults, linked_files, pages, with_lists_apart


def test_the_table_of_contents_has_pages_that_exist_and_every_page_of_docs() -> None:
    named = re.findall(r"^ +- .*: (\S+\.md)$", SETTINGS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == len(set(named)) and set(named) <= set(pages())
    folder = {page for page in pages() if re.fullmatch(r"docs/[\w-]+\.md", page)}
    assert folder - set(named) == set()


def test_pages_take_their_pictures_and_sources_with_them() -> None:
    assert Path("examples/iot.svg") in set(linked_files("examples/README.md"))
    assert Path("examples/iot.py") in set(linked_files("examples/README.md"))
    assert all(path.suffix != ".md" for path in linked_files("README.md"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("words\n- one\n- two\n", "words\n\n- one\n- two\n"),
        ("words\n1. one\n2. two\n", "words\n\n1. one\n2. two\n"),
        ("- one\n  more\n- two\n", "- one\n  more\n- two\n"),
        ("words\n\n* one\n", "words\n\n* one\n"),
        ("```yaml\nkey:\n- one\n```\n", "```yaml\nkey:\n- one\n```\n"),
        ("words\n-1 is less\n", "words\n-1 is less\n"),
    ],
)
def test_lists_stand_apart_from_paragraphs(text: str, wanted: str) -> None:
    assert with_lists_apart(text) == wanted


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="other.html#part">x</a>', []),
        ('<a href="other.html">x</a><a href="#here">x</a><p id="here">', []),
        ('<a href="https://example.org/none">x</a><a href="mailto:a@b">x</a>', []),
        ('<a href="none.html">x</a>', ["page.html: none.html: no such file"]),
        ('<a href="other.html#no">x</a>', ["page.html: other.html#no: no such part of that page"]),
        ('<a href="#no">x</a>', ["page.html: #no: no such part of that page"]),
        ('<img src="none.svg">', ["page.html: none.svg: no such file"]),
        (
            '<script src="https://example.org/a.js"></script>',
            ["page.html: loads https://example.org/a.js"],
        ),
    ],
)
def test_links_that_lead_nowhere_and_what_is_loaded_from_elsewhere_are_found(
    html: str, said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "other.html").write_text('<h2 id="part">Part</h2>')
    assert faults(tmp_path) == said
