"""The routes of the llama.cpp-compatible API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from selfserve.api.exchange import Answer, Handler
from selfserve.api.llamacpp import answers
from selfserve.api.llamacpp.completion import CompletionEndpoint
from selfserve.api.llamacpp.schema import CompletionRequest
from selfserve.api.llamacpp.state import properties, slots
from selfserve.api.llamacpp.templates import ApplyTemplate, ApplyTemplateRequest
from selfserve.api.llamacpp.tokens import DetokenizeRequest, TokenizeRequest, TokenRoutes
from selfserve.api.metrics import RequestMetrics
from selfserve.api.openapi import ANSWER_ERRORS, ERRORS, answer_of, body_of
from selfserve.api.service import Service

BODIES = (CompletionRequest, TokenizeRequest, DetokenizeRequest, ApplyTemplateRequest)
ANSWERS = (answers.CompletionAnswers, answers.CompletionEvent)
"""Models that the routes name by reference."""

BODY_ERRORS = {status: error for status, error in ANSWER_ERRORS.items() if status != 429}


def llamacpp_router(
    service: Service, metrics: RequestMetrics, fingerprint: str, version: str
) -> APIRouter:
    """Completions, and what stands beside them."""
    router = APIRouter(tags=["llama.cpp"])
    _add_completions(router, service, metrics, fingerprint)
    _add_tools(router, service, metrics)

    @router.get(
        "/props",
        summary="Properties of the server",
        response_model=answers.Properties,
        responses=ERRORS,
    )
    async def props() -> Any:
        return properties(service, version)

    @router.get(
        "/slots",
        summary="State of the slots",
        response_model=list[answers.SlotObject],
        responses=ERRORS,
    )
    async def read_slots() -> Any:
        return slots(service)

    return router


def _add_completions(
    router: APIRouter, service: Service, metrics: RequestMetrics, fingerprint: str
) -> None:
    native = CompletionEndpoint(service, fingerprint, openai=False)
    openai = CompletionEndpoint(service, fingerprint, openai=True)
    for path, endpoint, answer in (
        ("/completion", native, "CompletionAnswers"),
        ("/completions", native, "CompletionAnswers"),
        ("/v1/completions", openai, "Completion"),
    ):
        router.add_api_route(
            path,
            _answering(endpoint, service, metrics),
            methods=["POST"],
            name=path.strip("/").replace("/", "_"),
            summary="Continue a prompt",
            responses={200: answer_of(answer, "CompletionEvent"), **ANSWER_ERRORS},
            openapi_extra=body_of("CompletionRequest"),
        )


def _add_tools(router: APIRouter, service: Service, metrics: RequestMetrics) -> None:
    tokens = TokenRoutes(service)
    for path, handler, summary, body, answer in (
        ("/tokenize", tokens.tokenize, "Text to tokens", TokenizeRequest, answers.Tokens),
        (
            "/detokenize",
            tokens.detokenize,
            "Tokens to text",
            DetokenizeRequest,
            answers.DetokenizedText,
        ),
        (
            "/apply-template",
            ApplyTemplate(service),
            "Messages to a prompt",
            ApplyTemplateRequest,
            answers.AppliedTemplate,
        ),
    ):
        router.add_api_route(
            path,
            _answering(handler, service, metrics),
            methods=["POST"],
            name=path.strip("/").replace("-", "_"),
            summary=summary,
            response_model=answer,
            responses=BODY_ERRORS,
            openapi_extra=body_of(body.__name__),
        )


def _answering(handler: Handler, service: Service, metrics: RequestMetrics) -> Any:
    async def answer() -> Any:
        return Answer(
            handler,
            workers=service.workers,
            bodies=service.bodies,
            timeout_s=service.settings.request_timeout_s,
            on_cancel=metrics.count_cancelled,
        )

    return answer
