"""The answers of a completion: whole, streamed, with probabilities, and cut to some fields."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call
from tests.support.fake_engine import MODEL, FakeEngine, Script

from selfserve.api.app import create_app
from selfserve.config import ServerSettings
from selfserve.request import Delta, Progress, StopType, Timings, TokenProbs

NATIVE, OPENAI = "/completion", "/v1/completions"
LOWEST = -3.4028234663852886e38


def complete(app: ASGIApp, path: str = NATIVE, **fields: Any) -> Call:
    return call(app, {"prompt": "hi", **fields}, path=path)


def probs(chosen: int, value: float, *top: tuple[int, float]) -> TokenProbs:
    return TokenProbs(
        id=chosen,
        piece=bytes([chosen]),
        value=value,
        top_ids=struct.pack(f"<{len(top)}i", *(token for token, _ in top)),
        top_values=struct.pack(f"<{len(top)}f", *(other for _, other in top)),
    )


def delta(text: str, tokens: Sequence[int] = (), *found: TokenProbs) -> Delta:
    return Delta(id="x", content=text, tokens=tuple(tokens), probs=found)


def test_an_answer_has_exactly_the_documented_form(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=["Hel", "lo"], cached_tokens=1, stop_type=StopType.LIMIT)
    answer = complete(app).json
    assert answer.pop("id") == engine.requests[-1].id
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").startswith("fp_")
    assert answer.pop("generation_settings")["n_predict"] == -1
    assert answer.pop("timings") == {
        "cache_n": 0,
        "prompt_n": 2,
        "prompt_ms": 5.0,
        "prompt_per_token_ms": 2.5,
        "prompt_per_second": 400.0,
        "predicted_n": 3,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
        "draft_n": 0,
        "draft_n_accepted": 0,
    }
    assert answer == {
        "object": "text_completion",
        "model": "tiny:1b",
        "choices": [{"index": 0, "text": "Hello", "finish_reason": "length", "logprobs": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "index": 0,
        "content": "Hello",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "stop_type": "limit",
        "stopping_word": "",
        "prompt": "hi",
        "truncated": False,
        "tokens_predicted": 2,
        "tokens_evaluated": 2,
        "tokens_cached": 1,
    }


@pytest.mark.parametrize(
    ("stop_type", "reason"), [("eos", "stop"), ("word", "stop"), ("limit", "length")]
)
def test_the_way_it_ended_is_told(
    app: ASGIApp, engine: FakeEngine, stop_type: str, reason: str
) -> None:
    engine.script = Script(stop_type=StopType(stop_type), stopping_word="w", truncated=True)
    for answer in (complete(app).json, complete(app, stream=True).events[-1]):
        assert answer["stop_type"] == stop_type
        assert answer["stopping_word"] == "w"
        assert answer["truncated"] is True
        assert answer["choices"][0]["finish_reason"] == reason


def test_the_prompt_is_told_as_it_is_evaluated(app: ASGIApp) -> None:
    prompt = ["<|im_start|>é", 0xC3]
    assert complete(app, prompt=prompt).json["prompt"] == "<|im_start|>é\ufffd"


def test_a_stream_ends_with_the_event_that_has_stop(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=["a", "", "b"])
    *events, last = complete(app, stream=True).events
    assert [event["content"] for event in events] == ["a", "b"]
    assert [event["choices"][0]["text"] for event in events] == ["a", "b"]
    for event in events:
        assert set(event) == {
            "id", "object", "created", "model", "system_fingerprint", "choices",
            "index", "content", "tokens", "stop",
        }  # fmt: skip
        assert event["stop"] is False
        assert event["choices"][0]["finish_reason"] is None
    whole = complete(app).json
    assert set(last) == set(whole)
    assert (last["stop"], last["content"], last["choices"][0]["text"]) == (True, "", "")
    assert last["usage"] == whole["usage"]


def test_an_openai_stream_ends_with_done(app: ASGIApp) -> None:
    events = complete(app, OPENAI, stream=True).events
    assert events[-1] == "[DONE]"
    assert events[-2]["stop"] is True
    assert complete(app, "/completions", stream=True).events[-1]["stop"] is True


def test_usage_is_an_event_of_its_own_when_asked_for(app: ASGIApp) -> None:
    options = {"include_usage": True}
    fields = {"stream": True, "stream_options": options, "prompt": ["a", "bc"]}
    *events, usage, done = complete(app, OPENAI, **fields).events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 7
    assert all(event["usage"] is None for event in events)
    assert complete(app, **fields).events[-1]["stop"] is True


def test_the_streams_of_several_prompts_are_told_apart(app: ASGIApp) -> None:
    events = complete(app, prompt=["a", "b"], stream=True).events
    for index in (0, 1):
        own = [event for event in events if event["index"] == index]
        assert "".join(event["content"] for event in own) == "Hello there"
        assert [event["stop"] for event in own] == [False, False, True]
        assert {event["choices"][0]["index"] for event in own} == {index}
    assert events[-1]["stop"] is True


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.text(max_size=5), max_size=8), openai=st.booleans())
def test_a_joined_stream_equals_the_whole_text(pieces: list[str], openai: bool) -> None:
    engine = FakeEngine(Script(pieces=pieces))
    app = create_app(engine, ServerSettings(), MODEL)
    path = OPENAI if openai else NATIVE
    streamed = complete(app, path, stream=True)
    assert streamed.content.isascii()
    events = [event for event in streamed.events if event != "[DONE]"]
    whole = complete(app, path).json
    assert "".join(event["content"] for event in events) == whole["content"] == "".join(pieces)
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]


def test_ids_are_told_only_when_asked_for(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=[delta("a", [97]), delta("", [195]), delta("é", [169, 258])])
    assert complete(app).json["tokens"] == []
    assert complete(app, return_tokens=True).json["tokens"] == [97, 195, 169, 258]
    events = complete(app, return_tokens=True, stream=True).events
    assert [event["tokens"] for event in events] == [[97], [195], [169, 258], []]
    assert all(event["tokens"] == [] for event in complete(app, stream=True).events)


@pytest.fixture
def split_character(engine: FakeEngine) -> None:
    engine.script = Script(
        pieces=[
            delta("a", [97], probs(97, -0.5, (97, -0.5), (98, -math.inf))),
            delta("", [195], probs(195, -1.0, (97, -0.25), (98, -2.0))),
            delta("é", [169], probs(169, -math.inf, (169, -0.125), (0xFF, -3.0))),
            delta("b", [98], probs(98, math.nan, (98, -1.5))),
        ]
    )


@pytest.mark.usefixtures("split_character")
def test_probabilities_have_exact_bytes_and_no_infinities(app: ASGIApp) -> None:
    found = complete(app, n_probs=2).json["completion_probabilities"]
    assert found[0] == {
        "id": 97,
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [
            {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
            {"id": 98, "token": "b", "bytes": [98], "logprob": LOWEST},
        ],
    }
    assert (found[1]["token"], found[1]["bytes"]) == ("\ufffd", [195])
    assert [entry["logprob"] for entry in found] == [-0.5, -1.0, LOWEST, LOWEST]


@pytest.mark.usefixtures("split_character")
def test_openai_clients_get_logprobs_in_their_own_form(app: ASGIApp) -> None:
    logprobs = complete(app, OPENAI, logprobs=2).json["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-0.5, -1.0, LOWEST, LOWEST],
        "top_logprobs": [
            {"a": -0.5, "b": LOWEST},
            {"a": -0.25, "b": -2.0, "bytes:\\xc3": -1.0},
            {"bytes:\\xa9": -0.125, "bytes:\\xff": -3.0},
            {"b": -1.5},
        ],
        "text_offset": [0, 1, 1, 2],
    }


@pytest.mark.usefixtures("split_character")
def test_joined_probabilities_of_a_stream_equal_the_whole(app: ASGIApp) -> None:
    whole = complete(app, n_probs=2).json
    *events, last = complete(app, n_probs=2, stream=True).events
    assert "completion_probabilities" not in last
    assert [len(event["completion_probabilities"]) for event in events] == [1, 1, 1, 1]
    joined = [entry for event in events for entry in event["completion_probabilities"]]
    assert joined == whole["completion_probabilities"]
    legacy = whole["choices"][0]["logprobs"]
    for name in legacy:
        parts = [entry for e in events for entry in e["choices"][0]["logprobs"][name]]
        assert parts == legacy[name]


def test_probabilities_after_sampling_have_names_of_their_own(
    app: ASGIApp, engine: FakeEngine
) -> None:
    engine.script = Script(pieces=[delta("a", [97], probs(97, 0.25, (98, 0.75), (97, 0.25)))])
    answer = complete(app, n_probs=2, post_sampling_probs=True).json
    (entry,) = answer["completion_probabilities"]
    assert (entry["prob"], "logprob" in entry) == (0.25, False)
    assert [top["prob"] for top in entry["top_probs"]] == [0.75, 0.25]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [math.log(0.25)]


def test_without_n_probs_there_are_no_probabilities(app: ASGIApp) -> None:
    assert "completion_probabilities" not in complete(app).json


def test_timings_and_progress_stand_in_the_events(app: ASGIApp, engine: FakeEngine) -> None:
    progress = Progress(id="x", total=10, cache=2, processed=5, time_ms=7.5)
    timed = Delta(id="x", content="a", timings=Timings(predicted_n=1, predicted_ms=4.0))
    engine.script = Script(pieces=[progress, timed])
    first, second, _ = complete(app, stream=True).events
    assert first["prompt_progress"] == {"total": 10, "cache": 2, "processed": 5, "time_ms": 7.5}
    assert (first["content"], first["stop"], first["tokens"]) == ("", False, [])
    assert second["timings"]["predicted_per_second"] == 250.0
    assert complete(app).json["content"] == "a"


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (["content"], {"content"}),
        (["content", "missing", "content/x", "a/b"], {"content"}),
        (["generation_settings/n_predict", "timings/cache_n"], None),
        (["generation_settings", "stop"], {"generation_settings", "stop"}),
    ],
)
def test_only_the_fields_asked_for_are_returned(
    app: ASGIApp, names: list[str], fields: set[str] | None
) -> None:
    answer = complete(app, response_fields=names, n_predict=5).json
    assert set(answer) == (set(names) if fields is None else fields)
    assert answer.get("generation_settings/n_predict", 5) == 5
    both = complete(app, response_fields=names, prompt=["a", "b"]).json
    assert [set(one) for one in both] == [set(answer)] * 2


def test_no_names_mean_all_fields(app: ASGIApp) -> None:
    assert set(complete(app, response_fields=[]).json) == set(complete(app).json)


def test_a_stream_cut_to_some_fields_still_tells_its_text_and_end(app: ASGIApp) -> None:
    *events, last = complete(app, response_fields=["tokens_predicted"], stream=True).events
    assert "".join(event["content"] for event in events) == "Hello there"
    assert last == {"index": 0, "stop": True, "tokens_predicted": 2}


@pytest.mark.parametrize("pieces", [[], ["a"]])
def test_failures_are_told_before_the_first_byte_or_in_one_event(
    app: ASGIApp, engine: FakeEngine, pieces: list[str]
) -> None:
    engine.script = Script(pieces=pieces, fails="RuntimeCrashed")
    assert complete(app).status == 503
    failed = complete(app, OPENAI, stream=True)
    if pieces:
        assert failed.status == 200
        assert failed.events[-1]["error"]["type"] == "runtime_crashed"
        assert "[DONE]" not in failed.events
    else:
        assert failed.error["type"] == "runtime_crashed"
        assert failed.status == 503
