"""Who computes what: everybody gets the answer that they would get alone, and nobody waits long."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.support.builders import GREEDY, SMALL_MODEL_ON_CPU, Rig, grammar_state, make_request, random_text
from tests.support.scripted_runner import endless

from selfserve.engine.costs import StepCosts
from selfserve.errors import ShuttingDown
from selfserve.request import Failed, Finished, Progress, Request, SamplingParams, StopType

CUTTABLE = pytest.mark.parametrize("can_cut", [True, False], ids=["plain", "hybrid"])


def random_requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts of which many begin alike, some with a slot of their own choice."""
    stems = [random_text(rng.randrange(1 << 30), rng.randrange(1, 150)) for _ in range(3)]
    return [
        make_request(
            f"r{i}",
            rng.choice(stems)[: rng.randrange(1, 150)]
            + random_text(rng.randrange(1 << 30), rng.randrange(1, 60)),
            max_tokens=rng.choice([0, 1, 5, 20, 40]),
            slot=rng.choice([-1, -1, -1, 0, 1]),
            cache_prompt=rng.random() < 0.8,
            return_progress=rng.random() < 0.3,
        )
        for i in range(count)
    ]


# --- everybody's answer -------------------------------------------------------------------


@CUTTABLE
@pytest.mark.parametrize("seed", range(12))
def test_each_answer_is_that_of_a_cold_engine_alone(seed: int, can_cut: bool) -> None:
    rng = random.Random(seed)
    rig = Rig(
        num_slots=rng.choice([2, 3, 5]),
        batch_size=rng.choice([8, 16, 64]),
        max_outputs=8,
        can_cut=can_cut,
        cache_ram_bytes=rng.choice([0, 3000, 1 << 20]),
        has_drafts=rng.random() < 0.5,
    )
    late = random_requests(rng, 14)
    aborted: set[str] = set()
    for _ in range(4000):
        if late and rng.random() < 0.2:
            rig.add(late.pop())
        elif not late and not rig.scheduler.has_work:
            break
        rig.step()
        if rig.requests and rng.random() < 0.02:
            victim = rng.choice(sorted(rig.requests))
            if not rig.ends(victim):
                aborted.add(victim)
                rig.scheduler.abort(victim)
    rig.check_idle()
    for request in rig.requests.values():
        if request.id in aborted:
            assert not rig.ends(request.id), f"seed {seed}: an event after the abort"
            assert rig.expected(request).startswith(rig.text(request.id))
        else:
            end = rig.finished(request.id)
            assert rig.text(request.id) == rig.expected(request), f"seed {seed}: {request.id}"
            assert end.completion_tokens == len(rig.tokens(request.id))
            assert end.prompt_tokens == len(request.prompt)
            assert end.cached_tokens < len(request.prompt)


@CUTTABLE
def test_drafts_change_no_answer(can_cut: bool) -> None:
    # A model that repeats itself, so that drafts are found and some of them are right.
    def repeating(tokens: Sequence[int]) -> int:
        return b"la la lo la li "[(len(tokens) + sum(tokens[-8:]) // 701) % 15]

    rig = Rig(can_cut=can_cut, predict=repeating, has_drafts=True, batches=SMALL_MODEL_ON_CPU, step_ms=100)
    requests = [make_request(str(i), "la la lo la li " * (i + 1), max_tokens=90) for i in range(3)]
    rig.run(requests)
    for request in requests:
        assert rig.text(request.id) == rig.expected(request)
        timings = rig.finished(request.id).timings
        assert (timings.draft_n > timings.draft_n_accepted > 0) == can_cut
    rig.check_idle()


def test_the_same_requests_in_the_same_order_make_the_same_plans() -> None:
    def plans() -> list[list[tuple[int, int, int]]]:
        rig = Rig(num_slots=3, has_drafts=True, batches=SMALL_MODEL_ON_CPU)
        rig.run(random_requests(random.Random(5), 12))
        return rig.runner.plans

    assert plans() == plans()


def test_an_answer_does_not_depend_on_who_else_is_served() -> None:
    sampling = SamplingParams(temperature=1.5, seed=7)
    request = make_request("x", "Name a", max_tokens=30, sampling=sampling)
    alone, busy = Rig(predict=endless), Rig(predict=endless)
    alone.run([request])
    busy.run([make_request("y", random_text(1, 90), max_tokens=50), request])
    assert alone.tokens("x") == busy.tokens("x")


# --- ends ---------------------------------------------------------------------------------


def test_no_tokens_asked_for_means_the_prompt_is_only_computed() -> None:
    rig = Rig()
    rig.run([make_request("a", "a" * 50, max_tokens=0)])
    end = rig.finished("a")
    assert (end.stop_type, end.completion_tokens) == (StopType.LIMIT, 0)
    assert not rig.deltas("a")
    assert rig.runner.num_computed == 50
    rig.run([make_request("b", "a" * 50 + "b", max_tokens=1)])
    assert rig.finished("b").cached_tokens == 50
    assert rig.finished("b").completion_tokens == 1


def test_an_aborted_request_is_forgotten_at_once_wherever_it_is() -> None:
    rig = Rig(num_slots=1, predict=endless)
    rig.add(make_request("prefill", "p" * 200, max_tokens=100))
    rig.add(make_request("waiting", "w" * 50, max_tokens=100))
    rig.step()
    assert rig.scheduler.running["prefill"].num_computed < 200
    rig.scheduler.abort("waiting")
    rig.scheduler.abort("prefill")
    rig.check_idle()
    rig.add(make_request("decode", "d", max_tokens=100))
    rig.step()
    rig.step()
    assert rig.tokens("decode")
    rig.scheduler.abort("decode")
    rig.scheduler.abort("never heard of")
    rig.check_idle()
    assert not [e for e in rig.events if isinstance(e, Finished | Failed)]


def test_ending_everybody_tells_those_who_run_and_those_who_wait() -> None:
    rig = Rig(num_slots=2, predict=endless)
    for i in range(5):
        rig.add(make_request(str(i), random_text(i, 60), max_tokens=100))
    rig.step()
    rig.fail_all(ShuttingDown("the server is shutting down"))
    assert {rig.failed(str(i)).error for i in range(5)} == {"ShuttingDown"}
    rig.check_idle()


# --- fairness -----------------------------------------------------------------------------


def test_a_short_prompt_overtakes_a_long_one() -> None:
    rig = Rig(num_slots=2, predict=endless, context_size=4096, batch_size=64, max_outputs=32)
    rig.add(make_request("long", random_text(1, 3000), max_tokens=5))
    rig.step()
    rig.add(make_request("short", random_text(2, 20), max_tokens=5))
    while not rig.tokens("short"):
        rig.step()
    assert rig.num_steps <= 4
    assert not rig.tokens("long")


def test_short_prompts_do_not_starve_the_oldest() -> None:
    rig = Rig(num_slots=3, predict=endless, context_size=4096)
    rig.add(make_request("long", random_text(1, 3000), max_tokens=1))
    while not rig.ends("long"):
        while len(rig.scheduler.running) + len(rig.scheduler.waiting) < 3:
            number = len(rig.requests)
            rig.add(make_request(f"{number}", random_text(number, 100), max_tokens=1))
        rig.step()
    # Half of each step at least: 3000 tokens in steps of 64 are not more than about 94 steps.
    assert rig.num_steps <= 100
    assert len(rig.requests) > 20


def test_prompts_keep_to_the_step_time_while_somebody_is_watching() -> None:
    rig = Rig(num_slots=2, step_ms=20.0, predict=endless, context_size=4096, batch_size=512)
    rig.add(make_request("watched", "w" * 300, max_tokens=400))
    while not rig.tokens("watched"):
        rig.step()
    for _ in range(30):
        rig.step()
    rig.add(make_request("long", random_text(1, 2000), max_tokens=1))
    before = len(rig.runner.plans)
    times = []
    while not rig.ends("long"):
        begin_s = rig.clock.now_s
        assert rig.step()
        times.append((rig.clock.now_s - begin_s) * 1e3)
    assert max(times[3:]) <= 25.0, "a step took much longer than its target"
    # Every step served the watched one, and the rest of its time went to the prompt.
    assert all(len(plan) == 2 for plan in rig.runner.plans[before:])
    assert len(times) < 2000 / 10


def test_a_lone_prompt_uses_large_steps() -> None:
    rig = Rig(num_slots=2, context_size=4096, batch_size=512)
    rig.run([make_request("a", random_text(1, 2000), max_tokens=1)])
    assert rig.num_steps <= 6


@pytest.mark.parametrize(("count", "is_at_once"), [(1, False), (60, True)])
def test_beside_others_only_a_long_forced_text_is_computed_at_once(
    count: int, is_at_once: bool
) -> None:
    certain = "x" * count
    costs = StepCosts({1: 10.0, 16: 25.0})  # 9 ms for a pass, 1 ms for a token
    rig = Rig(num_slots=4, context_size=512, batch_size=256, predict=endless, batches=costs)
    rig.add(make_request("free", "w", max_tokens=200))
    while not rig.tokens("free"):
        rig.step()
    state = grammar_state(f'start: ("a" | "b") "{certain}" ("c" | "d")')
    rig.add(make_request("bound", "?", max_tokens=200), state)
    before = len(rig.runner.plans)
    while not rig.ends("bound"):
        rig.step()
    sizes = [size for plan in rig.runner.plans[before:] for slot, _, size in plan if slot == 1]
    assert rig.text("bound")[1:-1] == certain
    assert (max(sizes) > 1) == is_at_once, sizes


@pytest.mark.parametrize("batch_size", [4, 5, 7])
def test_a_batch_is_never_larger_than_the_runner_allows(batch_size: int) -> None:
    rig = Rig(num_slots=4, batch_size=batch_size, max_outputs=4, has_drafts=True, batches=SMALL_MODEL_ON_CPU)
    requests = [make_request(str(i), random_text(i, 30), max_tokens=20) for i in range(6)]
    rig.run(requests)  # the runner checks each plan
    assert all(rig.text(request.id) == rig.expected(request) for request in requests)


# --- slots by number ----------------------------------------------------------------------


def test_who_waits_for_a_certain_slot_lets_others_pass() -> None:
    rig = Rig(num_slots=2, predict=endless)
    rig.add(make_request("first", "first", max_tokens=40, slot=1))
    rig.step()
    rig.add(make_request("patient", "patient", max_tokens=3, slot=1))
    rig.add(make_request("other", "other", max_tokens=3))
    rig.run()
    ends = [e.id for e in rig.events if isinstance(e, Finished)]
    assert ends == ["other", "first", "patient"]
    assert rig.finished("patient").slot == rig.finished("first").slot == 1
    assert rig.finished("other").slot == 0


# --- progress -----------------------------------------------------------------------------


def test_progress_rises_to_the_whole_prompt_before_the_first_token() -> None:
    rig = Rig(batch_size=16, max_outputs=16)
    rig.run([make_request("warm", "x" * 40, max_tokens=1)])
    rig.run([make_request("a", "x" * 40 + "y" * 60, max_tokens=2, return_progress=True)])
    told = [e for e in rig.events if isinstance(e, Progress)]
    assert {(p.id, p.total, p.cache) for p in told} == {("a", 100, 40)}
    counts = [p.processed for p in told]
    assert counts == sorted(set(counts))
    assert counts[-1] == 100
    own = [e for e in rig.events if e.id == "a"]
    assert own[: len(told)] == told
    assert [p.time_ms for p in told] == sorted(p.time_ms for p in told)


def test_timings_count_what_was_computed_and_what_was_found() -> None:
    rig = Rig(predict=endless)
    rig.run([make_request("a", "x" * 100, max_tokens=5)])
    rig.run([make_request("b", "x" * 100 + "y" * 10, max_tokens=5, timings_per_token=True)])
    timings = rig.finished("b").timings
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (100, 10, 5)
    assert timings.prompt_ms > 0
    assert timings.predicted_ms > 0
    assert [d.timings.predicted_n for d in rig.deltas("b") if d.timings] == [1, 2, 3, 4, 5]
    assert not [d for d in rig.deltas("a") if d.timings]


def test_the_time_in_the_queue_is_not_time_of_the_prompt() -> None:
    rig = Rig(num_slots=1, predict=endless)
    rig.add(make_request("first", "first", max_tokens=100))
    rig.add(make_request("second", "second", max_tokens=1, sampling=GREEDY))
    rig.run()
    assert rig.finished("second").timings.prompt_ms < 20
