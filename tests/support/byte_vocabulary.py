"""A vocabulary without a model: each byte is the token of its value, control tokens follow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

CONTROL_TEXTS = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
BOS, IM_START, IM_END, THINK, END_THINK = range(256, 256 + len(CONTROL_TEXTS))
EOS = IM_END
VOCAB_SIZE = 256 + len(CONTROL_TEXTS)

_CONTROL = re.compile("(" + "|".join(map(re.escape, CONTROL_TEXTS)) + ")")


class ByteVocabulary:
    """Text and token ids are the same thing, so tests can be read."""

    def __init__(self, template: str | None = None, *, add_bos: bool = False) -> None:
        self.size = VOCAB_SIZE
        self.bos_id: int | None = BOS
        self.eos_id: int | None = EOS
        self.eog_ids = frozenset({EOS})
        self.longest_piece = max(map(len, CONTROL_TEXTS))
        self.add_bos = add_bos
        self.special_ids: Mapping[str, int] = {
            text: 256 + i for i, text in enumerate(CONTROL_TEXTS)
        }
        self.chat_template = template
        self.metadata: Mapping[str, str] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = [BOS] if add_special and self.add_bos else []
        for part in _CONTROL.split(text) if parse_special else [text]:
            control = self.special_ids.get(part) if parse_special else None
            ids += part.encode() if control is None else [control]
        return ids

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        if not 0 <= token_id < self.size:
            raise IndexError(token_id)
        if token_id < 256:
            return bytes([token_id])
        return CONTROL_TEXTS[token_id - 256].encode() if special else b""

    def text(self, ids: Sequence[int]) -> str:
        """The ids as a person reads them, control tokens included."""
        return b"".join(self.piece(i, special=True) for i in ids).decode()


class _Tokens:
    """The vocabulary in the shape that llguidance asks for."""

    eos_token_id = EOS
    bos_token_id = BOS
    tokens = [bytes([i]) for i in range(256)] + [b"\xff" + text.encode() for text in CONTROL_TEXTS]
    special_token_ids = list(range(256, VOCAB_SIZE))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def grammar_tokenizer() -> Any:
    """An llguidance tokenizer of the same tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Tokens()), slices=[])
