"""Starlette application of the web server, made from lists of routes: the page's, and those of the
REST interfaces.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from sparkstorm.errors import (
    NotAliveError,
    ReadOnlyConnectionError,
    SparkStormError,
    StoreUnavailableError,
)
from sparkstorm.web.security import Access, Guard

_STATUS: Sequence[tuple[type[SparkStormError], int]] = (
    (ReadOnlyConnectionError, 403),
    (NotAliveError, 404),
    (StoreUnavailableError, 503),
)


def make_app(routes: Sequence[BaseRoute], access: Access) -> Guard:
    """Return the application, guarded."""
    handlers = {SparkStormError: _refused, HTTPException: _http}
    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(GZipMiddleware, 1_000)],
        exception_handlers=handlers,
    )
    return Guard(app, access)


def _refused(request: Request, error: Exception) -> Response:
    """Return one sentence and the status that fits an error of ours."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
    return JSONResponse({"error": str(error)}, status)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
