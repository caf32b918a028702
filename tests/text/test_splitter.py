"""Thinking and answer are parted at the markers, and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfserve.request import ReasoningSpec
from selfserve.text.reasoning import FORMATS, find_format
from selfserve.text.splitter import NO_TOKEN, WHITE_SPACE, ReasoningSplitter, Split

THINK_IDS = {"<think>": 1, "</think>": 2}
GEMMA_IDS = {"<|channel>": 1, "<channel|>": 2}
GPT_IDS = {"<|channel|>": 1, "<|message|>": 2, "<|start|>": 3, "<|end|>": 4}
CONTROL = {1: "<|channel|>", 2: "<|message|>", 3: "<|start|>", 4: "<|end|>"}
PLAIN = 99
"""The id of tokens that are no marker."""


def spec_of(start: str, ids: dict[str, int], prompt: str = "", **changes: object) -> ReasoningSpec:
    known = next(known for known in FORMATS if known.start.startswith(start))
    source = known.start if known.channels else known.end
    found = find_format(source, ids)
    assert found is not None
    budget = changes.pop("budget", None)
    assert budget is None or isinstance(budget, int)
    return found.spec(prompt, budget=budget, tokenize=lambda text: [PLAIN])


def run(spec: ReasoningSpec, tokens: Iterable[tuple[int, str]]) -> tuple[str, str]:
    splitter = ReasoningSplitter(spec)
    splits = [splitter.push(token_id, text) for token_id, text in tokens]
    splits.append(splitter.flush())
    return "".join(s.reasoning for s in splits), "".join(s.content for s in splits)


def plain(*texts: str) -> list[tuple[int, str]]:
    return [(PLAIN, text) for text in texts]


def oracle(text: str, *, is_open: bool, answers: bool = False) -> tuple[str, str]:
    """The whole text at once, for `<think>` found by its text."""
    if answers:
        return "", text.lstrip(WHITE_SPACE)
    if not is_open:
        if not text.lstrip(WHITE_SPACE).startswith("<think>"):
            return "", text
        text = text.lstrip(WHITE_SPACE).removeprefix("<think>")
    reasoning, marker, content = text.partition("</think>")
    reasoning = reasoning.lstrip(WHITE_SPACE)
    if not marker:
        return reasoning, ""
    return reasoning.rstrip(WHITE_SPACE), content.lstrip(WHITE_SPACE)


def cuts(text: str, count: int) -> Iterable[list[str]]:
    """Every way to cut a text at `count` places."""
    for places in itertools.combinations(range(1, len(text)), count):
        edges = [0, *places, len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(edges)]


TEXTS = [
    "<think>\nWhy? </thin </think>\n\nSo <think>no</think>.",
    " \n<think></think>Hi",
    "BEGIN <think> END",
    "  \n Hi <thi",
    "<think>cut off </thi",
    "<think> \n ",
    "\n<thi",
    "Hm.\n</think>\n\n\nHi\n",
]
OPENINGS = {"": (False, False), "<think>\n": (True, False), "<think></think>": (False, True)}


@pytest.mark.parametrize("prompt", OPENINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_cut_gives_what_the_whole_text_gives(text: str, prompt: str) -> None:
    spec = spec_of("<think>", {}, prompt)
    is_open, answers = OPENINGS[prompt]
    expected = oracle(text, is_open=is_open, answers=answers)
    for count in (0, 1, 2, len(text) - 1):
        for pieces in cuts(text, count):
            assert run(spec, plain(*pieces)) == expected, pieces


@given(
    st.lists(
        st.sampled_from(["<", "think>", "</", "<think>", "</think>", " ", "\n", "a", "🦙", ""]),
        max_size=14,
    ),
    st.sampled_from(sorted(OPENINGS)),
)
def test_random_pieces_give_what_the_whole_text_gives(pieces: list[str], prompt: str) -> None:
    is_open, answers = OPENINGS[prompt]
    expected = oracle("".join(pieces), is_open=is_open, answers=answers)
    assert run(spec_of("<think>", {}, prompt), plain(*pieces)) == expected


def test_only_the_token_counts_where_a_marker_is_one() -> None:
    spec = spec_of("<think>", THINK_IDS)
    tokens = [(1, "<think>"), *plain("say </think> "), (2, "</think>"), *plain("\n<think>!")]
    assert run(spec, tokens) == ("say </think>", "<think>!")
    assert run(spec, plain("<think>", "x</think>y")) == ("", "<think>x</think>y")


def test_a_marker_token_within_the_answer_is_text() -> None:
    spec = spec_of("<think>", THINK_IDS)
    tokens = [*plain("use "), (1, "<think>"), *plain(" and "), (2, "</think>")]
    assert run(spec, tokens) == ("", "use <think> and </think>")
    assert set(spec.hidden_ids) == {1, 2}


def test_a_cut_character_before_a_marker_token_is_not_lost() -> None:
    spec = spec_of("<think>", THINK_IDS, "<think>")
    assert run(spec, [*plain("a"), (2, "\ufffd</think>"), *plain("b")]) == ("a\ufffd", "b")
    spec = spec_of("<think>", THINK_IDS)
    assert run(spec, [(1, "\ufffd<think>"), *plain("b")]) == ("", "\ufffd<think>b")


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    splitter = ReasoningSplitter(spec_of("<think>", {}, "<think>\n"))
    assert splitter.push(PLAIN, "so ") == Split("so", "")
    assert splitter.push(PLAIN, "on</th") == Split(" on", "")
    assert splitter.push(PLAIN, "x") == Split("</thx", "")
    assert splitter.push(PLAIN, "</think>\n\nHi ") == Split("", "Hi ")
    assert splitter.push(PLAIN, "</thi") == Split("", "</thi")


def test_the_header_of_a_thought_is_no_thinking() -> None:
    for ids in ({}, GEMMA_IDS):
        spec = spec_of("<|channel>", ids)
        tokens = [(1, "<|channel>"), *plain("thou", "ght\nHm.\n"), (2, "<channel|>"), *plain("Hi")]
        assert run(spec, tokens) == ("Hm.", "Hi")
        tokens = [(1, "<|channel>"), *plain("thought\n"), (2, "<channel|>"), *plain("Hi")]
        assert run(spec, tokens) == ("", "Hi")
        tokens = [(1, "<|channel>"), *plain("thoughtful"), (2, "<channel|>")]
        assert run(spec, tokens) == ("thoughtful", "")
        assert run(spec, [(1, "<|channel>"), *plain("thou")]) == ("thou", "")


def channel_tokens(text: str) -> list[tuple[int, str]]:
    """The text as tokens: control tokens, whose pieces are empty, and single characters."""
    tokens: list[tuple[int, str]] = []
    while text:
        found = [(i, marker) for i, marker in CONTROL.items() if text.startswith(marker)]
        if found:
            tokens.append((found[0][0], ""))
            text = text.removeprefix(found[0][1])
        else:
            tokens.append((PLAIN, text[0]))
            text = text[1:]
    return tokens


START = "<|start|>assistant"
CHANNELS = [
    (
        "<|channel|>analysis<|message|>Hm. <|end|>" + START + "<|channel|>final<|message|>Hi",
        ("Hm.", "Hi"),
    ),
    ("<|channel|>final<|message|>Hi <think>", ("", "Hi <think>")),
    ("<|channel|>analysis<|message|>cut off", ("cut off", "")),
    ("<|channel|>anal", ("", "")),
    (
        "<|channel|>analysis<|message|>A<|end|>" + START + "<|channel|>commentary<|message|>One. "
        "<|end|>"
        + START
        + "<|channel|>analysis<|message|>B<|end|>"
        + START
        + "<|channel|>final<|message|>Two.",
        ("A\nB", "One. Two."),
    ),
    ("no channel at all", ("", "no channel at all")),
]


@pytest.mark.parametrize(("text", "expected"), CHANNELS)
def test_channels_part_thinking_from_answer(text: str, expected: tuple[str, str]) -> None:
    assert run(spec_of("<|channel|>", GPT_IDS), channel_tokens(text)) == expected
    spelled = spec_of("<|channel|>", {})
    for count in (0, 1, len(text) - 1):
        for pieces in cuts(text, count):
            assert run(spelled, plain(*pieces)) == expected, pieces


def test_spelled_markers_are_text_where_channels_are_tokens() -> None:
    tokens = [*channel_tokens("<|channel|>final<|message|>"), *plain("a <|end|> b")]
    assert run(spec_of("<|channel|>", GPT_IDS), tokens) == ("", "a <|end|> b")


def states(spec: ReasoningSpec, tokens: Sequence[tuple[int, str]]) -> list[bool]:
    splitter = ReasoningSplitter(spec)
    found = [splitter.in_reasoning]
    for token_id, text in tokens:
        splitter.push(token_id, text)
        found.append(splitter.in_reasoning)
    return found


def test_the_answer_begins_right_after_the_end_marker() -> None:
    tokens = [*plain("Hm."), (2, "</think>"), *plain("{")]
    assert states(spec_of("<think>", THINK_IDS, "<think>\n"), tokens) == [True, True, False, False]
    assert states(spec_of("<think>", THINK_IDS), plain("{")) == [False, False]
    tokens = [(1, ""), *plain("final"), (2, ""), *plain("{")]
    assert states(spec_of("<|channel|>", GPT_IDS), tokens) == [True, True, True, False, False]
    prompt = "<|channel|>final<|message|>"
    assert states(spec_of("<|channel|>", GPT_IDS, prompt), plain("{")) == [False, False]


def test_the_budget_asks_for_the_end_while_a_block_is_open() -> None:
    splitter = ReasoningSplitter(spec_of("<think>", THINK_IDS, budget=2))
    seen = []
    for token in [(1, "<think>"), *plain("a", "b"), (2, "</think>"), *plain("c")]:
        splitter.push(*token)
        seen.append((splitter.num_reasoning_tokens, splitter.closing_due))
    assert seen == [(0, False), (1, False), (2, True), (3, False), (3, False)]


def test_text_of_no_token_is_not_counted() -> None:
    splitter = ReasoningSplitter(spec_of("<think>", {}, "<think>"))
    assert splitter.push(NO_TOKEN, "\ufffd") == Split("\ufffd", "")
    assert splitter.num_reasoning_tokens == 0
