"""Flame graph of a worker's stacks: boxes for the page, and an SVG without scripts. PURE.

A box is a call and everything that it called; its width is the share of samples that found it, its
colour the share of a core that its thread used meanwhile, on the page's scale of load. The worker's
loop is always drawn: it runs the user's code, which may wait. Other threads that used no CPU are
named and not drawn: they would take most of the width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol

from sparkstorm.common.model.names import shown
from sparkstorm.notebook.svg import FAINT, INK, Svg, cut, document, text

LOOP = "MainThread"
"""Thread of a worker's loop."""
WIDTH = 1200
ROW = 18
_MARGIN = 12
_HEAD = 46
_LETTER = 6.4  # width of a letter of size 11, about
LEAST = 0.0008  # share of the width: below it a box is thinner than a pixel
_STEPS = (0.15, 0.40, 0.70, 0.90)
LOADS = ("#d9e2ec", "#a6cee3", "#5aa0c8", "#f0b429", "#d64545")
"""Colours of the page's scale of load, for light paper."""


class StackLike(Protocol):
    """One stack, as `client.stacks.Stack`."""

    @property
    def thread(self) -> str: ...
    @property
    def calls(self) -> tuple[str, ...]: ...
    @property
    def samples(self) -> int: ...
    @property
    def cpu_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Box:
    """One call: its place and width as shares of the drawing's width, its depth, and its
    figures.
    """

    name: str
    x: float
    width: float
    depth: int
    samples: int
    cpu_ms: float
    load: int  # step of the scale: 0 to 4


@dataclass(slots=True)
class _FlameNode:
    samples: int = 0
    cpu_us: int = 0
    inner: dict[str, _FlameNode] = field(default_factory=dict)

    def add(self, stack: StackLike, names: Sequence[str]) -> None:
        node = self
        for name in names:
            node = node.inner.setdefault(name, _FlameNode())
            node.samples += stack.samples
            node.cpu_us += stack.cpu_us


def boxes(stacks: Iterable[StackLike], samples: int, seconds: float) -> tuple[list[Box], list[str]]:
    """Return the boxes, a thread's row first, and the names of threads that waited all the time.

    `samples` were taken of every thread over `seconds`. Where the system has no CPU time, every
    thread is drawn.
    """
    root = _FlameNode()
    stack_list = list(stacks)
    for stack in stack_list:
        root.add(stack, (stack.thread, *stack.calls))
    has_times = any(node.cpu_us for node in root.inner.values())
    busy = {
        name: node
        for name, node in root.inner.items()
        if node.cpu_us or name == LOOP or not has_times
    }
    idle = sorted(map(shown, root.inner.keys() - busy.keys()))
    total = sum(node.samples for node in busy.values())
    if not total:
        return [], idle
    made: list[Box] = []
    per_sample_us = 1e6 * seconds / samples if samples else 0.0
    _lay(made, busy, 0.0, 0, 1.0 / total, per_sample_us)
    return made, idle


def _lay(
    made: list[Box],
    inner: dict[str, _FlameNode],
    x: float,
    depth: int,
    share: float,
    per_sample_us: float,
) -> None:
    # By CPU time, then by name: what works is at the left, and equal pictures are equal.
    for name, node in sorted(
        inner.items(), key=lambda item: (-item[1].cpu_us, -item[1].samples, item[0])
    ):
        width = node.samples * share
        if width >= LEAST:
            made.append(
                Box(
                    shown(name),
                    x,
                    width,
                    depth,
                    node.samples,
                    node.cpu_us / 1000,
                    _step(node, per_sample_us),
                )
            )
            _lay(made, node.inner, x, depth + 1, share, per_sample_us)
        x += width


def _step(node: _FlameNode, per_sample_us: float) -> int:
    load = node.cpu_us / (node.samples * per_sample_us) if node.samples and per_sample_us else 0.0
    return sum(load >= step for step in _STEPS)


def flame_graph(stacks: Iterable[StackLike], samples: int, seconds: float, title: str) -> Svg:
    """Return the drawing, with the figures of each box as its title."""
    drawn, idle = boxes(stacks, samples, seconds)
    title = shown(title)
    depth = max((box.depth for box in drawn), default=-1) + 1
    height = _HEAD + depth * ROW + 26
    parts = [
        text(_MARGIN, 20, title, 14, INK, "600"),
        text(
            _MARGIN,
            38,
            f"{samples:,} samples in {seconds:g} s; width: samples, colour: use of a core",
            11,
            FAINT,
        ),
    ]
    parts += [_drawn(box, samples) for box in drawn]
    words = (
        f"waited all the time: {', '.join(idle)}"
        if idle
        else ""
        if drawn
        else "no sample was taken"
    )
    parts.append(text(_MARGIN, height - 9, cut(words, 180), 11, FAINT))
    return Svg(document(WIDTH, height, parts, title), WIDTH, height)


def _drawn(box: Box, samples: int) -> str:
    inside = WIDTH - 2 * _MARGIN
    x = _MARGIN + box.x * inside
    width = box.width * inside
    y = _HEAD + box.depth * ROW
    most = int((width - 6) / _LETTER)
    words = (
        f'<text x="{x + 3:.1f}" y="{y + 12.5}" font-size="11" fill="{INK}">{escape(cut(box.name, most))}</text>'
        if most > 2
        else ""
    )
    return (
        f'<g><title>{escape(figures(box, samples))}</title><rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 0.6):.1f}" '
        f'height="{ROW - 1}" rx="2" fill="{LOADS[box.load]}"/>{words}</g>'
    )


def figures(box: Box, samples: int) -> str:
    """Return a box's name and figures in a line."""
    share = f"{box.samples / samples:.0%} of the time" if samples else "-"
    return f"{box.name}: {share}, {box.samples:,} samples, {box.cpu_ms:,.0f} ms of CPU"
