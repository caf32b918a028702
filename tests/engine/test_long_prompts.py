"""A long prompt beside somebody who decodes: read on the side, and nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import Rig, make_request, random_text
from tests.support.scripted_runner import endless

from selfserve.engine.long_prompts import MIN_TOKENS
from selfserve.errors import ShuttingDown
from selfserve.request import Progress

CUTTABLE = pytest.mark.parametrize("can_cut", [True, False], ids=["plain", "hybrid"])


def watched_rig(**fields: Any) -> Rig:
    """Somebody decodes, for a long time."""
    fields = {"num_slots": 3, "context_size": 4096, "batch_size": 512, "side_polls": 5} | fields
    rig = Rig(predict=endless, **fields)
    rig.add(make_request("watched", "w", max_tokens=1000))
    while not rig.tokens("watched"):
        rig.step()
    return rig


def until_end(rig: Rig, request_id: str) -> None:
    while not rig.ends(request_id):
        assert rig.step() or rig.scheduler.long_prompts.is_busy


def side_tokens(rig: Rig) -> int:
    return rig.scheduler.long_prompts.num_tokens


@CUTTABLE
def test_a_long_prompt_is_read_on_the_side_while_somebody_decodes(can_cut: bool) -> None:
    rig = watched_rig(can_cut=can_cut)
    request = make_request("long", random_text(1, 2000), max_tokens=20)
    rig.add(request)
    steps = rig.num_steps
    until_end(rig, "long")
    assert rig.text("long") == rig.expected(request)
    # The last token at least, whose logits are wanted, is left to a step.
    assert 1900 <= side_tokens(rig) <= 1999
    assert rig.num_steps - steps < 40, "it did not go through small pieces"
    assert rig.finished("long").timings.prompt_n == 2000


def test_alone_or_short_a_prompt_stays_in_the_steps() -> None:
    rig = Rig(num_slots=2, context_size=4096, batch_size=512, side_polls=1)
    rig.run([make_request("alone", random_text(1, 2000), max_tokens=5)])
    assert side_tokens(rig) == 0
    rig = watched_rig()
    rig.add(make_request("short", random_text(2, MIN_TOKENS), max_tokens=5))
    until_end(rig, "short")
    assert side_tokens(rig) == 0


def test_the_one_who_decodes_goes_on_meanwhile() -> None:
    rig = watched_rig(side_polls=50)
    rig.add(make_request("long", random_text(1, 2000), max_tokens=1))
    before, num_plans = len(rig.tokens("watched")), len(rig.runner.plans)
    until_end(rig, "long")
    assert len(rig.tokens("watched")) - before >= 50
    *meanwhile, last = rig.runner.plans[num_plans:]
    assert [len(plan) for plan in meanwhile] == [1] * len(meanwhile), "a step touched the prompt"
    assert len(last) == 2


def test_a_short_prompt_is_not_stuck_behind_a_long_one_on_the_side() -> None:
    rig = watched_rig(side_polls=200)
    rig.add(make_request("long", random_text(1, 3000), max_tokens=1))
    rig.step()
    rig.add(make_request("short", random_text(2, 100), max_tokens=5))
    until_end(rig, "short")
    assert not rig.ends("long")


@CUTTABLE
def test_what_a_slot_remembers_is_not_read_again(can_cut: bool) -> None:
    rig = watched_rig(can_cut=can_cut)
    start = random_text(1, 1500)
    rig.add(make_request("first", start, max_tokens=4))
    until_end(rig, "first")
    answer = rig.text("first")
    before = side_tokens(rig)
    request = make_request("second", start + answer + random_text(2, 700), max_tokens=10)
    rig.add(request)
    until_end(rig, "second")
    assert rig.text("second") == rig.expected(request)
    assert 600 < side_tokens(rig) - before < 800
    assert rig.finished("second").cached_tokens >= 1500


def test_who_waits_for_the_same_beginning_gets_it_once_it_is_read() -> None:
    rig = watched_rig()
    system = random_text(1, 1000)
    requests = [make_request(f"{i}", system + random_text(i + 2, 20)) for i in range(2)]
    for request in requests:
        rig.add(request)
    for request in requests:
        until_end(rig, request.id)
        assert rig.text(request.id) == rig.expected(request)
    assert rig.finished("1").cached_tokens >= 1000


def test_an_aborted_long_prompt_leaves_its_slot_and_the_side_free() -> None:
    rig = watched_rig(side_polls=20)
    rig.add(make_request("long", random_text(1, 2000), max_tokens=5))
    rig.step()
    assert rig.scheduler.long_prompts.is_busy
    rig.scheduler.abort("long")
    assert rig.side.jobs[0].is_cancelled
    request = make_request("next", random_text(2, 2000), max_tokens=5)
    rig.add(request)
    until_end(rig, "next")
    assert rig.text("next") == rig.expected(request)
    assert not rig.ends("long")
    rig.scheduler.abort("watched")
    rig.check_idle()


def test_ending_everybody_ends_the_one_on_the_side_too() -> None:
    rig = watched_rig(side_polls=20)
    rig.add(make_request("long", random_text(1, 2000), max_tokens=5))
    rig.step()
    rig.fail_all(ShuttingDown("the end"))
    assert rig.failed("long").message == "the end"
    rig.check_idle()


@pytest.mark.parametrize("what", ["compute", "open", "restore"])
def test_whatever_fails_on_the_side_the_steps_read_the_prompt(what: str) -> None:
    rig = watched_rig(side_fails=what)
    request = make_request("long", random_text(1, 800), max_tokens=10)
    rig.add(request)
    for _ in range(3):
        rig.step()
    rig.runner.refuses_restore = what == "restore"
    until_end(rig, "long")
    assert rig.text("long") == rig.expected(request)
    assert side_tokens(rig) == 0
    assert len(rig.side.jobs) == 1, "one try"


def test_progress_of_a_prompt_on_the_side_is_told() -> None:
    rig = watched_rig(side_polls=3)
    request = make_request("long", random_text(1, 2000), max_tokens=2, return_progress=True)
    rig.add(request)
    until_end(rig, "long")
    progress = [e for e in rig.events if isinstance(e, Progress)]
    processed = [e.processed for e in progress]
    assert processed == sorted(set(processed))
    assert processed[-1] == 2000
    assert 1999 in processed
