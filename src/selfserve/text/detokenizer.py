"""Pieces (bytes) in, text out: characters that are spread over tokens are held until whole."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Incremental UTF-8 for one sequence. Invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_pending(self) -> bool:
        """True while the bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])

    def push(self, piece: bytes) -> str:
        """The text that `piece` completes; may be empty."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End of the sequence: a character that was cut off becomes exactly one U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
