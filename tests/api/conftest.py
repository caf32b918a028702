"""Fixtures of the API's tests: an application in front of a scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.fake_engine import MODEL, FakeEngine

from selfserve.api.app import create_app
from selfserve.config import ModelInfo, ServerSettings

AppMaker = Callable[..., ASGIApp]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_app(engine: FakeEngine) -> AppMaker:
    def make(model: ModelInfo = MODEL, **settings: Any) -> ASGIApp:
        return create_app(engine, ServerSettings(**settings), model)

    return make


@pytest.fixture
def app(make_app: AppMaker) -> ASGIApp:
    return make_app()
