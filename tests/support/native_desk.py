"""A libllama context with its batch, and the few steps that every test of it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from selfserve.native import kernels
from selfserve.native.batch import Batch
from selfserve.native.context import Context, ContextOptions, Outcome
from selfserve.native.model import Model

CONTEXT_SIZE = 256
NUM_SEQUENCES = 2
BATCH_SIZE = 128

EXACT = {} if kernels.library_path() else {"flash_attention": "off", "kv_type": "f32"}
"""With these the same tokens give the same logits, however they are cut into batches: the kernels
see to that, and without them F32 comes close."""


class Desk:
    """Belongs to one test; close its context."""

    def __init__(self, model: Model, **options: object) -> None:
        fields = {
            "context_size": CONTEXT_SIZE,
            "num_sequences": NUM_SEQUENCES,
            "batch_size": BATCH_SIZE,
            "ubatch_size": BATCH_SIZE,
            "max_outputs": 32,
            "num_threads": 1,
            **EXACT,
            **options,
        }
        self.model = model
        self.context = Context(model, ContextOptions(**fields))  # type: ignore[arg-type]
        self.batch = Batch(BATCH_SIZE)

    def decode(self, *runs: tuple[int, int, Sequence[int], int]) -> Outcome:
        """Decodes runs of (sequence, position, tokens, number of outputs)."""
        self.batch.clear()
        for seq_id, position, tokens, num_outputs in runs:
            self.batch.add(seq_id, position, tokens, num_outputs)
        return self.context.decode(self.batch)

    def logits_after(
        self, seq_id: int, position: int, tokens: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        assert self.decode((seq_id, position, tokens, 1)) is Outcome.OK
        row: npt.NDArray[np.float32] = self.context.logits(1)[0].copy()
        return row

    def greedy(self, seq_id: int, tokens: Sequence[int], count: int, start: int = 0) -> list[int]:
        """`count` greedy tokens after `tokens`, of which the first `start` are in memory."""
        position, pending, found = start, list(tokens[start:]), []
        for _ in range(count):
            found.append(int(self.logits_after(seq_id, position, pending).argmax()))
            position += len(pending)
            pending = found[-1:]
        return found

    def tokens(self, text: str) -> list[int]:
        return self.model.vocab.tokenize(text, add_special=False, parse_special=True)
