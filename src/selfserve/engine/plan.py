"""The records between scheduler and runner: what one step computes, and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from selfserve.engine.media import Embeddings, Positions

if TYPE_CHECKING:
    from selfserve.engine.sequence import Sequence


class Outcome(Enum):
    """How a step went for the memory of its sequences."""

    OK = auto()
    UNCHANGED = auto()
    """Refused as a whole: every sequence's memory is as it was before."""
    PARTIAL = auto()
    """Failed half-way: the memory of the step's sequences may hold some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRows:
    """What a step computes instead of token ids, of a picture or a part of it."""

    embeddings: Embeddings
    """Shape (n, n_embd)."""
    positions: Positions
    """Shape (sections, n)."""
    is_causal: bool
    """False: each row attends to all others."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A run of one sequence's tokens that one step computes."""

    sequence: Sequence
    slot: int
    start: int
    """Index of the first token: how many the slot's memory holds before the step."""
    tokens: list[int]
    draft: list[int] = field(default_factory=list)
    """The last tokens of `tokens` that are only guesses, to be confirmed by their logits."""
    num_outputs: int = 0
    """How many rows at the end want logits: 0 in the middle of a prompt, else 1 + the draft."""
    first_row: int = 0
    """Index of the first of those rows in the whole batch."""
    first_output: int = 0
    """Index of the first of those rows among all rows with logits."""
    picture: PictureRows | None = None
    """Of tokens that stand for a picture. Such a chunk is alone in its step."""

    @property
    def position(self) -> int:
        """Position of the first token, the same as its index until there are pictures."""
        return self.sequence.media.position_of(self.start)

    @property
    def num_computed(self) -> int:
        """Tokens in memory after the step, not counting the draft."""
        return self.start + len(self.tokens) - len(self.draft)


@dataclass(slots=True)
class Plan:
    """One step: chunks in the order of their slots, each slot at most once.

    The order matters: libllama computes sequences together only while their ids rise one by one.
    """

    chunks: list[Chunk] = field(default_factory=list)
    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_decode_tokens + self.num_prefill_tokens

    def finish(self) -> Plan:
        """Sorts the chunks by slot and numbers their rows."""
        self.chunks.sort(key=lambda chunk: chunk.slot)
        row = output = 0
        for chunk in self.chunks:
            chunk.first_row = row + len(chunk.tokens) - chunk.num_outputs
            chunk.first_output = output
            row += len(chunk.tokens)
            output += chunk.num_outputs
        return self
