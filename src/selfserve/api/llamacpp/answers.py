"""The answers of the native routes as models: for the OpenAPI document only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from selfserve.api.answer_parts import AnswerModel, PromptProgress, TimingsObject, Usage


def _nothing_required(schema: dict[str, Any]) -> None:
    schema.pop("required", None)


class TokenProbability(BaseModel):
    """A token and how probable it was; `prob` stands in the place of `logprob` after sampling."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_nothing_required)

    id: int
    token: str
    bytes: list[int]
    logprob: float
    prob: float


class ChosenProbability(TokenProbability):
    top_logprobs: list[TokenProbability]
    top_probs: list[TokenProbability]


class LegacyLogprobs(AnswerModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int] = Field(description="Characters of the answer before each token.")


class CompletionChoice(AnswerModel):
    index: int = Field(ge=0, description="Which prompt.")
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: LegacyLogprobs | None


class Completion(BaseModel):
    """The answer to one prompt; with response_fields only what they name. For several prompts
    /v1/completions has one object with a choice for each and the usage of all."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_nothing_required)

    id: str = Field(pattern="^cmpl-")
    object: Literal["text_completion"]
    created: int = Field(description="Unix seconds.")
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None
    index: int = Field(ge=0, description="Which prompt.")
    content: str
    tokens: list[int] = Field(description="Empty without return_tokens.")
    id_slot: int
    stop: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    prompt: str = Field(description="As it was evaluated, control tokens included.")
    truncated: bool = Field(description="The end of the context was reached.")
    tokens_predicted: int
    tokens_evaluated: int = Field(description="Tokens of the prompt.")
    tokens_cached: int = Field(description="Those of them that were not computed again.")
    generation_settings: dict[str, Any]
    timings: TimingsObject
    completion_probabilities: list[ChosenProbability] = Field(description="Only with n_probs.")


class CompletionAnswers(RootModel[Completion | list[Completion]]):
    """One answer, or for several prompts an array in their order."""


class CompletionEvent(Completion):
    """One event of a stream: new text with `stop` false; the last one of each prompt has `stop`
    true and everything but the text."""

    prompt_progress: PromptProgress = Field(description="Only with return_progress.")


class TokenPiece(AnswerModel):
    id: int
    piece: str | list[int] = Field(description="Bytes where it is a part of a character.")


class Tokens(AnswerModel):
    tokens: list[int] | list[TokenPiece]


class DetokenizedText(AnswerModel):
    content: str


class AppliedTemplate(AnswerModel):
    prompt: str


class SlotObject(BaseModel):
    """One slot. More than this stands here only if the server exposes it."""

    model_config = ConfigDict(extra="allow")

    id: int
    n_ctx: int
    is_processing: bool


class Modalities(AnswerModel):
    vision: bool
    audio: bool
    video: bool


class Properties(AnswerModel):
    """What the server is and what a request without fields does."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str = Field(description="The model's id: where files are is not told.")
    modalities: Modalities
    media_marker: str
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
