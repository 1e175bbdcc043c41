"""Pictures of a scene and of the difference between two, for the laboratory: supervisors by ports,
as SVG. PURE.

A scene's cells have the colours of their topologies. A difference's cells show what became of each
worker's executors.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot, grouped_by_slot
from sparkstorm.common.model.names import counted
from sparkstorm.control_plane.scheduling.records import Conf
from sparkstorm.extensions.laboratory import Scene
from sparkstorm.notebook.svg import FAINT, INK, LINE, LOST, PALETTE, PAPER, Svg, cut, document, text

_LABEL = 176  # width of a supervisor's label
_CELL = 84
_ROW = 34
_GAP = 6
_TOP = 44
_MOST_ROWS = 100
_MOST_PORTS = 24
_KINDS = {
    "kept": "#6f7a83",
    "moved here": "#c77700",
    "added": "#00785a",
    "moved away": "#7d5ba6",
    "removed": "#c62828",
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One slot: coloured parts from left to right with their weights, the words in it, and its
    tip.
    """

    parts: tuple[tuple[str, int], ...] = ()
    words: str = ""
    tip: str = ""
    is_dead: bool = False
    is_marked: bool = False


_Cells = dict[WorkerSlot, _Cell]


def scene_map(scene: Scene, title: str = "", marked: Container[WorkerSlot] = ()) -> Svg:
    """Draw a scene: a row per supervisor, a cell per port in its topology's colour, with its number
    of executors; `marked` ones have a thick frame.
    """
    colors = {
        topology.id: PALETTE[index % len(PALETTE)]
        for index, topology in enumerate(scene.topologies)
    }
    names = {topology.id: topology.name for topology in scene.topologies}
    cells: _Cells = {}
    for topology_id, slot, executors in _workers(scene):
        tip = f"{names.get(topology_id, topology_id)} on {slot}: {counted(len(executors), 'executor')}"
        color = colors.get(topology_id, FAINT)
        cells[slot] = _Cell(((color, 1),), str(len(executors)), tip, is_marked=slot in marked)
    legend = [(colors[topology.id], cut(topology.name, 40)) for topology in scene.topologies]
    return _drawn(scene, None, cells, legend, title or "slots of the scene, by topology")


def difference_map(before: Scene, after: Scene, title: str = "") -> Svg:
    """Draw what became of the executors between two scenes: each cell has a share for those kept,
    come, added and gone.

    Cells of supervisors that are gone stay, on grey rows. "removed" and "added" executors have no
    place in the other scene.
    """
    then = _places(before)
    now = _places(after)
    counts: dict[WorkerSlot, Counter[str]] = {}
    for executor in then.keys() | now.keys():
        for slot, kind in _changes(then.get(executor), now.get(executor)):
            counts.setdefault(slot, Counter())[kind] += 1
    cells = {slot: _changed(slot, shares) for slot, shares in counts.items()}
    return _drawn(
        after,
        before,
        cells,
        [(color, kind) for kind, color in _KINDS.items()],
        title or "difference of two scenes",
    )


def compare_maps(
    scene: Scene, schedulers: Sequence[str], conf: Conf | None = None, columns: int = 3
) -> Svg:
    """Draw a scene after one round of each scheduler, side by side; slots whose number of executors
    or topology differs from the first scheduler's answer have a thick frame.
    """
    answers = [scene.scheduled(name, conf) for name in schedulers]
    first = _held(answers[0])
    maps = [
        scene_map(
            answer, name, {slot for slot, held in _held(answer).items() if first.get(slot) != held}
        )
        for name, answer in zip(schedulers, answers, strict=True)
    ]
    width = max(drawing.width for drawing in maps)
    height = max(drawing.height for drawing in maps)
    parts = [
        f'<svg x="{index % columns * width}" y="{index // columns * height}" '
        f'width="{drawing.width}" height="{drawing.height}">{drawing.text}</svg>'
        for index, drawing in enumerate(maps)
    ]
    size = min(columns, len(maps)) * width, -(-len(maps) // columns) * height
    return Svg(document(*size, parts, "one round of each scheduler"), *size)


def _held(scene: Scene) -> dict[WorkerSlot, tuple[str, int]]:
    return {slot: (name, len(executors)) for name, slot, executors in _workers(scene)}


def _workers(scene: Scene) -> Iterable[tuple[str, WorkerSlot, list[ExecutorId]]]:
    for topology_id, placed in sorted(scene.assignments.items()):
        for slot, executors in grouped_by_slot(sorted(placed.items())).items():
            yield topology_id, slot, executors


def _places(scene: Scene) -> dict[tuple[str, ExecutorId], WorkerSlot]:
    return {
        (name, executor): slot
        for name, placed in scene.assignments.items()
        for executor, slot in placed.items()
    }


def _changes(was: WorkerSlot | None, now: WorkerSlot | None) -> list[tuple[WorkerSlot, str]]:
    if was is not None and now is not None:
        return [(now, "kept")] if was == now else [(was, "moved away"), (now, "moved here")]
    return [(now, "added")] if now is not None else [(was, "removed")] if was is not None else []


def _changed(slot: WorkerSlot, shares: Mapping[str, int]) -> _Cell:
    signs = {"kept": "", "moved here": "→", "added": "+", "moved away": "←", "removed": "−"}
    parts = tuple((_KINDS[kind], shares[kind]) for kind in _KINDS if kind in shares)
    words = " ".join(f"{signs[kind]}{shares[kind]}" for kind in _KINDS if kind in shares)
    return _Cell(
        parts,
        words,
        f"{slot}: " + ", ".join(f"{shares[kind]} {kind}" for kind in _KINDS if kind in shares),
    )


# -- drawing ---------------------------------------------------------------------------------------


def _drawn(
    scene: Scene, before: Scene | None, cells: _Cells, legend: list[tuple[str, str]], title: str
) -> Svg:
    rows = _rows(scene, before, cells)
    most = max((min(len(ports), _MOST_PORTS) for _, _, ports, _ in rows), default=1)
    width = max(_LABEL + most * (_CELL + _GAP) + 2 * _GAP, 520)
    parts = [text(12, 24, cut(title, width // 9), 15, INK, "600")]
    y = _TOP
    for node, words, ports, is_lost in rows[:_MOST_ROWS]:
        parts.append(_draw_row(node, words, ports, is_lost, cells, scene, y, width))
        y += _ROW + _GAP
    if len(rows) > _MOST_ROWS:
        parts.append(
            text(
                12, y + 12, f"… and {counted(len(rows) - _MOST_ROWS, 'supervisor')} more", 12, FAINT
            )
        )
        y += 24
    keys, y = _draw_legend([*legend, (PAPER, "free"), *_dead_key(scene)], y + 10, width)
    return Svg(document(width, y, [*parts, keys], title), width, y)


def _dead_key(scene: Scene) -> list[tuple[str, str]]:
    return [("dead", "dead port")] if any(scene.dead_ports.values()) else []


def _rows(
    scene: Scene, before: Scene | None, cells: _Cells
) -> list[tuple[str, str, tuple[int, ...], bool]]:
    """Node, label, ports and whether the supervisor is gone; slots in use that no supervisor offers
    have a cell too.
    """
    living = {supervisor.id: supervisor for supervisor in scene.supervisors}
    supervisor_by_id = {
        **{supervisor.id: supervisor for supervisor in (before.supervisors if before else ())},
        **living,
    }
    used: dict[str, set[int]] = {}
    for slot in cells:
        used.setdefault(slot.node, set()).add(slot.port)
    rows = []
    for node in sorted({*supervisor_by_id, *used}):
        supervisor = supervisor_by_id.get(node)
        ports = {*(supervisor.ports if supervisor else ()), *used.get(node, ())}
        words = supervisor.host if supervisor else "unknown host"
        words = (
            "gone"
            if node not in living
            else f"{words}, blacklisted"
            if words in scene.blacklisted_hosts
            else words
        )
        rows.append((node, words, tuple(sorted(ports)), node not in living))
    return rows


def _draw_row(
    node: str,
    words: str,
    ports: tuple[int, ...],
    is_lost: bool,
    cells: _Cells,
    scene: Scene,
    y: int,
    width: int,
) -> str:
    back = f'<rect x="6" y="{y - 3}" width="{width - 12}" height="{_ROW + 6}" rx="5" fill="{LOST if is_lost else PAPER}"/>'
    label = text(12, y + 14, cut(node, 22), 12, INK, "600") + text(
        12, y + 29, cut(words, 26), 11, FAINT
    )
    dead = scene.dead_ports.get(node, ())
    drawn = [
        _draw_cell(
            port,
            cells.get(WorkerSlot(node, port), _Cell(is_dead=port in dead)),
            _LABEL + index * (_CELL + _GAP),
            y,
        )
        for index, port in enumerate(ports[:_MOST_PORTS])
    ]
    more = len(ports) - _MOST_PORTS
    rest = (
        text(
            _LABEL + _MOST_PORTS * (_CELL + _GAP) - 4, y + 20, f"+{more:,}", 10, FAINT, "400", "end"
        )
        if more > 0
        else ""
    )
    return f"<g>{back}{label}{''.join(drawn)}{rest}</g>"


def _draw_cell(port: int, cell: _Cell, x: int, y: int) -> str:
    frame = f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_ROW}" rx="4" fill="{PAPER}" stroke="{LINE}"'
    shares = [f"{frame}{_DASHED if cell.is_dead else ''}/>"]
    total = sum(weight for _, weight in cell.parts)
    left = float(x)
    for color, weight in cell.parts:
        share = _CELL * weight / total
        shares.append(
            f'<rect x="{left:.1f}" y="{y}" width="{share:.1f}" height="{_ROW}" rx="3" fill="{color}"/>'
        )
        left += share
    if cell.is_marked:
        shares.append(
            f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_ROW}" rx="4" fill="none" stroke="{INK}" stroke-width="3"/>'
        )
    color = PAPER if cell.parts else FAINT
    words = "dead" if cell.is_dead else cell.words
    inner = text(x + 6, y + 13, str(port), 10, color) + text(
        x + _CELL - 6, y + 28, cut(words, 12), 12, color, "600", "end"
    )
    return f"<g><title>{escape(cell.tip or f'port {port}')}</title>{''.join(shares)}{inner}</g>"


_DASHED = ' stroke-dasharray="3 3"'


def _draw_legend(legend: Iterable[tuple[str, str]], y: int, width: int) -> tuple[str, int]:
    x = 12
    parts = []
    for color, words in legend:
        needed = 26 + 7 * len(words) + 14
        if x + needed > width - 6 and x > 12:
            x = 12
            y = y + 22
        style = (
            f'fill="{PAPER}" stroke="{LINE}"{_DASHED}'
            if color == "dead"
            else f'fill="{color}" stroke="{LINE}"'
        )
        parts.append(
            f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" {style}/>{text(x + 20, y + 11, words, 12, INK)}'
        )
        x += needed
    return "".join(parts), y + 28
