"""The answers of the chat endpoint, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp
from tests.support.asgi_call import call, chat_body
from tests.support.fake_engine import MODEL, FakeEngine, Script

from selfserve.api.app import create_app
from selfserve.config import ServerSettings
from selfserve.request import Delta, Progress, StopType, Timings

USAGE = {
    "prompt_tokens": 0,
    "completion_tokens": 3,
    "total_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def usage(engine: FakeEngine) -> dict[str, Any]:
    num_prompt = len(engine.requests[-1].prompt)
    return {**USAGE, "prompt_tokens": num_prompt, "total_tokens": num_prompt + 3}


@pytest.fixture
def reasoned(engine: FakeEngine) -> None:
    engine.script = Script(thoughts=["hm"], pieces=["Hel", "lo"], cached_tokens=4)


@pytest.mark.usefixtures("reasoned")
def test_an_answer_has_exactly_the_documented_form(app: ASGIApp, engine: FakeEngine) -> None:
    answered = call(app, chat_body())
    answer = answered.json
    assert answered.response_headers["content-type"] == "application/json"
    assert answer.pop("id") == engine.requests[-1].id
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").startswith("fp_")
    assert answer == {
        "object": "chat.completion",
        "model": "tiny:1b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": usage(engine),
    }


def test_an_answer_without_thinking_has_no_reasoning_field(app: ASGIApp) -> None:
    message = call(app, chat_body()).json["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello there"}


@pytest.mark.usefixtures("reasoned")
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_a_stream_has_exactly_the_documented_form(
    app: ASGIApp, engine: FakeEngine, options: dict[str, bool] | None
) -> None:
    streamed = call(app, chat_body(stream=True, stream_options=options))
    headers = streamed.response_headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    *chunks, done = streamed.events
    assert done == "[DONE]"
    heads = [
        {k: chunk.pop(k) for k in ("id", "object", "created", "model", "system_fingerprint")}
        for chunk in chunks
    ]
    assert all(head == heads[0] for head in heads)
    assert heads[0]["id"] == engine.requests[-1].id
    assert heads[0]["object"] == "chat.completion.chunk"
    has_usage = bool(options and options.get("include_usage"))
    if has_usage:
        assert chunks.pop() == {"choices": [], "usage": usage(engine)}
    rest = {"usage": None} if has_usage else {}
    deltas: list[dict[str, str]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    reasons = [None, None, None, None, "stop"]
    assert chunks == [
        {
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}],
            **rest,
        }
        for delta, reason in zip(deltas, reasons, strict=True)
    ]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("stop_type", "reason"),
    [(StopType.EOS, "stop"), (StopType.WORD, "stop"), (StopType.LIMIT, "length")],
)
def test_the_finish_reason_tells_why_it_ended(
    app: ASGIApp, engine: FakeEngine, stop_type: StopType, reason: str, stream: bool
) -> None:
    engine.script = Script(stop_type=stop_type)
    answered = call(app, chat_body(stream=stream))
    found = answered.events[-2] if stream else answered.json
    assert found["choices"][0]["finish_reason"] == reason


def test_an_answer_cut_off_in_thinking_has_empty_content(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(thoughts=["hm, "], pieces=[], stop_type=StopType.LIMIT)
    choice = call(app, chat_body()).json["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm, ",
    }
    assert choice["finish_reason"] == "length"


def test_events_are_ascii_and_keep_line_separators_apart(app: ASGIApp, engine: FakeEngine) -> None:
    text = 'ä😀\u2028\u0085\r\n\n"\\\x00data: [DONE]'
    engine.script = Script(pieces=[text])
    streamed = call(app, chat_body(stream=True))
    streamed.content.decode("ascii")
    assert joined(streamed.events) == (text, "")


def joined(events: list[Any]) -> tuple[str, str]:
    """Content and thinking of a stream."""
    deltas = [c["delta"] for event in events[:-1] for c in event["choices"]]
    content = "".join(delta.get("content", "") for delta in deltas)
    return content, "".join(delta.get("reasoning_content", "") for delta in deltas)


@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=4)), max_size=8))
def test_a_stream_joins_to_the_unstreamed_text(pieces: list[tuple[str, str]]) -> None:
    deltas = [Delta(id="x", content=content, reasoning=thought) for content, thought in pieces]
    engine = FakeEngine(script=Script(pieces=deltas, pauses=len(pieces) % 2 == 0))
    app = create_app(engine, ServerSettings(), MODEL)
    message = call(app, chat_body()).json["choices"][0]["message"]
    streamed = joined(call(app, chat_body(stream=True)).events)
    assert streamed == (message["content"], message.get("reasoning_content", ""))


def test_held_back_text_makes_no_event(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=["", "a", ""])
    assert len(call(app, chat_body(stream=True)).events) == 4


TIMINGS = Timings(cache_n=1, prompt_n=2, prompt_ms=4.0, predicted_n=3, predicted_ms=0.0)


def test_timings_stand_in_each_event_when_asked_for(app: ASGIApp, engine: FakeEngine) -> None:
    engine.script = Script(pieces=[Delta(id="x", content="a", timings=TIMINGS)])
    events = call(app, chat_body(stream=True, timings_per_token=True)).events
    timings = events[1]["timings"]
    assert timings == {
        "cache_n": 1,
        "prompt_n": 2,
        "prompt_ms": 4.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 3,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
        "draft_n": 0,
        "draft_n_accepted": 0,
    }
    assert "timings" in events[-2]
    assert "timings" in call(app, chat_body(timings_per_token=True)).json
    assert "timings" not in call(app, chat_body()).json


def test_progress_of_the_prompt_is_an_event(app: ASGIApp, engine: FakeEngine) -> None:
    progress = Progress(id="x", total=100, cache=10, processed=50, time_ms=7.5)
    engine.script = Script(pieces=[progress, "a"])
    events = call(app, chat_body(stream=True, return_progress=True)).events
    assert events[1]["prompt_progress"] == {
        "total": 100,
        "cache": 10,
        "processed": 50,
        "time_ms": 7.5,
    }
    assert events[1]["choices"][0]["delta"] == {}
    assert joined(events) == ("a", "")
    assert call(app, chat_body()).json["choices"][0]["message"]["content"] == "a"
