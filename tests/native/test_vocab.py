"""Tokens and their bytes, special tokens, metadata."""

from __future__ import annotations

import pytest

from selfserve.native.model import Model

TEXTS = [
    "",
    "Hello, world!",
    "  two  spaces \n\n\ttabs\r\n",
    "größer als 🙂 ちゃん \u200d\u2028 e\u0301",
    "def f(x):\n    return x ** 2\n",
    "a" * 3000,
    "\x00\x01\x7f",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_pieces_of_a_text_are_its_bytes(model: Model, text: str) -> None:
    ids = model.vocab.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(model.vocab.piece, ids)) == text.encode()
    assert all(0 <= i < model.vocab.size for i in ids)


def test_special_text_is_a_token_only_where_that_is_asked_for(model: Model) -> None:
    vocab, text = model.vocab, "<|im_start|>user"
    as_token = vocab.tokenize(text, add_special=False, parse_special=True)
    as_text = vocab.tokenize(text, add_special=False, parse_special=False)
    assert as_token[0] == vocab.special_ids["<|im_start|>"]
    assert not set(as_text) & set(vocab.special_ids.values())
    assert b"".join(map(vocab.piece, as_text)) == text.encode()


def test_a_control_token_has_bytes_only_on_demand(model: Model) -> None:
    token = model.vocab.special_ids["<|im_end|>"]
    assert model.vocab.piece(token) == b""
    assert model.vocab.piece(token, special=True) == b"<|im_end|>"


@pytest.mark.parametrize("beyond", [-1, 0])
def test_an_id_outside_the_vocabulary_has_no_piece(model: Model, beyond: int) -> None:
    with pytest.raises(IndexError):
        model.vocab.piece(beyond if beyond < 0 else model.vocab.size)


def test_the_ends_of_a_generation_are_known(model: Model) -> None:
    vocab = model.vocab
    assert vocab.eos_id in vocab.eog_ids
    assert vocab.special_ids["<|im_end|>"] in vocab.eog_ids
    assert vocab.special_ids["<|im_start|>"] not in vocab.eog_ids


def test_the_file_tells_of_itself(model: Model) -> None:
    assert model.vocab.metadata["general.architecture"] == "llama"
    template = model.vocab.chat_template
    assert template is not None
    assert "<|im_start|>" in template
    assert model.vocab.metadata["tokenizer.chat_template"] == template  # long values are whole


def test_every_piece_can_be_read(model: Model) -> None:
    pieces = [model.vocab.piece(i, special=True) for i in range(model.vocab.size)]
    assert max(map(len, pieces)) > 64  # longer than the first guess of the buffer's size
    assert all(isinstance(piece, bytes) for piece in pieces)
