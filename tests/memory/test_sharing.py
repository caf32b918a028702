"""Many requests on few slots: each gets the answer that it would get alone, from nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.builders import make_request
from tests.support.tiny_chat import TinyChat, random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine
from tests.support.tiny_models import SLIDING_WINDOW, write_tiny_model

from selfserve.request import Constraint, Request

MakeEngine = Callable[..., TinyEngine]


def assert_cold(engine: TinyEngine, cold: ColdAnswers, requests: list[Request]) -> None:
    for request in requests:
        assert cold.of(request).agrees(engine.tokens(request.id)), request.id


def prompt_ids(engine: TinyEngine, text: str) -> list[int]:
    return engine.vocabulary.tokenize(text, add_special=True, parse_special=True)


@pytest.mark.parametrize("num_words", [3, 50, 5 * SLIDING_WINDOW])
def test_the_same_prompt_twice_computes_one_token_again(
    make_engine: MakeEngine, cold: ColdAnswers, num_words: int
) -> None:
    engine = make_engine()
    prompt = prompt_ids(engine, random_words(random.Random(num_words), num_words))
    requests = [make_request(name, prompt, max_tokens=20) for name in "ab"]
    for request in requests:
        engine.answer(request)
    assert_cold(engine, cold, requests)
    assert engine.finished("b").timings.prompt_n == 1


def test_chats_taking_turns_on_fewer_slots_keep_their_own_memory(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    rng = random.Random(7)
    engine = make_engine(num_slots=2)
    chats = [
        TinyChat(engine.vocabulary, system=random_words(rng, 80), thinking=i % 2 == 0)
        for i in range(4)
    ]
    for turn in range(3):
        for i, chat in enumerate(chats):
            request = make_request(f"{i}.{turn}", chat.say(random_words(rng, 20)), max_tokens=20)
            tokens = engine.answer(request)
            assert_cold(engine, cold, [request])
            assert engine.finished(request.id).timings.prompt_n <= chat.num_new + 64
            chat.hear(tokens)
    assert engine.memory.num_hits > 0


def test_simultaneous_prompts_compute_their_common_beginning_once(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    rng = random.Random(8)
    engine = make_engine(num_slots=4)
    system = random_words(rng, 4 * SLIDING_WINDOW)
    requests = []
    for i in range(6):
        chat = TinyChat(engine.vocabulary, system=system, thinking=False)
        prompt = chat.say(random_words(rng, 10))
        requests.append(make_request(str(i), prompt, max_tokens=12))
    engine.run(requests)
    assert_cold(engine, cold, requests)
    evaluated = sum(engine.finished(r.id).timings.prompt_n for r in requests)
    assert evaluated <= len(requests[0].prompt) + 5 * (10 + 64)


def test_a_newcomer_takes_over_the_system_prompt_of_one_who_still_answers(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    rng = random.Random(9)
    engine = make_engine()
    system = random_words(rng, 200)
    long, late = (
        make_request(
            name,
            TinyChat(engine.vocabulary, system=system).say(random_words(rng, 10)),
            max_tokens=count,
        )
        for name, count in (("long", 60), ("late", 20))
    )
    engine.add(long)
    while len(engine.tokens("long")) < 2:
        engine.step()
    engine.run([late])
    assert_cold(engine, cold, [long, late])
    assert engine.finished("late").cached_tokens >= 200


def test_a_new_chat_takes_over_the_system_prompt_of_an_old_one(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    rng = random.Random(12)
    engine = make_engine()
    system = random_words(rng, 200)
    old = TinyChat(engine.vocabulary, system=system)
    for _ in range(3):  # a conversation from elsewhere, which this engine sees at once
        old.say(random_words(rng, 20))
        old.hear([])
    first = make_request("old", old.say(random_words(rng, 20)), max_tokens=20)
    new = TinyChat(engine.vocabulary, system=system).say(random_words(rng, 20))
    second = make_request("new", new, max_tokens=20)
    for request in (first, second):
        engine.answer(request)
    assert_cold(engine, cold, [first, second])
    assert engine.finished("new").cached_tokens >= 200


@pytest.mark.parametrize("seed", range(4))
def test_who_is_cut_off_leaves_no_trace(
    make_engine: MakeEngine, cold: ColdAnswers, seed: int
) -> None:
    rng = random.Random(seed)
    engine = make_engine(num_slots=2, batch_size=64, ubatch_size=32)
    stem = prompt_ids(engine, random_words(rng, 100))
    requests = [
        make_request(
            str(i),
            stem[: rng.randrange(1, 100)] + prompt_ids(engine, random_words(rng, 50)),
            max_tokens=20,
        )
        for i in range(10)
    ]
    aborted = set(rng.sample([r.id for r in requests], 4))
    for request in requests:
        engine.add(request)
        for _ in range(rng.randrange(12)):
            engine.step()
        if request.id in aborted and not engine.has_ended(request.id):
            engine.scheduler.abort(request.id)
        else:
            aborted.discard(request.id)
    engine.run()
    assert_cold(engine, cold, [r for r in requests if r.id not in aborted])


def test_drafts_change_no_answer(arch: str, tmp_path: Path) -> None:
    words = random_words(random.Random(10), 6).replace(" ", " Ġ").split()
    # A model of six words repeats itself, so guesses are found, and some are right.
    path = write_tiny_model(tmp_path / "model.gguf", arch, eagerness=dict.fromkeys(words, 2.0))
    cold = ColdAnswers(path)
    engine = TinyEngine(path, has_drafts=True)
    text = "".join(words).replace("Ġ", " ")
    requests = [
        make_request(str(i), prompt_ids(engine, text * i + text[:9]), max_tokens=80)
        for i in range(1, 4)
    ]
    engine.run(requests)
    assert_cold(engine, cold, requests)
    timings = [engine.finished(r.id).timings for r in requests]
    is_plain = engine.runner.capabilities.can_cut
    assert (sum(t.draft_n_accepted for t in timings) > 0) == is_plain
    assert (sum(t.draft_n - t.draft_n_accepted for t in timings) > 0) == is_plain
    engine.close()
    cold.close()


def test_written_tokens_leave_the_memory_that_sampled_ones_would(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    """A grammar that leaves one way has its tokens written in one step."""
    rng = random.Random(11)
    engine = make_engine()
    prompt = prompt_ids(engine, random_words(rng, 100))
    forced = random_words(rng, 30)
    constraint = Constraint(text=f'start: "{forced}" W+\nW: /( [a-z]+)/')
    request = make_request("a", prompt, max_tokens=50, constraint=constraint)
    tokens = engine.answer(request)
    assert engine.text(tokens).startswith(forced)
    assert engine.num_computed == len(prompt) + len(tokens) - 1
    follow_up = make_request("b", [*prompt, *tokens, *prompt[:20]], max_tokens=20)
    engine.answer(follow_up)
    assert_cold(engine, cold, [follow_up])
    assert engine.finished("b").cached_tokens == len(prompt) + len(tokens) - 1
