"""What is known of all pieces of a vocabulary together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class PieceStatistics:
    """Counts of bytes, from which follows in how many tokens a text can begin."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        lengths: list[int] = []
        joined = bytearray()
        for piece in pieces:
            if piece:
                joined += piece
                lengths.append(len(piece))
        self.longest = max(lengths, default=0)
        flat = np.frombuffer(bytes(joined), dtype=np.uint8)
        ends = np.cumsum(np.array(lengths, dtype=np.int64)) - 1
        self._single = np.bincount(flat, minlength=256)
        self._last = np.bincount(flat[ends], minlength=256)
        self._pairs = np.bincount(flat[:-1].astype(np.int64) * 256 + flat[1:], minlength=65536)

    def most_beginning(self, text: bytes) -> int:
        """A bound on the places in tokens where `text`, which is not empty, may begin."""
        if len(text) == 1:
            return int(self._single[text[0]])
        return int(self._pairs[text[0] * 256 + text[1]] + self._last[text[0]])
