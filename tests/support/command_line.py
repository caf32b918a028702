"""`self` called in this process: what it printed and how it ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from selfserve.cli import main


@dataclass(frozen=True)
class Outcome:
    """What one call of `self` left behind."""

    code: object
    out: str
    err: str


class Command:
    """Calls `self` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["self", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        return Outcome(caught.value.code, *self._capsys.readouterr())
