"""Chart of rows in tumbling windows of event time, with the watermark at which each came, as SVG. PURE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, Svg, document, text

_LATE = "#d55e00"
_LEFT = 16
_WIDTH = 640
_TOP = 44
_ROW = 16
_LEGEND = 64


def window_chart(
    times_ms: Sequence[int],
    late: Collection[int],
    size_ms: int,
    lag_ms: int,
    labels: Sequence[str] = (),
    title: str = "",
) -> Svg:
    """Draw rows in the order in which they came, the first at the top: a dot at the row's time, a
    tick at the watermark before it.

    `times_ms`: event times, in milliseconds; `late`: the positions of late rows; `size_ms` and
    `lag_ms`: of the windows; `labels`: what a dot says under the pointer.
    """
    first = min(times_ms, default=0) // size_ms
    last = max(times_ms, default=0) // size_ms + 1
    span_ms = (last - first) * size_ms
    bottom = _TOP + _ROW * max(1, len(times_ms)) + 6

    def x_at(at_ms: float) -> float:
        inside = min(max(at_ms - first * size_ms, 0), span_ms)
        return _LEFT + _WIDTH * inside / span_ms

    parts = [text(12, 24, title or "windows", 15, INK, "600")]
    for number in range(first, last):
        x = x_at(number * size_ms)
        width = _WIDTH * size_ms / span_ms
        parts.append(
            f'<rect x="{x:.1f}" y="{_TOP - 8}" width="{width:.1f}" height="{bottom - _TOP + 8}" '
            f'fill="none" stroke="{LINE}"/>'
        )
        words = f"{number * size_ms / 1000:g} to {(number + 1) * size_ms / 1000:g} s"
        parts.append(text(round(x) + 4, bottom + 14, words, 11, FAINT))
    newest: int | None = None
    for row, at_ms in enumerate(times_ms):
        y = _TOP + _ROW * row + 6
        is_late = row in late
        label = labels[row] if row < len(labels) else f"{at_ms} ms"
        if newest is not None:
            parts.append(
                f'<rect x="{x_at(newest - lag_ms):.1f}" y="{y - 7}" width="2" height="14" fill="{FAINT}"/>'
            )
        parts.append(
            f'<circle cx="{x_at(at_ms):.1f}" cy="{y}" r="5" fill="{_LATE if is_late else PALETTE[0]}">'
            f"<title>{escape(label)}{', late' if is_late else ''}</title></circle>"
        )
        newest = at_ms if newest is None else max(newest, at_ms)
    y = bottom + 34
    for x, color, words in (
        (_LEFT, PALETTE[0], "in time"),
        (_LEFT + 90, _LATE, "late: its window has fired"),
    ):
        parts.append(f'<circle cx="{x + 5}" cy="{y - 4}" r="5" fill="{color}"/>')
        parts.append(text(x + 16, y, words, 11, INK))
    parts.append(f'<rect x="{_LEFT + 280}" y="{y - 11}" width="2" height="14" fill="{FAINT}"/>')
    parts.append(text(_LEFT + 288, y, "watermark before the row", 11, INK))
    width = _LEFT + _WIDTH + 16
    height = bottom + _LEGEND - 18
    return Svg(document(width, height, parts, title or "windows"), width, height)
