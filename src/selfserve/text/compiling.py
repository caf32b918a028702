"""A trial run of llguidance on a grammar, before anything else depends on it.

Building a grammar over a vocabulary of single bytes finds the same faults as over a model's own
vocabulary, in a fraction of the time, and needs no model.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from selfserve.errors import shown

LIMITS = LLParserLimits(
    step_lexer_fuel=100_000, step_max_items=10_000, max_lexer_states=50_000, verbose_errors=False
)
"""Of each grammar, here and in the engine, for which others wait during a mask: its lexer's fuel
is worth about 12 ms, its items about 10, its states about 100 MB. Where one of them ends, so does
the request. A schema of common formats needs a tenth of each."""

_END = 256


class _ByteVocabulary:
    """What llguidance asks of a tokenizer: one token for each byte, and an end."""

    eos_token_id = _END
    bos_token_id = None
    tokens = [bytes([value]) for value in range(_END)] + [b"\xff</s>"]
    special_token_ids = [_END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def fault_of(grammar: str) -> str | None:
    """Why `grammar` (llguidance's own text) cannot be used, in one line; None if it can.

    Takes from 0.3 ms to a second or two for the largest that are let through. llguidance releases
    the GIL while it builds. Never raises for what the grammar says.
    """
    tokenizer = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), slices=[])
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        mask = np.zeros(_END // 32 + 1, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not matcher.is_error() and not matcher.is_accepting() and not mask.any():
            return "it allows no text at all"
    if not matcher.is_error():
        return None
    text = str(matcher.get_error()).strip()
    if text.startswith("NoExtension"):
        return "it allows no text at all"
    if text.startswith("panic"):
        return "it is too large or too complex"
    return shown(_essence(text))


def _essence(text: str) -> str:
    """The telling line: a regex error draws the pattern first and says `error: …` below it."""
    for line in text.splitlines():
        if line.startswith("error: "):
            return line
    return text.splitlines()[0] if text else "unknown reason"
