"""What the engine needs from a model: the border behind which another runner may stand.

Everything that the engine's process asks of a model is in these protocols. Whoever runs them
knows them only from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from selfserve.engine.costs import StepCosts
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Embeddings, Plan, Positions, Row, StepResult
from selfserve.request import Picture, SamplingParams

Blob = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the runner's memory can and cannot do; the engine asks instead of guessing."""

    context_size: int
    """Tokens of one sequence."""
    num_slots: int
    batch_size: int
    """Tokens of one plan, at most."""
    max_outputs: int
    """Rows with logits of one plan, at most."""
    can_cut: bool
    """The tail of a sequence can be dropped at any place. False: only saved states bring a
    sequence back to an earlier length."""
    can_shift: bool
    """Tokens in the middle can be dropped and the rest moved down."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first batches and copies took."""

    batches: StepCosts
    copy: tuple[int, float]
    """Bytes and milliseconds of one copy of a slot's memory."""


class TokenSampler(Protocol):
    """Chooses the tokens of one request. One thread at a time uses it; who made it closes it."""

    def sample(self, row: Row) -> int:
        """Chooses from a row in which every token may be chosen, and accepts what it chose."""
        ...

    def sample_masked(self, row: Row) -> int:
        """As `sample`, from a row in which forbidden tokens have −inf."""
        ...

    def sample_with_probs(
        self, row: Row
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """As `sample_masked`, with the surviving candidates' ids and probabilities."""
        ...

    def accept(self, token: int) -> None:
        """Takes note of a token that was not sampled."""
        ...

    def close(self) -> None: ...


class ImageChunk(Protocol):
    """Tokens of a picture that are encoded together."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_positions(self) -> int:
        """Positions that it takes up: fewer than tokens with M-RoPE."""
        ...

    @property
    def is_causal(self) -> bool:
        """False: its tokens look at each other in both directions, so they are computed in one
        step."""
        ...

    def positions(self, first: int) -> Positions:
        """Where the tokens stand if the first one stands at `first`: (sections, num_tokens)."""
        ...


class PictureReader(Protocol):
    """The part of a runner that turns pictures into embeddings. Any one thread may call it."""

    def layout(self, width: int, height: int) -> Sequence[tuple[int, ...] | ImageChunk]:
        """What a picture of that size becomes: stretches of text tokens, and its own chunks."""
        ...

    def encode(self, picture: Picture) -> tuple[Embeddings, ...]:
        """The embeddings of each chunk. Blocks for as long as it computes. Raises SelfError."""
        ...


@runtime_checkable
class Runner(Protocol):
    """A loaded model with one memory for each slot. Belongs to the engine's thread, but for
    `sampler`, `grammar_tokenizer` and the vocabulary, which any thread may use.

    `warm_up`, `run`, `save` and `restore` block for as long as they compute, without the GIL.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def info(self) -> dict[str, Any]:
        """Facts of the loaded file for people."""
        ...

    @property
    def pictures(self) -> PictureReader | None:
        """None: the model takes text only."""
        ...

    def warm_up(self) -> WarmUp:
        """Touches all memory once, so that no request pays for it."""
        ...

    def run(self, plan: Plan) -> StepResult:
        """Computes one step."""
        ...

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler:
        """Finite biases are the sampler's matter; what is banned comes to it masked."""
        ...

    def grammar_tokenizer(self) -> Any:
        """The vocabulary in the form that the grammar library wants."""
        ...

    def clear(self, slot: int) -> None: ...

    def cut(self, slot: int, length: int) -> bool:
        """Drops what lies behind `length` positions. False: it cannot; the slot must be
        cleared."""
        ...

    def shift(self, slot: int, keep: int, drop: int) -> bool:
        """Drops `drop` tokens behind the first `keep` and moves the rest down."""
        ...

    def save(self, slot: int, *, partial: bool = False) -> Blob | None:
        """A copy of a slot's memory; `partial`: only the part that cannot be cut."""
        ...

    def state_size(self, slot: int, *, partial: bool = False) -> int:
        """Bytes that `save` would take now."""
        ...

    def restore(self, slot: int, blob: Blob, *, length: int, partial: bool = False) -> bool:
        """Brings a slot to a saved state of `length` positions. False: the slot is empty now."""
        ...

    def close(self) -> None: ...
