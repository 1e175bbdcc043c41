"""OpenAPI 3.1 description of all routes of the server: their parameters and bodies, and the schemas
of our own answers, which are made from the records themselves.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from sparkstorm import __version__
from sparkstorm.common.model.requests import HOST_KINDS, LOG_LEVELS, MAX_WAIT_MS
from sparkstorm.control_plane.insight import records
from sparkstorm.control_plane.insight.records import (
    ClusterReport,
    ComponentReport,
    CountWindow,
    TopologyReport,
)

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
ERROR = {
    "type": "object",
    "required": ["error", "errorMessage"],
    "properties": {name: {"type": "string"} for name in ("error", "errorMessage")},
}


def schema_of(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a type; those of records go into `schemas`, each once."""
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part, schemas) for part in parts]}
    if origin is tuple or origin is list:
        return {"type": "array", "items": schema_of(parts[0], schemas)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(parts[1], schemas)}
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in schemas:
            schemas[name] = {}
            hints = get_type_hints(hint, vars(records))
            properties = {
                field.name: schema_of(hints[field.name], schemas) for field in fields(hint)
            }
            schemas[name] = {
                "type": "object",
                "description": (hint.__doc__ or "").strip(),
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/components/schemas/{name}"}
    raise TypeError(f"no schema for {hint}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One route and method: `answer` is a type, or None for a text of the kind `media`; `queries`
    are names of `QUERIES`, a `!` marks those that must be given.
    """

    summary: str
    answer: Any = dict[str, Any]
    queries: tuple[str, ...] = ()
    body: Mapping[str, Any] | None = None
    media: str = "application/json"


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_YEAR_S = MAX_WAIT_MS // 1_000
_TEXT = {"type": "string"}
_MOMENT = {**_whole(0, 10**15 - 1), "description": "milliseconds since the epoch"}
_NUMBER = _whole(0, 10**12 - 1)
_COUNTS = {"type": "object", "additionalProperties": _whole(1, 100_000)}
_STORM_WINDOW = {"enum": [":all-time", "600", "10800", "86400"]}
_REBALANCE = {
    **_object(
        numWorkers={"type": ["integer", "null"], "minimum": 1},
        executors=_COUNTS,
        reassign={"type": "boolean"},
    ),
    "additionalProperties": False,
}
_LEVEL = _object(target_level={"enum": [*LOG_LEVELS, "", None]}, timeout=_whole(0, _YEAR_S))
_LEVELS = {"type": "object", "additionalProperties": _LEVEL, "minProperties": 1}
_LOOK = {**_object(seconds=_whole(1, 60)), "examples": [{"seconds": 1}]}


def _action(fields: Mapping[str, Any]) -> dict[str, Any]:
    name = {"type": "string", "minLength": 1, "maxLength": 500}
    properties = {field.removesuffix("!"): schema for field, schema in fields.items()}
    required = ["topology", *(field[:-1] for field in fields if field.endswith("!"))]
    return {**_object(topology=name, **properties), "required": required}


_WAIT = {"type": ["integer", "null"], "minimum": 0, "maximum": 10**6}
_SOME = {"type": ["integer", "null"], "minimum": 1, "maximum": 10**6}
_IDS = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1_000}
_ACTIONS: Mapping[str, Mapping[str, Any]] = {
    "activate": {},
    "deactivate": {},
    "kill": {"wait": _WAIT, "typed": _TEXT},
    "rebalance": {
        "workers": _SOME,
        "executors": _COUNTS,
        "reassign": {"type": "boolean"},
        "wait": _WAIT,
    },
    "restart": {"worker": _TEXT},
    "log-level": {"level!": {"enum": [*LOG_LEVELS, ""]}, "logger": _TEXT, "secs": _WAIT},
    "upgrade": {"step!": {"enum": ["continue", "complete", "rollback"]}, "workers": _SOME},
    "replay": {"ids!": _IDS},
    "drop": {"ids!": _IDS},
}
"""Fields of the bodies of actions next to the topology; a `!` marks those that must be given."""
_QUERIES: Mapping[str, Mapping[str, Any]] = {
    "at": {**_MOMENT, "description": "a moment of the last 24 hours, in milliseconds"},
    "time_ms": _MOMENT,
    "since_ms": {**_MOMENT, "description": "only what ends after that moment"},
    "window": {"enum": [*records.WINDOWS_S]},
    "window of Storm": _STORM_WINDOW,
    **dict.fromkeys(
        ("component", "topology", "sys", "id", "host", "file", "grep", "topoId", "port"), _TEXT
    ),
    **dict.fromkeys(("q", "message"), _TEXT),
    "after": {"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$"},
    "search-string": {"type": "string", "minLength": 1, "maxLength": 1_024},
    "num-matches": {**_NUMBER, "minimum": 1},
    "length": {**_NUMBER, "minimum": 1},
    "start": _NUMBER,
    "start-byte-offset": _NUMBER,
    "start-file-offset": _NUMBER,
}
"""Schemas of queries; `window of Storm` is asked for as `window`."""
OURS, STORMS, PAGE = "/api/sparkstorm/v1", "/api/v1", "/page"
_HOST_VERBS = {"enum": [kind.lower().partition("_")[0] for kind in HOST_KINDS]}
_PATHS: Mapping[str, Mapping[str, Any]] = {
    "seconds": _whole(0, _YEAR_S),
    f"{OURS}/host/{{host}}/{{verb}}": _HOST_VERBS,
}
"""Schemas of parts of a path: by their name, or by the path that ends with them."""
_TOPOLOGY, _STORM_TOPOLOGY = f"{OURS}/topology/{{name}}", f"{STORMS}/topology/{{id}}"
_STREAM = "text/event-stream"
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", f"{OURS}/cluster"): Operation("the cluster", ClusterReport, ("at",)),
    ("GET", f"{OURS}/moments"): Operation("times for which the past is kept", dict[str, list[int]]),
    ("GET", f"{_TOPOLOGY}"): Operation("one topology, by name or id", TopologyReport, ("at",)),
    ("GET", f"{_TOPOLOGY}/component/{{component}}"): Operation(
        "one component", ComponentReport, ("at",)
    ),
    ("GET", f"{_TOPOLOGY}/task/{{task}}"): Operation(
        "windows of one task", dict[str, CountWindow], ("at",)
    ),
    ("GET", f"{_TOPOLOGY}/series"): Operation(
        "time series", dict[str, list[float | None]], ("window", "component", "since_ms")
    ),
    ("GET", f"{OURS}/stream"): Operation(
        "server-sent events: a snapshot, then deltas", None, ("topology",), media=_STREAM
    ),
    ("POST", f"{OURS}/topology/{{id}}/plan-rebalance"): Operation(
        "what a rebalance would do", body=_REBALANCE
    ),
    ("POST", f"{OURS}/host/{{host}}/{{verb}}"): Operation(
        "mark a host", body=_object(reason={"type": "string", "maxLength": 200})
    ),
    ("GET", "/api/openapi.json"): Operation("this description"),
    ("GET", "/metrics"): Operation("OpenMetrics", None, media="application/openmetrics-text"),
    ("GET", f"{STORMS}/cluster/configuration"): Operation("configuration without secrets"),
    ("GET", f"{STORMS}/cluster/summary"): Operation("sizes and use"),
    ("GET", f"{STORMS}/nimbus/summary"): Operation("drivers"),
    ("GET", f"{STORMS}/supervisor/summary"): Operation("supervisors"),
    ("GET", f"{STORMS}/supervisor"): Operation(
        "supervisors by id or host, with workers", queries=("id", "host")
    ),
    ("GET", f"{STORMS}/history/summary"): Operation("ids of topologies"),
    ("GET", f"{STORMS}/owner-resources"): Operation("use by owner"),
    ("GET", f"{STORMS}/owner-resources/{{owner}}"): Operation("use of one owner"),
    ("GET", f"{STORMS}/topology/summary"): Operation("topologies"),
    ("GET", f"{_STORM_TOPOLOGY}"): Operation("one topology", queries=("window of Storm", "sys")),
    ("GET", f"{_STORM_TOPOLOGY}/metrics"): Operation(
        "one topology", queries=("window of Storm", "sys")
    ),
    ("GET", f"{_STORM_TOPOLOGY}/lag"): Operation("lag of spouts that read Kafka"),
    ("GET", f"{_STORM_TOPOLOGY}/visualization"): Operation(
        "components and streams", queries=("window of Storm", "sys")
    ),
    ("GET", f"{_STORM_TOPOLOGY}/visualization-init"): Operation("names of streams"),
    ("GET", f"{_STORM_TOPOLOGY}/component/{{component}}"): Operation(
        "one component", queries=("window of Storm", "sys")
    ),
    ("GET", f"{STORMS}/topology-workers/{{id}}"): Operation("hosts and ports"),
    ("GET", f"{_STORM_TOPOLOGY}/logconfig"): Operation("levels of loggers"),
    ("POST", f"{_STORM_TOPOLOGY}/logconfig"): Operation(
        "set levels of loggers",
        body={**_object(namedLoggerLevels=_LEVELS), "required": ["namedLoggerLevels"]},
    ),
    ("POST", f"{_STORM_TOPOLOGY}/activate"): Operation("let spouts emit"),
    ("POST", f"{_STORM_TOPOLOGY}/deactivate"): Operation("let spouts rest"),
    ("POST", f"{_STORM_TOPOLOGY}/rebalance/{{seconds}}"): Operation(
        "rebalance after a wait", body=_object(rebalanceOptions=_REBALANCE)
    ),
    ("POST", f"{_STORM_TOPOLOGY}/kill/{{seconds}}"): Operation("kill after a wait"),
    ("POST", f"{_STORM_TOPOLOGY}/profiling/restartworker/{{worker}}"): Operation(
        "restart the worker HOST:PORT"
    ),
    ("GET", f"{STORMS}/log"): Operation(
        "part of a log", None, ("file!", "start", "length", "grep"), media="text/html"
    ),
    ("GET", f"{STORMS}/download"): Operation("a log", None, ("file!",), media="text/plain"),
    ("GET", f"{STORMS}/search"): Operation(
        "matches in one log",
        queries=("file!", "search-string!", "num-matches", "start-byte-offset"),
    ),
    ("GET", f"{STORMS}/deepSearch/{{topology}}"): Operation(
        "matches in a topology's logs",
        queries=("search-string!", "num-matches", "port", "start-file-offset", "start-byte-offset"),
    ),
    ("GET", f"{STORMS}/searchLogs"): Operation("names of logs", list[str], ("topoId", "port")),
    ("GET", f"{STORMS}/listLogs"): Operation("names of logs", list[str], ("topoId", "port")),
    ("GET", f"{PAGE}/session"): Operation("settings of the page"),
    ("GET", f"{PAGE}/stream"): Operation(
        "server-sent events: a snapshot, then deltas",
        None,
        ("topology", "window", "component"),
        media=_STREAM,
    ),
    ("GET", f"{PAGE}/at"): Operation(
        "what the page shows as of a moment",
        queries=("time_ms!", "topology", "window", "component"),
    ),
    ("GET", f"{PAGE}/series/{{topology}}"): Operation(
        "time series", dict[str, list[float | None]], ("window", "component", "since_ms")
    ),
    ("GET", f"{PAGE}/conf/{{topology}}"): Operation("configuration without secrets"),
    ("GET", f"{PAGE}/letters/{{topology}}"): Operation(
        "oldest dead letters behind an id", queries=("after",)
    ),
    ("GET", f"{PAGE}/capsule/{{topology}}/{{id}}"): Operation(
        "a dead letter with its test", None, media="application/zip"
    ),
    ("GET", f"{PAGE}/log/{{topology}}/{{slot}}"): Operation("last lines of a log", queries=("q",)),
    ("GET", f"{PAGE}/upgrade/{{topology}}"): Operation("stage of a gray upgrade"),
    ("GET", f"{PAGE}/journey/{{topology}}"): Operation(
        "where a message is; without one the oldest open ones", queries=("message",)
    ),
    **{
        ("POST", f"{PAGE}/{route}/{verb}"): Operation(f"{verb}: {summary}", body=_action(fields))
        for verb, fields in _ACTIONS.items()
        for route, summary in (("plan", "what it would do"), ("do", "carry it out"))
    },
    ("POST", f"{PAGE}/traces/{{topology}}"): Operation("follow a sample of messages", body=_LOOK),
    ("POST", f"{PAGE}/stacks/{{topology}}/{{slot}}"): Operation(
        "sample a worker's stacks", body=_LOOK
    ),
}
"""Every route but the page's files. Storm's answers have Storm's fields; those of the page change
with it.
"""


def openapi() -> dict[str, Any]:
    """Return the description of all operations."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _described(path, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "SparkStorm", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(path: str, operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = (
        {"type": "string"} if operation.answer is None else schema_of(operation.answer, schemas)
    )
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "tags": [path.split("/")[2] if path.startswith("/api/") else path.split("/")[1]],
        "parameters": [*_in_path(path), *map(_in_query, operation.queries)],
        "responses": {
            "200": {"description": "done", "content": {operation.media: {"schema": schema}}},
            "default": {"description": "refused or failed", "content": error},
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        described["requestBody"] = {"required": "required" in operation.body, "content": content}
    return described


def _in_path(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    last = _PATHS.get(path, _TEXT)
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": last if name == "verb" else _PATHS.get(name, _TEXT),
        }
        for name in names
    ]


def _in_query(name: str) -> dict[str, Any]:
    plain = name.removesuffix("!")
    asked = plain.partition(" ")[0]
    return {"name": asked, "in": "query", "required": name != plain, "schema": _QUERIES[plain]}
