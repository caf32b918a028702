"""The records between scheduler and runner: what one step computes, and how it went.

A plan is made by the planner and read by the runner; nobody changes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from selfserve.engine.sequence import Sequence

Logits = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]


class Outcome(Enum):
    """How a step went for the memory of its sequences."""

    OK = auto()
    UNCHANGED = auto()
    """Refused as a whole: every sequence's memory is as it was before."""
    PARTIAL = auto()
    """Failed half-way: the memory of the step's sequences may hold some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A run of one sequence's tokens that one step computes."""

    sequence: Sequence
    slot: int
    start: int
    """Index of the first token: how many the slot's memory holds before the step."""
    tokens: list[int]
    draft: list[int]
    """The last tokens of `tokens` that are only guesses, to be confirmed by their logits."""
    num_outputs: int
    """How many rows at the end want logits: 0 in the middle of a prompt, else 1 + the draft."""

    @property
    def position(self) -> int:
        """Position of the first token: its index, until there are pictures before it."""
        return self.sequence.media.position_of(self.start)

    @property
    def num_computed(self) -> int:
        """Tokens in memory after the step, not counting the draft."""
        return self.start + len(self.tokens) - len(self.draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """A step of tokens: chunks in the order of their slots, each slot at most once.

    The order matters: libllama computes sequences together only while their ids rise one by one.
    """

    chunks: tuple[Chunk, ...]
    num_decode_tokens: int
    num_prefill_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_decode_tokens + self.num_prefill_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRows:
    """What is computed instead of token ids, of a picture or a part of it."""

    embeddings: Embeddings
    """Shape (n, n_embd)."""
    positions: Positions
    """Shape (sections, n)."""
    is_causal: bool
    """False: each row attends to all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePlan:
    """A step of one sequence's picture alone."""

    chunk: Chunk
    rows: PictureRows

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return (self.chunk,)

    @property
    def num_decode_tokens(self) -> int:
        return 0

    @property
    def num_prefill_tokens(self) -> int:
        return len(self.chunk.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.chunk.tokens)


Plan = TextPlan | PicturePlan


class Row(NamedTuple):
    """One row of logits after a step; valid until the next one."""

    logits: Logits
    """Shape (n_vocab,). May be written to: the runner's samplers see it."""
    handle: int
    """Where the runner finds this row again; nobody else's matter."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step went."""

    outcome: Outcome
    rows: tuple[list[Row], ...] = ()
    """Of each chunk of the plan, in its order, as many as it wanted logits of."""
