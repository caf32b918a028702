"""Who may talk to the server, and what every answer carries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.support.asgi_call import CHAT, Call, call, chat_body
from tests.support.fake_engine import MODEL, FakeEngine

from selfserve.api.app import create_app
from selfserve.config import ServerSettings

AppMaker = Callable[..., ASGIApp]
ROUTES = [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/model"), ("GET", "/metrics")]
MORE_ROUTES = [("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nope"), ("OPTIONS", CHAT)]


def get(app: ASGIApp, path: str = "/health", method: str = "GET", **headers: str) -> Call:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(app, chat_body(), path=path, method=method, headers=names)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "127.0.0.1",
        "127.9.9.9:1",
        "localhost",
        "LOCALHOST:8080",
        "localhost.:80",
        "app.localhost:80",
        "[::1]:8080",
        "[::1]",
        "",
    ],
)
def test_loopback_names_are_this_machine(app: ASGIApp, host: str) -> None:
    assert get(app, Host=host).status == 200


FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "notlocalhost",
    "10.0.0.1:8080",
    "0.0.0.0:8080",
    "[::2]:8080",
    "2130706433",
    "0x7f.1",
    "user@127.0.0.1",
    "127.0.0.1:99999",
    "127.0.0.1/x",
    "[::1",
    "ä.example",
]


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("bind", ["127.0.0.1", "localhost", "::1"])
def test_foreign_hosts_are_refused_on_a_loopback_bind(
    shared_app: AppMaker, host: str, bind: str
) -> None:
    refused = get(shared_app(host=bind), Host=host)
    assert refused.status == 403
    assert refused.error["type"] == "forbidden"


def test_any_host_will_do_on_an_open_bind(shared_app: AppMaker) -> None:
    assert get(shared_app(host="0.0.0.0"), Host="box.lan:8080").status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://127.0.0.1:3000",
        "http://127.0.0.1",
        "http://localhost:8080",
        "file://",
        "127.0.0.1:8080",
        "chrome-extension://abc",
        "http://127.0.0.1:8080.evil.example",
        "http://127.0.0.1:8080@evil.example",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/health"), ("POST", CHAT), ("OPTIONS", CHAT)]
)
def test_pages_of_other_sites_are_refused(
    app: ASGIApp, engine: FakeEngine, origin: str, method: str, path: str
) -> None:
    refused = get(app, path, method, Origin=origin)
    assert refused.status == 403
    assert refused.error["type"] == "forbidden"
    assert not any(name.startswith("access-control") for name in refused.response_headers)
    assert engine.requests == []


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8080", "https://127.0.0.1:8080"])
def test_the_own_page_is_welcome(app: ASGIApp, origin: str) -> None:
    answered = get(app, CHAT, "POST", Origin=origin)
    assert answered.status == 200
    assert "access-control-allow-origin" not in answered.response_headers


def test_default_ports_belong_to_the_origin(shared_app: AppMaker) -> None:
    app = shared_app(host="0.0.0.0")
    assert get(app, Host="box.lan", Origin="http://box.lan").status == 200
    assert get(app, Host="box.lan:443", Origin="https://box.lan").status == 200
    assert get(app, Host="box.lan:8080", Origin="http://box.lan").status == 403


@pytest.mark.parametrize("allowed", ["https://app.example", "https://app.example/", "*"])
def test_allowed_origins_get_the_headers_that_browsers_need(
    shared_app: AppMaker, allowed: str
) -> None:
    app = shared_app(allowed_origins=(allowed,), api_keys=("k",))
    origin = "https://app.example"
    preflight = get(
        app,
        CHAT,
        "OPTIONS",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization",
    )
    assert preflight.status == 204
    assert preflight.response_headers["access-control-allow-origin"] == origin
    assert "POST" in preflight.response_headers["access-control-allow-methods"]
    assert preflight.response_headers["access-control-allow-headers"] == "authorization"
    refused = get(app, CHAT, "POST", Origin=origin)
    assert refused.status == 401
    assert refused.response_headers["access-control-allow-origin"] == origin
    answered = get(app, CHAT, "POST", Origin=origin, Authorization="Bearer k")
    assert answered.status == 200
    assert "origin" in answered.response_headers["vary"].lower()
    assert "access-control-allow-credentials" not in answered.response_headers


def test_two_origins_are_none(shared_app: AppMaker) -> None:
    app = shared_app(allowed_origins=("https://a.example",))
    headers = [("Origin", "https://a.example"), ("Origin", "https://b.example")]
    assert call(app, path="/health", method="GET", headers=headers).status == 403


@pytest.mark.parametrize(("method", "path"), ROUTES + MORE_ROUTES)
@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Basic secret", "secret", "Bearer ä"],
)
def test_every_route_needs_the_key(
    shared_app: AppMaker, method: str, path: str, given: str
) -> None:
    refused = get(shared_app(api_keys=("secret", "other")), path, method, Authorization=given)
    assert refused.status == 401
    assert refused.error["type"] == "unauthorized"
    assert refused.response_headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "given",
    [
        "Bearer secret",
        "bearer secret",
        "BEARER  other",
        "Bearer schlüssel".encode().decode("latin-1"),
    ],
)
def test_any_key_opens(shared_app: AppMaker, given: str) -> None:
    app = shared_app(api_keys=("secret", "other", "schlüssel"))
    assert get(app, CHAT, "POST", Authorization=given).status == 200


def test_health_never_needs_a_key(shared_app: AppMaker) -> None:
    app = shared_app(api_keys=("secret",))
    assert get(app).status == 200
    assert get(app, "/health/").status == 401


def test_without_keys_every_authorization_is_ignored(app: ASGIApp) -> None:
    assert get(app, CHAT, "POST", Authorization="Bearer anything").status == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;",
    ],
)
def test_json_content_types_are_taken(app: ASGIApp, content_type: str) -> None:
    assert get(app, CHAT, "POST", Content_Type=content_type).status == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/json",
        ";",
        "json",
    ],
)
def test_other_content_types_are_refused(app: ASGIApp, content_type: str) -> None:
    refused = get(app, CHAT, "POST", Content_Type=content_type)
    assert refused.status == 400
    assert "Content-Type" in refused.error["message"]


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "trace:1/2=x"])
def test_a_sane_request_id_is_taken_over(app: ASGIApp, given: str) -> None:
    assert get(app, X_Request_Id=given).response_headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "ä", "<script>", "a\x00b"])
def test_other_request_ids_are_replaced(app: ASGIApp, given: str) -> None:
    found = get(app, X_Request_Id=given).response_headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", found)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("POST", CHAT, 200),
        ("GET", "/nope", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/models", 405),
        ("BREW", CHAT, 405),
    ],
)
def test_every_answer_has_a_request_id_and_every_error_the_envelope(
    app: ASGIApp, method: str, path: str, status: int
) -> None:
    answered = get(app, path, method, X_Request_Id="id-1")
    assert answered.status == status
    assert answered.response_headers["x-request-id"] == "id-1"
    if status >= 400:
        assert answered.error["type"] == ("not_found" if status == 404 else "invalid_request")
    if status == 405:
        assert answered.response_headers["allow"] in ("GET", "POST")


async def break_down(request: Any) -> None:
    raise ZeroDivisionError("secret detail")


async def break_off(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError("secret detail")


def test_a_fault_of_ours_is_logged_with_its_id_and_told_without_detail(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(engine, ServerSettings(), MODEL, extra_routes=[Route("/broken", break_down)])
    failed = get(app, "/broken", X_Request_Id="id-7")
    assert failed.status == 500
    assert failed.error["type"] == "internal_error"
    assert "secret" not in failed.text
    assert failed.response_headers["x-request-id"] == "id-7"
    records = [record for record in caplog.records if "id-7" in record.getMessage()]
    assert len(records) == 1
    assert records[0].exc_info is not None


def test_a_fault_in_the_midst_of_an_answer_is_logged(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class BreakOff(PlainTextResponse):
        __call__ = staticmethod(break_off)  # type: ignore[assignment]

    async def answer(request: Any) -> PlainTextResponse:
        return BreakOff()

    app = create_app(engine, ServerSettings(), MODEL, extra_routes=[Route("/broken", answer)])
    failed = get(app, "/broken", X_Request_Id="id-8")
    assert len(failed.sent) == 1
    records = [record for record in caplog.records if "id-8" in record.getMessage()]
    assert len(records) == 1


def test_extra_routes_stand_behind_the_same_guards(engine: FakeEngine) -> None:
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    routes = [Route("/", page)]
    app = create_app(engine, ServerSettings(api_keys=("k",)), MODEL, extra_routes=routes)
    assert get(app, "/").status == 401
    assert get(app, "/", Authorization="Bearer k").text == "page"
    assert get(app, "/", Host="evil.example").status == 403
