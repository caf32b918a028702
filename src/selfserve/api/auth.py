"""API keys: where any is configured, every route but `/health` needs one."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from selfserve.api.errors import error_response
from selfserve.errors import Unauthorized

OPEN_PATHS = frozenset({"/health"})


class ApiKeyGuard:
    """Compares `Authorization: Bearer KEY` with the configured keys in constant time."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode("utf-8") for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check(Headers(scope=scope).get("authorization", ""))
            except Unauthorized as error:  # answered here: the layers outside add their headers
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, authorization: str) -> None:
        scheme, _, given = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise Unauthorized("an API key is needed: send Authorization: Bearer KEY")
        # Header values are bytes that were read as Latin-1; keys are compared as bytes.
        key = given.strip().encode("latin-1")
        # All keys are compared, so that the time does not tell which one was near.
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        if not any(matches):
            raise Unauthorized("the API key is wrong")
