"""Which markers a model uses, and where a prompt leaves off."""

from __future__ import annotations

import pytest

from selfserve.text.reasoning import FORMATS, ReasoningFormat, find_format

THINK, GEMMA, GPT = "<think>", "<|channel>", "<|channel|>analysis<|message|>"


def named(start: str) -> ReasoningFormat:
    return next(known for known in FORMATS if known.start == start)


def code_points(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize(
    ("source", "start"),
    [
        ("{{ m.content.split('</think>')[-1] }}", THINK),
        ("{{ '[THINK]' + x + '[/THINK]' }}", "[THINK]"),
        ("{%- set end = '</seed:think>' -%}", "<seed:think>"),
        ("{{ '<|channel>thought\\n' + x + '<channel|>' }}", GEMMA),
        ("<|start|>assistant<|channel|>analysis<|message|>", GPT),
    ],
)
def test_the_format_is_found_in_the_template(source: str, start: str) -> None:
    found = find_format(source, {})
    assert found is not None
    assert found.start == start


def test_the_format_is_found_in_the_vocabulary_if_the_template_is_silent() -> None:
    found = find_format("{{ messages }}", {"<think>": 5, "</think>": 6, "<s>": 1})
    assert found is not None
    assert found.marker_ids == ((5, "<think>"), (6, "</think>"))
    assert find_format("{{ messages }}", {"<think>": 5}) is None


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.start)
def test_an_opened_prompt_is_open_and_a_closed_one_is_not(known: ReasoningFormat) -> None:
    prompt = "<|user|>what is <think>?<|assistant|>"
    assert not known.is_open(prompt)
    opened = prompt + known.with_thinking(prompt)
    assert known.is_open(opened)
    assert known.with_thinking(opened) == ""
    for start in (prompt, opened):
        closed = start + known.without_thinking(start, switched=False)
        assert (known.is_open(closed), known.is_closed(closed)) == (False, True)
        assert known.without_thinking(closed, switched=False) == ""


def test_a_template_with_a_switch_is_left_alone() -> None:
    assert named(THINK).without_thinking("<|assistant|>\n", switched=True) == ""


@pytest.mark.parametrize(
    ("rendered", "prefill", "is_open", "is_answering", "trims"),
    [
        ("…<|assistant|>\n", None, False, False, False),
        ("…<|assistant|>\n<think>\n", None, True, False, False),
        ("…<|assistant|>\n<think>\n\n</think>\n\n", None, False, True, True),
        ("…<|assistant|>\nIt is", "It is", False, True, False),
        ("…<|assistant|>\n<think>Hm", "<think>Hm", True, False, False),
        ("…<|assistant|>\n<think>Hm</think>", "<think>Hm</think>", False, True, False),
    ],
)
def test_where_a_prompt_leaves_off_is_read_from_it(
    rendered: str, prefill: str | None, is_open: bool, is_answering: bool, trims: bool
) -> None:
    spec = named(THINK).spec(rendered, budget=7, tokenize=code_points, prefill=prefill)
    assert (spec.open, spec.answering, spec.trims) == (is_open, is_answering, trims)
    assert spec.budget == 7


def test_the_end_is_written_as_tokens() -> None:
    spec = named(THINK).spec("x", budget=None, tokenize=code_points)
    assert "".join(map(chr, spec.closing_ids)) == "\n</think>\n\n"
    spec = named(GPT).spec("x", budget=None, tokenize=code_points)
    assert "".join(map(chr, spec.closing_ids)).endswith("assistant<|channel|>final<|message|>")
