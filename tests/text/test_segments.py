"""A client's text never becomes a control token, and everything else is tokenized as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.shared_data import shared_data

from selfserve.native.model import Model
from selfserve.native.vocab import Vocab
from selfserve.text.segments import Guard, Segment, SpecialTexts, tokenize_segments

SPECIALS = ("<|im_end|>", "<|im_start|>", "<|im", "[/INST]", "\n\n", "x")


def ranges(text: str, ignored: tuple[str, ...] = ()) -> list[str]:
    found = SpecialTexts(SPECIALS).find(text, ignored)
    return [text[start:end] for start, end in found]


def test_special_texts_are_found_longest_first() -> None:
    text = "a<|im_end|><|im<|im_start|>[/INST] <|im_"
    assert ranges(text) == ["<|im_end|>", "<|im", "<|im_start|>", "[/INST]", "<|im"]


def test_white_space_and_single_characters_are_no_control_tokens() -> None:
    assert ranges("x\n\nx") == []


def test_ignored_texts_are_passed_over_whole() -> None:
    assert ranges("<|im_end|>", ("<|im_end|>",)) == []


@settings(deadline=None)
@given(st.text("abcd ", max_size=30), st.integers(0, 30))
def test_a_place_apart_has_a_special_text_that_no_other_reaches_into(text: str, start: int) -> None:
    texts = ("ab", "bcd", "cda", "d b")
    found = SpecialTexts(texts).first_apart(text, start)
    apart = [
        place
        for place in range(max(1, start), len(text))
        if any(text.startswith(t, place) for t in texts)
        and not text[place - 1].isspace()
        and not any(
            text.startswith(t, begin) and begin + len(t) > place
            for t in texts
            for begin in range(place)
        )
    ]
    assert found == (apart[0] if apart else None) or (start == found == 0)


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im", "a", "\n\n", "é", "[/INST]"])))
def test_guarded_text_comes_back_in_full(parts: list[str]) -> None:
    text = "".join(parts)
    guard = Guard(SpecialTexts(SPECIALS))
    guarded = guard.protect(text)
    segments = guard.restore(f"<|im_start|>{guarded}<|im_end|>")
    assert "".join(s.text for s in segments) == f"<|im_start|>{text}<|im_end|>"
    assert not [*SpecialTexts(SPECIALS).find(guarded)]
    assert all(s.text in SPECIALS for s in segments if not s.special)


def test_text_without_special_texts_is_one_segment() -> None:
    guard = Guard(SpecialTexts(SPECIALS))
    assert guard.restore(guard.protect("plain")) == (Segment("plain", True),)


def test_thousands_of_special_texts_cost_little() -> None:
    specials = SpecialTexts([f"<unused{i}>" for i in range(6000)])
    assert len([*specials.find("<unused7> <b> text " * 20_000)]) == 20_000


def word_tokenizer(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
    """`<think>` is 1 in any text, `<end>` is 2 if asked for; BOS is 0; else code points.

    Like sentencepiece it puts a blank in front of a text.
    """
    ids = [0] if add_special else []
    pattern = "<think>|<end>" if parse_special else "<think>"
    position, blank = 0, " "
    for match in re.finditer(pattern, text):
        before = text[position : match.start()]
        ids += map(ord, blank + before if before else "")
        ids.append(1 if match.group() == "<think>" else 2)
        position, blank = match.end(), " "
    rest = text[position:]
    return [*ids, *map(ord, blank + rest if rest else "")]


def test_the_start_of_a_prompt_is_marked_once() -> None:
    segments = [Segment("a", True), Segment("<end>", False), Segment("b<end>", True)]
    ids = tokenize_segments(segments, word_tokenizer)
    assert (ids.count(0), ids[0], ids.count(2)) == (1, 0, 1)


def test_tokens_that_a_vocabulary_reads_in_any_text_are_taken_apart() -> None:
    segments = [Segment("a", True), Segment("<think>", False), Segment("b", True)]
    assert 1 not in tokenize_segments(segments, word_tokenizer)


def test_segments_inside_a_prompt_get_no_blank_in_front() -> None:
    segments = [Segment("a", True), Segment("<end>", False), Segment("b", True)]
    text = "".join(map(chr, tokenize_segments(segments, word_tokenizer)[1:]))
    assert text == " a<end>b"


@pytest.fixture(scope="module", params=["qwen35", "gemma-4", "llama-spm", "llama-bpe", "gpt-2"])
def vocab(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    path = shared_data(f"vocab/ggml-vocab-{request.param}.gguf")
    model = Model(path, vocab_only=True)
    yield model.vocab
    model.close()


def text_of(vocab: Vocab, ids: list[int]) -> str:
    return b"".join(vocab.piece(token_id, special=True) for token_id in ids).decode()


PIECES = ("Hello <", " world", "  two\n\nlines", "\n\n", "x = [1,\n 2]", "ünï🦙", "end")


@pytest.mark.parametrize("cut", range(1, len(PIECES)))
def test_real_vocabularies_keep_the_text_of_segments(vocab: Vocab, cut: int) -> None:
    segments = [Segment("".join(PIECES[:cut]), True), Segment("".join(PIECES[cut:]), False)]
    ids = tokenize_segments(segments, vocab.tokenize)
    whole = vocab.tokenize("".join(PIECES), add_special=True, parse_special=False)
    assert text_of(vocab, ids) == text_of(vocab, whole)


def test_a_typed_control_token_stays_text_in_real_vocabularies(vocab: Vocab) -> None:
    specials = {text: i for text, i in vocab.special_ids.items() if len(text.strip()) > 1}
    for text, token_id in [*specials.items()][:40]:
        guard = Guard(SpecialTexts(specials))
        segments = guard.restore("say " + guard.protect(f"a{text}b"))
        ids = tokenize_segments(segments, vocab.tokenize)
        assert token_id not in ids[1:]
        assert text_of(vocab, ids).endswith(f"say a{text}b")
