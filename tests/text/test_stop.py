"""Stop strings cut a text at the same place however it is pushed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfserve.text.stop import StopMatcher, StopResult


def oracle(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def may_grow(text: str, stops: Sequence[str]) -> str:
    """The longest end of `text` that is the beginning of a stop string, but not all of it."""
    ends = (text[start:] for start in range(len(text)))
    return next((end for end in ends if any(s != end and s.startswith(end) for s in stops)), "")


def streamed(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.push(piece).text for piece in pieces) + matcher.flush()
    return text, matcher.matched


def splits(text: str) -> list[list[str]]:
    """Every way to cut a text into pieces."""
    if not text:
        return [[]]
    return [
        [text[:length], *rest]
        for length in range(1, len(text) + 1)
        for rest in splits(text[length:])
    ]


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("sea?\nno", ["\n"]),
        ("aabaabaa", ["aabaa", "abaab"]),
        ("abcabd", ["abd", "bca"]),
        ("ababab", ["abab", "ab"]),
        ("xabcx", ["abcd", "bc"]),
        ("xabc", ["abcd", "bc"]),
        ("xabcd", ["ab", "abc"]),
        ("abcde", ["bc", "abcd"]),
        ("xabc", ["bc", "abc", "c"]),
        ("aab", ["aaab", "ab"]),
        ("日本語🦙", ["本語🦙🦙", "🦙"]),
        ("aaaa", ["aaaaa"]),
    ],
)
def test_every_split_gives_what_the_whole_text_gives(text: str, stops: list[str]) -> None:
    for pieces in splits(text):
        assert streamed(pieces, stops) == oracle(text, stops), pieces


@given(
    st.lists(st.text("ab\n🦙", max_size=4), max_size=12),
    st.lists(st.text("ab\n🦙", max_size=4), max_size=4),
)
def test_random_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    assert streamed(pieces, stops) == oracle("".join(pieces), stops)


@given(
    st.lists(st.text("ab🦙", min_size=1, max_size=3), max_size=10),
    st.lists(st.text("ab🦙", min_size=1, max_size=5), max_size=6),
)
def test_every_push_holds_back_no_more_than_may_still_become_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    pushed = given_out = ""
    for piece in pieces:
        pushed += piece
        given_out += matcher.push(piece).text
        if matcher.matched is not None:
            break
        assert pushed == given_out + may_grow(pushed, stops)


@given(
    st.lists(st.text("ab🦙", max_size=4), max_size=10),
    st.lists(st.text("ab🦙", max_size=4), max_size=4),
)
def test_the_text_given_out_and_the_characters_cut_are_all_that_was_pushed(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    pushed = given_out = cut = 0
    for piece in pieces:
        result = matcher.push(piece)
        pushed, given_out, cut = pushed + len(piece), given_out + len(result.text), cut + result.cut
    assert pushed == given_out + cut + len(matcher.flush())
    assert matcher.matched is not None or cut == 0


@pytest.mark.parametrize(
    ("pieces", "stops", "content", "word"),
    [
        (["xabcd"], ["ab", "abc"], "x", "ab"),
        (["abc", "de"], ["bc", "abcd"], "a", "bc"),
        (["let a", "bc!"], ["a", "abc"], "let ", "a"),
        (["xab", "c"], ["c", "bc", "abc"], "x", "abc"),
    ],
)
def test_the_stop_string_that_ends_first_wins_then_the_one_that_begins_first(
    pieces: list[str], stops: list[str], content: str, word: str
) -> None:
    assert streamed(pieces, stops) == (content, word)


def test_text_before_the_stop_string_in_one_push_is_given_out() -> None:
    assert StopMatcher(["\n"]).push("?\nmore") == StopResult("?", "\n", cut=5)


def test_what_is_cut_may_have_come_in_earlier_pushes() -> None:
    matcher = StopMatcher(["wer is"])
    assert [matcher.push(piece).cut for piece in ("The ans", "wer", " is: ", "x")] == [0, 0, 8, 1]


def test_only_what_may_become_a_stop_string_is_held() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("a ST").text == "a "
    assert matcher.push("x").text == "STx"


def test_flush_gives_out_what_was_held() -> None:
    assert streamed(["is a <"], ["<end>"]) == ("is a <", None)


def test_nothing_is_given_out_after_a_match() -> None:
    matcher = StopMatcher(["."])
    matcher.push("a.b")
    assert (matcher.push("c"), matcher.flush()) == (StopResult("", ".", cut=1), "")


def test_empty_stop_strings_are_ignored() -> None:
    assert streamed(["abc"], ["", ""]) == ("abc", None)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        ([f"z{number}" for number in range(256)], "az" * 20_000),
        (["a" * 4_095 + "b"], "a" * 40_000),
        (["a" * 4_095 + "b"], ("a" * 4_095 + "x") * 10),
        (["a" * length + "b" for length in range(3_840, 4_096)], ("a" * 4_000 + "x") * 10),
    ],
)
def test_the_ends_that_are_compared_are_as_many_as_the_characters(
    stops: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = 0

    def counted(stops: list[str], tail: str) -> int:
        nonlocal searched
        searched += 1
        assert len(tail) < max(map(len, stops))
        return bisect_left(stops, tail)

    monkeypatch.setattr("selfserve.text.stop.bisect_left", counted)
    matcher = StopMatcher(stops)
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    given_out = "".join(matcher.push(piece).text for piece in pieces) + matcher.flush()
    assert given_out == text
    assert searched <= len(text) + len(pieces)
