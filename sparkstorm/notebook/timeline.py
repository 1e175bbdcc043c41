"""Timeline of a cluster: a line per slot with the workers that it had, and a mark per version of an
assignment, as SVG. PURE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, Svg, cut, document, text

_LABEL = 130
_WIDTH = 620
_ROW = 22
_TOP = 64
_TICKS = 6
_RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True)
class Moment:
    """Record of one look at a cluster: milliseconds, topology and state of the worker by slot, the
    slots that were offered, and the version of each topology's assignment.
    """

    now_ms: int
    worker_by_slot: dict[WorkerSlot, tuple[str, str]]
    offered: frozenset[WorkerSlot]
    version_by_topology: dict[str, int]


def timeline(moments: list[Moment], title: str = "") -> Svg:
    """Draw moments in the order of time. A bar is a worker that runs, in the colour of its topology;
    pale, one that is assigned and does not run; no line, a slot that no supervisor offers.
    """
    slots = sorted(
        {slot for moment in moments for slot in moment.offered | {*moment.worker_by_slot}}
    )
    topologies = sorted({name for moment in moments for name in moment.version_by_topology})
    color = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(topologies)}
    start_ms = moments[0].now_ms if moments else 0
    span_ms = max(1, moments[-1].now_ms - start_ms) if moments else 1

    def x_at(now_ms: int) -> float:
        return _LABEL + _WIDTH * (now_ms - start_ms) / span_ms

    height = _TOP + _ROW * len(slots) + 34
    parts = [text(12, 24, title or "slots over time", 15, INK, "600")]
    for row, slot in enumerate(slots):
        parts += _row(_TOP + _ROW * row, slot, moments, color, x_at)
    bottom = _TOP + _ROW * len(slots)
    for before, moment in zip([None, *moments], moments, strict=False):
        for name, version in moment.version_by_topology.items():
            if before is None or before.version_by_topology.get(name) != version:
                x = x_at(moment.now_ms)
                words = f"{name}: version {version} of its assignment"
                parts.append(
                    f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="{INK}" '
                    f'stroke-dasharray="3 3"><title>{escape(words)}</title></line>'
                )
                parts.append(text(round(x), _TOP - 12, f"v{version}", 11, INK, anchor="middle"))
    for tick in range(_TICKS + 1):
        seconds = span_ms * tick / _TICKS / 1000
        x = _LABEL + _WIDTH * tick // _TICKS
        parts.append(text(x, bottom + 20, f"{seconds:.0f} s", 11, FAINT, anchor="middle"))
    width = _LABEL + _WIDTH + 30
    return Svg(document(width, height, parts, title or "slots over time"), width, height)


def _row(
    y: int,
    slot: WorkerSlot,
    moments: list[Moment],
    color: dict[str, str],
    x_at: Callable[[int], float],
) -> list[str]:
    """Draw a slot: a bar from each moment to the next one, joined while nothing changes."""
    parts = [text(12, y + 14, cut(str(slot), 18), 12, INK)]
    begun = 0
    for number in range(1, len(moments) + 1):
        is_last = number == len(moments)
        first = moments[begun]
        worker = first.worker_by_slot.get(slot)
        is_offered = slot in first.offered
        if not is_last:
            now = moments[number]
            if now.worker_by_slot.get(slot) == worker and (slot in now.offered) == is_offered:
                continue
        x = x_at(first.now_ms)
        end = x_at(moments[min(number, len(moments) - 1)].now_ms)
        if worker is not None:
            topology, state = worker
            words = f"{slot}: {topology}, {state or 'no heartbeat'}"
            opacity = 1 if state == _RUNNING else 0.3
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{max(1, end - x):.1f}" height="{_ROW - 6}" rx="3" '
                f'fill="{color.get(topology, FAINT)}" fill-opacity="{opacity}">'
                f"<title>{escape(words)}</title></rect>"
            )
        elif is_offered:
            middle = y + _ROW // 2 - 1
            parts.append(
                f'<line x1="{x:.1f}" y1="{middle}" x2="{end:.1f}" y2="{middle}" stroke="{LINE}"/>'
            )
        begun = number
    return parts
