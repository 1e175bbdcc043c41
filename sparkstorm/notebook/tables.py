"""Tables for notebooks: rows as plain HTML, without pandas. PURE."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sparkstorm.common.model.names import counted

_STYLE = "padding:2px 10px;text-align:{};border-bottom:1px solid #d9d9d9;white-space:nowrap"
# Of a sentence: one line of it would push the columns behind it out of sight.
_FOLDED_STYLE = _STYLE.replace("white-space:nowrap", "min-width:22em;white-space:normal")
_LONGEST_LINE = 40
_MOST_ROWS = 200


class Table:
    """Rows with the same columns; a notebook shows it as HTML, a terminal as text."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
        self.rows = [dict(row) for row in rows]
        self.title = title
        self.columns = list(dict.fromkeys(column for row in rows for column in row))

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """One column's values."""
        return [row.get(name) for row in self.rows]

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th style="{_STYLE.format("left")};color:#555">{escape(_words(name))}</th>'
            for name in self.columns
        )
        body = "".join(f"<tr>{self._cells(row)}</tr>" for row in self.rows[:_MOST_ROWS])
        title = f'<caption style="text-align:left;font-weight:600;padding:4px 0">{escape(self.title)}</caption>'
        return f'<table style="border-collapse:collapse">{title if self.title else ""}<tr>{head}</tr>{body}</table>{self._rest()}'

    def _cells(self, row: Mapping[str, Any]) -> str:
        cells = []
        for name in self.columns:
            value = row.get(name)
            side = (
                "right"
                if isinstance(value, (int, float)) and not isinstance(value, bool)
                else "left"
            )
            text = shown(value)
            style = (_FOLDED_STYLE if len(text) > _LONGEST_LINE else _STYLE).format(side)
            cells.append(f'<td style="{style}">{escape(text)}</td>')
        return "".join(cells)

    def _rest(self) -> str:
        hidden = len(self.rows) - _MOST_ROWS
        return f"<p>… and {counted(hidden, 'row')} more</p>" if hidden > 0 else ""

    def __repr__(self) -> str:
        lines = [[_words(name) for name in self.columns]]
        lines += [[shown(row.get(name)) for name in self.columns] for row in self.rows[:_MOST_ROWS]]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        text = "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        return f"{self.title}\n{text}" if self.title else text


def shown(value: object) -> str:
    """A value in a cell: nothing for None, plain figures for floats; whole numbers as they are, for
    many are names.

    A float has three significant digits, or all those before its point: 0.417, 12.5, 65,536.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _plain(value) if isinstance(value, float) else str(value)


def _plain(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    digits = 3 - (math.floor(math.log10(abs(value))) + 1) if value else 0
    text = f"{value:,.{min(max(digits, 0), 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _words(column: str) -> str:
    return column.replace("_", " ")
