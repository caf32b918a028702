"""The chains of libllama: greedy is the highest, seeds repeat, every field does what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.support.native_desk import CONTEXT_SIZE, Desk

from selfserve.native.sampler import Sampler
from selfserve.request import SamplingParams

SamplerMaker = Callable[..., Sampler]
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
"""Nothing but the draw itself."""


@pytest.fixture
def make(desk: Desk) -> Iterator[SamplerMaker]:
    """Makes samplers, which are closed after the test."""
    made: list[Sampler] = []

    def sampler(prompt: Sequence[int] = (), **fields: Any) -> Sampler:
        params = SamplingParams(**{"seed": 1, **fields})
        made.append(Sampler(desk.model.vocab, params, prompt, context_size=CONTEXT_SIZE))
        return made[-1]

    yield sampler
    for each in made:
        each.close()


@pytest.fixture
def logits(desk: Desk) -> np.ndarray[Any, np.dtype[np.float32]]:
    return desk.logits_after(0, 0, desk.tokens("My favourite animal is the"))


def draws(sampler: Sampler, logits: Any, count: int = 30) -> list[int]:
    return [sampler.sample_with_probs(logits)[0] for _ in range(count)]


def test_greedy_is_the_highest_logit(make: SamplerMaker, logits: Any) -> None:
    assert draws(make(temperature=0.0), logits, 3) == [int(logits.argmax())] * 3


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 2])
def test_a_seed_repeats_its_draws(make: SamplerMaker, logits: Any, seed: int) -> None:
    first = draws(make(**PLAIN, seed=seed), logits)
    assert draws(make(**PLAIN, seed=seed), logits) == first
    assert draws(make(**PLAIN, seed=seed ^ 2), logits) != first


def test_two_chains_do_not_disturb_each_other(make: SamplerMaker, logits: Any) -> None:
    alone = draws(make(**PLAIN, seed=7), logits)
    one, other = make(**PLAIN, seed=7), make(**PLAIN, seed=8)
    mixed = []
    for _ in range(30):
        mixed += draws(one, logits, 1)
        draws(other, logits, 2)
    assert mixed == alone


def test_both_ways_to_sample_draw_alike(make: SamplerMaker, desk: Desk, logits: Any) -> None:
    row = len(desk.tokens("My favourite animal is the")) - 1
    by_row = make(**PLAIN, seed=3)
    assert [by_row.sample(desk.context, row) for _ in range(20)] == draws(
        make(**PLAIN, seed=3), logits, 20
    )


def test_probabilities_are_those_of_the_draw(make: SamplerMaker, logits: Any) -> None:
    token, ids, probs = make(**PLAIN).sample_with_probs(logits)
    assert token in ids
    assert len(ids) == len(logits)
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    expected = shifted / shifted.sum()
    np.testing.assert_allclose(probs[np.argsort(ids)], expected, rtol=1e-3, atol=1e-7)


def test_top_k_leaves_the_k_highest(make: SamplerMaker, logits: Any) -> None:
    _, ids, probs = make(**{**PLAIN, "top_k": 5}).sample_with_probs(logits)
    assert set(ids.tolist()) == set(np.argsort(-logits)[:5].tolist())
    assert probs.sum() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.1},
        {"min_p": 0.5},
        {"typical_p": 0.2},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    ],
)
def test_truncation_leaves_fewer_candidates(
    make: SamplerMaker, logits: Any, fields: dict[str, float]
) -> None:
    def survivors(**more: Any) -> int:
        _, _, probs = make(**{**PLAIN, **more}).sample_with_probs(logits)
        return int((probs > 0).sum())

    assert 0 < survivors(**fields) < survivors()


def test_candidates_cut_from_the_front_are_gone(make: SamplerMaker, logits: Any) -> None:
    fields = {**PLAIN, "xtc_probability": 1.0, "xtc_threshold": 0.01}
    token, ids, probs = make(**fields).sample_with_probs(logits)
    assert int(logits.argmax()) not in ids[probs > 0]
    assert token in ids
    assert probs.sum() == pytest.approx(1.0, abs=1e-4)


def test_min_keep_keeps_candidates(make: SamplerMaker, logits: Any) -> None:
    _, ids, _ = make(**{**PLAIN, "top_p": 0.01, "min_keep": 4}).sample_with_probs(logits)
    assert len(ids) >= 4


def test_a_bias_comes_before_everything(make: SamplerMaker, logits: Any) -> None:
    wanted = int(logits.argmin())
    assert draws(make(temperature=0.0, logit_bias=((wanted, 100.0),)), logits, 1) == [wanted]


def test_bans_are_left_to_whoever_makes_the_logits(
    make: SamplerMaker, desk: Desk, logits: Any
) -> None:
    best = int(logits.argmax())
    params: dict[str, Any] = {"temperature": 0.0, "logit_bias": ((best, -np.inf),)}
    assert draws(make(**params), logits, 1) == [best]
    end = max(desk.model.vocab.eog_ids)
    raised = logits.copy()
    raised[end] = 100.0
    assert draws(make(temperature=0.0, ignore_eos=True), raised, 1) == [end]


def test_penalties_count_prompt_and_answer(make: SamplerMaker, logits: Any) -> None:
    best = int(logits.argmax())
    fields: dict[str, Any] = {"temperature": 0.0, "repeat_penalty": 100.0, "repeat_last_n": 8}
    assert draws(make(**fields), logits, 1) == [best]
    assert draws(make([best], **fields), logits, 1) != [best]
    assert draws(make([best] + [0] * 8, **fields), logits, 1) == [best]  # outside the window
    found = draws(make(**fields), logits, 5)
    assert len(set(found)) == 5


def test_penalties_of_the_answer_do_not_see_the_prompt(make: SamplerMaker, logits: Any) -> None:
    best = int(logits.argmax())
    fields: dict[str, Any] = {"temperature": 0.0, "penalize_answer_only": True}
    sampler = make([best], **fields, presence_penalty=100.0)
    first, second = draws(sampler, logits, 2)
    assert first == best
    assert second != best
    assert draws(make(**fields, frequency_penalty=-50.0), logits + 0, 3) == [best] * 3


def test_dry_breaks_a_repetition(make: SamplerMaker, desk: Desk) -> None:
    phrase = desk.tokens(" alpha beta gamma delta epsilon")
    prompt = phrase * 3 + phrase[:-1]
    logits = np.zeros(desk.model.vocab.size, dtype=np.float32)
    logits[phrase[-1]] = 5.0
    fields: dict[str, Any] = {"temperature": 0.0, "dry_penalty_last_n": -1}
    assert draws(make(prompt, **fields), logits, 1) == [phrase[-1]]
    assert draws(make(prompt, **fields, dry_multiplier=5.0), logits, 1) != [phrase[-1]]
    broken = {**fields, "dry_multiplier": 5.0, "dry_sequence_breakers": (" delta",)}
    assert draws(make(prompt, **broken), logits, 1) == [phrase[-1]]


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat_draws_and_repeats(make: SamplerMaker, logits: Any, mirostat: int) -> None:
    fields = {"mirostat": mirostat, "temperature": 1.0, "seed": 5}
    found = draws(make(**fields), logits)
    assert found == draws(make(**fields), logits)
    assert len(set(found)) > 1


def test_the_order_of_the_chain_is_the_callers(make: SamplerMaker, logits: Any) -> None:
    hot = {**PLAIN, "temperature": 100.0, "top_p": 0.5}
    _, after, _ = make(**hot, samplers=("top_p", "temperature")).sample_with_probs(logits)
    _, before, _ = make(**hot, samplers=("temperature", "top_p")).sample_with_probs(logits)
    assert len(after) < len(before)
    _, none, _ = make(**hot, samplers=()).sample_with_probs(logits)
    assert len(none) == len(logits)


def test_an_accepted_token_counts_like_a_drawn_one(make: SamplerMaker, logits: Any) -> None:
    best = int(logits.argmax())
    sampler = make(temperature=0.0, presence_penalty=100.0)
    sampler.accept(best)
    assert draws(sampler, logits, 1) != [best]


def test_closing_twice_does_no_harm(make: SamplerMaker) -> None:
    sampler = make()
    sampler.close()
    sampler.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_standard_deviation_leaves_the_best_alone(
    make: SamplerMaker, logits: Any, temperature: float
) -> None:
    fields = {**PLAIN, "temperature": temperature, "samplers": ("top_n_sigma", "temperature")}
    assert draws(make(**fields, top_n_sigma=0.0), logits, 8) == [int(logits.argmax())] * 8
    _, ids, _ = make(**{**PLAIN, "top_n_sigma": -1.0}).sample_with_probs(logits)
    assert len(ids) == len(logits)
