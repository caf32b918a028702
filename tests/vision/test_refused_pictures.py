"""Pictures that are not taken, and requests that cannot have any."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from tests.support.live_server import live_server
from tests.support.picture_chat import (
    PictureChat,
    base64_of,
    picture_part,
    png,
    projector_path,
    solid,
    user,
)
from tests.support.picture_server import make_certificate, running_server
from tests.vision.conftest import CONTEXT

from selfserve.config import ServerSettings


def refused(response: httpx.Response) -> tuple[int, str, Any]:
    error = response.json()["error"]
    return response.status_code, error["type"], error["param"]


def test_more_pictures_than_allowed_are_refused_before_any_is_fetched(chat: PictureChat) -> None:
    many = user(*["https://127.0.0.1:9/x.png"] * 5, "What?")
    assert refused(chat.post(many)) == (422, "unsupported_capability", "messages")


def test_pictures_over_the_context_are_an_overflow(chat: PictureChat) -> None:
    short = chat.answer(user("word " * 10))["usage"]["prompt_tokens"]
    text = "word " * (10 + CONTEXT - 9 - short)
    within, over = chat.post(user(text)), chat.post(user(solid("red"), solid("blue"), text))
    assert (within.status_code, over.status_code) == (200, 400)
    error = over.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"] == CONTEXT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("data", "status", "type"),
    [
        (b"<html>no picture</html>", 400, "unsupported_image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), 400, "unsupported_image"),
    ],
)
def test_damaged_pictures_are_refused_by_their_place(
    chat: PictureChat, data: bytes, status: int, type: str, stream: bool
) -> None:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    parts = [picture_part(solid("red")), picture_part(url)]
    response = chat.post({"role": "user", "content": parts}, stream=stream)
    assert refused(response) == (status, type, "messages[0].content[1].image_url.url")


def test_private_addresses_are_not_fetched(chat: PictureChat) -> None:
    with running_server(None) as server:
        response = chat.post(user(f"https://127.0.0.1:{server.port}/x.png", "What?"))
        assert response.status_code == 502
        assert not server.seen


def test_a_served_picture_is_seen_where_that_is_allowed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    settings = ServerSettings(allow_private_images=True)
    with (
        running_server(certificate) as server,
        live_server(settings, context_size=CONTEXT, projector_path=projector_path()) as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as http,
    ):
        server.serve("/red.png", png(solid("red")))
        answer = PictureChat(http).ask(
            f"https://127.0.0.1:{server.port}/red.png", "What color is this image? One word."
        )
    assert "red" in answer.lower()


def test_completions_take_pictures_at_their_markers(http: httpx.Client) -> None:
    prompt = (
        "<|im_start|>user\n<__media__>What color is the image? Answer with one word."
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    picture = base64_of(solid("yellow"))
    bodies = [
        {"prompt": prompt, "multimodal_data": [picture]},
        {"prompt": {"prompt_string": prompt, "multimodal_data": [picture]}},
        {"prompt": [{"prompt_string": prompt, "multimodal_data": [picture]}]},
    ]
    for body in bodies:
        answer = http.post("/completion", json={**body, "temperature": 0, "n_predict": 4})
        found = answer.json()
        assert answer.status_code == 200, found
        found = found[0] if isinstance(found, list) else found
        assert "yellow" in found["content"].lower()
        assert found["prompt"] == prompt


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"multimodal_data": ["AAAA", "AAAA"]}, 400, "multimodal_data"),
        ({"multimodal_data": ["?"]}, 400, "multimodal_data[0]"),
        ({"multimodal_data": ["AAAA"]}, 400, "multimodal_data[0]"),
        ({"prompt": "<__media__>" * 5, "multimodal_data": ["AAAA"] * 5}, 422, "multimodal_data"),
        ({"multimodal_data": ["AAAA"], "n_keep": 0}, 422, "n_keep"),
    ],
)
def test_completions_refuse_what_does_not_fit(
    http: httpx.Client, fields: dict[str, Any], status: int, param: str
) -> None:
    response = http.post("/completion", json={"prompt": "a <__media__> b", **fields})
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


def test_templates_show_where_pictures_go(http: httpx.Client) -> None:
    for parts, expected in (
        ((solid("red"), "What?"), "user\n<__media__>What?"),
        (("What is <__media__>?",), "user\nWhat is <__media__>?"),
    ):
        response = http.post("/apply-template", json={"messages": [user(*parts)]})
        assert response.status_code == 200, response.text
        assert expected in response.json()["prompt"]
