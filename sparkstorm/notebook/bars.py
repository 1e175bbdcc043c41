"""Bar charts of rows, as SVG. PURE."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.extensions.laboratory.arguments import check_known
from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, Svg, cut, document, text

_LABEL = 150
_BAR = 240
_ROW = 24
_NUMBER = 70


def bars(
    rows: Sequence[Mapping[str, Any]], label: str, values: Sequence[str], title: str = ""
) -> Svg:
    """Draw a bar chart per column in `values`, side by side, with a bar per row; a row without a
    number has a dash.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in (label, *values) if rows else ():
        check_known(name, names, "columns")
    panel = _BAR + _NUMBER
    width = _LABEL + len(values) * panel + 12
    height = 62 + len(rows) * _ROW
    parts = [text(12, 24, title or ", ".join(values), 15, INK, "600")]
    for index, row in enumerate(rows):
        parts.append(text(12, 74 + index * _ROW, cut(str(row.get(label)), 20), 12, INK))
    for column, name in enumerate(values):
        x = _LABEL + column * panel
        most = max((row[name] for row in rows if _is_number(row.get(name))), default=0)
        most = most if most > 0 else 1
        parts.append(text(x, 46, name.replace("_", " "), 12, FAINT, "600"))
        for index, row in enumerate(rows):
            value: Any = row.get(name)
            y = 60 + index * _ROW
            if not _is_number(value):
                parts.append(text(x, y + 14, "-", 12, FAINT))
                continue
            # A negative value has no length; divided first, since 240 times a float may be none.
            length = max(0, round(_BAR * (value / most)))
            parts.append(
                f'<rect x="{x}" y="{y}" width="{max(length, 1)}" height="{_ROW - 6}" rx="3" '
                f'fill="{PALETTE[column % len(PALETTE)]}" stroke="{LINE}"/>'
            )
            parts.append(text(x + length + 6, y + 14, f"{value:.3g}", 12, INK))
    return Svg(document(width, height, parts, title), width, height)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
