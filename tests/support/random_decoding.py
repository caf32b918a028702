"""A model that knows nothing: random text under a grammar, over a vocabulary of single bytes."""

from __future__ import annotations

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from selfserve.engine.constraint import ConstraintFactory, ConstraintState

END = 256
VOCAB_SIZE = 257
_CLOSERS = np.frombuffer(b'"}]', dtype=np.uint8)


class _Bytes:
    eos_token_id = END
    bos_token_id = None
    tokens = [bytes([value]) for value in range(256)] + [b"\xff</s>"]
    special_token_ids = [END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def byte_factory() -> ConstraintFactory:
    """A factory over 256 bytes and one end token, number 256."""
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
    return ConstraintFactory(tokenizer, eog_ids=frozenset({END}), vocab_size=VOCAB_SIZE)


def random_text(state: ConstraintState, seed: int, *, max_steps: int = 600) -> bytes | None:
    """What a random model at temperature 1 writes; None if it found no end in `max_steps`.

    The longer the text, the more it is drawn to what closes strings, arrays and objects.
    """
    generator = np.random.default_rng(seed)
    written = bytearray()
    for step in range(max_steps):
        logits = generator.gumbel(size=VOCAB_SIZE).astype(np.float32)
        logits[:128] += 1
        logits[_CLOSERS] += 1 + step / 20
        logits[END] += step / 10
        state.apply(logits)
        chosen = int(logits.argmax())
        state.accept(chosen)
        if chosen == END:
            return bytes(written)
        written.append(chosen)
    return None
