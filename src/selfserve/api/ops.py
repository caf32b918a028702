"""Routes for those who run the server: health and metrics."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from selfserve.api.errors import DEFAULT_RETRY_S
from selfserve.api.metrics import RequestMetrics
from selfserve.api.openapi import ERRORS
from selfserve.config import ModelInfo
from selfserve.engine.interface import Engine, EngineState


class Health(BaseModel):
    """Whether requests are served. `runner` comes from the heartbeat of the engine's loop."""

    status: Literal["ok", "unavailable"]
    model: str
    runner: Literal["ready", "loading", "crashed", "restarting", "stalled", "stopping"]


def ops_router(engine: Engine, model: ModelInfo, metrics: RequestMetrics) -> APIRouter:
    """`/health` and `/metrics`."""
    router = APIRouter(tags=["Operation"])

    @router.get(
        "/health",
        summary="Whether requests are served",
        response_model=Health,
        responses={
            503: {"model": Health, "description": "Requests are not served"},
            403: ERRORS[403],
        },
    )
    async def health() -> Any:
        is_ready = engine.state == EngineState.READY
        body = {
            "status": "ok" if is_ready else "unavailable",
            "model": model.id,
            "runner": str(engine.state),
        }
        if is_ready:
            return JSONResponse(body)
        return JSONResponse(body, 503, {"retry-after": str(DEFAULT_RETRY_S)})

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **ERRORS},
    )
    async def read_metrics() -> Any:
        text = generate_latest(metrics.registry)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    return router
