"""The fields of a completion: what is taken, what is refused, and what reaches the engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call
from tests.support.byte_vocabulary import EOS
from tests.support.completion_cases import BAD, GOOD, UNSUPPORTED
from tests.support.fake_engine import ByteVocabulary, FakeEngine

from selfserve.api.llamacpp.schema import CompletionRequest
from selfserve.config import ModelInfo
from selfserve.request import Ready, Request

AppMaker = Callable[..., ASGIApp]


def complete(app: ASGIApp, path: str = "/completion", **fields: Any) -> Call:
    return call(app, {"prompt": "hi", **fields}, path=path)


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r:.40}")
        for name, values in table.items()
        for value in values
    ]


def sent(app: ASGIApp, engine: FakeEngine, **fields: Any) -> Request:
    answered = complete(app, **fields)
    assert answered.status == 200, answered.text
    return engine.requests[-1]


def test_the_tables_hold_every_field() -> None:
    assert set(GOOD) == set(CompletionRequest.model_fields)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_values_within_the_limits_are_taken(app: ASGIApp, name: str, value: Any) -> None:
    taken = complete(app, **{name: value})
    assert taken.status == 200, taken.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_values_outside_the_limits_get_400_streamed_or_not(
    app: ASGIApp, engine: FakeEngine, name: str, value: Any, stream: bool
) -> None:
    fields = {"stream": stream, name: value}
    refused = complete(app, **fields)
    assert refused.status == 400, refused.text
    assert refused.response_headers["content-type"] == "application/json"
    assert str(refused.error["param"]).startswith(name)
    assert name in refused.error["message"]
    assert len(refused.error["message"]) < 400
    assert engine.requests == []
    assert engine.num_reserved == 0


@pytest.mark.parametrize(("name", "value"), cases(UNSUPPORTED))
def test_what_is_not_offered_gets_422(app: ASGIApp, name: str, value: Any) -> None:
    refused = complete(app, **{name: value})
    assert refused.status == 422
    assert refused.error["param"] == name


@pytest.mark.parametrize(
    ("name", "near"), [("tempratur", "temperature"), ("n_probz", "n_probs"), ("xyzzy", None)]
)
def test_unknown_fields_are_named_with_the_nearest_known_one(
    app: ASGIApp, name: str, near: str | None
) -> None:
    refused = complete(app, **{name: 1})
    assert (refused.status, refused.error["param"]) == (400, name)
    assert ("did you mean" in refused.error["message"]) == (near is not None)
    assert near is None or near in refused.error["message"]


def test_a_prompt_is_required(app: ASGIApp) -> None:
    refused = call(app, {}, path="/completion")
    assert (refused.status, refused.error["message"]) == (400, "prompt is required")


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_know_get_400(app: ASGIApp, raw: str) -> None:
    body = f'{{"prompt":"hi","min_p":{raw}}}'.encode()
    assert call(app, body, path="/completion").status == 400


@pytest.mark.parametrize("path", ["/completion", "/completions", "/v1/completions"])
def test_all_three_routes_take_the_same_body(app: ASGIApp, engine: FakeEngine, path: str) -> None:
    assert complete(app, path, n_predict=7).status == 200
    assert engine.requests[-1].max_tokens == 7


def test_without_fields_the_documented_defaults_hold(app: ASGIApp, engine: FakeEngine) -> None:
    request = sent(app, engine)
    expected = Request(
        id=request.id,
        prompt=tuple(b"hi"),
        sampling=type(request.sampling)(seed=request.sampling.seed),
    )
    assert request == expected


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"n_predict": -1}, None),
        ({"n_predict": 0}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6, "n_predict": 7}, 7),
        ({"max_tokens": 5, "n_predict": 0}, 0),
        ({"max_tokens": 5, "n_predict": -1}, None),
        ({"max_tokens": 5, "n_predict": None}, 5),
    ],
)
def test_n_predict_wins_over_the_other_names_of_the_limit(
    app: ASGIApp, engine: FakeEngine, fields: dict[str, Any], limit: int | None
) -> None:
    assert sent(app, engine, **fields).max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 0), ({"logprobs": 3}, 3), ({"n_probs": 2, "logprobs": 3}, 2), ({"n_probs": 0}, 0)],
)
def test_n_probs_wins_over_logprobs(
    app: ASGIApp, engine: FakeEngine, fields: dict[str, Any], count: int
) -> None:
    assert sent(app, engine, **fields).n_probs == count


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("stop", "a", "stop", ("a",)),
        ("stop", ["", "a", "b"], "stop", ("a", "b")),
        ("post_sampling_probs", True, "post_sampling_probs", True),
        ("id_slot", 1, "slot", 1),
        ("cache_prompt", False, "cache_prompt", False),
        ("n_keep", -1, "n_keep", -1),
        ("n_keep", 0, "n_keep", 0),
        ("t_max_predict_ms", 50, "time_limit_ms", 50),
        ("n_indent", 4, "n_indent", 4),
        ("timings_per_token", True, "timings_per_token", True),
        ("return_progress", True, "return_progress", False),
    ],
)
def test_fields_of_the_run_reach_the_engine(
    app: ASGIApp, engine: FakeEngine, name: str, value: Any, attribute: str, expected: Any
) -> None:
    assert getattr(sent(app, engine, **{name: value}), attribute) == expected


def test_progress_is_told_in_streams_only(app: ASGIApp, engine: FakeEngine) -> None:
    assert sent(app, engine, stream=True, return_progress=True).return_progress


@pytest.mark.parametrize(
    ("value", "samplers"),
    [
        ("kt", ("top_k", "temperature")),
        ("edskypmxt", None),
        (["typ", "typical", "typ-p", "nucleus", "temp"], ("typ_p",) * 3 + ("top_p", "temperature")),
        (["top_k", "top_k"], ("top_k", "top_k")),
        ([], ()),
    ],
)
def test_samplers_have_long_and_short_names(
    app: ASGIApp, engine: FakeEngine, value: Any, samplers: tuple[str, ...] | None
) -> None:
    default = sent(app, engine).sampling.samplers
    expected = default if samplers is None else samplers
    assert sent(app, engine, samplers=value).sampling.samplers == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"65": -1, "BC": 5}, {65: -1.0, 66: 5.0, 67: 5.0}),
        ([[65, 1.0], [65, False], ["é", -0.5]], {65: -math.inf, 0xC3: -0.5, 0xA9: -0.5}),
        ([[65, 1], [65, 2]], {65: 3.0}),
        ({}, {}),
    ],
)
def test_biases_of_texts_are_those_of_each_of_their_tokens(
    app: ASGIApp, engine: FakeEngine, value: Any, expected: dict[int, float]
) -> None:
    assert dict(sent(app, engine, logit_bias=value).sampling.logit_bias) == expected


def test_the_seed_used_is_told(app: ASGIApp, engine: FakeEngine) -> None:
    told = complete(app, seed=-1).json["generation_settings"]["seed"]
    assert told == engine.requests[-1].sampling.seed
    assert complete(app, seed=42).json["generation_settings"]["seed"] == 42
    assert len({complete(app).json["generation_settings"]["seed"] for _ in range(5)}) == 5


def test_settings_tell_every_field_as_it_took_effect(app: ASGIApp) -> None:
    not_settings = {
        "prompt", "multimodal_data", "stream_options", "logprobs", "max_completion_tokens",
        "n", "best_of", "echo", "suffix", "user",
    }  # fmt: skip
    settings = complete(app).json["generation_settings"]
    assert set(settings) == set(CompletionRequest.model_fields) - not_settings | {"n_ctx"}
    assert (settings["n_ctx"], settings["model"]) == (4096, "tiny:1b")
    said = {
        "temperature": 0.25, "top_k": 7, "n_predict": 3, "stop": ["x"], "n_probs": 2,
        "n_indent": 1, "n_keep": 4, "grammar": 'root ::= "a"', "ignore_eos": True,
        "dry_multiplier": 0.5, "samplers": ["top_k"], "seed": 9, "id_slot": 1,
        "cache_prompt": False, "return_tokens": True, "min_keep": 2, "t_max_predict_ms": 5,
    }  # fmt: skip
    told = complete(app, **said).json["generation_settings"]
    assert {name: told[name] for name in said} == said
    assert told["max_tokens"] == 3


def test_settings_tell_biases_and_banned_ends_without_infinities(app: ASGIApp) -> None:
    told = complete(app, logit_bias=[[65, False], [66, 2]], ignore_eos=True).json
    assert told["generation_settings"]["logit_bias"] == [
        {"token": 65, "bias": None},
        {"token": 66, "bias": 2.0},
        {"token": EOS, "bias": None},
    ]
    assert complete(app).json["generation_settings"]["logit_bias"] == []


def test_defaults_come_from_the_catalogue_then_the_file_then_the_table(
    engine: FakeEngine, make_app: AppMaker
) -> None:
    vocabulary = ByteVocabulary()
    vocabulary.metadata = {
        "general.sampling.temp": "0.3",
        "general.sampling.top_k": "20",
        "general.sampling.top_p": "nonsense",
        "general.sampling.min_p": "7",
        "general.sampling.penalty_last_n": "32",
        "general.sampling.penalty_repeat": "1.1",
        "general.sampling.sequence": "top_k;temperature",
    }
    engine.vocabulary = vocabulary
    app = make_app(ModelInfo(id="m", sampling={"top_k": 5}))
    sampling = sent(app, engine, repeat_penalty=1.5).sampling
    assert (sampling.top_k, sampling.temperature, sampling.top_p) == (5, 0.3, 0.95)
    assert (sampling.min_p, sampling.repeat_last_n, sampling.repeat_penalty) == (0.05, 32, 1.5)
    assert sampling.samplers == ("top_k", "temperature")


def test_stream_options_belong_to_streams(app: ASGIApp) -> None:
    assert complete(app, stream=True, stream_options={"include_usage": True}).status == 200
    refused = complete(app, stream_options={})
    assert (refused.status, refused.error["param"]) == (400, "stream_options")


def test_a_grammar_excludes_a_schema(app: ASGIApp, engine: FakeEngine) -> None:
    refused = complete(app, grammar='root ::= "a"', json_schema={})
    assert (refused.status, refused.error["param"]) == (400, "json_schema")
    assert sent(app, engine, grammar="", json_schema={}).constraint is not None
    assert sent(app, engine, grammar='root ::= "a"').constraint is not None
    assert sent(app, engine, grammar="").constraint is None


def test_shifting_is_refused_where_the_memory_cannot(app: ASGIApp, engine: FakeEngine) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=False)
    refused = complete(app, n_keep=0)
    assert (refused.status, refused.error["param"]) == (422, "n_keep")
    assert complete(app, n_keep=None).status == 200


def test_a_server_that_shifts_does_so_unless_the_request_says(
    engine: FakeEngine, make_app: AppMaker
) -> None:
    app = make_app(context_shift=True)
    assert sent(app, engine).n_keep == 0
    assert sent(app, engine, n_keep=3).n_keep == 3
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=False)
    assert sent(app, engine).n_keep is None
