"""Each mutant still applies: its line is there once, what it makes is Python, and its tests
exist.
"""

from __future__ import annotations

import ast

import pytest

from tests.mutants.apply import ROOT, applied
from tests.mutants.table import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}-{mutant.new}"[:60])
def test_a_mutant_applies(mutant: Mutant) -> None:
    text = (ROOT / "sparkstorm" / mutant.file).read_text(encoding="utf-8")
    changed = applied(mutant, text)
    assert changed != text
    if mutant.file.endswith(".py"):
        ast.parse(changed)
    assert mutant.tests and all((ROOT / name).exists() for name in mutant.tests)


def test_a_line_that_is_gone_is_said() -> None:
    mutant = MUTANTS[0]._replace(old="no such line")
    sentence = r"has the line 'no such line' 0 times: bring tests/mutants/table.py up to date"
    with pytest.raises(LookupError, match=sentence):
        applied(mutant, "text\n")
