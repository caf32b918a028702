"""Steps that fail: only what caused the failure ends, and nothing wrong is left in memory."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from tests.support.builders import SMALL_MODEL_ON_CPU, Rig, make_request, random_text
from tests.support.scripted_runner import Fault, ScriptedSampler, endless

from selfserve.engine.plan import Outcome, Plan, Row
from selfserve.request import Failed, SamplingParams

CUTTABLE = pytest.mark.parametrize("can_cut", [True, False], ids=["plain", "hybrid"])
OUTCOMES = pytest.mark.parametrize("outcome", [Outcome.UNCHANGED, Outcome.PARTIAL])


def failing_with(request_id: str, outcome: Outcome) -> Fault:
    """Every step that this request is part of fails."""

    def fault(plan: Plan) -> Outcome | None:
        return outcome if request_id in {c.sequence.id for c in plan.chunks} else None

    return fault


def failing_once(step: int, outcome: Outcome) -> Fault:
    """Only the step of that number fails."""
    count = 0

    def fault(plan: Plan) -> Outcome | None:
        nonlocal count
        count += 1
        return outcome if count == step else None

    return fault


@CUTTABLE
@OUTCOMES
def test_only_the_sequence_that_makes_steps_fail_ends(outcome: Outcome, can_cut: bool) -> None:
    rig = Rig(num_slots=4, can_cut=can_cut, predict=endless)
    rig.runner.fault = failing_with("bad", outcome)
    healthy = [make_request(str(i), random_text(i, 20 + 40 * i), max_tokens=30) for i in range(3)]
    rig.add(healthy[0])
    rig.add(make_request("bad", random_text(9, 70), max_tokens=30))
    rig.run(healthy[1:])
    expected = "OutOfMemory" if outcome is Outcome.UNCHANGED else "InternalError"
    assert rig.failed("bad").error == expected
    for request in healthy:
        assert rig.text(request.id) == rig.expected(request)
        rig.finished(request.id)
    rig.check_idle()


@CUTTABLE
@OUTCOMES
@pytest.mark.parametrize("step", [1, 2, 5, 12])
def test_one_failed_step_costs_nobody_an_answer(step: int, outcome: Outcome, can_cut: bool) -> None:
    rig = Rig(
        num_slots=3, can_cut=can_cut, predict=endless, has_drafts=True, batches=SMALL_MODEL_ON_CPU
    )
    rig.runner.fault = failing_once(step, outcome)
    requests = [make_request(str(i), random_text(i, 90), max_tokens=20) for i in range(5)]
    rig.run(requests)
    for request in requests:
        assert rig.text(request.id) == rig.expected(request)
        rig.finished(request.id)
    rig.check_idle()


@OUTCOMES
def test_failures_that_a_retry_overcomes_never_add_up(outcome: Outcome) -> None:
    rig = Rig(predict=endless)
    outcomes = itertools.cycle([outcome, Outcome.OK])
    rig.runner.fault = lambda plan: next(outcomes)
    request = make_request("a", random_text(1, 50), max_tokens=20)
    rig.run([request])
    assert rig.text("a") == rig.expected(request)


@CUTTABLE
def test_a_long_answer_survives_a_step_that_failed_half_way(can_cut: bool) -> None:
    # More tokens than a batch holds have to be computed again where memory cannot be cut.
    rig = Rig(num_slots=2, can_cut=can_cut, predict=endless, batch_size=16, max_outputs=16)
    requests = [make_request(str(i), random_text(i, 60), max_tokens=40) for i in range(2)]
    for request in requests:
        rig.add(request)
    while len(rig.tokens("1")) < 20:
        rig.step()
    rig.runner.fault = failing_once(1, Outcome.PARTIAL)
    rig.run()
    for request in requests:
        assert rig.text(request.id) == rig.expected(request)
    rig.check_idle()


@CUTTABLE
@pytest.mark.parametrize("seed", range(6))
def test_failures_at_random_never_mix_up_answers(seed: int, can_cut: bool) -> None:
    rng = random.Random(seed)
    rig = Rig(num_slots=3, can_cut=can_cut, has_drafts=True, batches=SMALL_MODEL_ON_CPU)
    outcomes = [Outcome.OK] * 12 + [Outcome.UNCHANGED, Outcome.PARTIAL]
    rig.runner.fault = lambda plan: rng.choice(outcomes)
    stem = random_text(seed, 80)
    requests = [
        make_request(str(i), stem[: rng.randrange(80)] + random_text(i, 30), max_tokens=20)
        for i in range(10)
    ]
    rig.run(requests)
    rig.runner.fault = None
    num_good = 0
    for request in requests:
        (end,) = rig.ends(request.id)
        if isinstance(end, Failed):
            assert rig.expected(request).startswith(rig.text(request.id)), f"seed {seed}"
        else:
            num_good += 1
            assert rig.text(request.id) == rig.expected(request), f"seed {seed}"
    assert num_good
    rig.check_idle()
    rig.run([make_request("after", stem, max_tokens=20)])
    assert rig.text("after") == rig.expected(rig.requests["after"])


@OUTCOMES
def test_what_a_failed_sequence_held_is_not_reused(outcome: Outcome) -> None:
    rig = Rig(num_slots=1)
    rig.run([make_request("good", random_text(1, 50), max_tokens=1)])
    rig.runner.fault = failing_with("bad", outcome)
    rig.run([make_request("bad", random_text(1, 50) + "more", max_tokens=1)])
    rig.runner.fault = None
    rig.run([make_request("again", random_text(1, 50) + "more", max_tokens=9)])
    assert rig.finished("again").cached_tokens == 0
    assert rig.text("again") == rig.expected(rig.requests["again"])


def test_a_failed_step_stays_the_problem_of_its_time() -> None:
    # After an abort of the suspect the others go on together.
    rig = Rig(num_slots=3, predict=endless)
    rig.runner.fault = failing_with("bad", Outcome.UNCHANGED)
    for seed, name in enumerate(("bad", "x", "y")):
        rig.add(make_request(name, random_text(seed, 20), max_tokens=10))
    rig.step()
    rig.scheduler.abort("bad")
    rig.run()
    assert [len(plan) for plan in rig.runner.plans].count(2) >= 8
    rig.check_idle()


# --- faults of one request that are not the memory's --------------------------------------


class _BrokenSampler(ScriptedSampler):
    def sample(self, row: Row) -> int:
        raise ValueError("a fault of this sampler")


def test_an_exception_while_choosing_ends_that_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(num_slots=3, predict=endless)
    original = rig.runner.sampler

    def sampler(params: SamplingParams, prompt: Any) -> ScriptedSampler:
        return _BrokenSampler(rig.runner, params) if params.seed == 13 else original(params, prompt)

    monkeypatch.setattr(rig.runner, "sampler", sampler)
    rig.run(
        [
            make_request("first", "one", max_tokens=1),
            make_request("bad", "two", sampling=SamplingParams(seed=13)),
            make_request("last", "three", max_tokens=5),
        ]
    )
    assert rig.failed("bad").error == "InternalError"
    assert "sampler" not in rig.failed("bad").message
    assert rig.text("first") == rig.expected(rig.requests["first"])
    assert rig.text("last") == rig.expected(rig.requests["last"])
    rig.check_idle()
