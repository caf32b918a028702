"""The HTTP application: routes, layers and their order."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from selfserve.api.auth import ApiKeyGuard
from selfserve.api.compiler import Compiler, ThreadCompiler
from selfserve.api.docs_page import docs_router
from selfserve.api.errors import handle_error, handle_http_exception
from selfserve.api.guards import HostGuard, OriginGuard
from selfserve.api.llamacpp.routes import ANSWERS, BODIES, llamacpp_router
from selfserve.api.metrics import RequestMetrics
from selfserve.api.openai.answers import ChatCompletion, ChatCompletionChunk
from selfserve.api.openai.routes import openai_router
from selfserve.api.openai.schema import ChatRequest
from selfserve.api.openapi import describe
from selfserve.api.ops import ops_router
from selfserve.api.request_id import RequestIds
from selfserve.api.service import Service
from selfserve.api.workers import Workers
from selfserve.config import ModelInfo, ServerSettings
from selfserve.engine.interface import Engine
from selfserve.errors import SelfError

PACKAGE = "selfserve"


def create_app(
    engine: Engine,
    settings: ServerSettings,
    model: ModelInfo,
    *,
    workers: Workers | None = None,
    compiler: Compiler | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The application that serves `engine`. It owns its worker threads, not the engine; the
    server ends them by the lifespan protocol, or earlier where it brings them itself. `compiler`
    belongs to the server; None: grammars are compiled in the worker threads.

    From the outside inwards: request id and error table, Host, Origin, API key, routes.
    """
    workers = workers or Workers()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            workers.close()
            await service.pictures.close()

    metrics = RequestMetrics(engine)
    service = Service(engine, settings, model, workers, compiler or ThreadCompiler())
    app = FastAPI(
        title="self",
        version=package_version(),
        description="One open language model, served from this machine.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.add_exception_handler(SelfError, handle_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(Exception, handle_error)
    app.include_router(openai_router(service, metrics, fingerprint(model)))
    app.include_router(llamacpp_router(service, metrics, fingerprint(model), package_version()))
    app.include_router(ops_router(engine, model, metrics))
    app.include_router(docs_router(app))
    app.router.routes.extend(extra_routes)
    describe(app, [ChatRequest, *BODIES], [ChatCompletion, ChatCompletionChunk, *ANSWERS])

    guarded: ASGIApp = ApiKeyGuard(app, settings.api_keys)
    guarded = OriginGuard(guarded, settings)
    guarded = HostGuard(guarded, settings)
    return RequestIds(guarded, metrics.observe)


def fingerprint(model: ModelInfo) -> str:
    """Names what produced an answer: the same for the same model file and version."""
    text = "\0".join((model.id, model.quant, model.parameters, package_version()))
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def package_version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:  # run from a folder that was never installed
        return "0"
