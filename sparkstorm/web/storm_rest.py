"""Storm's REST interface under /api/v1, over the read model: a client written for Storm's UI works
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.requests import LogLevel
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.insight.records import TopologyReport
from sparkstorm.control_plane.insight.sampler import ReadModel, check_component
from sparkstorm.web import storm_answers as answers
from sparkstorm.web import storm_components as components
from sparkstorm.web.answers import acting, checked, path_name, reading, seconds, whole
from sparkstorm.web.commands import Commands
from sparkstorm.web.logviewer import log_routes

BASE = "/api/v1"
_ROOT = "ROOT"
"""Name that Storm's page has for the root logger."""


def storm_routes(
    model: ReadModel, commands: Commands, conf: Mapping[str, Any] | None = None
) -> list[Route]:
    """Return the routes; `conf` is the cluster's configuration without secrets."""
    storm = _Storm(model, commands, conf or {})
    looks: dict[str, Callable[[Request], Any]] = {
        "/cluster/configuration": lambda _: {"ui.title": None, "ui.pagination": 20, **storm.conf},
        "/cluster/summary": lambda _: answers.cluster_summary(model.cluster()),
        "/nimbus/summary": lambda _: answers.nimbus_summary(model.cluster()),
        "/supervisor/summary": lambda _: answers.supervisor_summary(model.cluster()),
        "/supervisor": storm.supervisor,
        "/history/summary": lambda _: {"topo-history": list(model.cluster().topologies)},
        "/owner-resources": lambda _: answers.owner_resources(model.cluster()),
        "/owner-resources/{owner}": lambda request: answers.owner_resources(
            model.cluster(), path_name(request, "owner")
        ),
        "/topology/summary": lambda _: answers.topology_summary(model.cluster()),
        "/topology/{id}": storm.topology,
        "/topology/{id}/metrics": storm.topology,
        "/topology/{id}/lag": storm.lag,
        "/topology/{id}/visualization": storm.visualization,
        "/topology/{id}/visualization-init": lambda request: components.streams_table(
            storm.view(request)
        ),
        "/topology/{id}/component/{component}": storm.component,
        "/topology-workers/{id}": storm.workers,
    }
    acts: dict[str, Callable[[Request, Any], Any]] = {
        "/topology/{id}/activate": storm.activate,
        "/topology/{id}/deactivate": storm.deactivate,
        "/topology/{id}/rebalance/{seconds}": storm.rebalance,
        "/topology/{id}/kill/{seconds}": storm.kill,
        "/topology/{id}/profiling/restartworker/{worker}": storm.restart,
    }
    routes = [
        Route(BASE + path, reading(answer), methods=["GET"]) for path, answer in looks.items()
    ]
    path = f"{BASE}/topology/{{id}}/logconfig"  # one route, so that a 405 names both methods
    routes.append(Route(path, acting(storm.log_config), methods=["GET", "POST"]))
    routes += [Route(BASE + path, acting(act), methods=["POST"]) for path, act in acts.items()]
    return routes + log_routes(model, commands, BASE)


def named_worker(where: str, name: str, host_by_slot: Mapping[str, str]) -> str:
    """Return the slot of a worker that is named as node:port or host:port; InvalidConfigError for a
    name of several.
    """
    host, _, port = name.rpartition(":")
    slots = [
        slot
        for slot, of in host_by_slot.items()
        if slot.endswith(f":{port}") and host in (of, slot.rpartition(":")[0])
    ]
    if not slots:
        raise NotAliveError(f"{where} has no worker {name!r:.80}, only {', '.join(host_by_slot)}")
    if name in slots:
        return name
    # Nodes of one host may have the same port, as on its own machine.
    if len(slots) > 1:
        raise InvalidConfigError(f"{where}: {name} is {' and '.join(slots)}: name one of them")
    return slots[0]


class _Storm:
    """Answers that need parameters."""

    def __init__(self, model: ReadModel, commands: Commands, conf: Mapping[str, Any]) -> None:
        self.model = model
        self.commands = commands
        self.conf = conf

    def view(self, request: Request) -> TopologyReport:
        """Return the topology of the path, by its id: a name would meet a later run."""
        topology_id = path_name(request, "id")
        view = self.model.topology(topology_id)
        if view.id != topology_id:
            raise NotAliveError(f"topology {topology_id} is not alive; {view.id} has that name")
        return view

    def supervisor(self, request: Request) -> Any:
        cluster = self.model.cluster()
        node = request.query_params.get("id", "")
        host = request.query_params.get("host", "")
        if not node and not host:
            raise InvalidConfigError("/supervisor: give id or host")
        views = {
            topology_id: self.model.topology(topology_id) for topology_id in cluster.topologies
        }
        return answers.supervisor_page(cluster, views, node, host)

    def topology(self, request: Request) -> Any:
        return answers.topology_page(
            self.view(request), window_of(request), _is_sys(request), self.model.cluster().time_ms
        )

    def visualization(self, request: Request) -> Any:
        return components.visualization(self.view(request), window_of(request), _is_sys(request))

    def component(self, request: Request) -> Any:
        view = self.view(request)
        name = path_name(request, "component")
        check_component(view, name)
        now_ms = self.model.cluster().time_ms
        return components.component_page(
            view,
            view.components[name],
            window_of(request),
            now_ms,
            lambda task, window: self.model.task_window(view.id, task, window),
        )

    def lag(self, request: Request) -> Any:
        """Answer with the spouts whose source reports its head."""
        return components.lag(self.view(request))

    def workers(self, request: Request) -> Any:
        workers = self.view(request).workers.values()
        hosts = [
            {"host": worker.host or "", "port": int(worker.slot.rpartition(":")[2])}
            for worker in workers
        ]
        return {"hostPortList": hosts, "logviewerPort": 0, "logviewerScheme": "http"}

    # -- actions -----------------------------------------------------------------------------------

    def activate(self, request: Request, _: Any) -> Any:
        view = self.view(request)
        self.commands.write(lambda service: service.activate(view.name, view.id))
        return _done("activate", view)

    def deactivate(self, request: Request, _: Any) -> Any:
        view = self.view(request)
        self.commands.write(lambda service: service.deactivate(view.name, view.id))
        return _done("deactivate", view)

    def kill(self, request: Request, _: Any) -> Any:
        view = self.view(request)
        wait = seconds(request.path_params["seconds"])
        self.commands.write(lambda service: service.kill(view.name, wait, view.id))
        return _done("kill", view)

    def rebalance(self, request: Request, body: Any) -> Any:
        view = self.view(request)
        wait = seconds(request.path_params["seconds"])
        options = rebalance_options(view, checked(body, "rebalanceOptions", dict, {}))
        # its options are checked here; its wait and its change go on without the caller
        self.commands.write(
            lambda service: service.begin(
                service.rebalance_request(view.name, options, wait, topology_id=view.id)
            )
        )
        return _done("rebalance", view)

    def restart(self, request: Request, _: Any) -> Any:
        view = self.view(request)
        worker = path_name(request, "worker")
        hosts = {worker_view.slot: worker_view.host or "" for worker_view in view.workers.values()}
        slot = WorkerSlot.parse(named_worker(f"topology {view.name}", worker, hosts))
        self.commands.write(lambda service: service.restart_worker(view.name, slot, view.id))
        return {"status": "ok", "id": worker}

    def log_config(self, request: Request, body: Any) -> Any:
        """Return the levels, after those of a POST were set."""
        if request.method == "POST":
            self._set_log_config(request, body)
        levels = self.commands.log_levels(self.view(request).id)
        return {
            "namedLoggerLevels": {name or _ROOT: _level(level) for name, level in levels.items()}
        }

    def _set_log_config(self, request: Request, body: Any) -> None:
        view = self.view(request)
        levels = {}
        for name, fields in checked(body, "namedLoggerLevels", dict, {}).items():
            if not isinstance(fields, dict):
                raise InvalidConfigError(
                    f"namedLoggerLevels: {name!r:.60} must be an object with target_level and timeout"
                )
            level = checked(fields, "target_level", str, None)
            timeout = checked(fields, "timeout", int, 0)
            levels["" if name == _ROOT else name] = LogLevel(level or "", timeout * 1000)
        self.commands.write(lambda service: service.set_log_level(view.name, levels, view.id))


def rebalance_options(view: TopologyReport, body: Mapping[str, Any]) -> RebalanceOptions:
    """Return the options of a rebalance from Storm's body: numWorkers, executors. NotAliveError
    names a component that there is not.
    """
    unknown = sorted(set(body) - {"numWorkers", "executors", "reassign"})
    if unknown:
        raise InvalidConfigError(
            f"rebalanceOptions: {unknown[0]!r:.60} is not known, only numWorkers, executors, reassign"
        )
    executors = {name: whole(n) for name, n in checked(body, "executors", dict, {}).items()}
    if any(type(count) is not int for count in executors.values()):
        raise InvalidConfigError("rebalanceOptions: executors must map components to whole numbers")
    for name in executors:
        check_component(view, name)
    workers = checked(body, "numWorkers", int, None)
    return RebalanceOptions(workers, executors, reassign=checked(body, "reassign", bool, False))


def window_of(request: Request) -> str:
    """Return the window that was asked for, in Storm's words."""
    window = request.query_params.get("window", ":all-time")
    if window not in answers.WINDOWS:
        raise InvalidConfigError(
            f"window: expected one of {', '.join(answers.WINDOWS)}, got {window!r:.40}"
        )
    return window


def _is_sys(request: Request) -> bool:
    return request.query_params.get("sys", "").lower() == "true"


def _done(operation: str, view: TopologyReport) -> dict[str, str]:
    return {"topologyOperation": operation, "topologyId": view.id, "status": "success"}


def _level(level: LogLevel) -> dict[str, Any]:
    epoch_ms = level.until_ms
    return {
        "target_level": level.level or None,
        "reset_level": None,
        "timeout": level.timeout_ms // 1000,
        "timeout_epoch": epoch_ms,
    }
