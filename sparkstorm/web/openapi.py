"""OpenAPI 3.1 description of our REST interface: its schemas are made from the records
themselves.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from sparkstorm import __version__
from sparkstorm.insight import records

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
ERROR = {
    "type": "object",
    "required": ["error", "errorMessage"],
    "properties": {name: {"type": "string"} for name in ("error", "errorMessage")},
}


def schema_of(hint: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a type; those of records go into `known`, each once."""
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each, known) for each in parts]}
    if origin is tuple or origin is list:
        return {"type": "array", "items": schema_of(parts[0], known)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(parts[1], known)}
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in known:
            known[name] = {}
            hints = get_type_hints(hint, vars(records))
            properties = {each.name: schema_of(hints[each.name], known) for each in fields(hint)}
            known[name] = {
                "type": "object",
                "description": (hint.__doc__ or "").strip(),
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/components/schemas/{name}"}
    raise TypeError(f"no schema for {hint}")


_QUERIES: Mapping[str, dict[str, Any]] = {
    "at": {
        "type": "integer",
        "minimum": 0,
        "maximum": 10**15 - 1,
        "description": "a moment of the last 24 hours, in milliseconds",
    },
    "window": {"enum": [*records.WINDOWS_S]},
    "component": {"type": "string"},
}
"""Schemas of what may be asked behind a path."""


def openapi(routes: Mapping[str, tuple[str, Any, tuple[str, ...]]]) -> dict[str, Any]:
    """Return the description of routes: path -> (summary, type of the answer, names of its
    queries), all of them GET.
    """
    known: dict[str, Any] = {"Error": ERROR}
    paths = {}
    for path, (summary, hint, queries) in routes.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        failed = {
            "description": "refused or failed",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        done = {
            "description": "done",
            "content": {"application/json": {"schema": schema_of(hint, known)}},
        }
        paths[path] = {
            "get": {
                "summary": summary,
                "parameters": [
                    *(
                        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                        for name in names
                    ),
                    *({"name": name, "in": "query", "schema": _QUERIES[name]} for name in queries),
                ],
                "responses": {"200": done, "default": failed},
            }
        }
    info = {"title": "SparkStorm", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": known}}
