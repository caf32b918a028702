"""The routes of the OpenAI-compatible API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from selfserve.api.exchange import Answer
from selfserve.api.metrics import RequestMetrics
from selfserve.api.model_card import model_card
from selfserve.api.openai.answers import ModelCard, ModelList
from selfserve.api.openai.chat import ChatEndpoint
from selfserve.api.openapi import ANSWER_ERRORS, ERRORS, answer_of, body_of
from selfserve.api.service import Service


def openai_router(service: Service, metrics: RequestMetrics, fingerprint: str) -> APIRouter:
    """`/v1/chat/completions`, `/v1/model` and `/v1/models`."""
    router = APIRouter(tags=["OpenAI"])
    chat = ChatEndpoint(service, fingerprint)

    @router.post(
        "/v1/chat/completions",
        summary="Continue a conversation",
        responses={200: answer_of("ChatCompletion", "ChatCompletionChunk"), **ANSWER_ERRORS},
        openapi_extra=body_of("ChatRequest"),
    )
    async def chat_completions() -> Any:
        return Answer(
            chat,
            workers=service.workers,
            bodies=service.bodies,
            timeout_s=service.settings.request_timeout_s,
            on_cancel=metrics.count_cancelled,
        )

    @router.get("/v1/model", summary="The served model", response_model=ModelCard, responses=ERRORS)
    async def model() -> Any:
        return await model_card(service)

    @router.get(
        "/v1/models",
        summary="The served model, as a list",
        response_model=ModelList,
        responses=ERRORS,
    )
    async def models() -> Any:
        return {"object": "list", "data": [await model_card(service)]}

    return router
