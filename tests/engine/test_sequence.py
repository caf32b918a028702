"""A sequence never says that more of it is computed than it has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.builders import Rig, make_request

from selfserve.engine.sequence import Sequence


def sequence_of(num_prompt: int, num_answered: int = 0, **fields: object) -> Sequence:
    sequence = Rig().preparation.sequence(make_request("a", range(num_prompt), **fields))
    for token in range(num_answered):
        sequence.append(200 + token)
    return sequence


def test_a_new_sequence_is_its_prompt_with_nothing_computed() -> None:
    sequence = sequence_of(9, max_tokens=4)
    assert list(sequence.tokens) == sequence.prompt.tolist() == list(range(9))
    counts = (sequence.num_computed, sequence.num_pending, sequence.num_prompt, sequence.num_left)
    assert counts == (0, 9, 9, 4)
    assert (sequence.slot, sequence.is_decoding, sequence.position) == (-1, False, 0)


def test_generated_tokens_are_pending_until_they_are_computed() -> None:
    sequence = sequence_of(9, 2, max_tokens=4)
    assert (sequence.num_pending, sequence.num_generated, sequence.num_left) == (11, 2, 2)
    sequence.computed(10)
    assert (sequence.num_computed, sequence.num_pending, sequence.position) == (10, 1, 10)
    assert sequence.is_decoding
    assert sequence.num_prompt == 9


def test_a_request_without_a_limit_always_has_tokens_left() -> None:
    assert sequence_of(9, 50, max_tokens=None).num_left > 1 << 30


def test_a_context_shift_drops_computed_tokens_and_counts_them() -> None:
    sequence = sequence_of(9, 3)
    sequence.computed(11)
    sequence.drop(2, 5)
    assert list(sequence.tokens) == [0, 1, 7, 8, 200, 201, 202]
    assert (sequence.num_computed, sequence.num_pending, sequence.num_shifted) == (6, 1, 5)
    sequence.drop(0, 2)
    assert (sequence.num_computed, sequence.num_shifted) == (4, 7)


@pytest.mark.parametrize(
    "move",
    [
        lambda s: s.computed(5),
        lambda s: s.computed(-1),
        lambda s: s.rewind(9),
        lambda s: s.rewind(-1),
        lambda s: s.restored(13),
        lambda s: s.restored(-1),
        lambda s: s.drop(2, 7),  # reaches into what is not computed
        lambda s: s.drop(2, 0),
        lambda s: s.drop(-1, 2),
    ],
    ids=str.split("beyond back forward nowhere more less pending nothing before"),
)
def test_a_move_that_no_memory_could_follow_is_refused(move: Callable[[Sequence], None]) -> None:
    sequence = sequence_of(9, 3)
    sequence.computed(8)
    before = list(sequence.tokens)
    with pytest.raises(AssertionError):
        move(sequence)
    assert (list(sequence.tokens), sequence.num_computed, sequence.num_shifted) == (before, 8, 0)


@pytest.mark.parametrize("seed", range(20))
def test_no_history_leaves_more_computed_than_there_is(seed: int) -> None:
    rng = random.Random(seed)
    sequence = sequence_of(20)
    for _ in range(200):
        computed, pending = sequence.num_computed, sequence.num_pending
        length = computed + pending
        match rng.randrange(5):
            case 0:
                sequence.append(rng.randrange(256))
                assert sequence.num_pending == pending + 1
            case 1:
                sequence.computed(rng.randint(0, pending))
                assert len(sequence.tokens) == length
            case 2:
                sequence.rewind(rng.randint(0, computed))
                assert len(sequence.tokens) == length
            case 3:
                sequence.restored(rng.randint(0, length))
                assert len(sequence.tokens) == length
            case _ if computed > 1:
                keep = rng.randrange(computed - 1)
                sequence.drop(keep, rng.randint(1, computed - keep))
                assert sequence.num_pending == pending
        assert 0 <= sequence.num_computed <= len(sequence.tokens)
        assert sequence.num_pending == len(sequence.tokens) - sequence.num_computed
        assert len(sequence.tokens) + sequence.num_shifted == 20 + sequence.num_generated
