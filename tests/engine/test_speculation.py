"""Drafts: right where the text repeats, absent where they do not pay, never anyone else's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import SMALL_MODEL_ON_CPU

from selfserve.engine.costs import StepCosts
from selfserve.engine.speculation import (
    MAX_INDEXED,
    LookupDrafter,
)


def lookup(
    tokens: Sequence[int], *, costs: StepCosts = SMALL_MODEL_ON_CPU, **options: int
) -> LookupDrafter:
    return LookupDrafter(tokens, costs=costs, **options)


@dataclass
class Run:
    """One sequence decoded with drafts; `cost` counts in decode steps of one token."""

    tokens: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    cost: float = 0.0


def decode(drafter: LookupDrafter, answer: Sequence[int], *, cap: int = 16, others: int = 0) -> Run:
    """Verifies as an engine does: whatever is drafted, the tokens that come out are `answer`."""
    run = Run()
    while len(run.tokens) < len(answer):
        rest = answer[len(run.tokens) :]
        draft = drafter.draft(min(cap, len(rest) - 1), others=others)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == rest[accepted]:
            accepted += 1
        if draft:
            drafter.record(len(draft), accepted)
            run.drafts.append(len(draft))
        for token in rest[: accepted + 1]:
            drafter.append(token)
            run.tokens.append(token)
        run.cost += SMALL_MODEL_ON_CPU.of(len(draft) + 1)
    return run


def text(seed: int, length: int, alphabet: int = 50_000) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(alphabet) for _ in range(length)]


def test_a_copied_passage_is_decoded_more_than_three_times_as_fast() -> None:
    passage = text(1, 300)
    drafter = lookup([*passage, 7, 8, 9])
    run = decode(drafter, passage)
    assert run.tokens == passage
    assert 300 / run.cost > 3, f"{300 / run.cost:.2f}"
    assert drafter.num_accepted == drafter.num_drafted > 200


def test_drafts_grow_while_they_are_accepted_and_shrink_when_refused() -> None:
    passage = text(2, 400)
    drafter = lookup(passage)
    grown = decode(drafter, passage[:120]).drafts[:-1]  # the last one ends with the answer
    assert grown == sorted(grown)
    assert (grown[0] <= 4, grown[-1]) == (True, 16)
    for start in range(200, 360, 16):  # from now on each copy goes wrong after eight tokens
        decode(drafter, [*passage[start : start + 8], 60_000 + start])
    decode(drafter, passage[380:388])
    assert len(drafter.draft(16)) <= 8


# A text over a small alphabet is the worst case: every tail occurred before, and what followed
# there is right by chance, once in `alphabet` times.
@pytest.mark.parametrize(("alphabet", "wasted"), [(50_000, 0), (256, 20), (64, 20), (16, 60)])
def test_text_that_only_seems_to_repeat_wastes_a_bounded_number_of_drafted_tokens(
    alphabet: int, wasted: int
) -> None:
    for seed in range(3):
        drafter = lookup(text(seed, 1_000, alphabet))
        decode(drafter, text(seed + 100, 2_000, alphabet))
        assert drafter.num_drafted - drafter.num_accepted <= wasted, f"seed {seed}"


@pytest.mark.parametrize("alphabet", [2, 3, 4, 5, 6, 8, 12, 32, 1_000])
def test_drafting_never_costs_more_than_two_percent_of_not_drafting(alphabet: int) -> None:
    for seed in range(3):
        answer = text(seed + 100, 1_000, alphabet)
        run = decode(lookup(text(seed, 500, alphabet)), answer)
        assert run.cost <= 1.02 * len(answer), f"seed {seed}"


def test_drafting_switches_off_without_a_trial_and_on_again_when_the_text_repeats() -> None:
    seemingly = text(3, 1_000, 16)
    passage = text(4, 100)
    drafter = lookup([*passage, *seemingly])
    decode(drafter, text(5, 500, 16))
    before = drafter.num_drafted
    decode(drafter, text(6, 300, 16))
    assert drafter.num_drafted - before <= 5
    assert len(decode(drafter, passage).drafts) >= 5


def test_a_period_at_the_end_of_the_text_is_continued() -> None:
    drafter = lookup([1, 2, 3] * 4)
    drafter.draft(1)
    for token in [1, 2, 3] * 4:
        drafter.append(token)
    assert drafter.draft(8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    drafter = lookup([1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4])
    assert drafter.draft(1) == [50]


def test_of_matches_of_one_length_the_latest_wins() -> None:
    drafter = lookup([7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 9, 1, 2, 3])
    assert drafter.draft(1) == [60]


def test_a_wrong_guess_leads_straight_to_another_place() -> None:
    drafter = lookup([1, 2, 3, 4, 5, 50, 9, 3, 4, 8, 8, 60, 7, 1, 2, 3, 4])
    assert drafter.draft(1) == [5]
    drafter.append(8)  # as in the other place
    assert drafter.draft(1) == [8]


def test_a_match_that_is_too_short_is_no_match() -> None:
    tokens = [1, 2, 3, 50, 9, 9, 1, 2, 3]
    assert lookup(tokens, min_ngram=3).draft(1) == [50]
    assert lookup(tokens, min_ngram=4).draft(1) == []


def test_a_picture_is_never_drafted() -> None:
    assert lookup([1, 2, 3, -(2**60), 5, 6, 1, 2, 3]).draft(4) == []
    assert lookup([1, 2, 3, 4, -(2**60), 6, 1, 2, 3]).draft(4) == [4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 1]])
def test_a_prompt_too_short_to_repeat_is_no_difficulty(tokens: list[int]) -> None:
    drafter = lookup(tokens)
    assert drafter.draft(4) == []
    run = decode(drafter, [5, 6, 7, 8] * 10)
    assert run.tokens == [5, 6, 7, 8] * 10
    assert drafter.num_accepted > 0


def test_the_cap_of_a_step_holds_and_zero_means_none() -> None:
    passage = text(7, 100)
    drafter = lookup(passage, max_draft=8)
    decode(drafter, passage[:60])
    assert drafter.draft(0) == drafter.draft(-1) == []
    assert drafter.draft(3) == passage[60:63]
    assert drafter.draft(100) == passage[60:68]


def test_asking_twice_changes_nothing() -> None:
    drafter = lookup([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert drafter.draft(4) == drafter.draft(4) != []


def test_in_a_full_batch_drafts_are_shorter_and_uncertain_ones_left_out() -> None:
    passage = text(8, 100)
    drafter = lookup(passage)
    decode(drafter, passage[:20])
    alone, crowded = drafter.draft(16), drafter.draft(16, others=7)
    assert len(crowded) < len(alone)
    uncertain = lookup([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert uncertain.draft(16) != []
    assert uncertain.draft(16, others=7) == []


def test_measured_costs_decide_whether_a_draft_pays() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    free = StepCosts({1: 1.0, 16: 1.0})
    proportional = StepCosts({1: 1.0, 16: 16.0})
    assert len(lookup(tokens, costs=free, max_draft=6).draft(16)) == 6
    assert lookup(tokens, costs=proportional).draft(16) == []


@pytest.mark.parametrize(
    "options", [{"max_draft": 0}, {"min_ngram": 0}, {"min_ngram": 4, "max_ngram": 3}]
)
def test_lengths_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="max_draft"):
        lookup([1, 2], **options)


def test_two_sequences_side_by_side_draft_as_each_does_alone() -> None:
    passage, other = text(9, 80), text(10, 80, 4)
    alone = decode(lookup(passage), passage)
    first, second = lookup(passage), lookup(other)
    drafts: list[int] = []
    at = 0
    while at < len(passage):
        decode(second, other[at : at + 5])
        draft = first.draft(min(16, len(passage) - at - 1))
        drafts += [len(draft)] if draft else []
        assert draft == passage[at : at + len(draft)]
        for token in passage[at : at + len(draft) + 1]:
            first.append(token)
        at += len(draft) + 1
    assert drafts == alone.drafts


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(-1, 3), max_size=30),
    answer=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    n=st.integers(1, 4),
)
def test_every_draft_continues_an_earlier_occurrence_of_the_tail(
    prompt: list[int], answer: list[int], n: int
) -> None:
    drafter = lookup(prompt, min_ngram=n, costs=StepCosts({1: 1.0, 2: 1.0}))
    tokens = list(prompt)
    for token in answer:
        draft = drafter.draft(5)
        if draft:
            tail = tokens[-n:]
            places = [at for at in range(n, len(tokens)) if tokens[at - n : at] == tail]
            grown = tokens + draft
            assert any(grown[at : at + len(draft)] == draft for at in places)
        drafter.append(token)
        tokens.append(token)


def test_the_index_of_a_very_long_prompt_holds_its_end_only() -> None:
    middle = list(range(1_000, 1_000 + MAX_INDEXED))
    assert lookup([1, 2, 3, 4, *middle, 1, 2, 3]).draft(1) == []
    drafter = lookup([1, 2, 3, 4, *middle, 5, 6, 7, 8, 9, 5, 6, 7])
    assert drafter.draft(1) == [8]
