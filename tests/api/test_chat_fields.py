"""Each field of the chat endpoint: values inside, on and outside its limits."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call, chat_body
from tests.support.chat_cases import BAD, EMPTY, GOOD, IGNORED, REFUSED, UNSUPPORTED
from tests.support.fake_engine import FakeEngine

FORMAT = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r:.40}")
        for name, values in table.items()
        for value in values
    ]


def check_refusal(refused: Call, name: str, status: int) -> None:
    assert refused.status == status, refused.text
    assert str(refused.error["param"]).startswith(name)
    assert name in refused.error["message"]
    assert len(refused.error["message"]) < 400


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_values_within_the_limits_are_taken(app: ASGIApp, name: str, value: Any) -> None:
    taken = call(app, chat_body(**{name: value}))
    assert taken.status == 200, taken.text


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_values_outside_the_limits_get_400(
    app: ASGIApp, engine: FakeEngine, name: str, value: Any
) -> None:
    check_refusal(call(app, chat_body(**{name: value})), name, 400)
    assert engine.requests == []


@pytest.mark.parametrize(("name", "value"), cases(UNSUPPORTED))
def test_what_is_not_offered_gets_422(app: ASGIApp, name: str, value: Any) -> None:
    refused = call(app, chat_body(**{name: value}))
    check_refusal(refused, name, 422)
    assert refused.error["type"] == "unsupported_capability"


@pytest.mark.parametrize("value", EMPTY, ids=repr)
@pytest.mark.parametrize("name", REFUSED)
def test_empty_forms_of_what_is_not_offered_pass(app: ASGIApp, name: str, value: Any) -> None:
    assert call(app, chat_body(**{name: value})).status == 200


def test_forms_that_mean_the_default_pass(app: ASGIApp) -> None:
    assert call(app, chat_body(tool_choice="auto", modalities=["text"])).status == 200


@pytest.mark.parametrize("value", [None, True, 1, "x", ["x"], {"a": {"b": 1}}], ids=repr)
@pytest.mark.parametrize("name", IGNORED)
def test_ignored_fields_take_anything(app: ASGIApp, name: str, value: Any) -> None:
    assert call(app, chat_body(**{name: value})).status == 200


@pytest.mark.parametrize("value", [{}, {"include_usage": True}, {"include_obfuscation": False}])
def test_stream_options_belong_to_streams(app: ASGIApp, value: Any) -> None:
    assert call(app, chat_body(stream=True, stream_options=value)).status == 200
    for stream in (False, None):
        refused = call(app, chat_body(stream=stream, stream_options=value))
        check_refusal(refused, "stream_options", 400)


@pytest.mark.parametrize("value", [{"include_usage": 1}, {"other": True}, [], "x"])
def test_stream_options_are_checked(app: ASGIApp, value: Any) -> None:
    check_refusal(call(app, chat_body(stream=True, stream_options=value)), "stream_options", 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT, "grammar": 'root ::= "a"'},
        {"response_format": {"type": "json_object"}, "json_schema": {}},
        {"grammar": 'root ::= "a"', "json_schema": {}},
    ],
)
def test_one_form_of_the_answer_at_most(app: ASGIApp, fields: dict[str, Any]) -> None:
    refused = call(app, chat_body(**fields))
    assert refused.status == 400
    assert refused.error["param"] in fields


def test_response_format_text_is_no_form(app: ASGIApp) -> None:
    body = chat_body(response_format={"type": "text"}, grammar='root ::= "a"')
    assert call(app, body).status == 200


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tempratur", "temperature"),
        ("max_token", "max_tokens"),
        ("Temperature", "temperature"),
        ("responseformat", "response_format"),
        ("xyzzy", None),
        ("", None),
        ("=tag", None),
        ("{text}", None),
        ("a" * 1000, None),
    ],
)
def test_unknown_fields_are_named_with_the_nearest_known_one(
    app: ASGIApp, name: str, near: str | None
) -> None:
    refused = call(app, chat_body(**{name: 1}))
    assert refused.status == 400
    assert refused.error["param"] == name[:200]
    assert name[:90] in refused.error["message"]
    assert ("did you mean" in refused.error["message"]) == (near is not None)
    assert near is None or near in refused.error["message"]


def test_a_message_names_field_limit_and_value(app: ASGIApp) -> None:
    error = call(app, chat_body(temperature=3)).error
    assert error == {
        "type": "invalid_request",
        "message": "temperature must be between 0 and 2, got 3",
        "param": "temperature",
        "code": "invalid_request",
    }


def test_a_message_never_repeats_much_of_a_value(app: ASGIApp) -> None:
    message = call(app, chat_body(temperature="ä\u2028{text}" * 10_000)).error["message"]
    assert len(message) < 200
    assert "{text}" in message


def test_what_is_malformed_is_told_before_what_is_not_offered(app: ASGIApp) -> None:
    assert call(app, chat_body(tools=[{}], temperature=3)).error["param"] == "temperature"


@pytest.mark.parametrize("body", [[], "x", 5, None, True, [chat_body()]], ids=repr)
def test_a_body_must_be_an_object(app: ASGIApp, body: Any) -> None:
    import json

    refused = call(app, json.dumps(body).encode())
    assert refused.status == 400
    assert refused.error["param"] is None


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"'])
@pytest.mark.parametrize("stream", ["true", "false"])
def test_numbers_that_json_does_not_know_get_400(app: ASGIApp, raw: str, stream: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"hi"}}],"stream":{stream},"top_p":{raw}}}'
    assert call(app, body.encode()).error["type"] == "invalid_request"
