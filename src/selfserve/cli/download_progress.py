"""Shows a download: bars on a terminal, elsewhere a line now and then. All on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from selfserve.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from selfserve.catalogue.known import ModelFile


class DownloadProgress:
    """Give `update` to what fetches files. Says nothing about files that are there already."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, tuple[float, int]] = {}
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, file: ModelFile, done: int) -> None:
        """`done` bytes of `file` are there."""
        if file.name not in self._started:
            self._started[file.name] = (time.monotonic(), done)
            self._begin(file, done)
        if self._bars is not None:
            self._bars.update(self._tasks[file.name], completed=done)
        elif done < file.size and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + output.PLAIN_INTERVAL_S
            output.status(self._line(file, done))
        elif done >= file.size and self._started[file.name][1] < file.size:
            self._started[file.name] = (0.0, file.size)
            output.status(f"{file.name}: done")

    def _begin(self, file: ModelFile, done: int) -> None:
        from selfserve.catalogue.download import amount

        if not sys.stderr.isatty():
            if done < file.size:
                there = f", {amount(done)} are there" if done else ""
                output.status(f"Fetching {file.name} ({amount(file.size)}{there})")
                self._next_line_s = time.monotonic() + output.PLAIN_INTERVAL_S
            return
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        self._tasks[file.name] = self._bars.add_task(file.name, total=file.size, completed=done)

    def _line(self, file: ModelFile, done: int) -> str:
        from selfserve.catalogue.download import amount

        begin_s, begin_bytes = self._started[file.name]
        rate = (done - begin_bytes) / max(1e-3, time.monotonic() - begin_s)
        left = _duration((file.size - done) / rate) if rate > 0 else "?"
        share = done / file.size
        return (
            f"{file.name}: {share:.0%} of {amount(file.size)}, {amount(int(rate))}/s, {left} left"
        )


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
