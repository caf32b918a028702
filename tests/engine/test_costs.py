"""The budget of a step follows what steps cost, and never stops anybody."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfserve.engine.pace import MIN_PREFILL, StepPace
from selfserve.engine.speculation import StepCosts


def learnt(
    *, decode_ms: float, token_ms: float, step_ms: float = 50.0, batch_size: int = 2048
) -> StepPace:
    """A pace that has seen a model of these costs for a while."""
    pace = StepPace(step_ms, batch_size, 4)
    rng = random.Random(1)
    for _ in range(200):
        num_decoding = rng.randrange(4)
        pace.record(num_decoding, num_decoding, 0, decode_ms)
        tokens = rng.randrange(16, 256)
        pace.record(
            num_decoding, num_decoding, tokens, decode_ms * bool(num_decoding) + tokens * token_ms
        )
    return pace


@pytest.mark.parametrize(("decode_ms", "token_ms"), [(5.0, 0.5), (20.0, 3.0), (1.0, 0.05)])
def test_beside_decoding_prompts_take_about_the_target(decode_ms: float, token_ms: float) -> None:
    pace = learnt(decode_ms=decode_ms, token_ms=token_ms)
    expected_ms = pace.prefill_budget(2) * token_ms
    assert expected_ms == pytest.approx(50.0, rel=0.15)


def test_a_model_slower_than_the_target_still_gets_on_with_prompts() -> None:
    pace = learnt(decode_ms=200.0, token_ms=20.0)
    assert pace.prefill_budget(1) == pytest.approx(10, abs=2)


def test_alone_a_prompt_gets_a_large_budget_that_does_not_follow_noise() -> None:
    pace = learnt(decode_ms=5.0, token_ms=0.5)
    before = pace.prefill_budget(0)
    assert before >= 256
    pace.record(0, 0, 64, 500.0)
    assert pace.prefill_budget(0) == before


def test_a_slow_model_begins_with_smaller_steps() -> None:
    fast = StepPace(50, 2048, 4, StepCosts({1: 2.0, 16: 8.0}))
    slow = StepPace(50, 2048, 4, StepCosts({1: 20.0, 16: 160.0}))
    assert slow.prefill_budget(0) < fast.prefill_budget(0)
    assert slow.prefill_budget(0) * 10.0 <= 1000.0


def test_the_cost_of_more_sequences_is_at_first_that_of_as_many_tokens() -> None:
    pace = StepPace(50, 2048, 8, StepCosts({1: 5.0, 4: 11.0, 8: 19.0}))
    assert [pace.decode_ms(n) for n in (0, 1, 4, 6, 8)] == [0.0, 5.0, 11.0, 15.0, 19.0]
    for _ in range(40):
        pace.record(4, 4, 0, 14.0)
    assert pace.decode_ms(4) == pytest.approx(14.0, rel=0.01)
    assert pace.decode_ms(8) == 19.0


def test_small_pieces_do_not_make_the_pace_believe_that_tokens_are_dear() -> None:
    pace = StepPace(50, 2048, 8, StepCosts({1: 6.0, 8: 16.0, 16: 26.0}))
    for _ in range(500):
        pieces = pace.prefill_budget(8)
        pace.record(8, 8, pieces, pace.decode_ms(8) + 4.7 + pieces * 1.33)
    assert pace.prefill_budget(8) >= 18


def test_steps_with_drafts_do_not_count_as_plain_decode_steps() -> None:
    pace = StepPace(50, 2048, 4)
    before = pace.decode_ms(1)
    pace.record(1, 17, 0, 40.0)
    assert pace.decode_ms(1) == before


def test_known_tokens_get_a_pass_of_their_own_once_that_is_cheaper_than_a_step_for_each() -> None:
    # 1 ms a token and 4 ms a pass; a step of 8 costs 24, so each of them 3.
    pace = StepPace(50, 2048, 8, StepCosts({1: 5.0, 8: 24.0, 16: 25.0}))
    pass_ms, token_ms, share_ms = pace._pass_ms, pace._token_ms, 3.0
    least = next(n for n in range(1, 100) if pace.worth_a_pass(n, 8))
    assert (least - 1) * (share_ms - token_ms) > pass_ms >= (least - 2) * (share_ms - token_ms)
    assert all(pace.worth_a_pass(n, 8) for n in range(least, 200))
    assert all(pace.worth_a_pass(n, 1) for n in range(1, 10)), "alone there is no second pass"


steps = st.tuples(st.integers(0, 4), st.integers(0, 100), st.integers(0, 3000), st.floats(0, 1e5))


@given(st.lists(steps, max_size=60), st.integers(1, 4096), st.floats(1, 60_000))
@settings(max_examples=80, deadline=None)
def test_every_budget_lies_between_a_little_and_a_batch(
    history: list[tuple[int, int, int, float]], batch_size: int, step_ms: float
) -> None:
    pace = StepPace(step_ms, batch_size, 4)
    for num_decoding, num_decode, num_prefill, ms in history:
        pace.record(num_decoding, num_decode, num_prefill, ms)
    for num_decoding in range(5):
        budget = pace.prefill_budget(num_decoding)
        assert min(MIN_PREFILL, batch_size) <= budget <= max(MIN_PREFILL, batch_size)
        assert 0 <= pace.draft_budget(num_decoding) <= batch_size
