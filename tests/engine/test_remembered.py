"""Where checkpoints are taken, and which of them stay when room is short."""

from __future__ import annotations

import numpy as np
import pytest

from selfserve.engine.checkpoints import (
    HEADER,
    MAX_CHECKPOINTS,
    Checkpoint,
    make_room,
    num_bytes,
    places,
    thin_out,
)

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


def test_a_slot_has_no_more_than_its_share() -> None:
    own = checkpoints_at(*range(100, 100 * (MAX_CHECKPOINTS + 1), 100))
    assert make_room(own, [own], 10, 1 << 20)
    assert len(own) == MAX_CHECKPOINTS - 1


def test_whoever_has_most_makes_room_for_one_who_has_none() -> None:
    own, few, many = checkpoints_at(), checkpoints_at(10, 20), checkpoints_at(10, 20, 30)
    assert make_room(own, [own, few, many], 20, 50)
    assert (len(own), len(few), len(many)) == (0, 1, 2)
    assert num_bytes([own, few, many]) + 20 <= 50


def test_what_never_fits_drops_nothing() -> None:
    own = checkpoints_at(10, 20)
    assert not make_room(own, [own], 51, 50)
    assert lengths_of(own) == [10, 20]
