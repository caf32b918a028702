"""Checkpoints of memory that cannot be cut: where in a prompt they are taken, and which stay.

A checkpoint brings a slot back to one length. Prompts part from one another where turns do: the
next turn of a chat renders the header of the answer otherwise, an edit begins at some turn, and
another chat shares the system prompt. So the ends of turns are the places, which the tokens that
end a generation mark in most formats. Prompts without them have their own end to go by.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfserve.engine.runner import Blob

MAX_CHECKPOINTS = 8
"""Of one slot."""
LAST_TURNS = 2
"""Ends of turns that count, besides the first one: those of the last answer and question. The
earlier ones had their checkpoints when they were the last."""
HEADER = 16
"""Tokens before a prompt's end that certainly hold the header of an answer."""


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The part of a slot's memory that cannot be cut, as it was at `length` tokens."""

    length: int
    position: int
    """The one that follows these tokens."""
    blob: Blob


def places(prompt: npt.NDArray[np.int64], end_ids: Collection[int]) -> list[int]:
    """Prompt lengths at which checkpoints are worth their room, rising.

    At least one token is left to compute, for its logits. Where a turn ends that near to the
    prompt's end, a checkpoint at the very end would save next to nothing.
    """
    size = len(prompt)
    ends = (np.flatnonzero(np.isin(prompt[:-1], list(end_ids))) + 1).tolist()
    found = {*ends[:1], *ends[-LAST_TURNS:]}
    if not ends or size - ends[-1] > 2 * HEADER:
        found |= {size - HEADER, size - 1}
    return sorted(place for place in found if place > 0)


def thin_out(checkpoints: list[Checkpoint]) -> None:
    """Drops the one that is missed least: the others are near it. Never the last, if there are
    more: the next turn needs it."""
    lengths = [0, *(c.length for c in checkpoints)]
    candidates = range(max(1, len(checkpoints) - 1))
    del checkpoints[
        min(candidates, key=lambda i: lengths[min(i + 2, len(checkpoints))] - lengths[i])
    ]


def make_room(
    own: list[Checkpoint], all_slots: Sequence[list[Checkpoint]], size: int, limit: int
) -> bool:
    """Drops checkpoints until one of `size` bytes more fits into `own`. Whoever has most of them
    loses one, of equals the first of `all_slots`. False, and nothing dropped, if it never fits."""
    if size > limit:
        return False
    if len(own) >= MAX_CHECKPOINTS:
        thin_out(own)
    while num_bytes(all_slots) + size > limit:
        thin_out(max(all_slots, key=len))
    return True


def num_bytes(all_slots: Sequence[list[Checkpoint]]) -> int:
    return sum(c.blob.nbytes for checkpoints in all_slots for c in checkpoints)
