"""`self` called in this process, and a catalogue of small files on the fake hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import Command
from tests.support.fake_hub import FakeHub
from tests.support.small_catalogue import SmallCatalogue


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return Command(monkeypatch, capsys)


@pytest.fixture
def small_catalogue(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SmallCatalogue:
    small = SmallCatalogue(hub, tmp_path / "catalogue.yaml")
    monkeypatch.setenv("SELF_CATALOGUE", str(small.path))
    return small
