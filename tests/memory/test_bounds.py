"""Host memory for prompts stays under its limit, whatever kind of memory the model has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.builders import make_request
from tests.support.tiny_chat import TinyChat, random_words
from tests.support.tiny_engine import ColdAnswers, TinyEngine

MakeEngine = Callable[..., TinyEngine]


def checkpoint_bytes(engine: TinyEngine) -> int:
    """Bytes of the slots' own checkpoints."""
    return sum(c.blob.nbytes for slot in engine.memory.slots for c in slot.checkpoints)


@pytest.mark.parametrize("limit", [0, 100_000, 1_500_000])
def test_saved_states_and_checkpoints_together_stay_under_the_limit(
    make_engine: MakeEngine, cold: ColdAnswers, limit: int
) -> None:
    rng = random.Random(limit)
    engine = make_engine(num_slots=2, batch_size=16, cache_ram_bytes=limit)
    chats = [TinyChat(engine.vocabulary, system=random_words(rng, 40)) for _ in range(3)]
    most = 0
    for turn in range(4):
        for i, chat in enumerate(chats):
            request = make_request(f"{i}.{turn}", chat.say(random_words(rng, 20)), max_tokens=30)
            engine.add(request)
            while engine.scheduler.has_work:
                engine.step()
                most = max(most, engine.memory.host.num_bytes)
                assert most <= limit
            tokens = engine.tokens(request.id)
            assert cold.of(request).agrees(tokens)
            chat.hear(tokens)
    assert most > limit // 6 or limit < 1_000_000


def test_the_newest_chat_gets_checkpoints_where_others_hold_all_the_room(
    make_engine: MakeEngine, cold: ColdAnswers
) -> None:
    num_bytes = 1 << 30
    for num_chats in (1, 3):
        rng = random.Random(3)
        engine = make_engine(num_slots=3, cache_ram_bytes=num_bytes)
        for i in range(num_chats):
            chat = TinyChat(engine.vocabulary, system=random_words(rng, 100))
            for turn in range(4):
                request = make_request(f"{i}.{turn}", chat.say(random_words(rng, 5)), max_tokens=9)
                tokens = engine.answer(request)
                assert cold.of(request).agrees(tokens)
                computed = engine.finished(request.id).timings.prompt_n
                assert turn == 0 or computed <= chat.num_new + 64
                chat.hear(tokens)
        # The second time there is room for just what one chat took the first time.
        num_bytes = checkpoint_bytes(engine) or num_bytes


def test_checkpoints_that_come_back_with_a_saved_state_count_once(make_engine: MakeEngine) -> None:
    rng = random.Random(4)
    engine = make_engine(num_slots=1, batch_size=16)
    first = TinyChat(engine.vocabulary, system=random_words(rng, 200))
    for turn in range(5):
        prompt = first.say(random_words(rng, 15))
        first.hear(engine.answer(make_request(str(turn), prompt, max_tokens=3)))
    engine.answer(make_request("other", prompt[::-1], max_tokens=3))
    before, hits = engine.memory.host.num_bytes, engine.memory.num_hits
    # The next place for a checkpoint is more than a step away.
    engine.add(make_request("again", [*prompt, *prompt[:9] * 6], max_tokens=3))
    engine.step()
    assert engine.memory.num_hits > hits
    assert (checkpoint_bytes(engine) > 0) != engine.runner.capabilities.can_cut
    saved = engine.memory.host.records[-1]
    assert saved.blob is not None
    added = saved.blob.nbytes + sum(c.blob.nbytes for c in saved.checkpoints)
    assert before <= engine.memory.host.num_bytes <= before + added
    engine.run()
