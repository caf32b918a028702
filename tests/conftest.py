"""Fixtures for every test: nobody's settings, models or network are touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and programs that tests start would
    inherit that, and never see the Ctrl-C that they are tested with."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a home folder of its own and no `SELF_*` or proxy variables."""
    for name in list(os.environ):
        if name.startswith("SELF_") or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
