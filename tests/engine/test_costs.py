"""What a step may do follows what steps cost, is soon unlearnt where it was wrong, and never stops
anybody."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfserve.engine.costs import (
    IDLE_STEP_MS,
    MIN_IDLE_BUDGET,
    MIN_PREFILL,
    Allowance,
    Costs,
    Operation,
    StepCosts,
)

STEP_MS, BATCH = 50.0, 2048


@dataclass(frozen=True)
class Machine:
    """What steps really cost: a pass over the weights, and each token beyond that."""

    pass_ms: float
    token_ms: float

    def of(self, count: int) -> float:
        return self.pass_ms + count * self.token_ms if count else 0.0

    def measured(self, factor: float = 1.0) -> StepCosts:
        """The measurements of the start, while all took `factor` times as long."""
        return StepCosts({n: factor * self.of(n) for n in (1, 2, 4, 8, 16)})

    def costs(self, factor: float = 1.0, *, batch_size: int = BATCH) -> Costs:
        return Costs(STEP_MS, batch_size, 8, batches=self.measured(factor))

    def teach(
        self, costs: Costs, num_steps: int, *, decoding: int = 2, rng: random.Random | None = None
    ) -> None:
        """Steps as an engine makes them: prompts alone, beside decoding, and decoding alone."""
        for step in range(num_steps):
            num_decoding = decoding * (step % 3 > 0)
            count = costs.prefill_budget(num_decoding) * (step % 3 < 2)
            noise = 1.0 if rng is None else rng.uniform(0.85, 1.15)
            ms = self.of(num_decoding) + self.of(count)
            costs.record_step(num_decoding, num_decoding, count, noise * ms)


SMALL, MEDIUM = Machine(4.0, 0.5), Machine(20.0, 3.0)
SLOW, GPU = Machine(150.0, 20.0), Machine(6.0, 0.01)
MACHINES = pytest.mark.parametrize("machine", [SMALL, MEDIUM, SLOW, GPU], ids=str)


# --- the budget ---------------------------------------------------------------------------


@MACHINES
def test_beside_decoding_prompts_take_no_longer_than_they_are_allowed_to(machine: Machine) -> None:
    costs = machine.costs()
    machine.teach(costs, 90)
    for num_decoding in (1, 2, 8):
        budget = costs.prefill_budget(num_decoding)
        allowed_ms = max(STEP_MS, machine.of(num_decoding))
        least = min(machine.of(MIN_PREFILL), machine.of(BATCH))
        assert machine.of(budget) <= max(1.1 * allowed_ms, least)
        assert machine.of(budget) >= 0.8 * allowed_ms or budget == BATCH


def test_operations_of_a_step_leave_its_prompts_less_but_always_something() -> None:
    costs = SMALL.costs()
    budgets = [costs.prefill_budget(2, spent_ms) for spent_ms in (0.0, 10.0, 20.0, 1e9)]
    assert [a - b for a, b in pairwise(budgets[:3])] == [20, 20]
    assert budgets[3] == MIN_PREFILL
    assert costs.prefill_budget(0, 1e9) == costs.prefill_budget(0)


@MACHINES
def test_a_prompt_alone_goes_in_pieces_of_about_a_second_at_most(machine: Machine) -> None:
    costs = machine.costs()
    for _ in range(60):
        budget = costs.prefill_budget(0)
        assert machine.of(budget) <= 1.5 * IDLE_STEP_MS or budget == MIN_IDLE_BUDGET
        assert budget == BATCH or budget & (budget - 1) == 0
        machine.teach(costs, 1)


@pytest.mark.parametrize("batch_size", [64, 512, 2048])
def test_where_tokens_cost_next_to_nothing_a_piece_is_a_whole_batch(batch_size: int) -> None:
    costs = GPU.costs(batch_size=batch_size)
    GPU.teach(costs, 30)
    assert costs.prefill_budget(0) == batch_size
    assert costs.prefill_budget(2) == batch_size


@MACHINES
def test_the_fixed_cost_is_a_small_share_of_a_piece_that_is_not_limited(machine: Machine) -> None:
    costs = machine.costs()
    budget = costs.prefill_budget(0)
    is_limited = budget == BATCH or machine.of(budget) > IDLE_STEP_MS / 2
    assert is_limited or machine.pass_ms < machine.of(budget) / 32


def test_a_piece_of_a_prompt_alone_stays_the_same_while_costs_wobble() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        costs = MEDIUM.costs()
        pieces = set()
        for _ in range(300):
            MEDIUM.teach(costs, 1, rng=rng)
            pieces.add(costs.prefill_budget(0))
        assert len(pieces) == 1, f"seed {seed}"


# --- learning -----------------------------------------------------------------------------


@MACHINES
def test_a_start_that_was_disturbed_is_unlearnt_within_a_few_steps(machine: Machine) -> None:
    honest, busy = machine.costs(), machine.costs(5.0)
    for share, num_steps in ((2, 60), (1, 120)):
        for costs in (honest, busy):
            machine.teach(costs, num_steps)
        assert busy.prefill_budget(0) >= honest.prefill_budget(0) // share
        for num_decoding in (1, 2):
            expected, found = (costs.prefill_budget(num_decoding) for costs in (honest, busy))
            assert found >= 0.7 * expected, num_decoding
            assert machine.of(found) <= 1.2 * max(machine.of(expected), STEP_MS)


def test_a_prompt_that_is_read_all_the_time_unlearns_a_disturbed_start_too() -> None:
    """No step is of decoding alone, and yet decoding is no longer taken to be that slow."""
    costs = MEDIUM.costs(5.0)
    for _ in range(30):
        budget = costs.prefill_budget(2)
        costs.record_step(2, 2, budget, MEDIUM.of(2) + MEDIUM.of(budget))
    assert MEDIUM.of(costs.prefill_budget(2)) <= 1.5 * STEP_MS


@MACHINES
def test_a_slow_moment_costs_little_and_is_soon_forgotten(machine: Machine) -> None:
    costs = machine.costs()
    machine.teach(costs, 30)
    before = {n: costs.prefill_budget(n) for n in (0, 2)}
    for num_decoding, count in ((0, before[0]), (2, before[2]), (2, 0)):
        ms = 100 * (machine.of(num_decoding) + machine.of(count))
        costs.record_step(num_decoding, num_decoding, count, ms)
    assert all(costs.prefill_budget(n) >= min(before[n] // 2, BATCH) for n in before)
    machine.teach(costs, 30)
    assert all(costs.prefill_budget(n) >= 0.8 * before[n] for n in before)


def test_a_hundred_thousand_small_pieces_leave_every_number_finite() -> None:
    costs = MEDIUM.costs(5.0)
    for step in range(100_000):
        costs.record_step(step % 2, step % 2, 1 + step % 8, 5.0 + 0.1 * (step % 8))
    numbers = (costs.pass_ms, costs.token_ms, costs.decode_ms(1), costs.copy_ms(1 << 30))
    assert all(math.isfinite(n) and n >= 0.0 for n in numbers)
    assert costs.token_ms > 0.0
    assert MIN_PREFILL <= costs.prefill_budget(1) <= BATCH


def test_small_pieces_do_not_make_tokens_look_dear() -> None:
    machine = Machine(4.7, 1.33)
    costs = machine.costs()
    for _ in range(500):
        costs.record_step(8, 8, 8, costs.decode_ms(8) + machine.of(8))
    assert costs.token_ms == pytest.approx(1.33, rel=0.05)


def test_the_cost_of_more_sequences_is_at_first_that_of_as_many_tokens() -> None:
    costs = Costs(50.0, 2048, 8, batches=StepCosts({1: 5.0, 4: 11.0, 8: 19.0}))
    assert [costs.decode_ms(n) for n in (0, 1, 4, 6, 8)] == [0.0, 5.0, 11.0, 15.0, 19.0]
    for _ in range(60):
        costs.record_step(4, 4, 0, 14.0)
    assert costs.decode_ms(4) == pytest.approx(14.0, rel=0.01)
    # The others are taken to have drifted from the start's measurements as much.
    assert costs.decode_ms(8) == pytest.approx(19.0 * 14 / 11, rel=0.01)


def test_steps_with_drafts_do_not_count_as_plain_decode_steps() -> None:
    costs = SMALL.costs()
    before = costs.decode_ms(1)
    costs.record_step(1, 17, 0, 40.0)
    assert costs.decode_ms(1) == before


def test_copies_are_learnt_and_one_slow_copy_is_not_believed() -> None:
    costs = Costs(50.0, 2048, 4, copy=(1_000_000, 1.0))
    costs.record_copy(1_000_000, 1_000.0)
    assert costs.copy_ms(1_000_000) <= 2.0
    for _ in range(60):
        costs.record_copy(1_000_000, 0.25)
    assert costs.copy_ms(1_000_000) == pytest.approx(0.25, rel=0.05)


# --- decisions ----------------------------------------------------------------------------


def test_known_tokens_get_a_pass_of_their_own_once_that_is_cheaper_than_a_step_for_each() -> None:
    # 1 ms a token and 9 ms a pass; a step of 8 costs 24, so each of them 3.
    costs = Costs(50.0, 2048, 8, batches=StepCosts({1: 10.0, 8: 24.0, 16: 25.0}))
    least = next(n for n in range(1, 100) if costs.worth_a_pass(n, 8))
    assert (least - 1) * (3.0 - costs.token_ms) > costs.pass_ms
    assert (least - 2) * (3.0 - costs.token_ms) <= costs.pass_ms
    assert all(costs.worth_a_pass(n, 8) for n in range(least, 200))
    assert all(costs.worth_a_pass(n, 1) for n in range(1, 10)), "alone there is no second pass"


def test_copying_pays_where_all_copies_together_beat_computing() -> None:
    costs = Costs(50.0, 2048, 4, batches=SMALL.measured(), copy=(1_000, 10.0))
    assert costs.copy_ms(1_000) == pytest.approx(10.0)
    computing_ms = SMALL.of(92)  # 50 ms
    assert costs.worth_copying(92, 1_000, 4) is (computing_ms > 40.0)
    assert costs.worth_copying(92, 1_000, 6) is (computing_ms > 60.0)


def test_drafts_get_what_decoding_leaves_of_the_target() -> None:
    costs = SMALL.costs()  # 5 ms for two, 0.5 ms a token
    assert costs.draft_budget(2) == 90
    for _ in range(60):
        costs.record_rows(10, 5.0)  # as long again for choosing it
    assert costs.draft_budget(2) == pytest.approx(45, abs=1)
    assert SLOW.costs().draft_budget(1) == 0


def test_an_allowance_counts_what_is_spent_whatever_came_of_it() -> None:
    now_s = [0.0]
    costs = Costs(50.0, 2048, 4, copy=(1_000, 10.0))
    allowance = Allowance(costs, 25.0, lambda: now_s[0])
    assert allowance.permits(1_000_000), "the first always may"
    with allowance.operation(Operation.CUT):
        now_s[0] += 0.001
    assert allowance.permits(1_000_000), "nothing was copied yet"
    with suppress(MemoryError), allowance.operation(Operation.SAVE, 1_000):
        now_s[0] += 0.010
        raise MemoryError
    assert allowance.spent_ms == pytest.approx(11.0)
    assert allowance.permits(1_000)
    assert not allowance.permits(2_000)
    assert allowance.permits(0)
    assert allowance.done == [Operation.CUT, Operation.SAVE]


def test_costs_are_lines_between_the_points_and_beyond_the_last() -> None:
    costs = StepCosts({1: 2.0, 2: 3.0, 4: 4.0})
    assert [costs.of(n) for n in range(1, 7)] == [2.0, 3.0, 3.5, 4.0, 4.5, 5.0]


@pytest.mark.parametrize("points", [{}, {1: 1.0}, {2: 1.0, 3: 2.0}, {1: 0.0, 2: 1.0}, {1: 2, 2: 1}])
def test_costs_that_make_no_sense_are_refused(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="cost"):
        StepCosts(points)


steps = st.tuples(st.integers(0, 4), st.integers(0, 100), st.integers(0, 3000), st.floats(0, 1e5))


@given(st.lists(steps, max_size=60), st.integers(1, 4096), st.floats(1, 60_000))
@settings(max_examples=80, deadline=None)
def test_every_budget_lies_between_a_little_and_a_batch(
    history: list[tuple[int, int, int, float]], batch_size: int, step_ms: float
) -> None:
    costs = Costs(step_ms, batch_size, 4)
    for num_decoding, num_decode, num_prefill, ms in history:
        costs.record_step(num_decoding, num_decode, num_prefill, ms)
        costs.record_copy(1 + num_prefill, ms)
    for num_decoding in range(5):
        budget = costs.prefill_budget(num_decoding)
        assert min(MIN_PREFILL, batch_size) <= budget <= max(MIN_PREFILL, batch_size)
        assert 0 <= costs.draft_budget(num_decoding) <= batch_size
        assert math.isfinite(costs.decode_ms(num_decoding))
    assert 0.0 <= costs.copy_ms(1 << 20) < math.inf
