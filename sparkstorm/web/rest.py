"""Our REST interface under /api/sparkstorm/v1: the records as they are, time series, time travel,
and a stream of events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sparkstorm.common.errors import (
    IllegalTransitionError,
    InvalidConfigError,
    NotAliveError,
    SparkStormError,
)
from sparkstorm.common.model.requests import RequestKind
from sparkstorm.control_plane.insight.records import TopologyReport, to_json
from sparkstorm.control_plane.insight.sampler import ReadModel, check_component, check_window
from sparkstorm.web.answers import (
    acting,
    checked,
    error_response,
    moment,
    path_name,
    reading,
    refusal,
)
from sparkstorm.web.commands import Commands
from sparkstorm.web.live import SharedView
from sparkstorm.web.openapi import OURS, openapi
from sparkstorm.web.storm_rest import rebalance_options, storm_routes

MOST_STREAMS = 100
# records of one sample that differ by their topology; half would do for most clusters
_MOST_SHARED = 50
_HOST_VERBS = {
    "drain": RequestKind.DRAIN_HOST,
    "exclude": RequestKind.EXCLUDE_HOST,
    "include": RequestKind.INCLUDE_HOST,
}


def rest_routes(
    model: ReadModel, commands: Commands, conf: Mapping[str, Any] | None = None
) -> list[Route]:
    """Return all routes of both interfaces; `conf` is the cluster's configuration without
    secrets.
    """
    rest = _Rest(model, commands)
    answer_by_path: dict[str, Callable[[Request], Any]] = {
        "/cluster": rest.cluster,
        "/moments": lambda _: {"time_ms": model.moments()},
        "/topology/{name}": rest.topology,
        "/topology/{name}/component/{component}": rest.component,
        "/topology/{name}/task/{task}": rest.task,
        "/topology/{name}/series": rest.series,
    }
    act_by_path: dict[str, Callable[[Request, Any], Any]] = {
        "/topology/{id}/plan-rebalance": rest.plan_rebalance,
        "/host/{host}/{verb}": rest.mark_host,
    }
    routes = [
        Route(OURS + path, reading(answer), methods=["GET"])
        for path, answer in answer_by_path.items()
    ]
    routes += [
        Route(OURS + path, acting(act), methods=["POST"]) for path, act in act_by_path.items()
    ]
    routes.append(Route(f"{OURS}/stream", _Streams(model).answer, methods=["GET"]))
    routes.append(Route("/api/openapi.json", reading(lambda _: openapi()), methods=["GET"]))
    return storm_routes(model, commands, conf) + routes


class _Rest:
    def __init__(self, model: ReadModel, commands: Commands) -> None:
        self._model = model
        self._commands = commands

    def cluster(self, request: Request) -> Any:
        at_ms = moment(request)
        return to_json(self._model.cluster() if at_ms is None else self._model.at(at_ms)[0])

    def topology(self, request: Request) -> Any:
        return to_json(self._view(request))

    def _view(self, request: Request) -> TopologyReport:
        name = path_name(request, "name")
        at_ms = moment(request)
        if at_ms is None:
            return self._model.topology(name)
        views = self._model.at(at_ms)[1].values()
        view = next(
            (candidate for candidate in views if name in (candidate.id, candidate.name)), None
        )
        return view or self._model.topology(name)

    def component(self, request: Request) -> Any:
        view = self._view(request)
        name = path_name(request, "component")
        check_component(view, name)
        return to_json(view.components[name])

    def task(self, request: Request) -> Any:
        view = self._view(request)
        text = path_name(request, "task")
        if not any(
            text == str(task) for component in view.components.values() for task in component.tasks
        ):
            raise NotAliveError(f"topology {view.name} has no task {text!r:.40}")
        return to_json(
            {window: self._model.task_window(view.id, int(text), window) for window in view.windows}
        )

    def series(self, request: Request) -> Any:
        window = request.query_params.get("window", "10m")
        component = request.query_params.get("component")
        check_window(window)
        since_ms = moment(request, "since_ms") or 0
        name = path_name(request, "name")
        return to_json(self._model.series(name, component, window, since_ms))

    def plan_rebalance(self, request: Request, body: Any) -> Any:
        view = self._model.topology(path_name(request, "id"))
        options = rebalance_options(view, body)
        plan = self._commands.write(
            lambda service: service.plan_rebalance(view.name, options, view.id)
        )
        placed = {"before": plan.before, "after": plan.after}
        return {
            which: {str(executor): str(slot) for executor, slot in of.items()}
            for which, of in placed.items()
        }

    def mark_host(self, request: Request, body: Any) -> Any:
        host = path_name(request, "host")
        verb = path_name(request, "verb")
        hosts = self._model.cluster().hosts
        if host not in hosts:
            raise NotAliveError(f"the cluster has no host {host:.80}, only {', '.join(hosts)}")
        if verb not in _HOST_VERBS:
            raise InvalidConfigError(
                f"a host can be marked by {', '.join(_HOST_VERBS)}, not {verb!r:.40}"
            )
        if verb == "include" and hosts[host].mark is None:
            raise IllegalTransitionError(f"host {host:.80} is neither drained nor excluded")
        reason = checked(body, "reason", str, "")
        self._commands.write(lambda service: service.mark_host(_HOST_VERBS[verb], host, reason))
        return {"host": host, "verb": verb}


class _Streams:
    """GET /stream?topology=NAME: server-sent events, a snapshot and then what has changed in each
    sample.

    An event's id is the number of its sample. `snapshot` has the records; `delta` lists `set`,
    pairs of a path and its new value, and `gone`, paths that are no more. A stream that cannot keep
    up skips samples, never changes.
    """

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._open = 0
        # As for the page: streams that show the same share what is made for them.
        self._records: SharedView[tuple[int, str | None], dict[str, Any]] = SharedView(_MOST_SHARED)
        self._changes: SharedView[tuple[int, int], tuple[dict[str, Any], dict[str, Any], str]] = (
            SharedView(_MOST_SHARED)
        )

    async def answer(self, request: Request) -> Response:
        """Open a stream; 503 when there are too many."""
        if self._open >= MOST_STREAMS:
            return error_response(503, f"{MOST_STREAMS} streams are open already: close a page")
        topology = request.query_params.get("topology")
        try:
            await run_in_threadpool(self._shown, topology)
        except SparkStormError as error:
            return refusal(error)
        headers = {
            "Cache-Control": "no-cache, no-store",
            "X-Accel-Buffering": "no",
            "X-Content-Type-Options": "nosniff",
        }
        events = self._events(topology)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    def _shown(self, topology: str | None) -> dict[str, Any]:
        cluster = self._model.cluster()

        def made() -> dict[str, Any]:
            record = {"number": cluster.number, "cluster": to_json(cluster)}
            if topology is not None:
                record["topology"] = to_json(self._model.topology(topology))
            return record

        return self._records.get((cluster.number, topology), made)

    async def _events(self, topology: str | None) -> AsyncIterator[str]:
        news = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        end = self._model.subscribe(wake)
        self._open += 1
        try:
            last = await run_in_threadpool(self._shown, topology)
            yield event("snapshot", last["number"], last)
            while True:
                await news.wait()
                news.clear()
                try:
                    now = await run_in_threadpool(self._shown, topology)
                except SparkStormError as error:
                    yield event("gone", last["number"], {"errorMessage": str(error)})
                    return
                yield await run_in_threadpool(self._change, last, now)
                last = now
        finally:
            self._open -= 1
            end()

    def _change(self, last: dict[str, Any], now: dict[str, Any]) -> str:
        # the records are kept with their change: an id may come back once its record is gone
        _, _, text = self._changes.get(
            (id(last), id(now)),
            lambda: (last, now, event("delta", now["number"], delta(last, now))),
        )
        return text


def event(kind: str, number: int, data: Any) -> str:
    """Return one server-sent event."""
    return f"event: {kind}\nid: {number}\ndata: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n"


def delta(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what has changed between two JSON objects: `set` (path, value) pairs and `gone`
    paths.
    """
    changes: dict[str, list[Any]] = {"set": [], "gone": []}
    _compare(old, new, [], changes)
    return changes


def _compare(
    old: Mapping[str, Any], new: Mapping[str, Any], path: list[str], changes: dict[str, list[Any]]
) -> None:
    changes["gone"] += [[*path, name] for name in old if name not in new]
    for name, value in new.items():
        former = old.get(name)
        if isinstance(value, dict) and isinstance(former, dict):
            _compare(former, value, [*path, name], changes)
        elif name not in old or former != value:
            changes["set"].append([[*path, name], value])
