"""Tokens and their bytes, special tokens, metadata."""

from __future__ import annotations

from typing import Any

import pytest

from selfserve.errors import InvalidRequest
from selfserve.native import vocab as native_vocab
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


def test_no_piece_is_longer_than_the_longest(model: Model) -> None:
    pieces = [model.vocab.piece(i, special=True) for i in range(model.vocab.size)]
    assert model.vocab.longest_piece == max(map(len, pieces))


def test_a_text_beyond_the_limit_is_refused_before_anything_is_allocated(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_vocab, "MAX_TEXT_BYTES", 10)
    model.vocab.tokenize("a" * 10, add_special=False, parse_special=False)
    monkeypatch.setattr(model.vocab, "_tokenize", lambda *_: pytest.fail("it was tokenized"))
    with pytest.raises(InvalidRequest, match="at most 10 bytes, it has 11"):
        model.vocab.tokenize("a" * 11, add_special=False, parse_special=False)


@pytest.mark.parametrize("answers", [[-(2**31)], [-3], [-500, -501], [-500, -(2**31)]], ids=str)
def test_a_tokenizer_that_cannot_count_is_an_error_and_not_asked_for_ever(
    model: Model, monkeypatch: pytest.MonkeyPatch, answers: list[int]
) -> None:
    left = list(answers)
    monkeypatch.setattr(model.vocab, "_tokenize", lambda *_: (left.pop(0), []))
    with pytest.raises(InvalidRequest, match="cannot be tokenized"):
        model.vocab.tokenize("text", add_special=False, parse_special=False)
    assert not left


def test_a_text_that_becomes_longer_gets_the_room_it_asks_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(_data: bytes, room: int, *_: bool) -> tuple[int, Any]:
        return (500, [7] * room) if room >= 500 else (-500, [])

    monkeypatch.setattr(model.vocab, "_tokenize", tokenize)
    assert model.vocab.tokenize("text", add_special=False, parse_special=False) == [7] * 500
