"""What the engine needs from a model: the border behind which another runner may stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Outcome, Plan
from selfserve.request import SamplingParams

Logits = npt.NDArray[np.float32]
Blob = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the runner's memory can and cannot do; the scheduler asks instead of guessing."""

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


class TokenSampler(Protocol):
    """Chooses the tokens of one request. Whoever made it closes it."""

    def sample(self, row: int) -> int:
        """Chooses from row `row` of the last plan's batch, and accepts what it chose."""
        ...

    def sample_with_probs(
        self, logits: Logits
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """As `sample`, from logits of shape (n_vocab,); with the surviving candidates' ids and
        probabilities."""
        ...

    def accept(self, token: int) -> None:
        """Takes note of a token that was not sampled."""
        ...

    def close(self) -> None: ...


class Runner(Protocol):
    """A loaded model with one memory for each slot. Belongs to the engine's thread alone.

    `run`, `save` and `restore` block for as long as they compute.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    def run(self, plan: Plan) -> Outcome:
        """Computes one step."""
        ...

    def logits(self, num_outputs: int) -> Logits:
        """Shape (num_outputs, n_vocab) of the last step; writable, valid until the next one."""
        ...

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler: ...

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
