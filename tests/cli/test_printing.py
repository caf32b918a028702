"""stdout carries results, stderr the rest; progress fits the place where it is shown."""

from __future__ import annotations

import io

import pytest

from selfserve.cli import output


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_results_and_messages_take_separate_ways(capsys: pytest.CaptureFixture[str]) -> None:
    output.result("the result")
    output.status("a message")
    assert capsys.readouterr() == ("the result\n", "a message\n")


def test_without_a_terminal_a_fast_load_prints_no_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with output.LoadingProgress() as progress:
        progress.update(0.2)
        progress.update(1.0)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_slow_load_prints_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    with output.LoadingProgress() as progress:
        for second in range(13):
            now = float(second)
            progress.update(second / 100)
    assert capsys.readouterr() == ("", "loading: 5%\nloading: 10%\n")


def test_on_a_terminal_a_bar_is_shown_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(output.sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.LoadingProgress() as progress:
        progress.update(0.5)
        progress._bar.refresh()
    shown = terminal.getvalue()
    assert "50%" in shown
    assert shown.endswith("\x1b[2K")
