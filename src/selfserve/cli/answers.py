"""An answer on its way to the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from selfserve.cli import output
from selfserve.cli.server_client import Piece


def print_answer(pieces: Iterator[Piece]) -> None:
    """Prints the answer as it comes: its text to stdout, the thinking before it to stderr."""
    is_thinking, reason = False, None
    for piece in pieces:
        if piece.is_reasoning:
            is_thinking = True
            output.aside(piece.text)
        elif piece.text:
            if is_thinking:
                is_thinking = False
                output.status("\n")
            output.answer(piece.text)
        reason = piece.finish_reason or reason
    output.answer("\n")
    if reason == "length":
        output.status("[cut off: the longest answer was reached]")
