"""The body of POST /completion, /completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from selfserve.api.field_types import Integer, Number, as_integer, invalid, unsupported
from selfserve.api.llamacpp.prompts import Media, Prompt, Prompts, check_markers
from selfserve.api.messages import Refused
from selfserve.api.sampling_fields import (
    Boolean,
    Count,
    Ignored,
    Positive,
    SamplingFields,
    StreamOptions,
)

MAX_FIELD_NAMES = 1000

Limit = Annotated[int, Integer(-1)]


def _parse_stops(value: object) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    return [stop for stop in _strings(stops) if stop]


def _strings(value: object) -> list[str]:
    if not isinstance(value, list):
        raise invalid("must be an array of strings", got=value)
    for index, entry in enumerate(value):
        if not isinstance(entry, str):
            raise invalid("must be a string", path=f"[{index}]", got=entry)
    return value


def _parse_field_names(value: object) -> list[str]:
    names = _strings(value)
    if len(names) > MAX_FIELD_NAMES:
        raise invalid(f"must have at most {MAX_FIELD_NAMES} entries", got=len(names))
    return names


def _only_one(value: object) -> int:
    number = as_integer(value)
    if number is None:
        raise invalid("must be an integer", got=value)
    if number != 1:
        raise unsupported("must be 1", got=number)
    return number


_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
Stops = Annotated[
    Any,
    BeforeValidator(_parse_stops),
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS]}),
]
FieldNames = Annotated[
    Any,
    BeforeValidator(_parse_field_names),
    WithJsonSchema({**_STRINGS, "maxItems": MAX_FIELD_NAMES}),
]
One = Annotated[Any, BeforeValidator(_only_one), WithJsonSchema({"type": "integer", "const": 1})]


class CompletionRequest(SamplingFields):
    """One prompt or several, to be continued as they are."""

    prompt: Prompts
    """Text, token ids, a mixture, an object with media; or an array of these."""
    multimodal_data: Media | None = None
    """Base64 data, one item for each <__media__> of a text prompt."""
    model: Ignored = None
    stream: Boolean | None = None
    """Answer by server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with stream."""
    n_predict: Limit | None = None
    """Tokens to generate; -1: to the end of the context, 0: the prompt is only evaluated. Wins
    over the other two names."""
    max_completion_tokens: Limit | None = None
    """The same as n_predict; wins over max_tokens."""
    max_tokens: Limit | None = None
    """The same as n_predict."""
    stop: Stops | None = None
    """Texts that end the answer and are no part of it."""
    temperature: Positive | None = None
    """0: always the most probable token."""
    presence_penalty: Annotated[float, Number()] | None = None
    """Once for each token in the window of repeat_last_n."""
    frequency_penalty: Annotated[float, Number()] | None = None
    """For each time that a token stands in that window."""
    n_probs: Count | None = None
    """Most probable tokens to tell at each place; 0: none."""
    logprobs: Count | None = None
    """The same as n_probs, which wins."""
    post_sampling_probs: Boolean | None = None
    """Probabilities after the samplers instead of before."""
    n_indent: Count | None = None
    """Ends the answer at a line with less indentation."""
    n_keep: Annotated[int, Integer(-1)] | None = None
    """Prompt tokens that stay when the context is full and is shifted; -1: all. Without it
    generation ends there."""
    return_tokens: Boolean | None = None
    """Tells the generated ids."""
    response_fields: FieldNames | None = None
    """Fields of the answer; "a/b" lifts b out of a. Empty: all."""

    n: One | None = None
    best_of: One | None = None
    echo: Refused = None
    suffix: Refused = None
    user: Ignored = None

    @model_validator(mode="after")
    def _check_combinations(self) -> CompletionRequest:
        if self.stream_options is not None and not self.stream:
            raise invalid("must be absent unless stream is true", path="stream_options")
        if self.grammar and self.json_schema is not None:
            raise invalid("must be absent when grammar is there", path="json_schema")
        if self.multimodal_data is not None:
            self._check_media(self.multimodal_data)
        return self

    def _check_media(self, media: tuple[str, ...]) -> None:
        first: Prompt = self.prompt[0]
        is_text = len(self.prompt) == 1 and first.path == "prompt" and len(first.parts) == 1
        text = first.parts[0]
        if not is_text or not isinstance(text, str):
            raise invalid("must be absent unless prompt is a string", path="multimodal_data")
        check_markers(text, media, "multimodal_data")

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts with their media."""
        prompts: tuple[Prompt, ...] = self.prompt
        if self.multimodal_data:
            return (Prompt(prompts[0].parts, self.multimodal_data),)
        return prompts

    @property
    def limit(self) -> int:
        """Tokens to generate, −1 for no limit."""
        for value in (self.n_predict, self.max_completion_tokens, self.max_tokens):
            if value is not None:
                return value
        return -1

    @property
    def num_probs(self) -> int:
        """Most probable tokens to tell at each place."""
        return (self.logprobs or 0) if self.n_probs is None else self.n_probs
