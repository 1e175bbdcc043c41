"""The picture of a cluster: supervisors as rows, their slots as boxes, executors as squares, as
SVG. PURE.

A square is an executor, its colour the component, a number in it its tasks when it has several; a
dark ring marks that it moved since the scene before. Supervisors that are gone stay in the picture,
grey, with what they had.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.names import counted
from sparkstorm.control_plane.scheduling.records import SupervisorView, TopologyView
from sparkstorm.extensions.laboratory import Scene, former_slots
from sparkstorm.notebook.svg import FAINT, INK, LINE, LOST, PALETTE, PAPER, Svg, cut, document, text

_SYSTEM = "#9a9a9a"
_DOT = {"RUNNING": "#2e9e5b", "FAILED": "#c62828"}
_WAITS = "#e0a100"

_LABEL = 168  # width of a supervisor's label
_BOX = 150  # width of a slot
_GAP = 10
_SQUARE = 17
_STEP = 20
_PER_LINE = 7
_HEAD = 22  # height of a slot's heading
_MOST_SQUARES = 42
_MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class _Slot:
    """One box: the topology in the slot, and its executors."""

    port: int
    topology: str = ""
    state: str = ""
    squares: tuple[tuple[ExecutorId, str, bool], ...] = ()  # executor, component, whether it moved


@dataclass(frozen=True, slots=True)
class _Row:
    """One supervisor."""

    node: str
    host: str
    slots: tuple[_Slot, ...]
    is_lost: bool = False

    @property
    def height(self) -> int:
        """Room for the fullest slot."""
        most = max((min(len(slot.squares), _MOST_SQUARES) for slot in self.slots), default=0)
        lines = -(-most // _PER_LINE)
        return _HEAD + 14 + max(1, lines) * _STEP

    @property
    def num_used(self) -> int:
        """Slots in use."""
        return sum(bool(slot.topology) for slot in self.slots)


@dataclass(frozen=True, slots=True)
class _Legend:
    """Colours by (topology, component)."""

    color_by_component: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, topologies: Iterable[TopologyView]) -> "_Legend":
        colors: dict[tuple[str, str], str] = {}
        turn = 0
        for topology in topologies:
            for part in topology.components:
                if part.executors:
                    colors[topology.name, part.id] = (
                        _SYSTEM if part.is_system else PALETTE[turn % len(PALETTE)]
                    )
                    turn += not part.is_system
        return cls(colors)


def slot_map(
    scene: Scene,
    before: Scene | None = None,
    states: Mapping[WorkerSlot, str] | None = None,
    title: str = "",
) -> Svg:
    """Draw a scene; `before` marks moved executors and lost supervisors, `states` are the words of
    the heartbeats.
    """
    rows = _rows(scene, before, states or {})
    legend = _Legend.of(scene.topologies)
    shown = rows[:_MOST_ROWS]
    width = _LABEL + max((len(row.slots) for row in shown), default=1) * (_BOX + _GAP) + 2 * _GAP
    width = max(width, 620)
    y = 38 if title else 14
    drawn: list[str] = [text(_GAP + 4, 24, title, 15, INK, "600")] if title else []
    for row in shown:
        drawn.append(_draw_row(row, y, legend))
        y += row.height + _GAP
    if len(rows) > len(shown):
        drawn.append(
            text(
                _GAP + 4,
                y + 12,
                f"… and {counted(len(rows) - len(shown), 'supervisor')} more",
                12,
                FAINT,
            )
        )
        y += 24
    words = [
        slot.state
        for row in shown
        for slot in row.slots
        if slot.state and slot.topology and not row.is_lost
    ]
    keys, y = _draw_legend(legend, words, before is not None, y + 6, width)
    return Svg(document(width, y, [*drawn, keys], title or "slots of the cluster"), width, y)


def _rows(scene: Scene, before: Scene | None, states: Mapping[WorkerSlot, str]) -> list[_Row]:
    now = _squares(scene, before)
    then = _squares(before, None) if before else {}
    rows = {supervisor.id: _row(supervisor, now, states) for supervisor in scene.supervisors}
    for supervisor in before.supervisors if before else ():
        if supervisor.id not in rows:
            rows[supervisor.id] = _row(supervisor, then, {}, is_lost=True)
    for slot in now:
        if slot.node not in rows:  # still assigned to a supervisor that is gone
            ports = sorted(other.port for other in now if other.node == slot.node)
            rows[slot.node] = _row(
                SupervisorView(slot.node, "", tuple(ports)), now, states, is_lost=True
            )
    return [rows[node] for node in sorted(rows)]


def _row(
    supervisor: SupervisorView,
    squares: Mapping[WorkerSlot, tuple[str, list[tuple[ExecutorId, str, bool]]]],
    states: Mapping[WorkerSlot, str],
    is_lost: bool = False,
) -> _Row:
    slots = []
    for port in sorted(supervisor.ports):
        slot = WorkerSlot(supervisor.id, port)
        topology, held = squares.get(slot, ("", []))
        slots.append(_Slot(port, topology, states.get(slot, ""), tuple(held)))
    return _Row(supervisor.id, supervisor.host, tuple(slots), is_lost)


def _squares(
    scene: Scene, before: Scene | None
) -> dict[WorkerSlot, tuple[str, list[tuple[ExecutorId, str, bool]]]]:
    squares_by_slot: dict[WorkerSlot, tuple[str, list[tuple[ExecutorId, str, bool]]]] = {}
    for topology in scene.topologies:
        old = before.assignments.get(topology.id, {}) if before else {}
        for executor, slot in sorted(scene.assignments.get(topology.id, {}).items()):
            component = topology.component_by_executor.get(executor, "?")
            moved = before is not None and former_slots(executor, old) != {slot}
            squares_by_slot.setdefault(slot, (topology.name, []))[1].append(
                (executor, component, moved)
            )
    for _, squares in squares_by_slot.values():
        squares.sort(key=lambda square: (square[1], square[0]))
    return squares_by_slot


# -- drawing ---------------------------------------------------------------------------------------


def _draw_row(row: _Row, y: int, legend: _Legend) -> str:
    ink = FAINT if row.is_lost else INK
    used = "gone" if row.is_lost else f"{row.num_used} of {len(row.slots)} slots used"
    label = [
        text(_GAP + 4, y + 20, cut(row.node, 20), 13, ink, "600"),
        text(_GAP + 4, y + 37, cut(row.host, 24), 11, FAINT) if row.host != row.node else "",
        text(
            _GAP + 4,
            y + (53 if row.host != row.node else 37),
            used,
            11,
            "#c62828" if row.is_lost else FAINT,
        ),
    ]
    boxes = [
        _draw_slot(slot, _LABEL + index * (_BOX + _GAP), y, row.height, row.is_lost, legend)
        for index, slot in enumerate(row.slots)
    ]
    return "".join([*label, *boxes])


def _draw_slot(slot: _Slot, x: int, y: int, height: int, is_lost: bool, legend: _Legend) -> str:
    free = not slot.topology
    dash = ' stroke-dasharray="4 3"' if free or is_lost else ""
    fill = LOST if is_lost else PAPER
    parts = [
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"{dash}/>'
    ]
    heading = (
        f"{slot.port} · {cut(slot.topology, 14)}"
        if slot.topology
        else f"{slot.port}{'' if is_lost else ' · free'}"
    )
    parts.append(text(x + 8, y + 15, heading, 11, FAINT if free or is_lost else INK))
    if slot.state and not free:
        dot = _DOT.get(slot.state, _WAITS)
        parts.append(
            f'<circle cx="{x + _BOX - 12}" cy="{y + 11}" r="4" fill="{dot}"><title>{escape(slot.state)}</title></circle>'
        )
    shown = slot.squares[:_MOST_SQUARES]
    squares = [
        _draw_square(square, slot.topology, x, y, index, legend)
        for index, square in enumerate(shown)
    ]
    parts.append(f'<g opacity="0.35">{"".join(squares)}</g>' if is_lost else "".join(squares))
    if len(slot.squares) > len(shown):
        parts.append(
            text(x + _BOX - 46, y + height - 5, f"+{len(slot.squares) - len(shown):,}", 10, FAINT)
        )
    return "".join(parts)


def _draw_square(
    square: tuple[ExecutorId, str, bool], topology: str, x: int, y: int, index: int, legend: _Legend
) -> str:
    executor, component, moved = square
    left = x + 8 + index % _PER_LINE * _STEP
    top = y + _HEAD + 4 + index // _PER_LINE * _STEP
    ring = f' stroke="{INK}" stroke-width="2"' if moved else ""
    color = legend.color_by_component.get((topology, component), _SYSTEM)
    count = len(executor.tasks)
    number = (
        text(left + _SQUARE // 2, top + 12, str(count), 10, PAPER, "600", "middle")
        if count > 1
        else ""
    )
    tip = escape(f"{component} {executor}{' (moved)' if moved else ''}")
    box = f'<rect x="{left}" y="{top}" width="{_SQUARE}" height="{_SQUARE}" rx="3" fill="{color}"{ring}/>'
    return f"<g><title>{tip}</title>{box}{number}</g>"


def _draw_legend(
    legend: _Legend, states: Iterable[str], marks_moves: bool, y: int, width: int
) -> tuple[str, int]:
    topologies = {topology for topology, _ in legend.color_by_component}
    entries = [
        (_key_square(color), component if len(topologies) == 1 else f"{topology}: {component}")
        for (topology, component), color in legend.color_by_component.items()
    ]
    entries += [(_key_square(PAPER, INK), "moved")] if marks_moves else []
    entries += [
        (_key_dot(_DOT.get(state, _WAITS)), state.lower().replace("_", " "))
        for state in sorted(set(states))
    ]
    x = _GAP + 4
    parts = []
    for mark, words in entries:
        needed = 24 + 7 * len(words) + 14
        if x + needed > width - _GAP and x > _GAP + 4:
            x = _GAP + 4
            y = y + 22
        parts.append(f'<g transform="translate({x} {y})">{mark}{text(20, 11, words, 12, INK)}</g>')
        x += needed
    return "".join(parts), y + 28


def _key_square(color: str, ring: str = "") -> str:
    stroke = f' stroke="{ring}" stroke-width="2"' if ring else ""
    return f'<rect width="14" height="14" rx="3" fill="{color}"{stroke}/>'


def _key_dot(color: str) -> str:
    return f'<circle cx="9" cy="7" r="4" fill="{color}"/>'
