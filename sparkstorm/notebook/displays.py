"""IPython extension that shows values as HTML at the end of a cell:
`%load_ext sparkstorm.notebook.displays`.

Plain HTML and SVG without scripts, so that GitHub, VS Code and nbviewer show it too. A handle or a
cluster is read when it is shown: a handle twice, a second apart, for rates; shown again it has the
lines of the time since then. `live` shows one again and again in its place.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from weakref import WeakKeyDictionary

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureGroup
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.requests import RebalancePlan
from sparkstorm.common.model.topology import Topology
from sparkstorm.control_plane.insight.health import Health
from sparkstorm.control_plane.insight.records import ALL, ClusterReport, TopologyReport
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.extensions.laboratory import Scene
from sparkstorm.notebook.scene_map import scene_map
from sparkstorm.notebook.svg import PALETTE
from sparkstorm.notebook.tables import Table
from sparkstorm.notebook.topology_graph import (
    GraphLink,
    GraphNode,
    TopologyGraph,
    graph_of,
    picture,
    rows_of,
)

# IPython compiles each cell under such a name, which says nothing to a reader.
_CELL_FILE = re.compile(r"[^\s\"]*ipykernel_\d+[/\\]\d+\.py|\b\d{6,}\.py\b")

_RECENT = "1m"
_APART_S = 1.0  # between two readings of a handle: a second has ten commits and more
# of a line of rates
_WIDE = 120
_HIGH = 24
_TEXT = "font-family:system-ui,sans-serif;font-size:13px;margin:4px 0"
_samplers: WeakKeyDictionary[Any, Sampler] = WeakKeyDictionary()


def topology_html(topology: Topology) -> str:
    """Return the graph of a topology with a row for each component."""
    return graph_html(graph_of(topology, {}))


def graph_html(graph: TopologyGraph) -> str:
    """Return a graph's picture, with a row for each component."""
    names = ("component", "kind", "executors", "tasks", "inputs")
    return (
        picture(graph).text
        + Table([dict(zip(names, row, strict=True)) for row in rows_of(graph)])._repr_html_()
    )


def graph_of_view(view: TopologyReport) -> TopologyGraph:
    """Return the graph of a running topology, without the system's components."""
    names = [name for name in view.components if not name.startswith("__")]
    nodes = [
        GraphNode(component.id, component.kind, component.executors, len(component.tasks))
        for component in (view.components[name] for name in names)
    ]
    edges = [edge for edge in view.edges.values() if {edge.sender, edge.receiver} <= {*names}]
    links = [
        GraphLink(
            edge.sender,
            edge.stream,
            edge.receiver,
            f"by {', '.join(edge.fields)}" if edge.fields else edge.grouping,
        )
        for edge in edges
    ]
    graph = TopologyGraph(tuple(nodes), tuple(links))
    layers = graph.layout().layers
    return TopologyGraph(tuple(sorted(nodes, key=lambda node: layers[node.id])), graph.links)


def view_html(
    view: TopologyReport, series: Mapping[str, Sequence[float | None]] | None = None
) -> str:
    """Return a running topology: health, its graph coloured by load, a row for each component, and
    lines of rates.
    """
    busy = {name: component.windows[_RECENT].busy for name, component in view.components.items()}
    graph = graph_of_view(view)
    rows = []
    for node in graph.nodes:
        component = view.components[node.id]
        window = view.components[node.id].windows[_RECENT]
        rows.append(
            {
                "component": node.id,
                "emitted": component.counts.emitted,
                "executed": component.counts.executed,
                "failed": component.counts.failed + component.counts.retried,
                "executed/s": window.executed_per_s,
                "busy": None if window.busy is None else f"{window.busy:.0%}",
                "waits": component.queued,
            }
        )
    latency = (
        view.windows[_RECENT].complete
        if view.windows[_RECENT].complete.count
        else view.windows[ALL].complete
    )
    p99 = None if latency.p99_ms is None else f"p99 {latency.p99_ms:,.0f} ms"
    facts = [
        f"{view.name} is {view.status}",
        counted(view.workers_given, "worker"),
        f"{view.pending:,} trees open",
        p99,
    ]
    parts = [_line(view.sentence, view.is_well), _text(" · ".join(filter(None, facts)))]
    parts += [
        _line(problem, False)
        for problem in (*view.problems, *([view.problem] if view.problem else []))
    ]
    parts += [
        picture(graph, f"{view.name}: {view.sentence}", busy).text,
        Table(rows)._repr_html_(),
        _sparklines(series or {}),
    ]
    return "".join(parts)


def cluster_html(view: ClusterReport) -> str:
    """Return a cluster: its health, topologies and hosts."""
    topologies = [
        {
            "topology": topology.name,
            "status": topology.status,
            "health": topology.sentence,
            "workers": topology.workers,
            "executors": topology.executors,
            "tasks": topology.tasks,
            "trees open": topology.pending,
            "dead letters": topology.dead_letters,
        }
        for topology in view.topologies.values()
    ]
    hosts = [
        {
            "host": host.host,
            "slots": len(host.slots),
            "used": host.slots_used,
            "mark": host.mark,
            "problem": host.store_problem,
        }
        for host in view.hosts.values()
    ]
    problems = [
        _line(f"{about}: {sentence}", False)
        for about, sentences in view.problems.items()
        for sentence in sentences
    ]
    tables = [
        Table(rows, title)._repr_html_()
        for rows, title in ((topologies, "topologies"), (hosts, "hosts"))
        if rows
    ]
    return "".join([_line(view.sentence, view.is_well), *problems, *tables])


def handle_html(handle: Any) -> str:
    """Return a running topology of a handle, read now."""
    sampler = _samplers.get(handle)
    if sampler is None:
        sampler = _samplers[handle] = Sampler(handle.source())
        sampler.step()
        time.sleep(_APART_S)
    sampler.step()
    sampler.cluster()
    return view_html(
        sampler.topology(handle.topology_id), sampler.series(handle.topology_id, window=_RECENT)
    )


def client_html(cluster: Any) -> str:
    """Return a cluster of a client, or a simulated one, read now."""
    sampler = _samplers.get(cluster)
    if sampler is None:
        sampler = _samplers[cluster] = Sampler(cluster.source())
    sampler.step()
    return cluster_html(sampler.cluster())


def plan_html(plan: RebalancePlan) -> str:
    """Return what a rebalance would do: a row for each executor that moves, begins, ends or finds
    no slot.
    """
    movement = plan.movement
    workers = f"{len(set(plan.before.values()))} to {counted(plan.given_workers, 'worker')}"
    short = f" ({plan.wanted_workers} wanted: {plan.shortfall})" if plan.shortfall else ""
    stay = counted(len(movement.stayed), "executor stays", "executors stay")
    rows = [
        _move(str(executor), "moves" if before else "begins", before, after)
        for executor, before, after in movement.moved
    ]
    rows += [_move(str(executor), "ends", slot, None) for executor, slot in movement.dropped]
    rows += [
        _move(str(executor), "finds no slot", plan.before.get(executor), None)
        for executor in plan.unplaced
    ]
    head = _line(f"plan for {plan.topology_id}: {workers}{short}, {stay}", not plan.unplaced)
    return head + (Table(rows)._repr_html_() if rows else "")


def _move(executor: str, what: str, before: object, after: object) -> dict[str, Any]:
    return {"executor": executor, "what": what, "from": str(before or ""), "to": str(after or "")}


def failure_html(failure: Failure) -> str:
    """Return a failure: its sentence and where it happened, with the frames of user code below."""
    where = f"{failure.component}#{failure.task}" + (
        f" on {failure.place}" if failure.place else ""
    )
    frames = (
        f"<details><summary>traceback</summary>{_pre(failure.traceback)}</details>"
        if failure.traceback
        else ""
    )
    return _line(f"{failure.kind} in {where}", False) + _pre(failure.text) + frames


def group_html(group: FailureGroup) -> str:
    """Return the failures of one cause: how many, and the newest."""
    newest = failure_html(group.newest) if group.newest else ""
    return _text(f"{counted(group.count, 'time', 'times')}: {group.cause}") + newest


def letter_html(letter: DeadLetter) -> str:
    """Return a dead letter, as a capsule holds it: its input by field, and why it was given up."""
    source = f"{letter.source_component}#{letter.source_task}, stream {letter.stream}"
    head = _text(f"given up after {counted(letter.attempts, 'try', 'tries')}; from {source}")
    values = [
        {"field": name, "value": repr(value)[:200]}
        for name, value in zip(letter.fields, letter.values, strict=False)
    ]
    return failure_html(letter.failure) + head + Table(values)._repr_html_()


def replay_html(replay: Any) -> str:
    """Return the results of a replay by name with their columns; nothing runs for it."""
    ends = set(replay.sinks)
    rows = [
        {
            "result": name,
            "end of the graph": name in ends,
            "columns": ", ".join(replay.columns_known(name)) or "as they come",
        }
        for name in replay
    ]
    return Table(rows, "results of a replay")._repr_html_()


def scene_html(scene: Scene) -> str:
    """Return a schedule: slots by topology, and the scheduler's status of each topology."""
    names = {topology.id: topology.name for topology in scene.topologies}
    rows = [
        {"topology": names.get(topology_id, topology_id), "the scheduler says": why}
        for topology_id, why in scene.reason_by_topology.items()
    ]
    return scene_map(scene).text + (Table(rows)._repr_html_() if rows else "")


def health_html(health: Health) -> str:
    """Return the health of a topology, and what is at fault."""
    rows = [
        {"fault": str(culprit.fault), "component": culprit.component, "why": culprit.sentence}
        for culprit in health.culprits
    ]
    return _line(health.sentence, health.is_well) + (Table(rows)._repr_html_() if rows else "")


def _line(sentence: str, is_well: bool) -> str:
    """Return a sentence after a mark, whose shape means the same as its colour."""
    mark, color = ("●", PALETTE[2]) if is_well else ("▲", PALETTE[5])
    return f'<p style="{_TEXT}"><span style="color:{color}">{mark}</span> {escape(sentence)}</p>'


def _text(sentence: str) -> str:
    return f'<p style="{_TEXT}">{escape(sentence)}</p>'


def _pre(text: str) -> str:
    text = _CELL_FILE.sub("<notebook cell>", text)
    return f'<pre style="margin:4px 0 4px 18px;white-space:pre-wrap">{escape(text)}</pre>'


def _sparklines(series: Mapping[str, Sequence[float | None]]) -> str:
    """Return a line of each rate that was read three times or more."""
    shown = [
        ("emitted_per_s", "emitted/s"),
        ("executed_per_s", "executed/s"),
        ("p99_ms", "p99 ms"),
        ("pending", "trees open"),
    ]
    lines = []
    for key, title in shown:
        values = [value for value in series.get(key, ()) if value is not None]
        if len(values) >= 3:
            lines.append(
                f'<span style="margin-right:18px">{title} {sparkline(values)} {values[-1]:,.0f}</span>'
            )
    return f'<p style="{_TEXT}">{"".join(lines)}</p>' if lines else ""


def sparkline(values: Sequence[float]) -> str:
    """Return a line through values that are equally far apart, from 0 to the greatest."""
    most = max(values) or 1.0
    step = _WIDE / (len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{_HIGH - 1 - (_HIGH - 2) * value / most:.1f}"
        for index, value in enumerate(values)
    )
    return (
        f'<svg width="{_WIDE}" height="{_HIGH}" role="img" aria-label="up to {most:,.0f}" style="vertical-align:middle">'
        f'<polyline points="{points}" fill="none" stroke="{PALETTE[0]}" stroke-width="1.5"/></svg>'
    )


BY_TYPE: dict[tuple[str, str], Callable[[Any], str]] = {
    ("sparkstorm.common.model.topology", "Topology"): topology_html,
    ("sparkstorm.notebook.topology_graph", "TopologyGraph"): graph_html,
    ("sparkstorm.client.cluster", "ClusterClient"): client_html,
    ("sparkstorm.testing.local_cluster", "LocalCluster"): client_html,
    ("sparkstorm.client.handle", "TopologyHandle"): handle_html,
    ("sparkstorm.control_plane.insight.records", "TopologyReport"): view_html,
    ("sparkstorm.control_plane.insight.records", "ClusterReport"): cluster_html,
    ("sparkstorm.control_plane.insight.health", "Health"): health_html,
    ("sparkstorm.common.model.requests", "RebalancePlan"): plan_html,
    ("sparkstorm.common.model.failure", "Failure"): failure_html,
    ("sparkstorm.common.model.failure", "FailureGroup"): group_html,
    ("sparkstorm.common.model.dead_letter", "DeadLetter"): letter_html,
    ("sparkstorm.extensions.recording.stepping.capsule", "Capsule"): lambda capsule: letter_html(
        capsule.letter
    ),
    ("sparkstorm.replay.results.frames", "Replay"): replay_html,
    ("sparkstorm.extensions.laboratory.scene", "Scene"): scene_html,
}
"""Display functions by module and name of a type: a notebook that never imports Spark's part must
not import it for this.
"""


def live(
    value: Any,
    seconds: float = 60.0,
    every: float = 1.0,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Show a handle or a cluster in this cell, and again in its place, for so long or until the
    cell is interrupted.

    `pause` waits between two readings: `cluster.advance` of a simulated cluster lets its time pass.
    A topology that ends, or a store that is away, ends it with a sentence.
    """
    from IPython.display import HTML, display

    kind = type(value)
    show = BY_TYPE[(kind.__module__, kind.__name__)]
    handle: Any = display(HTML(show(value)), display_id=True)  # type: ignore[no-untyped-call]
    with contextlib.suppress(KeyboardInterrupt):
        for _ in range(max(1, round(seconds / every))):
            pause(every)
            try:
                handle.update(HTML(show(value)))  # type: ignore[no-untyped-call]
            except SparkStormError as error:
                handle.update(HTML(_line(str(error), False)))  # type: ignore[no-untyped-call]
                return


def register(formatter: Any) -> None:
    """Register the types with IPython's HTML formatter."""
    for (module, name), show in BY_TYPE.items():
        formatter.for_type_by_name(module, name, show)


def load_ipython_extension(shell: Any) -> None:
    """Show the types as HTML in this notebook."""
    register(shell.display_formatter.formatters["text/html"])
