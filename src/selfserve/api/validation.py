"""From a decoded body to a request model, or to the one error that the client is told.

pydantic's findings are translated here and nowhere else. What is malformed (400) is told before
what is merely not offered (422).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from selfserve.api.exchange import Exchange, as_object
from selfserve.api.field_types import UNSUPPORTED
from selfserve.errors import InvalidRequest, RequestError, UnsupportedCapability, shown
from selfserve.limits import range_text

TAG = "="
"""First character of the tags of unions; such a tag is no part of a field's path."""

MAX_PATH = 200
"""Characters of a path that an error repeats; a client's key may be of any length."""

M = TypeVar("M", bound=BaseModel)

TYPE_TEXTS = {
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


async def read_model(exchange: Exchange, model: type[M]) -> M:
    """Reads the body of `exchange` as `model`. Raises RequestError; large bodies are checked in a
    worker thread."""
    body = as_object(await exchange.read_json())
    if exchange.is_large:
        return await exchange.work(parse, model, body)
    return parse(model, body)


def parse(model: type[M], body: dict[str, Any]) -> M:
    """`body` as `model`. Raises InvalidRequest, else UnsupportedCapability."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise _translated(found, model) from None


def _translated(found: Sequence[ErrorDetails], model: type[BaseModel]) -> RequestError:
    malformed = [details for details in found if details["type"] != UNSUPPORTED]
    details = (malformed or found)[0]
    path = _path(details)
    if not malformed:
        return UnsupportedCapability(f"{path} {details['msg']}", param=path)
    if details["type"] == "extra_forbidden":
        return InvalidRequest(_unknown_text(path, details, model), param=path)
    return InvalidRequest(f"{path or 'the body'} {_text(details)}", param=path or None)


def _path(details: ErrorDetails) -> str:
    """`messages[0].content[1].image_url.url`"""
    path = ""
    for step in details["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(TAG) or details["type"] == "extra_forbidden":
            path += f".{step}" if path else step
    return path[:MAX_PATH] + str(details.get("ctx", {}).get("path", ""))


def _text(details: ErrorDetails) -> str:
    """What is wrong, to be read after the field's path."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "missing":
        return "is required"
    if kind == "invalid":
        return details["msg"]
    if kind == "literal_error":
        return f"must be {context['expected']}, got {shown(value)}"
    if kind == "too_long":
        return f"must have {range_text(None, context['max_length'])} entries"
    known = TYPE_TEXTS.get(kind)
    if known is None:
        return f"is invalid: {details['msg']}"
    given = "null" if value is None else shown(value)
    return known if kind.endswith("too_short") else f"{known}, got {given}"


def _unknown_text(path: str, details: ErrorDetails, model: type[BaseModel]) -> str:
    name = str(details["loc"][-1])
    known = _known_fields(model) if len(details["loc"]) == 1 else ()
    near = difflib.get_close_matches(name[:64], known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown field {shown(path)}{hint}"


def _known_fields(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
