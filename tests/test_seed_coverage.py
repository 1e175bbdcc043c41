"""Checks that docs/seed-coverage.md speaks of tests that exist and of each line once."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "seed-coverage.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    text_by_file = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", TABLE)
    assert named
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in text_by_file.get(file, "")]
    assert missing == []


def test_every_line_stands_once() -> None:
    lines = Counter(re.findall(r"^\| (S\d\.\d+) ", TABLE, re.MULTILINE))
    assert [line for line, times in lines.items() if times > 1] == []
