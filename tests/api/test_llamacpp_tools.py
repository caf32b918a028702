"""What stands beside completions: tokens and text, templates, properties, slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call, chat_body
from tests.support.byte_vocabulary import BOS, EOS, IM_END
from tests.support.fake_engine import MODEL, THINKING_TEMPLATE, ByteVocabulary, FakeEngine

from selfserve.api.app import create_app
from selfserve.config import ModelInfo, ServerSettings
from selfserve.request import Heartbeat, Ready, SlotState

AppMaker = Callable[..., ASGIApp]


@pytest.fixture
def app(make_app: AppMaker) -> ASGIApp:
    """Of its own: these tests need another vocabulary, or count what happened."""
    return make_app()


def post(app: ASGIApp, path: str, **body: Any) -> Call:
    return call(app, body, path=path)


def get(app: ASGIApp, path: str) -> Any:
    answered = call(app, path=path, method="GET")
    assert answered.status == 200, answered.text
    return answered.json


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": ""}, []),
        ({"content": "a<|im_end|>"}, [97, IM_END]),
        ({"content": "<|im_end|>", "parse_special": False}, list(b"<|im_end|>")),
        ({"content": "a", "add_special": True}, [BOS, 97]),
        ({"content": "a", "add_special": False}, [97]),
        ({"content": ["a", 98, "c"], "add_special": True}, [BOS, 97, 98, 99]),
        ({"content": [98, "a"], "add_special": True}, [98, 97]),
        (
            {"content": "aé", "with_pieces": True},
            [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}],
        ),
        ({"content": [EOS], "with_pieces": True}, [{"id": EOS, "piece": "<|im_end|>"}]),
    ],
)
def test_text_becomes_tokens(
    app: ASGIApp, engine: FakeEngine, body: dict[str, Any], tokens: list[Any]
) -> None:
    engine.vocabulary = ByteVocabulary(add_bos=True)
    assert post(app, "/tokenize", **body).json == {"tokens": tokens}


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([], ""),
        ([97, 98.0], "ab"),
        ([0xC3, 0xA9], "é"),
        ([97, 0xC3], "a\ufffd"),
        ([0xA9, 97], "\ufffda"),
        ([EOS], "<|im_end|>"),
    ],
)
def test_tokens_become_text(app: ASGIApp, tokens: list[int], text: str) -> None:
    assert post(app, "/detokenize", tokens=tokens).json == {"content": text}


@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_there_and_back_is_the_same_text(text: str) -> None:
    app = create_app(FakeEngine(), ServerSettings(), MODEL)
    tokens = post(app, "/tokenize", content=text).json["tokens"]
    assert post(app, "/detokenize", tokens=tokens).json == {"content": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["a", True]}, "content[1]"),
        ("/tokenize", {"content": ["a", 261]}, "content[1]"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "a", "with_piece": True}, "with_piece"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [97, 261]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [], "x": 1}, "x"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", chat_body(temperature=1), "temperature"),
        ("/apply-template", chat_body(reasoning_effort="much"), "reasoning_effort"),
    ],
)
def test_bodies_are_checked_as_strictly_as_anywhere(
    app: ASGIApp, path: str, body: dict[str, Any], param: str
) -> None:
    refused = post(app, path, **body)
    assert (refused.status, refused.error["param"]) == (400, param)
    assert call(app, b"{", path=path).status == 400
    assert call(app, {}, path=path, headers={"content-type": "text/plain"}).status == 400


@pytest.mark.parametrize(
    "fields",
    [{}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}],
)
def test_an_applied_template_is_the_prompt_of_the_chat(
    app: ASGIApp, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    engine.vocabulary = ByteVocabulary(THINKING_TEMPLATE)
    prompt = post(app, "/apply-template", **chat_body(**fields)).json["prompt"]
    assert prompt.endswith("</think>\n\n" if fields else "<think>\n")
    assert call(app, chat_body(**fields)).status == 200
    assert call(app, {"prompt": prompt}, path="/completion").status == 200
    chat, completion = engine.requests
    assert chat.prompt == completion.prompt


def test_pictures_and_tools_are_refused_as_in_the_chat(app: ASGIApp) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    messages = [{"role": "user", "content": [picture]}]
    assert post(app, "/apply-template", messages=messages).status == 422
    assert post(app, "/apply-template", **chat_body(tools=[{"type": "function"}])).status == 422
    assert post(app, "/apply-template", **chat_body(tools=[], model="x")).status == 200


def test_an_applied_template_with_pictures_takes_any_text(app: ASGIApp, engine: FakeEngine) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=True, info={"vision": True})
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    content = [{"type": "text", "text": "a <__media__> b"}, picture]
    applied = post(app, "/apply-template", messages=[{"role": "user", "content": content}])
    assert applied.status == 200, applied.text
    assert "a <__media__> b<__media__>" in applied.json["prompt"]


def test_properties_tell_what_clients_ask_for(engine: FakeEngine, make_app: AppMaker) -> None:
    engine.vocabulary = ByteVocabulary("TEMPLATE")
    props = get(make_app(ModelInfo(id="m:1b", sampling={"top_k": 3})), "/props")
    assert props["total_slots"] == 2
    assert (props["model_alias"], props["chat_template"]) == ("m:1b", "TEMPLATE")
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert (props["bos_token"], props["eos_token"]) == ("<|begin|>", "<|im_end|>")
    assert props["default_generation_settings"]["n_ctx"] == 4096
    params = props["default_generation_settings"]["params"]
    assert (params["top_k"], params["temperature"], params["seed"]) == (3, 0.8, -1)


def test_default_settings_are_those_of_a_request_without_fields(app: ASGIApp) -> None:
    params = get(app, "/props")["default_generation_settings"]["params"]
    told = call(app, {"prompt": "a"}, path="/completion").json["generation_settings"]
    assert {**told, "seed": -1} == params


def test_slots_tell_no_request_unless_the_server_exposes_them(
    engine: FakeEngine, make_app: AppMaker
) -> None:
    busy = SlotState(id=0, request_id="cmpl-1", num_tokens=9, num_prompt=7, num_generated=2)
    idle = SlotState(id=1, request_id=None, num_tokens=4)
    engine.heartbeat = Heartbeat(slots=(busy, idle))
    plain = [{"id": 0, "n_ctx": 4096, "is_processing": True}]
    plain.append({"id": 1, "n_ctx": 4096, "is_processing": False})
    assert get(make_app(), "/slots") == plain
    exposed = get(make_app(expose_slots=True), "/slots")
    assert exposed[0] == plain[0] | {
        "request_id": "cmpl-1",
        "n_tokens": 9,
        "n_prompt_tokens": 7,
        "next_token": [{"n_decoded": 2}],
    }


def test_slots_are_idle_before_the_first_heartbeat(app: ASGIApp) -> None:
    assert [slot["is_processing"] for slot in get(app, "/slots")] == [False, False]


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_there_is_nothing_to_tell_before_the_model_is_loaded(
    app: ASGIApp, engine: FakeEngine, path: str
) -> None:
    engine.ready = None
    refused = call(app, path=path, method="GET")
    assert (refused.status, refused.error["type"]) == (503, "model_loading")


def test_the_document_describes_these_routes(app: ASGIApp) -> None:
    document = get(app, "/openapi.json")
    schemas = document["components"]["schemas"]
    for path in ("/completion", "/completions", "/v1/completions", "/tokenize", "/detokenize"):
        operation = document["paths"][path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.split("/")[-1] in schemas
    fields = schemas["CompletionRequest"]["properties"]
    assert fields["temperature"]["anyOf"][0]["minimum"] == 0
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
