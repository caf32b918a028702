"""Seeds: folded to 32 bits without ever meaning "random"."""

from __future__ import annotations

import random

import pytest

from selfserve.api.sampling import RANDOM_SEED, resolve_seed


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, RANDOM_SEED - 1])
def test_small_seeds_stay_what_they_are(seed: int) -> None:
    assert resolve_seed(seed) == seed


@pytest.mark.parametrize(
    "seed", [-2, RANDOM_SEED, 2**32, 2**63 - 1, -(2**63), RANDOM_SEED << 32 & (2**63 - 1)]
)
def test_large_and_negative_seeds_are_fixed_and_never_random(seed: int) -> None:
    assert resolve_seed(seed) == resolve_seed(seed)
    assert 0 <= resolve_seed(seed) < RANDOM_SEED


def test_no_seed_lands_on_the_random_value() -> None:
    source = random.Random(20240)
    for _ in range(20_000):
        high = source.choice([0, 1, RANDOM_SEED, source.getrandbits(32)])
        low = source.choice([0, RANDOM_SEED, high ^ RANDOM_SEED, source.getrandbits(32)])
        seed = (high << 32 | low) - 2**63
        assert seed == -1 or 0 <= resolve_seed(seed) < RANDOM_SEED


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_one_is_drawn(seed: int | None) -> None:
    drawn = {resolve_seed(seed) for _ in range(50)}
    assert len(drawn) > 40
    assert all(0 <= one < RANDOM_SEED for one in drawn)
