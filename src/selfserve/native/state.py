"""Saved sequences for contexts that hold another number of sequences.

libllama refuses a saved sequence from a context with another number of streams, which with
`kv_unified` false is that of its sequences, though what it saved is of one stream alone. The form
of a saved sequence in 0.3.36 (`state_write` of llama-kv-cache.cpp and llama-memory-hybrid.cpp):

    magic, sequence id                        4 bytes each
    block of keys and values                  of all layers, or of those without a window
    block of keys and values, or a state      of layers with a window, or of recurrent ones

    block: number of streams, then of each stream its number of cells and the cells; 4 bytes each
    number. All streams but the sequence's own have 0 cells.

A form that is not this one does no harm: libllama checks it and refuses, and so does the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

HEADER_SIZE = 8
NUMBER_SIZE = 4


@dataclass(frozen=True, slots=True)
class StateForm:
    """Which parts a model's saved sequences have."""

    has_keys: bool = True
    """False: the model is recurrent throughout."""
    has_window: bool = False
    """Whether the last part is a second block of keys and values."""
    has_state: bool = False
    """Whether the last part is a recurrent state."""

    def convert(self, blob: Bytes, partial_size: int, num_streams: int) -> Bytes:
        """The blob as a context with `num_streams` would have saved it. `partial_size`: bytes of
        the same sequence saved with the flag for its last part alone."""
        body_end = blob.size
        if self.has_window or self.has_state:
            body_end -= partial_size - HEADER_SIZE
        parts = [blob[:HEADER_SIZE]]
        body, tail = blob[HEADER_SIZE:body_end], blob[body_end:]
        parts += _convert_block(body, num_streams) if self.has_keys else [body]
        parts += _convert_block(tail, num_streams) if self.has_window else [tail]
        return np.concatenate(parts)


def _convert_block(block: Bytes, num_streams: int) -> list[Bytes]:
    before = _number(block, 0)
    own = 0
    while own < before - 1 and _number(block, (1 + own) * NUMBER_SIZE) == 0:
        own += 1
    begin, end = (1 + own) * NUMBER_SIZE, block.size - (before - 1 - own) * NUMBER_SIZE
    empty = np.zeros((num_streams - 1) * NUMBER_SIZE, dtype=np.uint8)
    return [np.array([num_streams], dtype=np.uint32).view(np.uint8), block[begin:end], empty]


def _number(block: Bytes, at: int) -> int:
    return int.from_bytes(block[at : at + NUMBER_SIZE].tobytes(), "little")
