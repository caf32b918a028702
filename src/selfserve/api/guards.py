"""Who may talk to the server: the Host rule, the Origin rule and the answers that browsers need.

A page on the web can make a browser send requests to this machine. The Host rule stops names
that were rebound to a loopback address; the Origin rule stops pages of other sites. A request
without an Origin comes from no page, so it passes.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfserve.config import ServerSettings
from selfserve.errors import Forbidden, shown

PREFLIGHT_AGE_S = 600


class HostGuard:
    """On a loopback bind, refuses requests whose Host names anything but this machine."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._is_active = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_active and scope["type"] == "http":
            for host in Headers(scope=scope).getlist("host"):
                if not is_loopback(split_host(host)[0]):
                    raise Forbidden(f"Host must be this machine's loopback name, got {shown(host)}")
        await self._app(scope, receive, send)


class OriginGuard:
    """Refuses pages of other sites, unless they are allowed; those get the headers they need."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = Headers(scope=scope).getlist("origin") if scope["type"] == "http" else []
        if not origins:
            await self._app(scope, receive, send)
            return
        origin = origins[0]
        if len(origins) > 1 or not (self._is_allowed(origin) or is_same_origin(origin, scope)):
            raise Forbidden(f"Origin must be this server or an allowed one, got {shown(origin)}")
        if not self._is_allowed(origin):
            await self._app(scope, receive, send)
        elif is_preflight(scope):
            await _answer_preflight(origin, scope, send)
        else:
            await self._app(scope, receive, _with_cors(origin, send))

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self._allowed or origin.lower() in self._allowed


def is_loopback(host: str) -> bool:
    """True for `localhost` and the literal addresses of the loopback interface."""
    name = host.lower().rstrip(".").removeprefix("[").removesuffix("]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def split_host(value: str) -> tuple[str, int | None]:
    """`name:port` in two; an unreadable value gives the empty name."""
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return "", None
    if host is None or parts.path or parts.query or parts.fragment or parts.username is not None:
        return "", None
    return host, port


def is_same_origin(origin: str, scope: Scope) -> bool:
    """True if a page of `origin` came from the host and port that the request goes to. The scheme
    is not compared: TLS may end in front of this server."""
    scheme, _, rest = origin.partition("://")
    default = {"http": 80, "https": 443}.get(scheme.lower())
    if default is None or not rest:
        return False
    host, port = split_host(rest)
    own_host, own_port = split_host(Headers(scope=scope).get("host", ""))
    return bool(host) and (host, port or default) == (own_host, own_port or default)


def is_preflight(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


async def _answer_preflight(origin: str, scope: Scope, send: Send) -> None:
    wanted = Headers(scope=scope).get("access-control-request-headers", "")
    message: Message = {"type": "http.response.start", "status": 204, "headers": []}
    headers = MutableHeaders(scope=message)
    headers["access-control-allow-origin"] = origin
    headers["access-control-allow-methods"] = "GET, POST"
    headers["access-control-allow-headers"] = wanted or "content-type, authorization"
    headers["access-control-max-age"] = str(PREFLIGHT_AGE_S)
    headers["vary"] = "Origin, Access-Control-Request-Headers"
    await send(message)
    await send({"type": "http.response.body", "body": b""})


def _with_cors(origin: str, send: Send) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = "X-Request-Id, Retry-After"
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_cors
