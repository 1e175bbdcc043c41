"""Line plots as small SVG files: no library, so that they are made wherever the benchmarks run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, document, text

_WIDTH = 640
_HEIGHT = 320
_LEFT = 70
_RIGHT = 20
_TOP = 40
_BOTTOM = 50

Series = Mapping[str, Sequence[tuple[float, float]]]


def line_plot(series: Series, title: str, x_axis: str, is_log: bool = True) -> str:
    """Return a plot of series of (x, y) by name, y from 0; x is logarithmic where asked for."""
    xs = [x for points in series.values() for x, _ in points]
    top = _round_up(max(y for points in series.values() for _, y in points))
    low = min(xs)
    high = max(xs)
    is_log = is_log and low > 0 and high / low > 10

    def place(x: float, y: float) -> tuple[float, float]:
        share = (
            (math.log(x / low) / math.log(high / low) if is_log else (x - low) / (high - low))
            if high > low
            else 0.5
        )
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (
            _HEIGHT - _TOP - _BOTTOM
        )

    parts = [
        text(_LEFT, 22, title, 14, INK, "600"),
        text(_WIDTH - _RIGHT, _HEIGHT - 10, x_axis, 11, FAINT, anchor="end"),
    ]
    for step in range(5):
        y = place(low, top * step / 4)[1]
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_WIDTH - _RIGHT}" y2="{y:.0f}" stroke="{LINE}"/>'
        )
        parts.append(text(_LEFT - 6, round(y) + 4, _short(top * step / 4), 11, FAINT, anchor="end"))
    ticks = (
        sorted(set(xs)) if len(set(xs)) <= 10 else [low + (high - low) * i / 6 for i in range(7)]
    )
    parts += [
        text(round(place(x, 0)[0]), _HEIGHT - _BOTTOM + 16, _short(x), 11, FAINT, anchor="middle")
        for x in ticks
    ]
    for at, (name, points) in enumerate(series.items()):
        color = PALETTE[at % len(PALETTE)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(points) <= 40:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
                for x, y in (place(*point) for point in points)
            ]
        if len(series) > 1:
            parts.append(text(_LEFT + 8 + 130 * at, 36, name, 11, color))
    return document(_WIDTH, _HEIGHT, parts, title)


def _round_up(value: float) -> float:
    """The least of 1, 2, 4, 5, 8 times a power of ten that is not below a value."""
    power = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)


def _short(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {sign}"
    return f"{value:.3g}"
