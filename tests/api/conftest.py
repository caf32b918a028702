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


class SharedApps:
    """One application for each combination of settings, all in front of one switch."""

    def __init__(self) -> None:
        self.switch = EngineSwitch()
        self._apps: dict[str, ASGIApp] = {}

    def with_settings(self, settings: ServerSettings) -> ASGIApp:
        key = repr(settings)
        if key not in self._apps:
            self._apps[key] = create_app(self.switch, settings, MODEL)
        return self._apps[key]


@pytest.fixture(scope="session")
def shared_apps() -> SharedApps:
    apps = SharedApps()
    apps.switch.current = FakeEngine()
    return apps


@pytest.fixture
def shared_app(engine: FakeEngine, shared_apps: SharedApps) -> AppMaker:
    """The application with some settings in front of this test's engine. It has served other
    tests: what it counts or has read from the first engine's vocabulary is not this test's."""
    shared_apps.switch.current = engine
    return lambda **settings: shared_apps.with_settings(ServerSettings(**settings))


@pytest.fixture
def app(shared_app: AppMaker) -> ASGIApp:
    """The application with default settings in front of this test's engine."""
    return shared_app()
