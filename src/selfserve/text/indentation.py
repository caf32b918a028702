"""Ends a generation at the first line that is indented less than asked: for completing code."""

from __future__ import annotations


class IndentationGuard:
    """Passes text on until a line has fewer leading blanks than `minimum`.

    The first line goes on from the prompt, so its indentation does not count. Blank lines never
    do. The newline before the offending line is given out, the line itself is not.
    """

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum
        self._blanks: str | None = None
        """Leading blanks of the line so far, held back; None inside a line that is long settled."""
        self.is_dedented = False

    def push(self, text: str) -> str:
        out: list[str] = []
        for char in text:
            if self.is_dedented:
                break
            if char == "\n":
                out.append((self._blanks or "") + char)
                self._blanks = ""
            elif self._blanks is None:
                out.append(char)
            elif char in " \t":
                self._blanks += char
            elif len(self._blanks) < self._minimum:
                self.is_dedented = True
            else:
                out.append(self._blanks + char)
                self._blanks = None
        return "".join(out)

    def flush(self) -> str:
        held, self._blanks = self._blanks or "", None
        return held
