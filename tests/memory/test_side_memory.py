"""A long prompt that was read in another context gives the answer of one that was read in its slot,
whatever kind of memory the model has."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support.builders import make_request
from tests.support.tiny_chat import random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine

from selfserve.request import Request

MakeEngine = Callable[..., TinyEngine]


def prompt_of(engine: TinyEngine, seed: int, num_words: int) -> list[int]:
    text = random_words(random.Random(seed), num_words)
    return engine.vocabulary.tokenize(text, add_special=True, parse_special=True)


def watched_engine(make_engine: MakeEngine) -> TinyEngine:
    """Somebody decodes in slot 0, so that the other slots are not the first of the context."""
    engine = make_engine(num_slots=3, step_ms=20.0, has_side=True)
    engine.add(make_request("watched", prompt_of(engine, 1, 5), max_tokens=600, n_probs=0))
    while not engine.tokens("watched"):
        engine.step()
    return engine


def run_until_end(engine: TinyEngine, request_id: str) -> None:
    while not engine.has_ended(request_id):
        engine.step()


def answer_beside(engine: TinyEngine, request: Request) -> int:
    """Adds the request and runs to its end; how many of its tokens were read on the side."""
    before = engine.scheduler.long_prompts.num_tokens
    engine.add(request)
    run_until_end(engine, request.id)
    return engine.scheduler.long_prompts.num_tokens - before


def test_a_prompt_read_on_the_side_is_answered_as_a_cold_one(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    engine = watched_engine(make_engine)
    request = make_request("long", prompt_of(engine, 2, 350), max_tokens=30)
    assert answer_beside(engine, request) > 100
    assert cold.of(request).agrees(engine.tokens("long"))


def test_a_longer_prompt_goes_on_from_what_its_slot_remembers(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    engine = watched_engine(make_engine)
    first = make_request("first", prompt_of(engine, 3, 280), max_tokens=10)
    answer_beside(engine, first)
    held = [*first.prompt, *engine.tokens("first")]
    more = make_request("more", [*held, *prompt_of(engine, 4, 340)], max_tokens=30)
    assert 100 < answer_beside(engine, more) <= len(more.prompt) - len(held)
    assert engine.finished("more").cached_tokens >= len(first.prompt)
    assert cold.of(more).agrees(engine.tokens("more"))


def test_the_one_who_decodes_is_not_disturbed(make_engine: MakeEngine, cold: ColdAnswers) -> None:
    engine = watched_engine(make_engine)
    long = make_request("long", prompt_of(engine, 5, 350), max_tokens=1)
    assert answer_beside(engine, long) > 100
    run_until_end(engine, "watched")
    watched = make_request("watched", prompt_of(engine, 1, 5), max_tokens=600)
    assert cold.of(watched).agrees(engine.tokens("watched"))
