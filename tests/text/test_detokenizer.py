"""Characters come out whole, wherever the tokens cut them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from selfserve.text.detokenizer import Detokenizer


def joined(pieces: list[bytes]) -> str:
    detokenizer = Detokenizer()
    return "".join([*map(detokenizer.push, pieces), detokenizer.flush()])


@given(st.text(), st.lists(st.integers(0, 40), max_size=8))
def test_any_cut_gives_the_same_text(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert joined(pieces) == text


@given(st.lists(st.binary(max_size=5), max_size=10))
def test_invalid_bytes_give_the_same_text_as_in_one_piece(pieces: list[bytes]) -> None:
    assert joined(pieces) == b"".join(pieces).decode("utf-8", "replace")


def test_a_character_is_held_until_it_is_whole() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.push(bytes([byte])) for byte in "🦙".encode()] == ["", "", "", "🦙"]


def test_a_character_cut_off_at_the_end_is_one_replacement() -> None:
    for length in (1, 2, 3):
        assert joined([b"a", *(bytes([b]) for b in "🦙".encode()[:length])]) == "a\ufffd"


def test_pending_tells_whether_bytes_are_held() -> None:
    detokenizer = Detokenizer()
    detokenizer.push("é".encode()[:1])
    assert detokenizer.is_pending
    detokenizer.push("é".encode()[1:])
    assert not detokenizer.is_pending


def test_flush_gives_the_held_bytes_out_once() -> None:
    detokenizer = Detokenizer()
    detokenizer.push(b"\xf0\x9f")
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")
