"""A streamed answer equals the unstreamed one: bytes to characters, thinking, stop strings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from selfserve.request import ReasoningSpec
from selfserve.text.detokenizer import Detokenizer
from selfserve.text.reasoning import FORMATS
from selfserve.text.splitter import NO_TOKEN, WHITE_SPACE, ReasoningSplitter
from selfserve.text.stop import StopMatcher

CASES = 500
THINK = next(known for known in FORMATS if known.start == "<think>")
WORDS = (
    "a", "ab", "b,c", " ", "\n", "\n\n", "🦙", "👩‍👩‍👧", "日本", "語", "é", "<", "<think>",
    "</think>", "</thi", "think>", "STOP", "ST", "OP", "END.", "\r\n",
)  # fmt: skip
STOPS = (
    "b,c",
    "ab",
    "abb",
    "STOP",
    "TOP",
    "🦙a",
    "語",
    "\n\n",
    "<think>",
    ".",
    "OPS",
    "aab",
    "日本語",
)


def streamed(pieces: Sequence[bytes], spec: ReasoningSpec, stops: Sequence[str]) -> tuple[str, str]:
    """The parts in the order in which a sequence's tokens pass them."""
    detokenizer, splitter, matcher = Detokenizer(), ReasoningSplitter(spec), StopMatcher(stops)
    reasoning = content = ""
    splits = [splitter.push(0, detokenizer.push(piece)) for piece in pieces]
    splits += [splitter.push(NO_TOKEN, detokenizer.flush()), splitter.flush()]
    for split in splits:
        reasoning += split.reasoning
        content += matcher.push(split.content).text
    return reasoning, content + matcher.flush()


def whole(data: bytes, is_open: bool, stops: Sequence[str]) -> tuple[str, str]:
    """The same by plain operations on the whole text."""
    text = data.decode("utf-8", "replace")
    begun = text.lstrip(WHITE_SPACE)
    if is_open or begun.startswith("<think>"):
        thinking = text if is_open else begun.removeprefix("<think>")
        reasoning, marker, content = thinking.lstrip(WHITE_SPACE).partition("</think>")
        if marker:
            reasoning, content = reasoning.rstrip(WHITE_SPACE), content.lstrip(WHITE_SPACE)
    else:
        reasoning, content = "", text
    ends = [content.find(stop) for stop in stops if stop and stop in content]
    return reasoning, content[: min(ends)] if ends else content


def cut(data: bytes, chooser: random.Random) -> list[bytes]:
    places = sorted(chooser.sample(range(len(data) + 1), min(len(data), chooser.randint(0, 30))))
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("is_open", [False, True])
def test_generated_answers_are_equal_streamed_and_unstreamed(is_open: bool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    chooser = random.Random(seed)
    spec = THINK.spec("<think>\n" if is_open else "", budget=None, tokenize=lambda text: [])
    for _ in range(CASES):
        text = "".join(chooser.choices(WORDS, k=chooser.randint(0, 14)))
        if chooser.random() < 0.5:
            text = f"<think>{text}</think>" + "".join(chooser.choices(WORDS, k=5))
        data = text.encode()
        if chooser.random() < 0.2:
            data = data[: chooser.randint(0, len(data))]  # perhaps within a character
        stops = chooser.sample(STOPS, chooser.randint(0, 4))
        expected = whole(data, is_open, stops)
        for pieces in ([data], [data[i : i + 1] for i in range(len(data))], cut(data, chooser)):
            assert streamed(pieces, spec, stops) == expected, (data, pieces, stops)


def test_every_cut_in_two_and_three_is_equal() -> None:
    data = "<think>é 🦙</think>\n日本語 b,c STOP".encode()
    spec = THINK.spec("", budget=None, tokenize=lambda text: [])
    stops = ["STOPS", "b,c ST", "語 b,d"]
    expected = ("é 🦙", "日本語 ")
    for first in range(len(data)):
        for second in range(first, len(data)):
            pieces = [data[:first], data[first:second], data[second:]]
            assert streamed(pieces, spec, stops) == expected, pieces
