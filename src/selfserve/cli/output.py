"""Everything that the command line prints, and the only module that prints.

stdout carries a command's result and nothing else; messages and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from selfserve.errors import SelfError

if TYPE_CHECKING:
    from rich.progress import Progress

PLAIN_INTERVAL_S = 5.0
"""Without a terminal: seconds between two lines of progress."""
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What could move a terminal's cursor, colour its text or rename its window."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def result(text: str) -> None:
    """A line of the command's result."""
    print(text, flush=True)


def result_json(value: Any) -> None:
    """The command's result for a program."""
    result(json.dumps(value, indent=2, ensure_ascii=False))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows in columns as wide as they need to be; nothing at all without rows."""
    if not rows:
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        result("  ".join(cells).rstrip())


def answer(text: str) -> None:
    """A piece of a model's answer: on a terminal without characters that control it."""
    print(_shown(text, sys.stdout.isatty()), end="", flush=True)


def aside(text: str) -> None:
    """A piece of what a model thinks before it answers: on stderr, dimmed on a terminal."""
    is_terminal = sys.stderr.isatty()
    shown = _shown(text, is_terminal)
    if is_terminal and not os.environ.get("NO_COLOR"):
        shown = f"{DIM}{shown}{PLAIN}"
    print(shown, end="", file=sys.stderr, flush=True)


def _shown(text: str, is_terminal: bool) -> str:
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text) if is_terminal else text


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
