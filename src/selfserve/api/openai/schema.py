"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from selfserve.api.field_types import Integer, One, Stops, invalid, is_empty, unsupported
from selfserve.api.messages import EMPTY_SCHEMA, Messages, Refused
from selfserve.api.sampling_fields import (
    Boolean,
    GenerationFields,
    Ignored,
    Object,
    RequestModel,
    SaidInChat,
    StreamOptions,
    Text,
)
from selfserve.api.thinking_fields import ThinkingFields
from selfserve.limits import MAX_CHAT_STOPS

MaxTokens = Annotated[int, Integer(1)]


def _no_probabilities(value: object) -> int:
    number = Integer(0).check(value)
    if number > 0:
        raise unsupported("must be 0 on this endpoint", got=number)
    return number


def _empty_or(*allowed: object) -> BeforeValidator:
    """Validator of a refused field of which some filled forms mean nothing either."""

    def check(value: object) -> None:
        if not is_empty(value) and not any(
            type(value) is type(one) and value == one for one in allowed
        ):
            raise unsupported("is not supported by this server")

    return BeforeValidator(check)


def _also(value: object) -> WithJsonSchema:
    """The schema of a refused field that has one form more."""
    return WithJsonSchema({**EMPTY_SCHEMA, "enum": [*EMPTY_SCHEMA["enum"], value]})


class JsonSchemaFormat(RequestModel):
    """The schema that the answer follows; it is always enforced."""

    schema_: Annotated[Object, Field(alias="schema")]
    name: Text | None = None
    description: Text | None = None
    strict: Boolean | None = None


class ResponseFormat(RequestModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise invalid("is required with type json_schema", path=".json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise invalid(f"must be absent with type {self.type}", path=".json_schema")
        return self


class ChatRequest(GenerationFields, ThinkingFields):
    """A conversation to be continued."""

    messages: Messages
    model: Ignored = None
    max_completion_tokens: MaxTokens | None = None
    """Tokens of the answer; wins over max_tokens. Default: to the end of the context."""
    max_tokens: MaxTokens | None = None
    """Tokens of the answer."""
    temperature: SaidInChat[float] = None
    presence_penalty: SaidInChat[float] = None
    frequency_penalty: SaidInChat[float] = None
    n: Annotated[Any, One()] | None = None
    stream: Boolean | None = None
    """Answer by server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with stream."""
    stop: Annotated[Any, Stops(MAX_CHAT_STOPS)] | None = None
    """Texts that end the answer and are no part of it."""
    response_format: ResponseFormat | None = None
    """Form of the answer; not together with grammar or json_schema."""
    n_probs: (
        Annotated[
            Any, BeforeValidator(_no_probabilities), WithJsonSchema({"type": "integer", "const": 0})
        ]
        | None
    ) = None

    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    parallel_tool_calls: Ignored = None

    tools: Refused = None
    tool_choice: Annotated[Any, _empty_or("auto"), _also("auto")] = None
    functions: Refused = None
    function_call: Refused = None
    logprobs: Refused = None
    top_logprobs: Refused = None
    audio: Refused = None
    prediction: Refused = None
    web_search_options: Refused = None
    modalities: Annotated[Any, _empty_or(["text"]), _also(["text"])] = None
    verbosity: Refused = None

    @model_validator(mode="after")
    def _check_combinations(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise invalid("must be absent unless stream is true", path="stream_options")
        forms = {
            "response_format": self.response_format is not None
            and self.response_format.type != "text",
            "grammar": bool(self.grammar),
            "json_schema": self.json_schema is not None,
        }
        used = [name for name, is_used in forms.items() if is_used]
        if len(used) > 1:
            raise invalid(f"must be absent when {used[0]} is there", path=used[1])
        return self

    @property
    def answer_limit(self) -> int | None:
        """Tokens of the answer at most; None: to the end of the context."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens
