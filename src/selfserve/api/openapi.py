"""The OpenAPI document: bodies that handlers read by themselves, and the errors of all routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

_Moded = tuple[type[BaseModel], Literal["validation", "serialization"]]

REF = "#/components/schemas/{model}"
DONE_MARK = "[DONE]"


class ErrorObject(BaseModel):
    """What went wrong, for people and programs."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="The machine-readable kind.")
    message: str = Field(description="Names the field, the limit and the value.")
    param: str | None = Field(description="Path of the field, such as messages[0].content.")
    code: str = Field(description="The type, or something finer.")


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorObject


_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}


def _error(description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"model": ErrorBody, "description": description}
    return found | {"headers": headers} if headers else found


ERRORS: dict[int | str, dict[str, Any]] = {
    401: _error("An API key is configured, and missing or wrong"),
    403: _error("Foreign Host on a loopback bind, or foreign Origin"),
    500: _error("A fault of the server"),
    503: _error("The engine is not there", _RETRY),
}
"""Errors of every route."""

ANSWER_ERRORS: dict[int | str, dict[str, Any]] = {
    400: _error("Malformed, out of range, or over the context"),
    **ERRORS,
    413: _error("The body is too large"),
    422: _error("Well formed, but not offered by this server or model"),
    429: _error("The queue is full", _RETRY),
    504: _error("The request's deadline passed"),
}
"""Errors of routes that generate."""


def body_of(model: str) -> dict[str, Any]:
    """The request body of a route whose handler reads it by itself."""
    schema = {"$ref": REF.format(model=model)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answer_of(model: str, event: str) -> dict[str, Any]:
    """The answer of a route that sends one object or a stream of events."""
    return {
        "description": "The answer: one object, or with `stream` one event for each piece",
        "content": {
            "application/json": {"schema": {"$ref": REF.format(model=model)}},
            "text/event-stream": {"schema": _event_of(event)},
        },
    }


def _event_of(model: str) -> dict[str, Any]:
    """One event of a stream: before version 3.2, that is what the schema of a stream describes."""
    contents = [{"$ref": REF.format(model=name)} for name in (model, ErrorBody.__name__)]
    encoded = {"contentMediaType": "application/json", "contentSchema": {"anyOf": contents}}
    data = {"type": "string", "anyOf": [{"const": DONE_MARK}, encoded]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def describe(
    app: FastAPI, bodies: Sequence[type[BaseModel]], answers: Sequence[type[BaseModel]]
) -> None:
    """Lets the document of `app` hold the models that its routes name by reference."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            inputs: list[_Moded] = [(model, "validation") for model in bodies]
            outputs: list[_Moded] = [(model, "serialization") for model in answers]
            _, definitions = models_json_schema([*inputs, *outputs], ref_template=REF)
            schemas = found.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions["$defs"])
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
