"""The OpenAPI document tells the truth about bodies, answers and errors; `/docs` shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import CHAT, Call, call, chat_body
from tests.support.chat_cases import BAD, EMPTY, GOOD, IGNORED, REFUSED, UNSUPPORTED
from tests.support.fake_engine import MODEL, FakeEngine, Script

from selfserve.api.app import create_app
from selfserve.config import ServerSettings
from selfserve.engine.interface import EngineState
from selfserve.limits import MAX_BIAS_CHARACTERS, MAX_STOP_BYTES
from selfserve.request import Delta, Progress, Timings

Validate = Callable[[Any, str], None]

KNOWN_ONLY_TO_THE_SERVER: dict[str, list[Any]] = {
    "stream_options": [{}, {"include_usage": True}],
    "logit_bias": [
        {"999999": 1},
        {"-1": 1},
        {"261": 1},
        {"9" * 5000: 1},
        {"-" + "0" * 50 + "1": 1},
        {"0" * MAX_BIAS_CHARACTERS + "x": 1},
        [["a" * (MAX_BIAS_CHARACTERS + 1), 1]],
        [[-1, 1]],
        [[261, 1]],
        {"65": 1e300},
    ],
    "stop": [["a", "é" * (MAX_STOP_BYTES // 2 + 1)]],
    "grammar": ['root := "a"'],
    "id_slot": [2],
    "response_format": [
        {"type": "json_schema"},
        {"type": "json_object", "json_schema": {"schema": {}}},
    ],
}
"""Values that are refused for reasons that a schema cannot tell."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(FakeEngine(), ServerSettings(), MODEL)
    return dict(call(app, path="/openapi.json", method="GET").json)


@pytest.fixture(scope="module")
def validate(document: dict[str, Any]) -> Validate:
    @cache
    def validator(model: str) -> jsonschema.Draft202012Validator:
        schema = {"$ref": f"#/components/schemas/{model}", "components": document["components"]}
        return jsonschema.Draft202012Validator(schema)

    return lambda value, model: validator(model).validate(value)


def values(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r:.40}")
        for name, found in table.items()
        for value in found
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *values(GOOD),
        *values(dict.fromkeys(REFUSED, EMPTY)),
        *values({name: [{}] for name in IGNORED}),
    ],
)
def test_what_is_taken_is_in_the_document(validate: Validate, name: str, value: Any) -> None:
    validate(chat_body(**{name: value}), "ChatRequest")


@pytest.mark.parametrize(("name", "value"), [*values(BAD), *values(UNSUPPORTED), ("tempratur", 1)])
def test_what_is_refused_is_not_in_the_document(validate: Validate, name: str, value: Any) -> None:
    if value in KNOWN_ONLY_TO_THE_SERVER.get(name, []):
        pytest.skip("a schema cannot tell")
    with pytest.raises(jsonschema.ValidationError):
        validate(chat_body(**{name: value}), "ChatRequest")


@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize("thoughts", [[], ["hm"]])
def test_answers_and_events_are_in_the_document(
    validate: Validate, thoughts: list[str], timings: bool
) -> None:
    pieces = [
        Progress(id="x", total=2, cache=0, processed=1, time_ms=0.5),
        Delta(id="x", content="a", timings=Timings(predicted_n=1, predicted_ms=2.5)),
    ]
    app = create_app(
        FakeEngine(script=Script(pieces=pieces, thoughts=thoughts)), ServerSettings(), MODEL
    )
    validate(call(app, chat_body(timings_per_token=timings)).json, "ChatCompletion")
    for options in (None, {"include_usage": True}):
        body = chat_body(stream=True, stream_options=options, timings_per_token=timings)
        for event in call(app, body).events[:-1]:
            validate(event, "ChatCompletionChunk")


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/model", "ModelCard"), ("/v1/models", "ModelList"), ("/health", "Health")],
)
def test_other_answers_are_in_the_document(
    app: ASGIApp, validate: Validate, path: str, model: str
) -> None:
    validate(call(app, path=path, method="GET").json, model)


def test_health_while_nobody_is_served_is_in_the_document(
    app: ASGIApp, engine: FakeEngine, validate: Validate
) -> None:
    engine.state = EngineState.STALLED
    validate(call(app, path="/health", method="GET").json, "Health")


def test_errors_are_in_the_document(
    app: ASGIApp, engine: FakeEngine, document: dict[str, Any], validate: Validate
) -> None:
    declared = document["paths"][CHAT]["post"]["responses"]
    assert set(declared) == {
        *("200", "400", "401", "403", "413", "422", "429", "500", "503", "504")
    }

    def failed(**fields: Any) -> Call:
        return call(app, chat_body(**fields))

    calls = [failed(temperature=3), failed(n=2), call(app, b"{")]
    engine.capacity = 0
    calls.append(failed())
    for refused in calls:
        validate(refused.json, "ErrorBody")
        answer = declared[str(refused.status)]["content"]["application/json"]["schema"]
        assert answer == {"$ref": "#/components/schemas/ErrorBody"}


def test_the_document_names_each_route_once_and_no_framework_error(
    document: dict[str, Any],
) -> None:
    assert {CHAT, "/v1/model", "/v1/models", "/health", "/metrics"} <= set(document["paths"])
    assert "HTTPValidationError" not in document["components"]["schemas"]
    operations = [o["operationId"] for p in document["paths"].values() for o in p.values()]
    assert len(operations) == len(set(operations))


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(child) for child in value.values()))
    if isinstance(value, list):
        return set().union(*(references(child) for child in value))
    return set()


def test_every_reference_of_the_document_leads_somewhere(document: dict[str, Any]) -> None:
    names = {ref.removeprefix("#/components/schemas/") for ref in references(document)}
    assert names <= set(document["components"]["schemas"])


def test_docs_show_every_route_and_need_no_other_host(
    app: ASGIApp, document: dict[str, Any]
) -> None:
    page = call(app, path="/docs", method="GET")
    assert page.response_headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.response_headers["content-security-policy"]
    for path in document["paths"]:
        assert path in page.text
    for name in ("temperature", "response_format", "dry_multiplier"):
        assert f"<code>{name}</code>" in page.text
    assert "0 … 2" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text
