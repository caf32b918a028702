"""Progress of downloads: lines now and then, bars on a terminal, nothing when all is there."""

from __future__ import annotations

import io

import pytest

from selfserve.catalogue.known import ModelFile
from selfserve.cli import download_progress
from selfserve.cli.download_progress import DownloadProgress

MIB = 1 << 20
FILE = ModelFile(repository="a/b", name="m.gguf", size=1000 * MIB, sha256="0" * 64)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(download_progress.time, "monotonic", clock.monotonic)
    return clock


def test_without_a_terminal_lines_tell_share_rate_and_time_left(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with DownloadProgress() as progress:
        progress.update(FILE, 100 * MIB)
        for second in range(1, 11):
            clock.now = 100.0 + second
            progress.update(FILE, (100 + 10 * second) * MIB)
        progress.update(FILE, FILE.size)
        progress.update(FILE, FILE.size)
    assert capsys.readouterr() == (
        "",
        "Fetching m.gguf (1000.0 MiB, 100.0 MiB are there)\n"
        "m.gguf: 15% of 1000.0 MiB, 10.0 MiB/s, 1 min 25 s left\n"
        "m.gguf: 20% of 1000.0 MiB, 10.0 MiB/s, 1 min 20 s left\n"
        "m.gguf: done\n",
    )


def test_a_file_that_is_there_is_not_mentioned(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with DownloadProgress() as progress:
        progress.update(FILE, FILE.size)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_bar_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with DownloadProgress() as progress:
        progress.update(FILE, 0)
        progress.update(FILE, 500 * MIB)
    assert "m.gguf" in terminal.getvalue()
    assert "500.0/1,000.0 MiB" in terminal.getvalue()
