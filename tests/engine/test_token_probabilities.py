"""Probabilities of tokens on their way out: each with its text, and none without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from tests.support.builders import GREEDY, Rig, grammar_state, make_request
from tests.support.byte_vocabulary import EOS, ByteVocabulary
from tests.support.scripted_runner import ScriptedRunner, reading

from selfserve.request import Delta, TokenProbs

FIRST_PIECE = 128
"""Token ids from here on stand for the pieces of a test."""


class PieceVocabulary(ByteVocabulary):
    """Has tokens for these pieces too."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = {FIRST_PIECE + i: piece for i, piece in enumerate(pieces)}

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        return self._pieces.get(token_id) or super().piece(token_id, special=special)


def splits(text: bytes) -> Iterator[list[bytes]]:
    """All ways to cut a text in pieces."""
    for count in range(len(text)):
        for cuts in combinations(range(1, len(text)), count):
            yield [text[a:b] for a, b in zip((0, *cuts), (*cuts, len(text)), strict=True)]


def told(pieces: Sequence[bytes], **fields: Any) -> Rig:
    """An engine that answers with these pieces, one token each, and tells probabilities."""
    runner = ScriptedRunner(
        predict=reading({"?": [FIRST_PIECE + i for i in range(len(pieces))]}), num_slots=1
    )
    runner.vocabulary = PieceVocabulary(pieces)
    rig = Rig(runner)
    rig.run([make_request("a", "?", max_tokens=50, n_probs=1, **fields)])
    return rig


def entries(deltas: Sequence[Delta]) -> list[TokenProbs]:
    return [entry for delta in deltas for entry in delta.probs]


def num_characters(text: bytes) -> int:
    """Characters that begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in text)


@pytest.mark.parametrize("post", [False, True])
def test_each_token_has_its_probabilities(post: bool) -> None:
    rig = Rig(ScriptedRunner(predict=reading({"?": "Hi there"})))
    rig.run([make_request("a", "?", max_tokens=100, n_probs=3, post_sampling_probs=post)])
    probs = entries(rig.deltas("a"))
    assert [p.id for p in probs] == rig.tokens("a") == [*b"Hi there", EOS]
    for entry in probs:
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True)
        assert entry.top[0][0] == entry.id
        assert len(values) == (1 if post else 3)
        assert entry.value == pytest.approx(1.0 if post else 0.0, abs=0.05)


@pytest.mark.parametrize("post", [False, True])
def test_the_end_token_has_an_entry_and_no_piece(post: bool) -> None:
    rig = told([b"a", b"b"], post_sampling_probs=post)
    assert [p.piece for p in entries(rig.deltas("a"))] == [b"a", b"b", b""]
    assert entries(rig.deltas("a"))[-1].id == EOS


def test_deltas_carry_the_tokens_of_their_text() -> None:
    rig = Rig(ScriptedRunner(predict=reading({"?": "größe"})))
    rig.run([make_request("a", "?", max_tokens=100)])
    for delta in rig.deltas("a"):
        assert bytes(t for t in delta.tokens if t < 256).decode() == delta.content


def test_tokens_with_probabilities_are_all_asked_of_the_model() -> None:
    rig = Rig(ScriptedRunner(predict=reading({"?": "bthe rest"})))
    state = grammar_state('start: ("a" | "b") "the rest is certain"')
    rig.add(make_request("a", "?", max_tokens=100, n_probs=1, sampling=GREEDY), state)
    rig.run()
    assert rig.text("a") == "bthe rest is certain"
    ids = [p.id for p in entries(rig.deltas("a"))]
    assert ids == [*b"bthe rest is certain"]


@pytest.mark.parametrize(
    ("text", "stop"),
    [("aSxSTb", "ST"), ("aSSTOP", "STOP"), ("éSaST", "ST"), ("xxST🙂", "T🙂"), ("aSéS", "ST")],
)
def test_a_stop_string_cuts_probabilities_as_it_cuts_the_text(text: str, stop: str) -> None:
    content = text.partition(stop)[0]
    for pieces in splits(text.encode()):
        rig = told(pieces, stop=(stop,))
        assert rig.text("a") == content, pieces
        ends = [num_characters(b"".join(pieces[: i + 1])) for i in range(len(pieces))]
        expected = [piece for piece, end in zip(pieces, ends, strict=True) if end <= len(content)]
        if content == text:
            expected.append(b"")  # the end token's
        found = [entry.piece for entry in entries(rig.deltas("a"))]
        assert found == expected, pieces


@pytest.mark.parametrize("text", ["aSéSTO", "é🙂S"])
def test_probabilities_wait_for_their_text(text: str) -> None:
    for pieces in splits(text.encode()):
        shown, num_entries = 0, 0
        for delta in told(pieces, stop=("STOP",)).deltas("a"):
            shown += len(delta.content)
            num_entries += sum(entry.id != EOS for entry in delta.probs)
            assert num_characters(b"".join(pieces[:num_entries])) <= shown, pieces
        assert num_entries == len(pieces), pieces
