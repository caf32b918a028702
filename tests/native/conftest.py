"""One loaded model for all tests of the native border, and a fresh context for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.native_desk import Desk
from tests.support.real_vocabulary import smollm2_path

from selfserve.native.model import Model


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    model = Model(smollm2_path())
    yield model
    model.close()


@pytest.fixture
def desk(model: Model) -> Iterator[Desk]:
    desk = Desk(model)
    yield desk
    desk.context.close()
