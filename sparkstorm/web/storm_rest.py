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
    at = _Storm(model, commands, conf or {})
    looks: dict[str, Callable[[Request], Any]] = {
        "/cluster/configuration": lambda _: {"ui.title": None, "ui.pagination": 20, **at.conf},
        "/cluster/summary": lambda _: answers.cluster_summary(model.cluster()),
        "/nimbus/summary": lambda _: answers.nimbus_summary(model.cluster()),
        "/supervisor/summary": lambda _: answers.supervisor_summary(model.cluster()),
        "/supervisor": at.supervisor,
        "/history/summary": lambda _: {"topo-history": list(model.cluster().topologies)},
        "/owner-resources": lambda _: answers.owner_resources(model.cluster()),
        "/owner-resources/{owner}": lambda request: answers.owner_resources(
            model.cluster(), path_name(request, "owner")
        ),
        "/topology/summary": lambda _: answers.topology_summary(model.cluster()),
        "/topology/{id}": at.topology,
        "/topology/{id}/metrics": at.topology,
        "/topology/{id}/lag": at.lag,
        "/topology/{id}/visualization": at.visualization,
        "/topology/{id}/visualization-init": lambda request: components.streams_table(
            at.view(request)
        ),
        "/topology/{id}/component/{component}": at.component,
        "/topology-workers/{id}": at.workers,
    }
    acts: dict[str, Callable[[Request, Any], Any]] = {
        "/topology/{id}/activate": at.activate,
        "/topology/{id}/deactivate": at.deactivate,
        "/topology/{id}/rebalance/{seconds}": at.rebalance,
        "/topology/{id}/kill/{seconds}": at.kill,
        "/topology/{id}/profiling/restartworker/{worker}": at.restart,
    }
    found = [Route(BASE + path, reading(answer), methods=["GET"]) for path, answer in looks.items()]
    path = f"{BASE}/topology/{{id}}/logconfig"  # one route, so that a 405 names both methods
    found.append(Route(path, acting(at.log_config), methods=["GET", "POST"]))
    found += [Route(BASE + path, acting(act), methods=["POST"]) for path, act in acts.items()]
    return found + log_routes(model, commands, BASE)


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
        found = [
            {"host": each.host or "", "port": int(each.slot.rpartition(":")[2])} for each in workers
        ]
        return {"hostPortList": found, "logviewerPort": 0, "logviewerScheme": "http"}

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
        hosts = {each.slot: each.host or "" for each in view.workers.values()}
        slot = WorkerSlot.parse(named_worker(f"topology {view.name}", worker, hosts))
        self.commands.write(lambda service: service.restart_worker(view.name, slot, view.id))
        return {"status": "ok", "id": worker}

    def log_config(self, request: Request, body: Any) -> Any:
        """Return the levels, after those of a POST were set."""
        if request.method == "POST":
            self._set_log_config(request, body)
        levels = self.commands.log_levels(self.view(request).id)
        return {"namedLoggerLevels": {name or _ROOT: _level(each) for name, each in levels.items()}}

    def _set_log_config(self, request: Request, body: Any) -> None:
        view = self.view(request)
        levels = {}
        for name, each in checked(body, "namedLoggerLevels", dict, {}).items():
            if not isinstance(each, dict):
                raise InvalidConfigError(
                    f"namedLoggerLevels: {name!r:.60} must be an object with target_level and timeout"
                )
            level = checked(each, "target_level", str, None)
            timeout = checked(each, "timeout", int, 0)
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
    found = request.query_params.get("window", ":all-time")
    if found not in answers.WINDOWS:
        raise InvalidConfigError(
            f"window: expected one of {', '.join(answers.WINDOWS)}, got {found!r:.40}"
        )
    return found


def _is_sys(request: Request) -> bool:
    return request.query_params.get("sys", "").lower() == "true"


def _done(operation: str, view: TopologyReport) -> dict[str, str]:
    return {"topologyOperation": operation, "topologyId": view.id, "status": "success"}


def _level(each: LogLevel) -> dict[str, Any]:
    epoch_ms = each.until_ms
    return {
        "target_level": each.level or None,
        "reset_level": None,
        "timeout": each.timeout_ms // 1000,
        "timeout_epoch": epoch_ms,
    }
