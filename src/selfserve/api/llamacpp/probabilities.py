"""Probabilities of tokens as JSON: llama.cpp's form, and the older one of OpenAI's completions.

Up to a thousand candidates stand at each token, so the JSON is written as text at once, from parts
that are made once for each token of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache, lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from selfserve.engine.interface import Vocabulary
from selfserve.request import TokenProbs
from selfserve.text.detokenizer import Detokenizer
from selfserve.threads import check_wanted

LOWEST = -3.4028234663852886e38
"""The lowest number of 32-bit floats: written for −∞, which JSON does not know."""
KNOWN_TOKENS = 65_536
"""Tokens of which the written form is kept: about 25 MB."""
FEW = 50
"""Candidates at a token up to which their written forms are made as they come."""


def finite(value: float) -> float:
    """`value`, or LOWEST for −∞ and for what is no number."""
    return value if value > LOWEST else LOWEST


def prepare(vocabulary: Vocabulary, num_probs: int) -> None:
    """Writes tokens beforehand, so that the event loop does not have to for a thousand of them at
    each token. For a worker thread: takes some tenths of a second, once."""
    known: Any = vocabulary
    written = _written_by(known)
    if num_probs > FEW and written.cache_info().currsize < min(vocabulary.size, KNOWN_TOKENS):
        for token in range(min(vocabulary.size, KNOWN_TOKENS)):
            check_wanted()
            written(token)


class ProbabilityRenderer:
    """Renders the probabilities of one answer, token by token in order."""

    def __init__(self, vocabulary: Vocabulary, *, after_sampling: bool) -> None:
        self._vocabulary = vocabulary
        self._after_sampling = after_sampling
        self._name = "prob" if after_sampling else "logprob"
        known: Any = vocabulary  # hashable by identity, which its protocol does not say
        self._written = _written_by(known)
        self._detokenizer = Detokenizer()
        self._num_characters = 0

    def native(self, probs: Iterable[TokenProbs]) -> list[str]:
        """Entries of `completion_probabilities`, each as JSON."""
        return [self._entry(token) for token in probs]

    def _entry(self, token: TokenProbs) -> str:
        name, written = self._name, self._written
        top = ",".join(
            [f'{{{written(i)[0]},"{name}":{finite(value)!r}}}' for i, value in token.top]
        )
        own = _native(token.id, token.piece)
        return f'{{{own},"{name}":{finite(token.value)!r},"top_{name}s":[{top}]}}'

    def legacy(self, probs: Iterable[TokenProbs]) -> LegacyProbs:
        """What `choices[].logprobs` gains. An offset is that of the token's first whole character
        in the text of the answer."""
        found = LegacyProbs()
        for token in probs:
            chosen = encode_basestring_ascii(_legacy_text(token.piece))
            value = self._logprob(token.value)
            top: dict[str, float] = {}
            for i, other in token.top:
                top.setdefault(self._written(i)[1], self._logprob(other))
            top.setdefault(chosen, value)
            found.tokens.append(chosen)
            found.values.append(repr(value))
            found.tops.append("{" + ",".join([f"{t}:{v!r}" for t, v in top.items()]) + "}")
            found.offsets.append(str(self._num_characters))
            piece = self._vocabulary.piece(token.id)
            self._num_characters += len(self._detokenizer.push(piece))
        return found

    def _logprob(self, value: float) -> float:
        if self._after_sampling:
            return math.log(value) if value > 0 else LOWEST
        return finite(value)


class LegacyProbs:
    """`choices[].logprobs` as lists of JSON texts."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.values: list[str] = []
        self.tops: list[str] = []
        self.offsets: list[str] = []

    def extend(self, more: LegacyProbs) -> None:
        self.tokens += more.tokens
        self.values += more.values
        self.tops += more.tops
        self.offsets += more.offsets

    def json(self) -> str:
        return (
            f'{{"tokens":[{",".join(self.tokens)}],"token_logprobs":[{",".join(self.values)}],'
            f'"top_logprobs":[{",".join(self.tops)}],"text_offset":[{",".join(self.offsets)}]}}'
        )


@cache
def _written_by(vocabulary: Any) -> Any:
    """A token's id → the beginning of its native entry, and its legacy text, as JSON."""

    @lru_cache(maxsize=KNOWN_TOKENS)
    def written(token: int) -> tuple[str, str]:
        piece = vocabulary.piece(token, special=True)
        return _native(token, piece), encode_basestring_ascii(_legacy_text(piece))

    return written


def _native(token: int, piece: bytes) -> str:
    text = encode_basestring_ascii(piece.decode("utf-8", "replace"))
    return f'"id":{token},"token":{text},"bytes":[{",".join(map(str, piece))}]'


def _legacy_text(piece: bytes) -> str:
    """Texts are keys there, so the parts of characters must stay apart from each other."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
