"""Screen of `sparkstorm top`, drawn with Textual: sentences and tables over the read model, and the
keys of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Key
from textual.widgets import DataTable, Static

from sparkstorm.cli.common import clock_time
from sparkstorm.common.errors import NotAliveError
from sparkstorm.common.model.names import shown
from sparkstorm.control_plane.insight.records import (
    WINDOWS_S,
    ClusterReport,
    CountWindow,
    HostView,
    TopologyReport,
    WorkerView,
)
from sparkstorm.control_plane.insight.sampler import ReadModel

_EVERY_S = 1.0  # the sampler's own period; half would show most samples twice
# the first is what health calls slow
_HIGH = 0.8
_MIDDLE = 0.5
_NUMBER = re.compile(r"-|[0-9][0-9,.]*")
_STYLES = {
    "RUNNING": "green",
    "ACTIVE": "green",
    "DEAD": "red",
    "FAILED": "red",
    "no heartbeat": "red",
}


KEYS = (
    ("enter", "open the topology"),
    ("g c", "the cluster"),
    ("space", "pause, and go on"),
    ("[ ]", "shorter and longer window"),
    ("tab", "the other table"),
    ("?", "all keys"),
    ("q", "quit"),
)
"""Keys with what they do; those that the page has do the same there."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: titles, and rows by a key that stays. Shares of load are floats of 0 to 1,
    everything else is text.
    """

    titles: tuple[str, ...]
    rows: dict[str, tuple[str | float, ...]]


class Top(App[None]):
    """Screen over a read model; `sample` reads the stores once, in a thread, every second. Without
    it another caller samples.

    A window of rates is one of `WINDOWS_S`. Names, errors and problems are shown as text: nothing
    in them is markup.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #sentence { text-style: bold; }
    #note, #keys { color: $warning; }
    #parts { height: 2fr; }
    #others { height: 1fr; }
    Static { padding: 0 1; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "pause", "pause"),
        ("left_square_bracket", "window(-1)", "shorter window"),
        ("right_square_bracket", "window(1)", "longer window"),
        ("question_mark", "keys", "keys"),
        ("escape", "close", "close"),
        ("q", "quit", "quit"),
    ]

    def __init__(
        self, model: ReadModel, name: str | None = None, sample: Callable[[], object] | None = None
    ) -> None:
        super().__init__()
        self._model = model
        self._name = name
        self._sample = sample
        self._window = "1m"
        self._is_paused = False
        self._has_keys = False
        self._before = ""
        self._is_looking = False

    def compose(self) -> ComposeResult:
        """Make the parts of the screen, from the top down."""
        yield Static(id="sentence", markup=False)
        yield Static(id="note", markup=False)
        yield Static(id="windows", markup=False)
        yield DataTable(id="parts", cursor_type="row", zebra_stripes=True, fixed_columns=1)
        yield DataTable(id="others", cursor_type="row", zebra_stripes=True, fixed_columns=1)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Show what was read, and begin to read again and again."""
        self.show()
        self.query_one("#parts", DataTable).focus()
        if self._sample is not None:
            self.set_interval(_EVERY_S, self._look)

    def _look(self) -> None:
        """Read the stores in a thread, one reading at a time; while it is paused nothing is
        read.
        """
        if not self._is_paused and not self._is_looking:
            self._is_looking = True
            self.run_worker(self._read, thread=True)

    def _read(self) -> None:
        try:
            if self._sample is not None:
                self._sample()
        finally:
            self.call_from_thread(self._take)

    def _take(self) -> None:
        self._is_looking = False
        if not self._is_paused:
            self.show()

    # -- keys --------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Go to the cluster at `g c`, as on the page."""
        if self._before == "g" and event.key in ("c", "t"):
            self._go(None)
        self._before = event.key

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the topology under the cursor."""
        if self._name is None and event.data_table.id == "parts":
            self._go(event.row_key.value)

    def action_pause(self) -> None:
        """Keep what is shown, or go on."""
        self._is_paused = not self._is_paused
        self.show()

    def action_window(self, step: int) -> None:
        """Take the next shorter or longer window."""
        names = [*WINDOWS_S]
        self._window = names[min(max(names.index(self._window) + step, 0), len(names) - 1)]
        self.show()

    def action_keys(self) -> None:
        """Show or hide all keys."""
        self._has_keys = not self._has_keys
        self.show()

    def action_close(self) -> None:
        """Hide the keys."""
        self._has_keys = False
        self.show()

    def _go(self, name: str | None) -> None:
        self._name = name
        for table in self.query(DataTable):
            table.clear(columns=True)
        self.query_one("#parts", DataTable).focus()
        self.show()

    # -- showing -----------------------------------------------------------------------------------

    def show(self) -> None:
        """Show the last records of the cluster, or of one topology."""
        report = self._model.cluster()
        notes = (
            [f"paused at {clock_time(report.time_ms)}; space goes on"] if self._is_paused else []
        )
        if report.stale_since_ms is not None:
            notes.append(
                f"no news from the cluster since {clock_time(report.stale_since_ms)}: {report.stale_reason}"
            )
        if self._name is None:
            self._show_cluster(report, notes)
        else:
            self._show_topology(self._name, notes)
        words = "  ".join(
            f"[{window}]" if window == self._window else f" {window} " for window in WINDOWS_S
        )
        self._say("windows", f"window {words}")
        self._say(
            "keys",
            "\n".join(f"{key:7}{what}" for key, what in KEYS)
            if self._has_keys
            else "? keys  q quit",
        )

    def _show_cluster(self, report: ClusterReport, notes: list[str]) -> None:
        notes += [
            f"problem ({about}): {sentence}"
            for about, sentences in report.problems.items()
            for sentence in sentences
        ]
        self._say("sentence", report.sentence)
        self._say("note", "\n".join(notes))
        self._fill(
            "parts",
            topology_rows(
                [self._model.topology(topology_id) for topology_id in report.topologies],
                self._window,
            ),
        )
        self._fill("others", host_rows(report))

    def _show_topology(self, name: str, notes: list[str]) -> None:
        try:
            view = self._model.topology(name)
        except NotAliveError as gone:
            self._say("sentence", f"{gone}; g c shows the cluster")
            self._say("note", "\n".join(notes))
            return
        notes += [f"counts cannot be read: {view.problem}"] if view.problem else []
        notes += [f"problem: {problem}" for problem in view.problems]
        status = "" if view.status == "ACTIVE" else f" ({view.status})"
        self._say("sentence", f"{view.sentence}{status}")
        self._say("note", "\n".join(notes))
        self._fill("parts", component_rows(view, self._window))
        self._fill("others", worker_rows(view))

    def _say(self, part: str, text: str) -> None:
        self.query_one(f"#{part}", Static).update("\n".join(map(shown, text.split("\n"))))

    def _fill(self, part: str, content: Rows) -> None:
        """Write a table in place of its last content; equal rows are changed where they are, so
        that nothing flickers.
        """
        table: DataTable[Any] = self.query_one(f"#{part}", DataTable)
        rows = {key: [*map(_cell, row)] for key, row in content.rows.items()}
        if [str(column.label) for column in table.ordered_columns] != [*content.titles]:
            table.clear(columns=True)
            for n, title in enumerate(content.titles):
                is_right = bool(rows) and all(row[n].justify == "right" for row in rows.values())
                table.add_column(Text(title, justify="right" if is_right else None), key=title)
        if [row.key.value for row in table.ordered_rows] == [*rows]:
            for key, row in rows.items():
                for title, cell in zip(content.titles, row, strict=True):
                    if table.get_cell(key, title) != cell:
                        table.update_cell(key, title, cell, update_width=True)
            return
        cursor_row = table.cursor_row
        table.clear()
        for key, row in rows.items():
            table.add_row(*row, key=key)
        table.move_cursor(row=min(cursor_row, max(0, len(rows) - 1)))


def _cell(value: str | float) -> Text:
    """Return a cell: load as a share in the colour of its height, a state in its own; numbers are
    aligned right.
    """
    if isinstance(value, float):
        return Text(
            f"{value:.0%}",
            "red" if value >= _HIGH else "yellow" if value >= _MIDDLE else "green",
            justify="right",
        )
    return Text(
        value, _STYLES.get(value, ""), justify="right" if _NUMBER.fullmatch(value) else None
    )


def topology_rows(topologies: Sequence[TopologyReport], window: str) -> Rows:
    """Return a row for each topology of a cluster."""
    titles = (
        "topology",
        "status",
        "executed/s",
        "acked/s",
        "p99 ms",
        "load",
        "workers",
        "pending",
        "dead letters",
    )
    return Rows(
        titles,
        {
            topology.name: _topology_row(topology, topology.windows[window])
            for topology in topologies
        },
    )


def _topology_row(topology: TopologyReport, window: CountWindow) -> tuple[str | float, ...]:
    wanted = "" if topology.workers_wanted is None else f" of {topology.workers_wanted}"
    return (
        shown(topology.name),
        topology.status,
        _number(window.executed_per_s),
        _number(window.acked_per_s),
        _number(window.complete.p99_ms),
        _share(window.busy),
        f"{topology.workers_given}{wanted}",
        f"{topology.pending:,}",
        _number(topology.dead_letters),
    )


def component_rows(view: TopologyReport, window: str) -> Rows:
    """Return a row for each component of a topology, those of the system left out."""
    titles = (
        "component",
        "tasks",
        "emitted/s",
        "executed/s",
        "load",
        "held back",
        "execute ms",
        "failed",
        "queued",
        "fault",
    )
    rows: dict[str, tuple[str | float, ...]] = {}
    for name, component in view.components.items():
        if name.startswith("__"):
            continue
        of = component.windows[window]
        cause, held = max(of.paused.items(), key=lambda pair: pair[1], default=("", 0.0))
        rows[name] = (
            shown(name),
            f"{len(component.tasks)}",
            _number(of.emitted_per_s),
            _number(of.executed_per_s),
            _share(of.busy),
            f"{held:.0%} {cause}" if held else "-",
            "-" if of.execute_ms is None else f"{of.execute_ms:.3f}",
            f"{of.counts.failed + of.counts.retried:,}",
            _number(component.queued),
            shown(", ".join(component.faults)) or "-",
        )
    return Rows(titles, rows)


def worker_rows(view: TopologyReport) -> Rows:
    """Return a row for each worker of a topology."""
    titles = ("worker", "state", "loop", "MiB", "CPU %", "commits/s", "tasks")
    return Rows(titles, {slot: _worker_row(worker) for slot, worker in view.workers.items()})


def _worker_row(worker: WorkerView) -> tuple[str | float, ...]:
    loop = (
        sum(worker.loop.get(name, 0.0) for name in ("busy", "commit", "read"))
        if worker.loop
        else None
    )
    tasks = ", ".join(
        f"{name} {count}" for name, count in worker.tasks.items() if not name.startswith("__")
    )
    figures = (
        _number(worker.memory_mb),
        _number(worker.cpu_percent),
        _number(worker.commits_per_s),
    )
    return (worker.slot, worker.state, _share(loop), *figures, shown(tasks) or "-")


def host_rows(report: ClusterReport) -> Rows:
    """Return a row for each host of a cluster."""
    return Rows(
        ("host", "slots", "used", "health"),
        {name: _host_row(host) for name, host in report.hosts.items()},
    )


def _host_row(host: HostView) -> tuple[str | float, ...]:
    wrong = [host.mark or "", "blacklisted" if host.is_blacklisted else "", host.store_problem]
    return (
        shown(host.host),
        f"{len(host.slots)}",
        f"{host.slots_used}",
        shown(", ".join(filter(None, wrong))) or "ok",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str | float:
    return "-" if value is None else value
