"""What is remembered of one prompt: the record, its checkpoints, and what is due in a slot.

A checkpoint brings a memory that cannot be cut back to one length. Prompts part from one another
where turns do: the next turn of a chat renders the header of the answer otherwise, an edit begins
at some turn, and another chat shares the system prompt. So the ends of turns are the places for
checkpoints, which the tokens that end a generation mark in most formats. Prompts without them have
their own end to go by.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from selfserve.engine.runner import Blob
from selfserve.engine.sequence import Sequence, TokenArray

HOST = -1
"""The slot of a record in host RAM."""
MAX_CHECKPOINTS = 8
"""Of one slot."""
LAST_TURNS = 2
"""Ends of turns that count, besides the first one: those of the last answer and question. The
earlier ones had their checkpoints when they were the last."""
HEADER = 16
"""Tokens before a prompt's end that certainly hold the header of an answer."""


EMPTY: TokenArray = np.empty(0, dtype=np.int64)


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The part of a slot's memory that cannot be cut, as it was at `length` tokens."""

    length: int
    position: int
    """The one that follows these tokens."""
    blob: Blob


@dataclass(frozen=True, slots=True)
class Cut:
    """Only the first `length` tokens stay in a slot, which end before `position`."""

    length: int
    position: int


@dataclass(frozen=True, slots=True)
class Shift:
    """`drop` tokens behind the first `keep` go; the rest moves down."""

    keep: int
    drop: int


@dataclass(frozen=True, slots=True)
class Drop:
    """All goes."""


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """The owner's prompt has come to a place to which somebody may want to come back."""


Due = Cut | Shift | Drop | TakeCheckpoint


@dataclass(slots=True, eq=False)
class Record:
    """A remembered prompt."""

    slot: int = HOST
    tokens: TokenArray = field(default_factory=lambda: EMPTY)
    """What is held; of a running slot nothing, since its owner knows."""
    position: int = 0
    """The one that follows these tokens."""
    used: int = 0
    """Rank of the last use; higher is newer. The oldest leave first."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    blob: Blob | None = None
    """In host RAM: the saved state."""
    owner: Sequence | None = None
    """Of a slot: whose sequence runs in it."""
    stops: set[int] = field(default_factory=set)
    """Of a running slot: prompt lengths at which a chunk has to end, for a checkpoint."""
    due: list[Due] = field(default_factory=list)
    """Of a slot: what has to be done, in order, before anything is computed in it."""


@dataclass(slots=True, frozen=True)
class Source:
    """Where the first `length` tokens of a prompt can be had; None: nowhere."""

    length: int = 0
    record: Record | None = None


def common_length(a: TokenArray, b: TokenArray) -> int:
    """How many tokens the two begin with in common."""
    size = min(len(a), len(b))
    start, block = 0, 64
    while start < size:  # most differ early
        end = min(start + block, size)
        different = a[start:end] != b[start:end]
        first = int(different.argmax())
        if different[first]:
            return start + first
        start, block = end, block * 8
    return size


def places(prompt: TokenArray, end_ids: Collection[int]) -> list[int]:
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
