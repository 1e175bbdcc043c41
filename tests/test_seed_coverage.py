"""Checks that docs/seed-coverage.md has every line once, and speaks of code and tests that exist."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "seed-coverage.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (S\d\.\d+) \|([^|]*)\|", TABLE, re.MULTILINE)
WANTED = {"S0": [*range(1, 4), *range(32, 107)], "S1": range(1, 20), "S3": [*range(37, 53), 58, 59], "S4": range(1, 32)}


def test_every_named_test_exists() -> None:
    text_by_file = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", TABLE)
    assert named
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in text_by_file.get(file, "")]
    assert missing == []


def test_every_line_stands_once() -> None:
    lines = Counter(line for line, _ in LINES)
    assert [line for line, times in lines.items() if times > 1] == []
    assert [f"{seed}.{n}" for seed, numbers in WANTED.items() for n in numbers if f"{seed}.{n}" not in lines] == []


def test_every_named_place_exists() -> None:
    missing = []
    for line, where in LINES:
        for file, names in re.findall(r"([\w/]+\.py)((?:,? ?`[^`]+`)*)", where):
            path = ROOT / "sparkstorm" / file
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            parts = [part for name in re.findall(r"`([^`]+)`", names) for part in name.split(".")]
            found = [bool(re.search(rf"\b(def|class) {part}\b|^\s*{part}\b", text, re.MULTILINE)) for part in parts]
            if not text or not all(found):
                missing.append(f"{line}: {file}{names}")
    assert missing == []


def test_every_defect_has_its_row() -> None:
    rows = re.findall(r"^\| ((?:\d+, )*\d+): [^|]*\|[^|]*\|[^|]*test_\w+\.py::", TABLE, re.MULTILINE)
    assert sorted(int(number) for row in rows for number in row.split(", ")) == list(range(1, 20))
