"""Answers of the REST interfaces: JSON, and errors as one sentence. Every body is hostile until
checked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sparkstorm.common.errors import (
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    OneStoreAwayError,
    ReadOnlyConnectionError,
    SparkStormError,
    StateConflictError,
    StoreUnavailableError,
)
from sparkstorm.web.security import error_fields

MOST_NAME_CHARS = 300
_DEEPEST = 20
_STATUS = {
    NotAliveError: 404,
    ReadOnlyConnectionError: 403,
    InvalidConfigError: 400,
    InvalidTopologyError: 400,
    IllegalTransitionError: 409,
    StateConflictError: 409,
    StoreUnavailableError: 503,
    OneStoreAwayError: 503,
}
_FAULT = "this answer could not be made; the log of the web process says why"
_LOG = logging.getLogger("sparkstorm.web")

Answer = Callable[[Request], Any]
Act = Callable[[Request, Any], Any]


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON answer that is not cached."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )
    headers = {"Cache-Control": "no-cache, no-store", "X-Content-Type-Options": "nosniff"}
    return Response(body, status, headers, "application/json;charset=utf-8")


def error_response(status: int, sentence: str) -> Response:
    """Return an error in the form that Storm's REST has, and every route of ours too."""
    return json_response(error_fields(status, sentence), status)


def refusal(error: Exception) -> Response:
    """Return an error of ours as one sentence with the status that fits it; any other one is a
    fault of the server, and only its log has it.
    """
    if not isinstance(error, SparkStormError):
        return error_response(500, _FAULT)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return error_response(status, str(error).partition("\n")[0])


def reading(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that only looks at the read model: it never waits for a store."""

    async def endpoint(request: Request) -> Response:
        return guarded(lambda: json_response(answer(request)))

    endpoint.__doc__ = answer.__doc__
    return endpoint


def acting(act: Act) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that asks Nimbus or a store, on a thread; a body is an object."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await body_of(request)
        except HTTPException as error:
            return error_response(error.status_code, error.detail)
        return await to_thread.run_sync(lambda: guarded(lambda: json_response(act(request, body))))

    endpoint.__doc__ = act.__doc__
    return endpoint


def guarded(answer: Callable[[], Response]) -> Response:
    """Return the answer, or an error as one sentence."""
    try:
        return answer()
    except SparkStormError as error:
        return refusal(error)
    except Exception as error:
        _LOG.exception("an answer could not be made")
        return refusal(error)


async def body_of(request: Request) -> dict[str, Any]:
    """Return the body, a JSON object, whose size and time the guard limits; an empty one is an
    empty object. HTTPException 400 for another one.
    """
    data = await request.body()
    if not data.strip():
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not JSON") from error
    if not isinstance(value, dict) or not _is_flat(value):
        raise HTTPException(400, f"the body must be a JSON object, nested {_DEEPEST} deep at most")
    return value


def _is_flat(value: Any, depth: int = 0) -> bool:
    if depth > _DEEPEST:
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_is_flat(item, depth + 1) for item in inner)


def path_name(request: Request, name: str) -> str:
    """Return a part of the path that names something; NotAliveError when nothing can have that
    name.
    """
    value = str(request.path_params[name])
    if not value or len(value) > MOST_NAME_CHARS or not value.isprintable():
        raise NotAliveError(
            f"{name} in the path: expected a name of at most {MOST_NAME_CHARS} printable characters"
        )
    return value


def seconds(text: str) -> float:
    """Return a number of seconds from a path; InvalidConfigError when it is none."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidConfigError(f"wait time in the path: expected whole seconds, got {text!r:.40}")
    return float(text)


def whole(value: Any) -> Any:
    """Return a float that is a whole number as an int: JSON has one kind of number, and a client
    may write 4.0.
    """
    return int(value) if type(value) is float and value.is_integer() else value


def checked(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a field of a body; InvalidConfigError when it has another type."""
    value = whole(body.get(name, default))
    if value is not default and type(value) is not kind:
        raise InvalidConfigError(f"{name} in the body: expected {kind.__name__}, got {value!r:.60}")
    return value


def moment(request: Request, name: str = "at") -> int | None:
    """Return the moment (ms) that was asked for by a parameter; None where it is not given."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise InvalidConfigError(f"{name}: expected milliseconds since the epoch, got {text!r:.40}")
    return int(text)
