"""Records of a cluster from a reading and the records of its topologies. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparkstorm.common.model.assignment import SupervisorInfo, WorkerSlot
from sparkstorm.common.model.heartbeats import added
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.requests import OutcomeState
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.insight.history import Later
from sparkstorm.control_plane.insight.reading import StoreReading
from sparkstorm.control_plane.insight.records import (
    WINDOWS_S,
    ClusterReport,
    CountWindow,
    DriverView,
    HostView,
    NodeView,
    RequestView,
    SlotView,
    StoreView,
    TopologyReport,
    WorkerView,
)
from sparkstorm.control_plane.insight.topology_views import topology_line

_MEMORY = "supervisor.memory.capacity.mb"
_CPU = "supervisor.cpu.capacity"


def cluster_view(
    reading: StoreReading, topologies: Mapping[str, TopologyReport], number: int
) -> ClusterReport:
    """Return the records of the cluster."""
    lines = {topology_id: topology_line(view) for topology_id, view in sorted(topologies.items())}
    hosts = _hosts(reading, topologies)
    away = next((view.problem for view in topologies.values() if view.problem), "")
    leading = reading.leader.driver.id if reading.leader and reading.leader.driver else ""
    drivers = {
        driver.id: DriverView(
            driver.id, driver.number, driver.host, driver.pid, driver.since_ms, driver.id == leading
        )
        for driver in reading.drivers
    }
    return ClusterReport(
        time_ms=reading.time_ms,
        number=number,
        sentence=_sentence(reading, topologies, away),
        is_well=all(line.is_well for line in lines.values())
        and not (away or reading.problems or reading.leader is None),
        stale_since_ms=None,
        stale_reason="",
        drivers=drivers,
        leader=next(
            (driver.host for driver in drivers.values() if driver.is_leader),
            reading.leader.owner if reading.leader else None,
        ),
        slots=sum(len(host.slots) for host in hosts.values()),
        slots_used=sum(host.slots_used for host in hosts.values()),
        executors=sum(line.executors for line in lines.values()),
        tasks=sum(line.tasks for line in lines.values()),
        windows=Later(
            WINDOWS_S, lambda name: _added([view.windows[name] for view in topologies.values()])
        ),
        topologies=lines,
        hosts=hosts,
        store=StoreView(not away, away, _fullness(reading)),
        problems=dict(sorted(reading.problems.items())),
        requests=_requests(reading),
        is_read_only=reading.is_read_only,
    )


def stale(view: ClusterReport, since_ms: int, reason: str) -> ClusterReport:
    """Return the last records with a mark that they are old."""
    return replace(view, stale_since_ms=since_ms, stale_reason=reason, is_well=False)


def _sentence(reading: StoreReading, topologies: Mapping[str, TopologyReport], away: str) -> str:
    if away:
        return f"Redis does not answer, counts are those of before: {away}"
    if not topologies and reading.leader is None:
        return "No Nimbus leads, so that no topology can be submitted, and none runs here."
    if not topologies:
        return "No topology runs here."
    views = [view for _, view in sorted(topologies.items())]
    ill = [view for view in views if not view.is_well]
    counts = counted(len(topologies), "topology", "topologies")
    if ill:
        return f"{len(ill)} of {counts} {'needs' if len(ill) == 1 else 'need'} attention: {ill[0].sentence}."
    if reading.leader is None:
        return f"No Nimbus leads: {counts} {'runs' if len(views) == 1 else 'run'} on, but nothing is placed anew or changed."
    if reading.problems:
        about, sentences = next(iter(sorted(reading.problems.items())))
        return f"{about}: {sentences[0]}"
    if len(views) == 1:
        return f"{views[0].sentence}."
    running = [view for view in views if view.status not in _REST and not view.is_drained]
    slowed = [view for view in running if view.culprits]
    if slowed:
        are = "is at its limit" if len(slowed) == 1 else "are at their limits"
        return f"{len(slowed)} of {counts} {are}: {slowed[0].sentence}."
    resting = Counter(_REST[view.status] for view in views if view.status in _REST)
    well = len(views) - resting.total()
    parts = [f"{well:,} {'keeps' if well == 1 else 'keep'} up"] if well else []
    parts += [f"{count:,} {'is' if count == 1 else 'are'} {how}" for how, count in resting.items()]
    return f"{counts} keep up." if not resting else f"{counts}: {', '.join(parts)}."


_REST = {
    str(TopologyStatus.INACTIVE): "deactivated",
    str(TopologyStatus.KILLED): "being killed",
    str(TopologyStatus.REBALANCING): "being rebalanced",
}


def _added(windows: Iterable[CountWindow]) -> CountWindow:
    window_list = list(windows)
    seconds = max((window.seconds for window in window_list), default=0.0)
    counts = added(window.counts for window in window_list)
    if not seconds:
        return CountWindow(0.0, counts)

    def rate(name: str) -> float:
        return sum(getattr(window, name) or 0.0 for window in window_list)

    return CountWindow(
        seconds,
        counts,
        rate("emitted_per_s"),
        rate("executed_per_s"),
        rate("acked_per_s"),
        rate("failed_per_s"),
        max((window.busy for window in window_list if window.busy is not None), default=None),
    )


def _hosts(reading: StoreReading, topologies: Mapping[str, TopologyReport]) -> dict[str, HostView]:
    workers = {
        slot: worker for view in topologies.values() for slot, worker in view.workers.items()
    }
    blacklisted = {
        host
        for sentence in reading.problems.get("blacklist", ())
        for host in sentence.partition(":")[0].split(", ")
    }
    hosts = {}
    for host in sorted(
        {supervisor.host for supervisor in reading.supervisors} | {*reading.host_marks}
    ):
        nodes = sorted(
            (supervisor for supervisor in reading.supervisors if supervisor.host == host),
            key=lambda supervisor: supervisor.supervisor_id,
        )
        slots = []
        for node in nodes:
            for port in sorted(node.ports):
                worker = workers.get(str(WorkerSlot(node.supervisor_id, port)))
                loop = worker.loop if worker else {}
                busy = sum(loop[name] for name in ("busy", "commit", "read")) if loop else None
                slots.append(
                    SlotView(
                        str(WorkerSlot(node.supervisor_id, port)),
                        port,
                        worker.topology_id if worker else None,
                        worker.state if worker else None,
                        busy,
                    )
                )
        mark = reading.host_marks.get(host)
        hosts[host] = HostView(
            host,
            {node.supervisor_id: _node(node, slots, workers) for node in nodes},
            None if mark is None else "drained" if mark.is_drained else "excluded",
            mark.reason if mark else "",
            next((node.unreached for node in nodes if node.unreached), ""),
            tuple(slots),
            sum(slot.topology_id is not None for slot in slots),
            ", ".join(
                sorted(
                    {
                        rack
                        for node in nodes
                        if isinstance(rack := node.scheduler_meta.get("rack"), str)
                    }
                )
            )
            or None,
            mark.by if mark else "",
            mark.since_ms if mark else None,
            host in blacklisted,
        )
    return hosts


def _node(
    node: SupervisorInfo, slots: list[SlotView], workers: Mapping[str, WorkerView]
) -> NodeView:
    own = [
        slot.slot
        for slot in slots
        if WorkerSlot.parse(slot.slot).node == node.supervisor_id and slot.topology_id is not None
    ]
    memory = node.resources.get(_MEMORY)
    cpu = node.resources.get(_CPU)
    sizes = [workers[slot].memory_mb for slot in own]
    shares = [workers[slot].cpu_percent for slot in own]
    return NodeView(
        node.supervisor_id,
        node.host,
        node.uptime_ms,
        node.time_ms,
        len(node.ports),
        len(own),
        memory,
        cpu,
        _known_sum(sizes),
        _known_sum(shares),
        node.unreached,
        node.driver_problem,
    )


def _known_sum(of: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; None where nothing is."""
    values = [value for value in of if value is not None]
    return sum(values) if values else None


def _fullness(reading: StoreReading) -> float | None:
    """Return how full Redis is by the heartbeats of workers; None where none has a limit."""
    percents = [
        beat.stats.get("store_percent")
        for topology in reading.topologies.values()
        for beat in topology.beats
    ]
    return max((percent / 100 for percent in percents if type(percent) is int), default=None)


def _requests(reading: StoreReading) -> tuple[RequestView, ...]:
    views = []
    for request, outcome in reading.requests:
        state = "open" if outcome is None else str(outcome.state)
        step = outcome.step if outcome else ""
        error = outcome.error if outcome and outcome.state is not OutcomeState.ACCEPTED else ""
        views.append(
            RequestView(
                request.id,
                str(request.kind),
                request.subject,
                request.client,
                request.created_ms,
                state,
                step,
                error,
            )
        )
    return tuple(views)
