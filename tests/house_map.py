"""Map of the package as a picture: its parts by rank, and which parts need which.
`python -m tests.house_map` draws it anew.

A line leads from a part to one that it imports. Only lines that no way over other parts implies are
drawn: of app, client and model one sees app - client and client - model, and not app - model. It
has no figures that change with every commit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, document, text
from tests.test_layers import (
    LAST_PURE_RANK,
    RANK_BY_PART,
    ROOT,
    own_imports,
    part_of,
    path_by_module,
)

PICTURE = ROOT / "docs" / "house.svg"
_WIDTH, _ROW, _TOP, _LEFT = 1180, 72, 46, 46
_BOX, _GAP = 30, 16
_TEXT = 780
_LETTER = 8


def needs() -> dict[str, set[str]]:
    """Return the parts that each part imports, whether at the top or inside functions."""
    found: dict[str, set[str]] = {part: set() for part in RANK_BY_PART}
    for path in path_by_module().values():
        part = part_of(path)
        if part in found:
            others = {name.split(".")[1] for name in own_imports(path) if "." in name}
            found[part] |= {each for each in others if each in found and each != part}
    return found


def without_shortcuts(needed: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the same without what follows from others: imports lead to lower ranks, so there are
    no circles.
    """
    below: dict[str, set[str]] = {}
    for part in sorted(needed, key=RANK_BY_PART.__getitem__):
        below[part] = needed[part].union(*(below[each] for each in needed[part] if each in below))
    return {
        part: {each for each in others if not any(each in below[via] for via in others)}
        for part, others in needed.items()
    }


def purposes() -> dict[int, str]:
    """Return what the architecture says of each rank."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    rows = (re.fullmatch(r"(\d+) +\S.*? {3,}(\S.*)", line) for line in lines)
    return {int(row[1]): row[2] for row in rows if row}


def places(lines: dict[str, set[str]]) -> dict[str, tuple[int, int, int]]:
    """Return left, top and width of each part's box; in a row parts stand near those that they
    need.
    """
    by_rank: dict[int, list[str]] = defaultdict(list)
    for part, rank in RANK_BY_PART.items():
        by_rank[rank].append(part)
    highest = max(by_rank)
    found: dict[str, tuple[int, int, int]] = {}
    for rank in sorted(by_rank):
        middles = {
            part: _middle([found[each] for each in lines[part] if each in found])
            for part in by_rank[rank]
        }
        x = _LEFT
        for part in sorted(by_rank[rank], key=lambda each: (middles[each], each)):
            width = _LETTER * len(part) + 24
            found[part] = x, _TOP + (highest - rank) * _ROW, width
            x += width + _GAP
    return found


def _middle(boxes: list[tuple[int, int, int]]) -> float:
    return sum(x + width / 2 for x, _, width in boxes) / max(1, len(boxes))


def draw() -> str:
    """Return the picture, the same for the same imports."""
    lines = without_shortcuts(needs())
    at = places(lines)
    highest = max(RANK_BY_PART.values())
    parts = [
        text(
            _LEFT,
            26,
            "SparkStorm: parts by rank. A line leads to a part that is needed below.",
            15,
            INK,
            "600",
        )
    ]
    for rank, purpose in sorted(purposes().items()):
        y = _TOP + (highest - rank) * _ROW
        parts.append(text(16, y + 20, str(rank), 12, FAINT, "600"))
        parts += [
            text(_TEXT, y + 14 + 15 * n, line, 11, FAINT)
            for n, line in enumerate(_wrapped(purpose, 62))
        ]
    for part in sorted(lines):
        x, y, width = at[part]
        for other in sorted(
            each for each in lines[part] if RANK_BY_PART[each] < RANK_BY_PART[part]
        ):
            to_x, to_y, to_width = at[other]
            begin, end = (x + width // 2, y + _BOX), (to_x + to_width // 2, to_y)
            bend = (begin[1] + end[1]) // 2
            path = f"M{begin[0]},{begin[1]} C{begin[0]},{bend} {end[0]},{bend} {end[0]},{end[1]}"
            parts.append(f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.2"/>')
    for part in sorted(at):
        x, y, width = at[part]
        color = PALETTE[2] if RANK_BY_PART[part] <= LAST_PURE_RANK else PALETTE[0]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{_BOX}" rx="5" fill="#ffffff" stroke="{color}"/>'
        )
        parts.append(text(x + width // 2, y + 20, part, 13, INK, anchor="middle"))
    bottom = _TOP + (highest + 1) * _ROW
    legend = f"green: pure, ranks 0 to {LAST_PURE_RANK}: no clock, no chance, no network"
    parts.append(text(_LEFT, bottom, legend, 12, FAINT))
    return (
        document(_WIDTH, bottom + 20, parts, "Parts of SparkStorm by rank, and which need which")
        + "\n"
    )


def _wrapped(words: str, most: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


if __name__ == "__main__":
    Path(PICTURE).write_text(draw(), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)} is drawn")
