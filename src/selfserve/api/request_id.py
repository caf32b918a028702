"""The outermost layer: every answer carries `X-Request-Id`, every failure is answered."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfserve.api.errors import error_response, translate

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

Observer = Callable[[Scope, int, float], None]
"""Called at the end of each request with its scope, the status (0: none was sent) and seconds."""


class RequestIds:
    """Takes a request id over or makes one, and answers what the inner layers raise."""

    def __init__(self, app: ASGIApp, observe: Observer) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if SANE_ID.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        began = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # The routing layer logs an unforeseen error, answers it, and raises it again.
            if status == 0:
                answer = error_response(translate(error, request_id))
                await answer(scope, receive, send_with_id)
        finally:
            self._observe(scope, status, time.perf_counter() - began)
