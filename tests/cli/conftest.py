"""`self` called in this process, a fake hub, and a catalogue of small files on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Command
from tests.support.fake_hub import FakeHub, running_hub
from tests.support.small_catalogue import SmallCatalogue


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return Command(monkeypatch, capsys)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        yield fake


@pytest.fixture
def small_catalogue(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SmallCatalogue:
    small = SmallCatalogue(hub, tmp_path / "catalogue.yaml")
    monkeypatch.setenv("SELF_CATALOGUE", str(small.path))
    return small
