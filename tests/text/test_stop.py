"""Stop strings cut a text at the same place however it is pushed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfserve.text.stop import StopMatcher, StopResult


def oracle(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    for start in range(len(text)):
        found = [stop for stop in stops if stop and text.startswith(stop, start)]
        if found:
            return text[:start], max(found, key=len)
    return text, None


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


def test_text_before_the_stop_string_in_one_push_is_given_out() -> None:
    assert StopMatcher(["\n"]).push("?\nmore") == StopResult("?", "\n")


def test_only_what_may_become_a_stop_string_is_held() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("a ST").text == "a "
    assert matcher.push("x").text == "STx"


def test_the_longest_of_stop_strings_that_begin_together_wins() -> None:
    assert streamed(["let a", "bc!"], ["a", "abc"]) == ("let ", "abc")


def test_flush_gives_out_what_was_held() -> None:
    assert streamed(["is a <"], ["<end>"]) == ("is a <", None)


def test_nothing_is_given_out_after_a_match() -> None:
    matcher = StopMatcher(["."])
    matcher.push("a.b")
    assert (matcher.push("c"), matcher.flush()) == (StopResult("", "."), "")


def test_empty_stop_strings_are_ignored() -> None:
    assert streamed(["abc"], ["", ""]) == ("abc", None)


def test_a_long_text_without_stop_strings_passes_in_linear_time() -> None:
    matcher = StopMatcher(["zzzzzzzz", "zzzy"])
    assert matcher.push("az" * 100_000).text == "az" * 99_999 + "a"
