"""Each field of the chat endpoint: values inside, on and outside its limits."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import ASGIApp

from tests.support.asgi_call import Call, call, chat_body
from tests.support.fake_engine import FakeEngine

FORMAT = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}

GOOD: dict[str, list[Any]] = {
    "model": ["other", None, 5],
    "max_completion_tokens": [1, 1.0, 100, None],
    "max_tokens": [1, 100, 2.0, None, 2**31 - 1],
    "temperature": [0, 2, 0.0, 1, 1e-6, None],
    "top_p": [0, 1, 0.5, None],
    "n": [1, 1.0, None],
    "stream": [False, None],
    "stream_options": [None],
    "stop": ["a", [], ["a"], ["a", "b", "c", "d"], "", ["", "x"], None],
    "presence_penalty": [-2, 2, 0, None],
    "frequency_penalty": [-2, 2, 0, None],
    "seed": [0, -1, -2, 2**63 - 1, -(2**63), 4294967295, 4294967296, 7.0, None],
    "response_format": [{"type": "text"}, {"type": "text", "json_schema": None}, None],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", None],
    "chat_template_kwargs": [
        {},
        {"enable_thinking": True},
        {"enable_thinking": False},
        {"enable_thinking": None},
        None,
    ],
    "top_k": [-1, 0, 1, 10**6, 40.0, None],
    "min_p": [0, 1, None],
    "typical_p": [0, 1, None],
    "top_n_sigma": [-1, 0, 3.5, None],
    "dynatemp_range": [0, 1.5, None],
    "dynatemp_exponent": [0, 1.5, None],
    "repeat_penalty": [0.01, 1, 3, 100, None],
    "repeat_last_n": [-1, 0, 64, None],
    "dry_multiplier": [0, 0.8, None],
    "dry_base": [0, 1.75, None],
    "dry_allowed_length": [0, 2, None],
    "dry_penalty_last_n": [-1, 0, 64, None],
    "dry_sequence_breakers": [[], ["\n", ""], None],
    "xtc_probability": [0, 1, None],
    "xtc_threshold": [0, 1, None],
    "mirostat": [0, 1, 2, None],
    "mirostat_tau": [0, 5, None],
    "mirostat_eta": [0, 0.1, None],
    "samplers": [[], ["top_k", "top_k"], "kpt", "", ["temp", "top-k", "typical_p"], None],
    "min_keep": [0, 5, None],
    "logit_bias": [
        {},
        {"65": -1, "Hello": 5},
        {"65": False},
        [[65, 1.0], [65, False], ["Hello", -0.5]],
        [[65.0, 1]],
        {"65": 1e300},
        None,
    ],
    "ignore_eos": [True, False, None],
    "grammar": ["", None],
    "json_schema": [None],
    "cache_prompt": [True, False, None],
    "id_slot": [-1, 0, 1, None],
    "t_max_predict_ms": [0, 1000, None],
    "timings_per_token": [True, False, None],
    "return_progress": [True, False, None],
    "n_probs": [0, 0.0, None],
}

NOT_NUMBERS = [True, False, "0.7", [], {}]
NOT_BOOLEANS = [0, 1, "true", "", [], {}]

BAD: dict[str, list[Any]] = {
    "max_completion_tokens": [0, -1, 1.5, 2**31, *NOT_NUMBERS],
    "max_tokens": [0, -1, 1.5, 2**31, *NOT_NUMBERS],
    "temperature": [-0.1, 2.1, 3, 10**400, *NOT_NUMBERS],
    "top_p": [-0.1, 1.1, *NOT_NUMBERS],
    "n": [1.5, *NOT_NUMBERS],
    "stream": NOT_BOOLEANS,
    "stream_options": [{}, {"include_usage": True}, [], "x", True],
    "stop": [5, True, {}, ["a", 1], ["a", None], ["a", "b", "c", "d", "e"]],
    "presence_penalty": [-2.1, 2.1, *NOT_NUMBERS],
    "frequency_penalty": [-2.1, 2.1, *NOT_NUMBERS],
    "seed": [2**63, -(2**63) - 1, 1.5, *NOT_NUMBERS],
    "response_format": [
        {},
        "json",
        [],
        {"type": "xml"},
        {"type": None},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"schema": None}},
        {"type": "json_schema", "json_schema": {"schema": []}},
        {"type": "json_schema", "json_schema": {"schema": {}, "name": 5}},
        {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
        {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}},
        {"type": "json_object", "schema": {}},
        {"type": "json_object", "json_schema": {"schema": {}}},
    ],
    "reasoning_effort": ["", "maximal", "None", 1, True],
    "chat_template_kwargs": [
        [],
        "x",
        {"enable_thinking": "false"},
        {"enable_thinking": 0},
        {"enable_thinking": 1},
    ],
    "top_k": [-2, 0.01, 2**31, *NOT_NUMBERS],
    "min_p": [-0.1, 1.1, *NOT_NUMBERS],
    "typical_p": [-0.1, 1.1, *NOT_NUMBERS],
    "top_n_sigma": [1e300, *NOT_NUMBERS],
    "dynatemp_range": [-0.1, *NOT_NUMBERS],
    "dynatemp_exponent": [-0.1, *NOT_NUMBERS],
    "repeat_penalty": [0, -1, 101, *NOT_NUMBERS],
    "repeat_last_n": [-2, 1.5, *NOT_NUMBERS],
    "dry_multiplier": [-0.1, *NOT_NUMBERS],
    "dry_base": [1e300, *NOT_NUMBERS],
    "dry_allowed_length": [-1, 1.5, *NOT_NUMBERS],
    "dry_penalty_last_n": [-2, *NOT_NUMBERS],
    "dry_sequence_breakers": ["x", [1], [None], {}, ["x"] * 65],
    "xtc_probability": [-0.1, 1.1, *NOT_NUMBERS],
    "xtc_threshold": [-0.1, 1.1, *NOT_NUMBERS],
    "mirostat": [-1, 3, 1.5, *NOT_NUMBERS],
    "mirostat_tau": [-1, *NOT_NUMBERS],
    "mirostat_eta": [-1, *NOT_NUMBERS],
    "samplers": [["nonsense"], "z", [1], {}, 5, ["top_k"] * 65],
    "min_keep": [-1, 0.5, *NOT_NUMBERS],
    "logit_bias": [
        5,
        "x",
        {"65": True},
        {"65": "1"},
        {"65": None},
        {"999999": 1},
        [[65]],
        [[65, 1, 2]],
        [65, 1],
        [[True, 1]],
        [[1.5, 1]],
        [[-1, 1]],
        [[261, 1]],
    ],
    "ignore_eos": NOT_BOOLEANS,
    "grammar": [5, [], {}, True, 'root := "a"'],
    "json_schema": [5, [], "x", True],
    "cache_prompt": NOT_BOOLEANS,
    "id_slot": [-2, 2, 0.5, *NOT_NUMBERS],
    "t_max_predict_ms": [-1, 0.5, *NOT_NUMBERS],
    "timings_per_token": NOT_BOOLEANS,
    "return_progress": NOT_BOOLEANS,
    "n_probs": [-1, 0.5, *NOT_NUMBERS],
    "messages": [None, [], {}, "hi", [5], [None], [[]]],
}

UNSUPPORTED: dict[str, list[Any]] = {
    "n": [0, 2, -1, 128, 2.0],
    "n_probs": [1, 20],
    "chat_template_kwargs": [{"custom": 1}, {"enable_thinking": True, "thinking_budget": 5}],
    "tools": [[{"type": "function"}], "x", True],
    "tool_choice": ["required", {"type": "function"}, ["auto"]],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto", {"name": "f"}],
    "logprobs": [True, 1],
    "top_logprobs": [1, 20],
    "audio": [{"voice": "x"}],
    "prediction": [{"type": "content", "content": "x"}],
    "web_search_options": [{"a": 1}],
    "modalities": [["audio"], ["text", "audio"], "text"],
    "verbosity": ["low", "high"],
}

REFUSED = [name for name in UNSUPPORTED if name not in ("n", "n_probs", "chat_template_kwargs")]
EMPTY: list[Any] = [None, False, 0, "", [], {}, "none"]
IGNORED = [
    "model",
    "user",
    "store",
    "metadata",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "parallel_tool_calls",
]


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
