"""Requests made from the server's own OpenAPI document, by its letter and against it."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.types import Receive, Scope, Send
from tests.support.fake_engine import MODEL, FakeEngine

from selfserve.api.app import create_app
from selfserve.config import ServerSettings

HEADERS = {"host": "127.0.0.1"}
WITH_BODY = (
    "/v1/chat/completions",
    "/completion",
    "/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/apply-template",
)
WITHOUT_BODY = ("/v1/model", "/v1/models", "/props", "/slots", "/health", "/metrics")
SEARCH = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def document() -> schemathesis.BaseSchema:
    """Of an application without a lifespan, which the client would end with the first test."""
    load_all_checks()
    app = create_app(FakeEngine(), ServerSettings(), MODEL)

    async def without_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await app(scope, receive, send)

    return schemathesis.openapi.from_asgi("/openapi.json", without_lifespan, headers=HEADERS)


def operations(document: schemathesis.BaseSchema) -> dict[str, schemathesis.APIOperation]:
    found = [result.ok() for result in document.get_all_operations()]
    return {operation.path: operation for operation in found}


def test_every_route_is_in_the_document(document: schemathesis.BaseSchema) -> None:
    assert set(operations(document)) >= {*WITH_BODY, *WITHOUT_BODY}


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        *((path, mode) for path in WITH_BODY for mode in GenerationMode),
        *((path, GenerationMode.POSITIVE) for path in WITHOUT_BODY),
    ],
)
def test_no_answer_breaks_the_document(
    document: schemathesis.BaseSchema, path: str, mode: GenerationMode
) -> None:
    """Fields that fit the document one by one may be refused all the same: a token id that the
    model has not, two fields that exclude each other."""
    operation = operations(document)[path]

    @SEARCH
    @given(case=operation.as_strategy(generation_mode=mode))
    def search(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=HEADERS, excluded_checks=[positive_data_acceptance])

    search()
