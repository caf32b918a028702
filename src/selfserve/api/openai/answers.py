"""The answers of the API as models: for the OpenAPI document; they are not on the hot path."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from selfserve.api.answer_parts import AnswerModel, PromptProgress, TimingsObject, Usage


class AnswerMessage(AnswerModel):
    role: Literal["assistant"]
    content: str
    reasoning_content: str | None = Field(None, description="Only if the model reasoned.")


class ChatChoice(AnswerModel):
    index: Literal[0]
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None


class ChatCompletion(AnswerModel):
    """The answer to a chat that is not streamed."""

    id: str = Field(pattern="^chatcmpl-")
    object: Literal["chat.completion"]
    created: int = Field(description="Unix seconds.")
    model: str = Field(description="The loaded model.")
    system_fingerprint: str
    choices: list[ChatChoice] = Field(min_length=1, max_length=1)
    usage: Usage
    timings: TimingsObject | None = Field(None, description="Only with timings_per_token.")


class ChunkDelta(AnswerModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(AnswerModel):
    index: Literal[0]
    delta: ChunkDelta
    finish_reason: Literal["stop", "length"] | None
    logprobs: None


class ChatCompletionChunk(AnswerModel):
    """One event of a streamed chat; after the last one comes `data: [DONE]`."""

    id: str = Field(pattern="^chatcmpl-")
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice] = Field(
        max_length=1, description="Empty only in the usage chunk of include_usage."
    )
    usage: Usage | None = Field(None, description="Only with include_usage.")
    timings: TimingsObject | None = None
    prompt_progress: PromptProgress | None = Field(None, description="Only with return_progress.")


class Capabilities(AnswerModel):
    input: list[Literal["text", "vision"]]
    output: list[Literal["text"]]
    context_size: int = Field(ge=1, description="Tokens of prompt and answer together.")
    max_images: int = Field(ge=0)
    reasoning: bool


class ModelFacts(AnswerModel):
    family: str
    parameters: str
    architecture: str
    license: str
    context_length: int = Field(ge=0, description="Tokens that the model was trained for.")


class ModelCard(AnswerModel):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["text"]
    quant: str
    capabilities: Capabilities
    info: ModelFacts
    settings: dict[str, Any] = Field(
        description="Effective settings of the engine and defaults of sampling."
    )


class ModelList(AnswerModel):
    object: Literal["list"]
    data: list[ModelCard]
