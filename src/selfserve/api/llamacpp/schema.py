"""The body of POST /completion, /completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from selfserve.api.field_types import Integer, One, Stops, checked_strings, invalid
from selfserve.api.llamacpp.prompts import Media, Prompt, Prompts, check_markers
from selfserve.api.messages import Refused
from selfserve.api.sampling_fields import (
    Boolean,
    Count,
    GenerationFields,
    Ignored,
    StreamOptions,
)
from selfserve.limits import MAX_FIELD_NAMES, MAX_PROBS, MAX_STOPS

Limit = Annotated[int, Integer(-1)]
Probs = Annotated[int, Integer(0, MAX_PROBS)]


def _parse_field_names(value: object) -> list[str]:
    return checked_strings(value, MAX_FIELD_NAMES)


FieldNames = Annotated[
    Any,
    BeforeValidator(_parse_field_names),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "maxItems": MAX_FIELD_NAMES}),
]


class CompletionRequest(GenerationFields):
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
    stop: Annotated[Any, Stops(MAX_STOPS)] | None = None
    """Texts that end the answer and are no part of it."""
    n_probs: Probs | None = None
    """Most probable tokens to tell at each place; 0: none."""
    logprobs: Probs | None = None
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

    n: Annotated[Any, One()] | None = None
    best_of: Annotated[Any, One()] | None = None
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
