"""What a step computes, from situations made by hand: no runner, no memory."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.builders import SMALL_MODEL_ON_CPU, Rig, make_request, random_text

from selfserve.engine.costs import MIN_PREFILL, Costs, StepCosts
from selfserve.engine.plan import Chunk, PicturePlan, PictureRows, TextPlan
from selfserve.engine.planner import MIN_PIECE, Planner, Situation
from selfserve.engine.runner import Capabilities
from selfserve.engine.sequence import Sequence

PER_MS = StepCosts({1: 5.0, 16: 20.0})
"""A pass takes 4 ms and a token 1 ms."""


class Desk:
    """A planner, and sequences in any state."""

    def __init__(
        self, *, batch_size: int = 64, step_ms: float = 20.0, batches: StepCosts = PER_MS
    ) -> None:
        self._rig = Rig(num_slots=256, has_drafts=True, batches=batches, context_size=4096)
        self.costs = Costs(step_ms, batch_size, 256, batches=batches)
        self.stops: dict[str, int] = {}
        self.rows: dict[str, PictureRows] = {}
        limits = Capabilities(
            context_size=4096,
            num_slots=256,
            batch_size=batch_size,
            max_outputs=batch_size,
            can_cut=True,
            can_shift=True,
        )
        memory: Any = SimpleNamespace(next_stop=lambda s: self.stops.get(s.id, s.num_prompt))
        pictures: Any = SimpleNamespace(rows=lambda s, most: self.rows.get(s.id))
        self.planner = Planner(limits, self.costs, memory, pictures)
        self._num_made = 0

    def sequence(self, prompt: str | int = 10, *, computed: int = 0, answer: str = "") -> Sequence:
        """In a slot of its own. With an answer all is computed but the answer's last token."""
        index = self._num_made
        self._num_made += 1
        text = random_text(index, prompt) if isinstance(prompt, int) else prompt
        sequence = self._rig.preparation.sequence(make_request(f"s{index}", text, max_tokens=2000))
        sequence.slot = index
        for token in answer.encode():
            sequence.append(token)
            sequence.answer.drafter.append(token)
        sequence.computed(sequence.num_pending - 1 if answer else computed)
        return sequence

    def decoding(self, count: int) -> list[Sequence]:
        return [self.sequence(5, answer="x") for _ in range(count)]

    def plan(self, *sequences: Sequence, **fields: Any) -> TextPlan:
        plan = self.planner.plan(Situation(sequences=sequences, **fields))
        assert isinstance(plan, TextPlan)
        return plan


def sizes(plan: TextPlan) -> dict[str, int]:
    return {chunk.sequence.id: len(chunk.tokens) for chunk in plan.chunks}


def picture_rows(count: int) -> PictureRows:
    return PictureRows(
        embeddings=np.zeros((count, 2), dtype=np.float32),
        positions=np.zeros((1, count), dtype=np.int32),
        is_causal=True,
    )


# --- form ---------------------------------------------------------------------------------


def test_nothing_to_compute_makes_no_plan() -> None:
    desk = Desk()
    assert desk.planner.plan(Situation(sequences=())) is None
    assert desk.planner.plan(Situation(sequences=(desk.sequence(9, computed=9),))) is None


def test_chunks_come_in_the_order_of_slots_and_want_logits_at_the_end_alone() -> None:
    desk = Desk(step_ms=100.0)
    long, short, answering = desk.sequence(200), desk.sequence(20), desk.sequence(5, answer="x")
    desk.stops[long.id] = 40
    plan = desk.plan(answering, short, long)
    assert [c.slot for c in plan.chunks] == [0, 1, 2]
    assert [c.num_outputs for c in plan.chunks] == [0, 1, 1]
    sizes = [len(c.tokens) for c in plan.chunks]
    assert sizes[1:] == [20, 1]
    assert 40 - desk.costs.pass_tokens <= sizes[0] <= 40, "a second piece pays for its pass"
    assert (plan.num_decode_tokens, plan.num_prefill_tokens) == (1, sum(sizes[:2]))


def test_a_draft_does_not_count_as_computed() -> None:
    sequence = Desk().sequence()
    chunk = Chunk(
        sequence=sequence, slot=0, start=10, tokens=[1, 2, 3], draft=[2, 3], num_outputs=3
    )
    assert chunk.num_computed == 11


def test_planning_changes_nothing_and_the_same_situation_gives_the_same_plan() -> None:
    desk = Desk(batches=SMALL_MODEL_ON_CPU)
    song = "la la lo la li "
    sequences = [
        desk.sequence(song * 3, answer=song * 4),
        *desk.decoding(3),
        desk.sequence(100, computed=30),
        desk.sequence(20),
    ]

    def state() -> list[Any]:
        costs = {name: copy.deepcopy(value) for name, value in vars(desk.costs).items()}
        costs["_prompt"], costs["_copy"] = (vars(costs[name]) for name in ("_prompt", "_copy"))
        del costs["_batches"]
        fields = [
            (list(s.tokens), s.num_computed, s.num_generated, s.slot, s.is_held, s.num_cached)
            for s in sequences
        ]
        return [costs, fields, [s.answer.drafter.draft(16) for s in sequences]]

    for turn in (0, 1):
        before = state()
        first = desk.plan(*sequences, turn=turn)
        assert any(chunk.draft for chunk in first.chunks)
        assert desk.plan(*sequences, turn=turn) == first
        assert state() == before


# --- who gets what ------------------------------------------------------------------------


def test_everybody_who_decodes_has_a_part_and_prompts_share_the_rest_of_the_allowance() -> None:
    desk = Desk()
    prompt = desk.sequence(500)
    plan = desk.plan(*desk.decoding(3), prompt)
    # 20 ms less a pass are 16 tokens.
    assert sorted(sizes(plan).values()) == [1, 1, 1, 16]
    assert sizes(desk.plan(*desk.decoding(3), prompt, spent_ms=5.0))[prompt.id] == 11
    assert sizes(desk.plan(*desk.decoding(3), prompt, spent_ms=50.0))[prompt.id] == MIN_PREFILL


def test_the_oldest_prompt_and_the_shortest_take_turns() -> None:
    desk = Desk()
    old, short = desk.sequence(500), desk.sequence(40)
    assert sizes(desk.plan(old, short, turn=0)) == {old.id: 64}
    assert sizes(desk.plan(old, short, turn=1)) == {short.id: 40, old.id: 24}


def test_a_second_prompt_gets_no_crumbs() -> None:
    desk = Desk()
    first, second, third = desk.sequence(64 - MIN_PIECE + 1), desk.sequence(500), desk.sequence(9)
    assert sizes(desk.plan(first, second)) == {first.id: 49}
    assert sizes(desk.plan(first, second, third)) == {first.id: 49, third.id: 9}, "all it needs"


def test_a_prompt_stops_where_memory_has_to_be_kept() -> None:
    desk = Desk()
    sequence = desk.sequence(60, computed=10)
    desk.stops[sequence.id] = 33
    (chunk,) = desk.plan(sequence).chunks
    assert (chunk.start, len(chunk.tokens), chunk.num_outputs) == (10, 23, 0)


def take_turns(desk: Desk, sequences: list[Sequence], num_steps: int) -> dict[str, list[int]]:
    """The steps in which each sequence had a part."""
    parts: dict[str, list[int]] = {s.id: [] for s in sequences}
    for turn in range(num_steps):
        plan = desk.plan(*sequences, turn=turn)
        for name in sizes(plan):
            parts[name].append(turn)
        for chunk in plan.chunks:
            chunk.sequence.computed(len(chunk.tokens) - len(chunk.draft))
            if chunk.sequence.is_decoding:
                chunk.sequence.append(120)
    return parts


@pytest.mark.parametrize("count", [16, 17, 31, 40, 250])
def test_more_who_decode_than_a_batch_holds_all_go_on(count: int) -> None:
    desk = Desk(batch_size=16)
    sequences = desk.decoding(count)
    for _ in range(500):  # one has answered much already, which is no reason to let it wait
        sequences[0].append(120)
    sequences[0].computed(sequences[0].num_pending - 1)
    most = -(-count // 16)
    parts = take_turns(desk, sequences, 4 * most)
    for turns in parts.values():
        gaps = np.diff([-1, *turns, 4 * most])
        assert gaps.max() <= most + 1


def test_a_prompt_goes_on_beside_more_who_decode_than_a_batch_holds() -> None:
    desk = Desk(batch_size=16)
    prompt = desk.sequence(300)
    parts = take_turns(desk, [*desk.decoding(20), prompt], 30)
    assert len(parts[prompt.id]) == 30
    assert min(map(len, parts.values())) >= 30 * 8 // 20 - 1


@pytest.mark.parametrize("batch_size", [2, 16, 64])
def test_no_plan_is_over_the_batch_or_asks_for_too_many_rows(batch_size: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        desk = Desk(batch_size=batch_size, step_ms=rng.choice([1.0, 20.0, 1e4]))
        song = "la la lo la li "
        sequences = [
            desk.sequence(song * 2, answer=song * rng.randrange(1, 5))
            if rng.random() < 0.5
            else desk.sequence(rng.randrange(1, 200))
            for _ in range(rng.randrange(1, 40))
        ]
        plan = desk.plan(*sequences, turn=rng.randrange(100), spent_ms=rng.uniform(0, 30))
        assert sum(sizes(plan).values()) == plan.num_tokens <= batch_size, f"seed {seed}"
        assert sum(chunk.num_outputs for chunk in plan.chunks) <= batch_size, f"seed {seed}"
        assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks)


def test_an_answer_that_has_to_be_computed_again_gets_a_pass_only_where_that_pays() -> None:
    costs = StepCosts({1: 10.0, 16: 25.0})  # 9 ms for a pass, 1 ms for a token
    desk = Desk(batches=costs)
    for length, expected in ((3, 1), (40, 40)):
        again = desk.sequence(5, answer="x" * length)
        again.rewind(again.num_prompt)
        chunk = desk.plan(again, *desk.decoding(2)).chunks[0]
        assert len(chunk.tokens) - len(chunk.draft) == expected


# --- drafts -------------------------------------------------------------------------------


def singing(desk: Desk) -> Sequence:
    return desk.sequence("la la lo la li " * 3, answer="la la lo la li " * 4)


def test_guesses_get_what_the_target_leaves_and_prompts_come_beside_them() -> None:
    roomy, narrow = (Desk(step_ms=ms, batches=SMALL_MODEL_ON_CPU) for ms in (50.0, 2.0))
    (chunk,) = roomy.plan(singing(roomy)).chunks
    assert len(chunk.draft) > 4
    assert (chunk.tokens[1:], chunk.num_outputs) == (chunk.draft, 1 + len(chunk.draft))
    (chunk,) = narrow.plan(singing(narrow)).chunks
    assert len(chunk.draft) <= 5  # 1 ms by 0.2 ms a token


def test_nothing_is_guessed_beyond_what_the_request_may_still_answer() -> None:
    desk = Desk(step_ms=50.0, batches=SMALL_MODEL_ON_CPU)
    sequence = singing(desk)
    sequence.num_generated = 2000 - 3
    (chunk,) = desk.plan(sequence).chunks
    assert len(chunk.draft) == 2


# --- suspects and pictures ----------------------------------------------------------------


def test_the_sequences_of_a_failed_step_are_tried_alone_and_in_turn() -> None:
    desk = Desk()
    good, first, second = desk.decoding(3)
    plan = desk.plan(good, first, second, suspects=(first.id, second.id))
    assert sizes(plan) == {first.id: 1}
    assert sizes(desk.plan(good, first, second, suspects=(second.id,))) == {second.id: 1}


def with_picture(desk: Desk, count: int) -> Sequence:
    """Its next `count` tokens are a picture's."""
    sequence = desk.sequence(40, computed=5)
    span: Any = SimpleNamespace(start=5, end=5 + count)
    sequence.media = SimpleNamespace(  # type: ignore[assignment]
        text_end=lambda index: max(span.start, index), position_of=lambda length: length
    )
    return sequence


def test_a_suspect_that_waits_for_a_picture_keeps_nobody_from_going_on() -> None:
    desk = Desk()
    waiting, other = with_picture(desk, 12), desk.sequence(5, answer="x")
    assert sizes(desk.plan(waiting, other, suspects=(waiting.id,))) == {other.id: 1}
    both = (waiting.id, other.id)
    assert sizes(desk.plan(waiting, other, suspects=both)) == {other.id: 1}
    desk.rows[waiting.id] = picture_rows(12)
    plan = desk.planner.plan(Situation(sequences=(waiting, other), suspects=both))
    assert isinstance(plan, PicturePlan)
    assert (plan.chunk.sequence, len(plan.chunk.tokens)) == (waiting, 12)


def test_a_picture_and_those_who_decode_beside_it_take_turns() -> None:
    desk = Desk()
    seeing, other = with_picture(desk, 12), desk.sequence(5, answer="x")
    desk.rows[seeing.id] = picture_rows(12)
    for picture_first in (True, False):
        situation = Situation(sequences=(seeing, other), picture_first=picture_first)
        plan = desk.planner.plan(situation)
        assert isinstance(plan, PicturePlan) == picture_first
    alone = Situation(sequences=(seeing,), picture_first=False)
    assert isinstance(desk.planner.plan(alone), PicturePlan)
