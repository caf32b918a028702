"""Probabilities of tokens as JSON: llama.cpp's form, and the older one of OpenAI's completions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from selfserve.engine.interface import Vocabulary
from selfserve.request import TokenProb, TokenProbs
from selfserve.text.detokenizer import Detokenizer

LOWEST = -3.4028234663852886e38
"""The lowest number of 32-bit floats: written for −∞, which JSON does not know."""


def finite(value: float) -> float:
    """`value`, or LOWEST for −∞ and for what is no number."""
    return value if value > LOWEST else LOWEST


class ProbabilityRenderer:
    """Renders the probabilities of one answer, token by token in order."""

    def __init__(self, vocabulary: Vocabulary, *, after_sampling: bool) -> None:
        self._vocabulary = vocabulary
        self._after_sampling = after_sampling
        self._detokenizer = Detokenizer()
        self._num_characters = 0

    def native(self, probs: Iterable[TokenProbs]) -> list[dict[str, Any]]:
        """Entries of `completion_probabilities`."""
        top = "top_probs" if self._after_sampling else "top_logprobs"
        return [
            {**self._entry(token.chosen), top: [self._entry(prob) for prob in token.top]}
            for token in probs
        ]

    def _entry(self, prob: TokenProb) -> dict[str, Any]:
        name = "prob" if self._after_sampling else "logprob"
        text = prob.piece.decode("utf-8", "replace")
        value = finite(prob.value)
        return {"id": prob.id, "token": text, "bytes": list(prob.piece), name: value}

    def legacy(self, probs: Iterable[TokenProbs]) -> dict[str, Any]:
        """`choices[].logprobs`. An offset is that of the token's first whole character in the
        text of the answer."""
        found: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token in probs:
            chosen = _legacy_text(token.chosen.piece)
            value = self._logprob(token.chosen)
            top: dict[str, float] = {}
            for prob in token.top:
                top.setdefault(_legacy_text(prob.piece), self._logprob(prob))
            top.setdefault(chosen, value)
            found["tokens"].append(chosen)
            found["token_logprobs"].append(value)
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._num_characters)
            piece = self._vocabulary.piece(token.chosen.id)
            self._num_characters += len(self._detokenizer.push(piece))
        return found

    def _logprob(self, prob: TokenProb) -> float:
        if self._after_sampling:
            return math.log(prob.value) if prob.value > 0 else LOWEST
        return finite(prob.value)


def _legacy_text(piece: bytes) -> str:
    """Texts are keys there, so the parts of characters must stay apart from each other."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
