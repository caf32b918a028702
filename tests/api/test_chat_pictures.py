"""Chats with pictures: what the engine gets, and what is refused before anything is fetched."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from starlette.types import ASGIApp
from tests.api.conftest import AppMaker
from tests.support.asgi_call import call, chat_body
from tests.support.fake_engine import ByteVocabulary, FakeEngine
from tests.support.picture_chat import picture_part, solid, user

from selfserve.request import PICTURE_TOKEN, Ready, Request

BLIND_TEMPLATE = "{% for m in messages %}{{ m.role }}{% endfor %}"
TRIMMING_TEMPLATE = "{% for m in messages %}[{{ m.content | trim | upper | lower }}]{% endfor %}"


@pytest.fixture
def engine() -> FakeEngine:
    ready = Ready(context_size=4096, num_slots=2, can_shift=True, info={"vision": True})
    return FakeEngine(ready=ready)


@pytest.fixture
def app(make_app: AppMaker) -> ASGIApp:
    """Of its own: these tests need other templates."""
    return make_app()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Hears every connection that is tried."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def url_of(listener: socket.socket) -> str:
    return f"https://127.0.0.1:{listener.getsockname()[1]}/x.png"


def is_unheard(listener: socket.socket) -> bool:
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


def prompt_of(request: Request) -> str:
    """The prompt's text, with `#` for each picture."""
    ids = (ord("#") if token == PICTURE_TOKEN else token for token in request.prompt)
    return "".join(chr(token) for token in ids if token < 256)


def test_pictures_stand_in_the_prompt_where_the_client_put_them(
    app: ASGIApp, engine: FakeEngine
) -> None:
    red, blue = solid("red"), solid("blue", 30, 20)
    answered = call(app, chat_body(messages=[user("a", red, "b", blue), user(blue, "c")]))
    assert answered.status == 200, answered.text
    (request,) = engine.requests
    assert "a#b#" in prompt_of(request)
    assert "#c" in prompt_of(request)
    sizes = [(picture.width, picture.height) for picture in request.pictures]
    assert sizes == [(64, 64), (30, 20), (30, 20)]
    assert request.pictures[0].rgb[:3] == bytes((255, 0, 0))
    assert request.pictures[1] == request.pictures[2]


def test_places_survive_what_templates_do_to_text(app: ASGIApp, engine: FakeEngine) -> None:
    engine.vocabulary = ByteVocabulary(TRIMMING_TEMPLATE)
    assert call(app, chat_body(messages=[user(solid("red"), " Hi "), user(" ")])).status == 200
    assert prompt_of(engine.requests[0]).startswith("[# hi]")


def test_a_template_without_a_place_for_pictures_is_told(app: ASGIApp, engine: FakeEngine) -> None:
    engine.vocabulary = ByteVocabulary(BLIND_TEMPLATE)
    refused = call(app, chat_body(messages=[user(solid("red"), "Hi")]))
    assert (refused.status, refused.error["type"]) == (400, "invalid_request")
    assert "no place for pictures" in refused.error["message"]
    assert engine.requests == []


def test_a_full_queue_answers_before_anything_is_fetched(
    app: ASGIApp, engine: FakeEngine, listener: socket.socket
) -> None:
    engine.capacity = 0
    refused = call(app, chat_body(messages=[user(url_of(listener), "Hi")]))
    assert refused.status == 429
    assert is_unheard(listener)


@pytest.mark.parametrize(("count", "status"), [(2, 200), (3, 422)])
def test_pictures_are_counted_through_the_conversation(
    make_app: AppMaker, count: int, status: int
) -> None:
    messages = [user(solid("red"), "Hi") for _ in range(count)]
    assert call(make_app(max_images=2), chat_body(messages=messages)).status == status


def test_too_many_pictures_are_refused_before_any_is_fetched(
    make_app: AppMaker, listener: socket.socket
) -> None:
    app = make_app(max_images=1, allow_private_images=True)
    messages = [user(*[url_of(listener)] * 2, "Hi")]
    assert call(app, chat_body(messages=messages)).status == 422
    assert is_unheard(listener)


def test_a_text_model_refuses_at_once(
    make_app: AppMaker, engine: FakeEngine, listener: socket.socket
) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=True)
    app = make_app(allow_private_images=True)
    refused = call(app, chat_body(messages=[user(url_of(listener), "Hi")]))
    assert (refused.status, refused.error["type"]) == (422, "unsupported_capability")
    assert refused.error["param"] == "messages[0].content[0].image_url.url"
    assert is_unheard(listener)


def test_the_first_bad_picture_is_named(app: ASGIApp) -> None:
    parts: list[Any] = [solid("red"), picture_part("data:image/png;base64,AAAA")]
    content = [picture_part(part) if isinstance(part, Image.Image) else part for part in parts]
    refused = call(app, chat_body(messages=[{"role": "user", "content": content}]))
    assert (refused.status, refused.error["type"]) == (400, "unsupported_image")
    assert refused.error["param"] == "messages[0].content[1].image_url.url"


def test_a_context_with_pictures_is_not_shifted(make_app: AppMaker, engine: FakeEngine) -> None:
    app = make_app(context_shift=True)
    for messages in ([user(solid("red"), "Hi")], [user("Hi")]):
        assert call(app, chat_body(messages=messages)).status == 200
    assert [request.n_keep for request in engine.requests] == [None, 0]


def test_text_makes_no_client_for_pictures(app: ASGIApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("selfserve.api.pictures.ImageLoader")
    assert call(app, chat_body()).status == 200
    assert call(app, {"prompt": "hi"}, path="/completion").status == 200
