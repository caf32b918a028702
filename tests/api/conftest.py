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


class EngineSwitch:
    """An engine that is another one for each test, so that they can share an application:
    making one takes longer than most tests do."""

    current: FakeEngine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


@pytest.fixture(scope="session")
def shared_app() -> tuple[EngineSwitch, ASGIApp]:
    switch = EngineSwitch()
    switch.current = FakeEngine()
    return switch, create_app(switch, ServerSettings(), MODEL)


@pytest.fixture
def app(engine: FakeEngine, shared_app: tuple[EngineSwitch, ASGIApp]) -> ASGIApp:
    """The application with default settings in front of this test's engine."""
    switch, app = shared_app
    switch.current = engine
    return app
