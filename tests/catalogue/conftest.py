"""A running fake hub, a store of its own, and no waiting between tries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_hub import FakeHub, running_hub

from selfserve.catalogue.store import Store


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        yield fake


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")
