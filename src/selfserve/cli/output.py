"""Everything that the command line prints, and the only module that prints.

stdout carries a command's result and nothing else; messages and progress go to stderr.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from selfserve.errors import SelfError

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_INTERVAL_S = 5.0
"""Without a terminal: seconds between two lines of progress."""


def result(text: str) -> None:
    """A line of the command's result."""
    print(text, flush=True)


def status(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def error(failure: SelfError) -> None:
    status(f"Error [{failure.type}]: {failure.message}")


class LoadingProgress:
    """Shows how much of a model is loaded: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._next_line_s = time.monotonic() + PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

            columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("loading", total=1.0)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, share: float) -> None:
        """`share` of the work is done, 0 to 1."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + PLAIN_INTERVAL_S
            status(f"loading: {share:.0%}")
