"""Text out of tokens: the parts in the right order, nothing lost, nothing shown twice."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.support.builders import make_request
from tests.support.byte_vocabulary import END_THINK, EOS, IM_START, THINK, ByteVocabulary

from selfserve.engine.answer import OutputText
from selfserve.request import ReasoningSpec

SPEC = ReasoningSpec(
    start="<think>",
    end="</think>",
    marker_ids=((THINK, "<think>"), (END_THINK, "</think>")),
    hidden_ids=(THINK, END_THINK),
)


def written(tokens: list[int], **fields: Any) -> tuple[str, str, OutputText]:
    """(content, reasoning) of these tokens, taken after each of them."""
    output = OutputText(ByteVocabulary(), make_request(**fields))
    parts: list[tuple[str, str]] = []
    for token in tokens:
        output.push(token)
        parts.append(output.take())
    output.finish()
    parts.append(output.take())
    assert output.take() == ("", "")
    return "".join(p[0] for p in parts), "".join(p[1] for p in parts), output


def test_control_tokens_have_no_text() -> None:
    assert written([*b"a", IM_START, *b"b", EOS])[:2] == ("ab", "")


def test_broken_bytes_become_replacements_and_the_rest_stays() -> None:
    content, _, _ = written([*b"a\xff\xc3", *"é!".encode(), 0xF0, 0x9F])
    assert content == "a\ufffd\ufffdé!\ufffd"


def test_thinking_that_was_opened_in_the_prompt_is_no_content() -> None:
    fields = {"reasoning": msgspec.structs.replace(SPEC, open=True)}
    content, reasoning, output = written([*b"hm\n", END_THINK, *b"\n\nyes"], **fields)
    assert (content, reasoning.strip()) == ("yes", "hm")
    assert not output.in_reasoning


def test_thinking_that_never_ends_is_all_thinking() -> None:
    fields = {"reasoning": msgspec.structs.replace(SPEC, open=True)}
    content, reasoning, output = written([*"hm… é".encode()[:-1]], **fields)
    assert (content, reasoning) == ("", "hm… \ufffd")
    assert output.in_reasoning


def test_without_a_spec_markers_are_nothing_special() -> None:
    content, reasoning, _ = written([*b"<think>a</think>"])
    assert (content, reasoning) == ("<think>a</think>", "")


def test_after_a_stop_string_nothing_is_said_any_more() -> None:
    content, _, output = written([*b"a STOP b STOP c"], stop=("STOP",))
    assert (content, output.stopping_word) == ("a ", "STOP")


def test_held_text_that_became_no_stop_string_is_given_at_the_end() -> None:
    content, _, output = written([*b"a ST"], stop=("STOP",))
    assert (content, output.stopping_word) == ("a ST", "")


def test_indentation_is_judged_after_stop_strings() -> None:
    content, _, output = written([*b"x\n    y\nz"], stop=("y",), n_indent=2)
    assert (content, output.stopping_word, output.is_dedented) == ("x\n    ", "y", False)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_taken_piece_by_piece_is_what_the_whole_text_says(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(
        rng.choice(["a", "b", "ab", "é", "🙂", "\n", " ", "S", "ST", "STO"]) for _ in range(40)
    )
    stops = ("STOP", "STa", "bb")
    first = min((text.find(s) for s in stops if s in text), default=len(text))
    content, _, output = written(list(text.encode()), stop=stops)
    assert content == text[:first], f"seed {seed}"
    assert bool(output.stopping_word) == (first < len(text))
