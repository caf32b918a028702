"""The one error table: every exception becomes the contract's body here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from selfserve.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    SelfError,
    StartError,
    shown,
)
from selfserve.logs import get_logger

log = get_logger("api")

RETRY_STATUSES = (429, 503)
DEFAULT_RETRY_S = 1


def translate(error: BaseException, request_id: str) -> SelfError:
    """`error` as a client may see it. What is our own fault is logged and loses its detail."""
    if isinstance(error, SelfError) and not isinstance(error, StartError | InternalError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return InternalError("an internal error happened; the server's log has the details")


def error_json(error: SelfError) -> str:
    """The body, ASCII and strict JSON whatever the message holds."""
    return json.dumps(error.body(), separators=(",", ":"), default=str)


def error_response(error: SelfError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for `error`, where nothing of an answer was sent yet."""
    answer = Response(error_json(error), error.status, headers, "application/json")
    if error.status in RETRY_STATUSES:
        answer.headers["retry-after"] = str(error.retry_after_s or DEFAULT_RETRY_S)
    elif error.status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


async def handle_error(request: Request, error: Exception) -> Response:
    """Handler of the routing layer for all that routes raise."""
    return error_response(translate(error, request_id_of(request.scope)))


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Handler of the routing layer for its own refusals: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    if error.status_code == 404:
        return error_response(NotFound(f"there is no route {shown(path)}"))
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        message = f"{shown(path)} must be called with {allow}, got {shown(method)}"
        return error_response(MethodNotAllowed(message), {"Allow": allow})
    return error_response(InvalidRequest(str(error.detail)))


def request_id_of(scope: Mapping[str, object]) -> str:
    state = scope.get("state")
    return str(state.get("request_id", "")) if isinstance(state, dict) else ""
