"""Map of the package as a picture: the entries of `sparkstorm/` by layer, and which need which.
`python -m tests.house_map` draws it anew.

A line leads from an entry to one that it imports. Only lines that no way over other entries implies
are drawn: of cli, client and common one sees cli - client and client - common, and not cli -
common. It has no figures that change with every commit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, document, text
from tests.test_layers import CORE, ENTRIES, ROOT, own_imports, part_of, path_by_module

PICTURE = ROOT / "docs" / "house.svg"
_WIDTH, _ROW, _TOP, _LEFT = 1180, 72, 46, 46
_BOX, _GAP = 30, 16
_TEXT = 780
_LETTER = 8
LAYER_BY_ENTRY = {name: layer for layer, names in enumerate(ENTRIES) for name in names}


def needs() -> dict[str, set[str]]:
    """Return the entries below that each entry imports, whether at the top or inside functions."""
    needed: dict[str, set[str]] = {entry: set() for entry in LAYER_BY_ENTRY}
    for path in path_by_module().values():
        entry = part_of(path).split(".")[0]
        if entry in needed:
            others = {name.split(".")[1] for name in own_imports(path) if "." in name}
            needed[entry] |= {
                other
                for other in others & needed.keys()
                if LAYER_BY_ENTRY[other] < LAYER_BY_ENTRY[entry]
            }
    return needed


def without_shortcuts(needed: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the same without what follows from others: imports lead to lower layers, so there are
    no circles.
    """
    below: dict[str, set[str]] = {}
    for part in sorted(needed, key=LAYER_BY_ENTRY.__getitem__):
        below[part] = needed[part].union(
            *(below[lower] for lower in needed[part] if lower in below)
        )
    return {
        part: {other for other in others if not any(other in below[via] for via in others)}
        for part, others in needed.items()
    }


def purposes() -> dict[int, str]:
    """Return what the architecture says of each layer."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    rows = (re.fullmatch(r"(\d+) +\S.*? {3,}(\S.*)", line) for line in lines)
    return {int(row[1]): row[2] for row in rows if row}


def places(lines: dict[str, set[str]]) -> dict[str, tuple[int, int, int]]:
    """Return left, top and width of each part's box; in a row parts stand near those that they
    need.
    """
    by_layer: dict[int, list[str]] = defaultdict(list)
    for part, layer in LAYER_BY_ENTRY.items():
        by_layer[layer].append(part)
    highest = max(by_layer)
    place_by_part: dict[str, tuple[int, int, int]] = {}
    for layer in sorted(by_layer):
        middles = {
            part: _middle([place_by_part[other] for other in lines[part] if other in place_by_part])
            for part in by_layer[layer]
        }
        x = _LEFT
        for part in sorted(by_layer[layer], key=lambda part: (middles[part], part)):
            width = _LETTER * len(part) + 24
            place_by_part[part] = x, _TOP + (highest - layer) * _ROW, width
            x += width + _GAP
    return place_by_part


def _middle(boxes: list[tuple[int, int, int]]) -> float:
    return sum(x + width / 2 for x, _, width in boxes) / max(1, len(boxes))


def draw() -> str:
    """Return the picture, the same for the same imports."""
    lines = without_shortcuts(needs())
    place_by_part = places(lines)
    highest = max(LAYER_BY_ENTRY.values())
    parts = [
        text(
            _LEFT,
            26,
            "SparkStorm: entries by layer. A line leads to one that is needed below.",
            15,
            INK,
            "600",
        )
    ]
    for layer, purpose in sorted(purposes().items()):
        y = _TOP + (highest - layer) * _ROW
        parts.append(text(16, y + 20, str(layer), 12, FAINT, "600"))
        parts += [
            text(_TEXT, y + 14 + 15 * n, line, 11, FAINT)
            for n, line in enumerate(_wrapped(purpose, 62))
        ]
    for part in sorted(lines):
        x, y, width = place_by_part[part]
        for other in sorted(
            other for other in lines[part] if LAYER_BY_ENTRY[other] < LAYER_BY_ENTRY[part]
        ):
            to_x, to_y, to_width = place_by_part[other]
            begin, end = (x + width // 2, y + _BOX), (to_x + to_width // 2, to_y)
            bend = (begin[1] + end[1]) // 2
            path = f"M{begin[0]},{begin[1]} C{begin[0]},{bend} {end[0]},{bend} {end[0]},{end[1]}"
            parts.append(f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.2"/>')
    for part in sorted(place_by_part):
        x, y, width = place_by_part[part]
        color = PALETTE[2] if part in CORE else PALETTE[0]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{_BOX}" rx="5" fill="#ffffff" stroke="{color}"/>'
        )
        parts.append(text(x + width // 2, y + 20, part, 13, INK, anchor="middle"))
    bottom = _TOP + (highest + 1) * _ROW
    legend = "green: the core, which imports nothing else but what awaits a door"
    parts.append(text(_LEFT, bottom, legend, 12, FAINT))
    return (
        document(_WIDTH, bottom + 20, parts, "Entries of SparkStorm by layer, and which need which")
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
