"""Clients with secrets share too few slots: nobody ever gets an answer to another's prompt.

A longer run: IDENTITY_ROUNDS=1000 pytest tests/memory/test_identity.py -s
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from tests.support.builders import make_request
from tests.support.tiny_chat import TinyChat, random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine

from selfserve.request import Request

NUM_ROUNDS = int(os.environ.get("IDENTITY_ROUNDS", "60"))
NUM_CLIENTS, NUM_SLOTS, NUM_QUESTIONS = 6, 3, 3
CACHE_BYTES = 1 << 20
"""So little that the pool is full soon."""


def random_prompts(engine: TinyEngine, rng: random.Random) -> list[list[int]]:
    """Questions of all clients. They share the instructions, and each has a secret of its own:
    some differ in one word only."""
    rules = random_words(rng, rng.choice([10, 100, 300]))
    rest = random_words(rng, 20)
    questions = [random_words(rng, rng.randrange(1, 30)) for _ in range(NUM_QUESTIONS)]
    prompts = []
    for _ in range(NUM_CLIENTS):
        system = rules + random_words(rng, 1) + rest
        for question in questions:
            chat = TinyChat(engine.vocabulary, system=system, thinking=rng.random() < 0.5)
            prompts.append(chat.say(question))
    return prompts


def random_request(name: str, prompts: list[list[int]], rng: random.Random) -> Request:
    return make_request(
        name,
        rng.choice(prompts),
        max_tokens=12,
        slot=rng.choice([-1, -1, -1, 1]),
        cache_prompt=rng.random() < 0.9,
    )


def test_each_client_gets_the_answer_to_its_own_prompt(
    make_engine: Callable[..., TinyEngine], cold: ColdAnswers
) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 (shown when the test fails)
    rng = random.Random(seed)
    engine = make_engine(num_slots=NUM_SLOTS, batch_size=128, cache_ram_bytes=CACHE_BYTES)
    prompts = random_prompts(engine, rng)
    requests: dict[str, Request] = {}
    aborted: set[str] = set()
    for number in range(NUM_ROUNDS):
        request = random_request(str(number), prompts, rng)
        requests[request.id] = request
        engine.add(request)
        for _ in range(rng.choice([0, 1, 3, 12])):
            engine.step()
        running = [name for name in requests if not engine.has_ended(name)]
        if running and rng.random() < 0.25:
            victim = rng.choice(running)
            engine.scheduler.abort(victim)
            aborted.add(victim)
            del requests[victim]
        engine.memory.check()
    engine.run()
    assert len(aborted) > NUM_ROUNDS // 20
    for name, request in requests.items():
        assert cold.of(request).agrees(engine.tokens(name)), f"seed {seed}: request {name}"
