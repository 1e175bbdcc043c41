"""docs/maintaining/requirements-coverage.md compared with the requirements, the code and the tests:
every line once, every name real.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "maintaining"
TABLE = (PAGES / "requirements-coverage.md").read_text(encoding="utf-8")
CHECKLIST = re.findall(
    r"^- (S\d\.\d+) \S",
    (PAGES / "requirements.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
ROWS = re.findall(r"^\| (S\d\.\d+) \| ([^|]*) \|([^|]*)\|([^|]*)\|([^|]*)\|$", TABLE, re.MULTILINE)
LINES_BY_SEED = {"S0": 106, "S1": 19, "S2": 43, "S3": 68, "S4": 31}
VERDICTS = ("shown", "mapped", "partly", "not yet")


@pytest.mark.parametrize(
    "document", ["maintaining/requirements-coverage.md", "maintaining/connector-tests.md"]
)
def test_every_named_test_exists(document: str) -> None:
    text_by_file: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):  # several folders may have a file of one name
        text_by_file[path.name] = text_by_file.get(path.name, "") + path.read_text(encoding="utf-8")
    named = re.findall(
        r"(test_\w+\.py)::(test_\w+)", (ROOT / "docs" / document).read_text(encoding="utf-8")
    )
    assert named
    missing = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in text_by_file.get(file, "")
    ]
    assert missing == []


def test_the_checklist_has_every_line_of_the_seeds() -> None:
    result = [f"{seed}.{n}" for seed, count in LINES_BY_SEED.items() for n in range(1, count + 1)]
    assert result == CHECKLIST


def test_every_line_of_the_checklist_has_one_row() -> None:
    assert sorted(line for line, *_ in ROWS) == sorted(CHECKLIST)
    assert len(re.findall(r"^\| S\d", TABLE, re.MULTILINE)) == len(ROWS), (
        "a row has not five columns"
    )


def test_every_row_says_what_its_verdict_needs() -> None:
    """Return what is shown or mapped has a place and a test; what is not as in the seed has a
    note.
    """
    unfit = []
    for line, verdict, where, test, note in ROWS:
        has_evidence = bool(where.strip()) and "::" in test
        is_told = verdict == "shown" or bool(note.strip())
        if (
            verdict not in VERDICTS
            or not is_told
            or (verdict in ("shown", "mapped") and not has_evidence)
        ):
            unfit.append((line, verdict))
    assert unfit == []


def test_the_verdicts_are_counted() -> None:
    told = {
        verdict: int(count)
        for verdict, count in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", TABLE, re.MULTILINE)
    }
    assert told == Counter(verdict for _, verdict, *_ in ROWS)
    assert f"all {len(CHECKLIST)} lines" in TABLE


def test_every_named_place_exists() -> None:
    missing = []
    for line, _, where, *_ in ROWS:
        for file, names in re.findall(r"([\w/]+\.py)((?:,? ?`[^`]+`)*)", where):
            path = ROOT / "sparkstorm" / file
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            parts = [part for name in re.findall(r"`([^`]+)`", names) for part in name.split(".")]
            matches = [
                bool(re.search(rf"\b(def|class) {part}\b|^\s*{part}\b", text, re.MULTILINE))
                for part in parts
            ]
            if not text or not all(matches):
                missing.append(f"{line}: {file}{names}")
    assert missing == []


def test_every_defect_has_its_row() -> None:
    rows = re.findall(
        r"^\| ((?:\d+, )*\d+): [^|]*\|[^|]*\|[^|]*test_\w+\.py::", TABLE, re.MULTILINE
    )
    assert sorted(int(number) for row in rows for number in row.split(", ")) == list(range(1, 20))
