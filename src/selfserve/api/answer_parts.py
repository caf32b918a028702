"""Parts that answers of several routes have in common, as models for the OpenAPI document."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AnswerModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(AnswerModel):
    cached_tokens: int = Field(ge=0, description="Prompt tokens that were not computed again.")


class CompletionTokensDetails(AnswerModel):
    reasoning_tokens: int = Field(ge=0, description="Tokens of thinking.")


class Usage(AnswerModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0, description="The sum of the two.")
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TimingsObject(AnswerModel):
    """Counts are tokens, times are milliseconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class PromptProgress(AnswerModel):
    total: int
    cache: int
    processed: int
    time_ms: float
