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
from starlette.responses import Response
from starlette.routing import BaseRoute

from sparkstorm.common.errors import SparkStormError
from sparkstorm.web.answers import error_response, refusal
from sparkstorm.web.security import Access, Guard


def make_app(routes: Sequence[BaseRoute], access: Access) -> Guard:
    """Return the application, guarded."""
    handlers = {SparkStormError: _refused, HTTPException: _http, Exception: _refused}
    app = Starlette(
        routes=list(routes),
        middleware=[Middleware(GZipMiddleware, 1_000)],
        exception_handlers=handlers,
    )
    return Guard(app, access)


def _refused(request: Request, error: Exception) -> Response:
    return refusal(error)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = error_response(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response
