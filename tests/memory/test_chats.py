"""Turn after turn of a chat: the same answers as from nothing, and little computed again."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.builders import make_request
from tests.support.tiny_chat import TinyChat, random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine
from tests.support.tiny_models import SLIDING_WINDOW

MakeEngine = Callable[..., TinyEngine]
AGAIN = 64
"""Tokens that a turn may compute besides its new ones, which the template writes anew."""
THINKING = pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "direct"])


def take_turn(
    engine: TinyEngine, cold: ColdAnswers, chat: TinyChat, text: str, max_tokens: int = 40
) -> int:
    """One turn, whose answer must be the cold one; returns how many prompt tokens it computed."""
    name = f"turn {len(engine.events)}"
    request = make_request(name, chat.say(text), max_tokens=max_tokens)
    before = engine.num_computed
    tokens = engine.answer(request)
    assert cold.of(request).agrees(tokens), name
    end = engine.finished(name)
    assert end.timings.prompt_n == end.prompt_tokens - end.cached_tokens
    assert engine.num_computed - before == end.timings.prompt_n + end.completion_tokens - 1
    chat.hear(tokens)
    return end.timings.prompt_n


@THINKING
@pytest.mark.parametrize("num_words", [5, 40, 3 * SLIDING_WINDOW])
def test_a_turn_computes_only_what_is_new(
    make_engine: MakeEngine, cold: ColdAnswers, thinking: bool, num_words: int
) -> None:
    rng = random.Random(num_words)
    engine = make_engine()
    chat = TinyChat(engine.vocabulary, system=random_words(rng, num_words), thinking=thinking)
    for turn in range(5):
        computed = take_turn(engine, cold, chat, random_words(rng, rng.randrange(1, num_words)))
        assert computed <= chat.num_new + AGAIN, f"turn {turn}"


@THINKING
def test_an_earlier_turn_can_be_edited(
    make_engine: MakeEngine, cold: ColdAnswers, thinking: bool
) -> None:
    rng = random.Random(5)
    engine = make_engine()
    chat = TinyChat(engine.vocabulary, system=random_words(rng, 60), thinking=thinking)
    for _ in range(5):
        take_turn(engine, cold, chat, random_words(rng, 30))
    for turn in (4, 2, 0):
        chat.go_back(turn)
        computed = take_turn(engine, cold, chat, random_words(rng, 30))
        assert computed <= chat.num_new + AGAIN, f"turn {turn}"
    for _ in range(2):
        assert take_turn(engine, cold, chat, random_words(rng, 30)) <= chat.num_new + AGAIN
