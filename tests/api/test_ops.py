"""Health, the model's card, and metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp
from tests.api.conftest import AppMaker
from tests.support.asgi_call import Call, call, chat_body
from tests.support.fake_engine import THINKING_TEMPLATE, ByteVocabulary, FakeEngine

from selfserve.config import ModelInfo
from selfserve.engine.interface import EngineState
from selfserve.request import Heartbeat, Ready


@pytest.fixture
def app(make_app: AppMaker) -> ASGIApp:
    """Of its own: these tests need another vocabulary, or count what happened."""
    return make_app()


def get(app: ASGIApp, path: str) -> Call:
    return call(app, path=path, method="GET")


def test_health_is_ok_while_requests_are_served(app: ASGIApp) -> None:
    answered = get(app, "/health")
    assert answered.status == 200
    assert answered.json == {"status": "ok", "model": "tiny:1b", "runner": "ready"}


@pytest.mark.parametrize("state", [state for state in EngineState if state != EngineState.READY])
def test_health_tells_why_nobody_is_served(
    app: ASGIApp, engine: FakeEngine, state: EngineState
) -> None:
    engine.state = state
    answered = get(app, "/health")
    assert answered.status == 503
    assert answered.json == {
        "status": "unavailable",
        "model": "tiny:1b",
        "runner": state.value,
    }


def test_the_card_of_a_model_has_the_documented_form(
    engine: FakeEngine, make_app: Callable[..., ASGIApp]
) -> None:
    engine.vocabulary = ByteVocabulary(THINKING_TEMPLATE)
    app = make_app(
        ModelInfo(
            id="tiny:1b",
            quant="q4",
            family="tiny",
            parameters="1B",
            architecture="llama",
            license="mit",
            context_length=8192,
            created=1700000000,
            sampling={"temperature": 0.2},
        )
    )
    card = get(app, "/v1/model").json
    assert get(app, "/v1/models").json == {"object": "list", "data": [card]}
    settings = card.pop("settings")
    assert card == {
        "id": "tiny:1b",
        "object": "model",
        "created": 1700000000,
        "owned_by": "self",
        "type": "text",
        "quant": "q4",
        "capabilities": {
            "input": ["text"],
            "output": ["text"],
            "context_size": 4096,
            "max_images": 0,
            "reasoning": True,
        },
        "info": {
            "family": "tiny",
            "parameters": "1B",
            "architecture": "llama",
            "license": "mit",
            "context_length": 8192,
        },
    }
    assert settings["sampling"]["temperature"] == 0.2
    assert settings["sampling"]["top_k"] == 40
    assert settings["context_size"] == 4096


def test_the_card_knows_a_model_that_cannot_think(app: ASGIApp) -> None:
    assert get(app, "/v1/model").json["capabilities"]["reasoning"] is False


def test_a_model_that_sees_says_so(app: ASGIApp, engine: FakeEngine) -> None:
    engine.ready = Ready(context_size=64, num_slots=1, can_shift=True, info={"vision": True})
    capabilities = get(app, "/v1/model").json["capabilities"]
    assert capabilities["input"] == ["text", "vision"]
    assert capabilities["max_images"] == 8


@pytest.mark.parametrize("path", ["/v1/model", "/v1/models"])
def test_the_card_is_there_once_the_model_is(app: ASGIApp, engine: FakeEngine, path: str) -> None:
    engine.ready = None
    refused = get(app, path)
    assert refused.status == 503
    assert refused.error["type"] == "model_loading"


def test_metrics_are_readable_for_prometheus(app: ASGIApp, engine: FakeEngine) -> None:
    engine.heartbeat = Heartbeat(
        num_running=3, num_waiting=2, counters={"generated_tokens": 17.0, "cache_bytes": 5.0}
    )
    call(app, chat_body())
    call(app, chat_body(temperature=3))
    get(app, "/nope")
    text = get(app, "/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples[("self_ready",)] == 1
    assert samples[("self_requests_running",)] == 3
    assert samples[("self_requests_waiting",)] == 2
    assert samples[("self_engine_generated_tokens_total",)] == 17
    assert samples[("self_engine_cache_bytes",)] == 5
    assert samples[("self_http_requests_total", "/v1/chat/completions", "200")] == 1
    assert samples[("self_http_requests_total", "/v1/chat/completions", "400")] == 1
    assert samples[("self_http_requests_total", "404", "unknown")] == 1
