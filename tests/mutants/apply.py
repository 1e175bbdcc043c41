"""Apply a mutant to the text of its file."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[2]


def applied(mutant: Mutant, text: str) -> str:
    """Return the text with the line changed; LookupError when the line is not there exactly
    once.
    """
    lines = text.splitlines(keepends=True)
    found = [at for at, line in enumerate(lines) if line.strip() == mutant.old]
    if len(found) != 1:
        raise LookupError(
            f"{mutant.file} has the line {mutant.old!r} {len(found)} times: bring tests/mutants/table.py up to date"
        )
    line = lines[found[0]]
    lines[found[0]] = line.replace(mutant.old, mutant.new)
    return "".join(lines)
