"""Where checkpoints are taken, which of them stay, and how prompts are compared."""

from __future__ import annotations

import numpy as np
import pytest

from selfserve.engine.remembered import HEADER, Checkpoint, common_length, places, thin_out

END = 7


def prompt_with_ends(size: int, *ends: int) -> np.ndarray:
    """A prompt in which turns end before the given lengths."""
    prompt = np.zeros(size, dtype=np.int64)
    prompt[[end - 1 for end in ends]] = END
    return prompt


def checkpoints_at(*lengths: int, size: int = 10) -> list[Checkpoint]:
    return [Checkpoint(n, n, np.zeros(size, dtype=np.uint8)) for n in lengths]


def lengths_of(checkpoints: list[Checkpoint]) -> list[int]:
    return [c.length for c in checkpoints]


def test_the_first_turn_and_the_last_two_are_places() -> None:
    assert places(prompt_with_ends(505, 100, 200, 300, 400, 500), {END}) == [100, 400, 500]
    assert places(prompt_with_ends(105, 100), {END}) == [100]


@pytest.mark.parametrize("ends", [(), (50,)])
def test_a_prompt_that_ends_far_from_a_turn_has_its_own_end_for_a_place(ends: tuple[int]) -> None:
    size = 50 + 2 * HEADER + 1
    assert places(prompt_with_ends(size, *ends), {END}) == [*ends, size - HEADER, size - 1]


@pytest.mark.parametrize("size", range(1, HEADER + 3))
def test_every_place_leaves_a_token_to_compute_and_holds_one(size: int) -> None:
    for prompt in (prompt_with_ends(size), prompt_with_ends(size, size)):
        assert all(0 < place < size for place in places(prompt, {END}))


def test_thinning_out_leaves_the_rest_spread_and_the_newest_in_place() -> None:
    checkpoints = checkpoints_at(100, 200, 210, 220, 400)
    thin_out(checkpoints)
    assert lengths_of(checkpoints) == [100, 200, 220, 400]
    for left in ([100, 220, 400], [220, 400], [400], []):
        thin_out(checkpoints)
        assert lengths_of(checkpoints) == left


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 575, 576, 577, 5_000])
def test_the_first_difference_is_found_at_every_place(length: int) -> None:
    ours = np.arange(length + 40)
    theirs = ours.copy()
    theirs[length] = -1
    assert common_length(ours, theirs) == common_length(theirs, ours) == length
    assert common_length(ours[:length], theirs) == length
    assert common_length(ours, ours[: length + 7]) == length + 7
