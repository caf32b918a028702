"""The vocabulary and the chat template of the tiny models: made here, of no other model.

A byte-level BPE vocabulary. Its words are a blank and one or two syllables (" bako"); each is one
token, and a text of them is tokenized to the very tokens that it was written with.
"""

from __future__ import annotations

from itertools import product

from tests.support.tiny_gguf import Signed, Value

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Kinds of `tokenizer.ggml.token_type`."""
CONTROL_TEXTS = ("<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING_TEXTS = ("<think>", "</think>")
SYLLABLES = tuple(a + b for a, b in product("bdfgklmnprtvz", "aeiou"))
ROLES = ("system", "user", "assistant")
"""Names that each are one token. No syllable has an s, so their merges disturb no word."""
WORD_STEP = 11
"""Of all words of two syllables every so manieth is a token."""

TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and not enable_thinking -%}
        {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- else -%}
        {{- '<think>\\n' -}}
    {%- endif -%}
{%- endif -%}
"""
"""What was thought in earlier turns, and the block that stood for no thinking, are not written
again: the prompt of a turn does not begin with all of the prompt of the turn before."""


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level BPE: itself where it can be seen."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(256 + others.index(b)) for b in range(256)]


def _chain(text: str) -> list[tuple[str, str]]:
    """Merges that build a text from its left, character by character."""
    return [(text[:i], text[i]) for i in range(1, len(text))]


class TinyVocabulary:
    """Tokens by id, with their kinds and the merges of the BPE, best first."""

    def __init__(self) -> None:
        blank, newline = byte_characters()[ord(" ")], byte_characters()[ord("\n")]
        merges = [pair for role in ROLES for pair in _chain(role)]
        merges += [(newline, newline)]
        merges += [(s[0], s[1]) for s in SYLLABLES]
        merges += [(blank, s) for s in SYLLABLES]
        pairs = list(product(SYLLABLES, SYLLABLES))[::WORD_STEP]
        merges += [(blank + a, b) for a, b in pairs]
        self.merges = list(dict.fromkeys(merges))
        normal = [*byte_characters(), *dict.fromkeys(a + b for a, b in self.merges)]
        self.words = [text for text in normal if text[0] == blank and len(text) > 1]
        self.texts = [*normal, *CONTROL_TEXTS, *THINKING_TEXTS]
        self.kinds = [NORMAL] * len(normal)
        self.kinds += [CONTROL] * len(CONTROL_TEXTS) + [USER_DEFINED] * len(THINKING_TEXTS)
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def metadata(self, *, add_bos: bool) -> dict[str, Value]:
        """The tokenizer's part of a GGUF file."""
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.token_type": [Signed(kind) for kind in self.kinds],
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in self.merges],
            "tokenizer.ggml.bos_token_id": self.ids["<|begin|>"],
            "tokenizer.ggml.eos_token_id": self.ids["<|im_end|>"],
            "tokenizer.ggml.padding_token_id": self.ids["<|endoftext|>"],
            "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.chat_template": TEMPLATE,
        }
