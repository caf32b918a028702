"""The loop: commands in, events out, a heartbeat, and nobody left waiting whatever goes wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.builders import SMALL_MODEL_ON_CPU, Rig, make_request, random_text
from tests.support.scripted_runner import endless

from selfserve.engine.answer import Answer
from selfserve.engine.intake import Arrival
from selfserve.engine.loop import HEARTBEAT_S, EngineLoop
from selfserve.engine.plan import Outcome, Plan
from selfserve.engine.scheduler import failed_by
from selfserve.engine.stats import EngineStats
from selfserve.limits import MAX_HELD_S
from selfserve.request import (
    Abort,
    Command,
    Delta,
    Failed,
    Finished,
    Heartbeat,
    Hold,
    Message,
    Shutdown,
    Submit,
)

Scene = list[Command] | Callable[[], list[Command]]


class ScriptedArrivals:
    """Hands out one list of commands for each round, requests made ready; idle rounds let the clock
    move on. After so many rounds without a script a Shutdown comes."""

    MAX_ROUNDS = 2000

    def __init__(self, rig: Rig, rounds: Sequence[Scene]) -> None:
        self._rig = rig
        self._rounds = deque(rounds)
        self.timeouts: list[float] = []
        self.patience_s = HEARTBEAT_S
        """How long a wait lasts at most; somebody wakes it then."""
        self.under_way: list[str] = []

    def take(self, timeout_s: float) -> list[Arrival]:
        self.timeouts.append(timeout_s)
        if timeout_s > 0 and not self._rounds:
            self._rig.clock.now_s += min(timeout_s, self.patience_s)
        if not self._rounds:
            return [Shutdown()] if len(self.timeouts) > self.MAX_ROUNDS else []
        scene = self._rounds.popleft()
        return [self._ready(c) for c in (scene() if callable(scene) else scene)]

    def _ready(self, command: Command) -> Arrival:
        if not isinstance(command, Submit):
            return command
        try:
            return self._rig.preparation.sequence(command.request)
        except Exception as error:
            return failed_by(command.request.id, error)

    def close(self) -> list[str]:
        return self.under_way


class Stage:
    """A loop on a scripted runner. Rounds after the last one of the script find no commands."""

    def __init__(self, *rounds: Scene, **fields: Any):
        self.rig = rig = Rig(**fields)
        self.arrivals = ScriptedArrivals(rig, rounds)
        self.messages: list[list[Message]] = []
        self.stats = EngineStats(rig.scheduler, rig.memory)
        self.loop = EngineLoop(
            rig.runner, rig.scheduler, self.stats, self.arrivals, self._out, clock=rig.clock
        )

    def _out(self, messages: Sequence[Message]) -> None:
        self.messages.append(list(messages))
        self.rig.events += [m for m in messages if isinstance(m, Delta | Finished | Failed)]

    def run(self) -> None:
        self.loop.run()

    def all(self, kind: type[Any]) -> list[Any]:
        return [m for sent in self.messages for m in sent if isinstance(m, kind)]


def idle(rounds: int) -> list[Scene]:
    return [[] for _ in range(rounds)]


A, B, C = (make_request(name, random_text(i, 60), max_tokens=12) for i, name in enumerate("abc"))


def test_requests_are_answered_and_shutdown_ends_the_loop() -> None:
    stage = Stage([Submit(request=A), Submit(request=B)], *idle(60), [Shutdown()])
    stage.run()
    assert [stage.rig.text(r.id) for r in (A, B)] == [stage.rig.expected(r) for r in (A, B)]
    stage.rig.finished("a")
    stage.rig.check_idle()


def test_the_events_of_a_step_leave_as_one_message() -> None:
    stage = Stage([Submit(request=A), Submit(request=B)], *idle(60), [Shutdown()], predict=endless)
    stage.run()
    told = [sent for sent in stage.messages if any(isinstance(m, Delta) for m in sent)]
    assert len(told) <= len(stage.rig.runner.plans)
    assert any({m.id for m in sent if isinstance(m, Delta)} == {"a", "b"} for sent in told)


def test_the_loop_waits_only_when_there_is_nothing_to_do() -> None:
    stage = Stage([], [Submit(request=A)], *idle(60), [Shutdown()], predict=endless)
    stage.run()
    busy = len(stage.rig.runner.plans)
    timeouts = stage.arrivals.timeouts
    assert timeouts[:2] == [HEARTBEAT_S, HEARTBEAT_S]
    assert timeouts[2 : 2 + busy - 1] == [0.0] * (busy - 1)
    assert set(timeouts[2 + busy :]) == {HEARTBEAT_S}


@pytest.mark.parametrize("patience_s", [HEARTBEAT_S, 0.3, 0.01])
def test_an_idle_engine_has_one_heartbeat_a_second(patience_s: float) -> None:
    stage = Stage()  # ends by itself after many rounds
    stage.arrivals.patience_s = patience_s
    begin_s = stage.rig.clock.now_s
    stage.run()
    passed_s = stage.rig.clock.now_s - begin_s
    # A beat may come up to one wait late.
    most, least = passed_s / HEARTBEAT_S + 1, passed_s / (HEARTBEAT_S + patience_s)
    assert least <= len(stage.all(Heartbeat)) <= most + 1


def test_an_engine_that_computes_has_one_heartbeat_a_second() -> None:
    request = make_request("a", "a", max_tokens=400)
    stage = Stage([Submit(request=request)], *idle(400), [Shutdown()], predict=endless)

    def a_tenth_later(plan: Plan) -> Outcome | None:
        stage.rig.clock.now_s += 0.1
        return None

    stage.rig.runner.fault = a_tenth_later
    stage.run()
    assert 36 <= len(stage.all(Heartbeat)) <= 42


def test_the_heartbeat_tells_what_slots_do_and_what_was_counted() -> None:
    def a_second_later() -> list[Command]:
        stage.rig.clock.now_s += HEARTBEAT_S
        return []

    stage = Stage(
        [Submit(request=A)], [], [], a_second_later, *idle(60), [Submit(request=B)],
        predict=endless,
    )  # fmt: skip
    stage.run()
    beats = stage.all(Heartbeat)
    assert any(state.request_id == "a" for beat in beats for state in beat.slots)
    last = beats[-1]
    assert (last.num_running, last.num_waiting) == (0, 0)
    assert last.counters["requests_finished"] == 2
    assert last.counters["generated_tokens"] == 24
    assert last.counters["prompt_tokens_computed"] == 120
    assert last.counters["steps"] == len(stage.rig.runner.plans)
    assert sum(state.num_tokens for state in last.slots) == 2 * (60 + 11)


def test_an_abort_frees_the_slot_and_says_nothing() -> None:
    stage = Stage(
        [Submit(request=make_request("a", "a", max_tokens=None))], *idle(5), [Abort(id="a")],
        *idle(2), [Shutdown()], predict=endless,
    )  # fmt: skip
    stage.run()
    assert stage.rig.tokens("a")
    assert not stage.rig.ends("a")
    stage.rig.check_idle()


def test_an_abort_that_comes_with_its_request_leaves_nothing() -> None:
    stage = Stage([Submit(request=A), Abort(id="a")], [Shutdown()])
    stage.run()
    assert not stage.rig.events
    stage.rig.check_idle()


# --- faults -------------------------------------------------------------------------------


def test_an_exception_in_a_step_ends_its_requests_and_the_loop_goes_on() -> None:
    stage = Stage([Submit(request=A), Submit(request=B)], *idle(3), [Submit(request=C)], *idle(60))
    calls = 0

    def fault(plan: Plan) -> Outcome | None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("secret cause")
        return None

    stage.rig.runner.fault = fault
    stage.run()
    for name in "ab":
        assert stage.rig.failed(name).error == "InternalError"
        assert "secret" not in stage.rig.failed(name).message
    assert stage.rig.text("c") == stage.rig.expected(C)
    assert stage.all(Heartbeat)[-1].counters["requests_failed"] == 2
    stage.rig.check_idle()


def test_a_step_that_always_fails_ends_every_request_once() -> None:
    stage = Stage([Submit(request=A)], [Submit(request=B)], [], [Submit(request=C)])

    def fault(plan: Plan) -> Outcome | None:
        raise RuntimeError

    stage.rig.runner.fault = fault
    stage.run()
    assert [stage.rig.failed(name).error for name in "abc"] == ["InternalError"] * 3
    stage.rig.check_idle()


def test_what_a_step_already_finished_is_told_although_another_of_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = make_request("a", "one", max_tokens=1)
    stage = Stage([Submit(request=first), Submit(request=B)], *idle(40), predict=endless)
    advance = Answer.advance

    def broken(answer: Answer, sequence: Any, chunk: Any, rows: Any) -> Any:
        if sequence.id == "b":
            raise RuntimeError
        return advance(answer, sequence, chunk, rows)

    monkeypatch.setattr(Answer, "advance", broken)
    stage.run()
    assert stage.rig.text("a") == stage.rig.expected(first)
    stage.rig.finished("a")
    assert stage.rig.failed("b").error == "InternalError"
    stage.rig.check_idle()


def test_what_was_told_before_a_step_failed_is_told() -> None:
    stage = Stage([Submit(request=make_request("a", "one", max_tokens=1))], [Submit(request=B)], [])
    commit = stage.rig.scheduler.commit

    def broken(*arguments: Any) -> None:
        commit(*arguments)
        raise RuntimeError

    stage.rig.scheduler.commit = broken  # type: ignore[method-assign]
    stage.run()
    stage.rig.finished("a")
    assert stage.rig.failed("b").error == "InternalError"


def test_a_request_that_cannot_be_begun_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([Submit(request=A)], *idle(3))

    def broken(params: Any, prompt: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(stage.rig.runner, "sampler", broken)
    stage.loop.step()
    assert stage.rig.failed("a").error == "InternalError"
    stage.rig.check_idle()


def test_shutdown_ends_everybody_wherever_they_are() -> None:
    requests = [make_request(str(i), random_text(i, 40), max_tokens=None) for i in range(3)]
    stage = Stage(
        [Submit(request=request) for request in requests], [], [], [Shutdown()],
        num_slots=2, predict=endless,
    )  # fmt: skip
    stage.arrivals.under_way = ["compiling"]
    stage.run()
    ends = {e.id: e.error for e in stage.rig.events if isinstance(e, Failed)}
    assert ends == dict.fromkeys(["0", "1", "2", "compiling"], "ShuttingDown")
    stage.rig.check_idle()


# --- counters -----------------------------------------------------------------------------


def test_what_aborted_and_failed_work_took_is_counted() -> None:
    stem = random_text(7, 200)
    first = make_request("first", stem, max_tokens=1)
    again = make_request("again", stem + "x", max_tokens=None)

    def predict(tokens: Sequence[int]) -> int:
        return b"la "[len(tokens) % 3] if tokens[0] == ord("l") else endless(tokens)

    stage = Stage(
        [Submit(request=first)], *idle(8), [Submit(request=again)], *idle(9), [Abort(id="again")],
        [], [Submit(request=make_request("bad", "la " * 20, max_tokens=None))], *idle(20),
        [Shutdown()],
        predict=predict, has_drafts=True, step_ms=100.0, batches=SMALL_MODEL_ON_CPU,
    )  # fmt: skip
    stage.run()
    counters = stage.stats.heartbeat().counters
    assert len(stage.rig.tokens("again")) > 1
    told = sum(len(stage.rig.tokens(name)) for name in ("first", "again", "bad"))
    assert counters["generated_tokens"] == told
    assert counters["prompt_tokens_cached"] == 200
    assert counters["draft_tokens"] >= counters["draft_tokens_accepted"] > 5
    assert counters["requests_finished"] == 1
    assert counters["requests_aborted"] == 1
    assert counters["requests_failed"] == 1


# --- holds --------------------------------------------------------------------------------


def test_a_held_request_gets_no_step_and_others_go_on() -> None:
    stage = Stage(
        [Submit(request=A), Submit(request=B)], [], [Hold(id="a", is_held=True)], *idle(40),
        [Hold(id="a", is_held=False)], *idle(40), [Shutdown()], predict=endless,
    )  # fmt: skip
    stage.run()
    order = [m.id for m in stage.all(Finished)]
    assert order == ["b", "a"]
    for request in (A, B):
        assert stage.rig.text(request.id) == stage.rig.expected(request)
    assert stage.rig.finished("a").completion_tokens == 12
    stage.rig.check_idle()


def test_the_loop_waits_while_all_are_held() -> None:
    stage = Stage(
        [Submit(request=A)], [], [Hold(id="a", is_held=True)], *idle(30),
        [Hold(id="a", is_held=False)], *idle(20), [Shutdown()], predict=endless,
    )  # fmt: skip
    stage.run()
    assert set(stage.arrivals.timeouts[3:34]) == {HEARTBEAT_S}
    assert len(stage.rig.runner.plans) <= 20
    assert stage.rig.text("a") == stage.rig.expected(A)


@pytest.mark.parametrize("is_alone", [True, False])
def test_who_is_held_too_long_ends_in_time_out(is_alone: bool) -> None:
    def much_later() -> list[Command]:
        stage.rig.clock.now_s += MAX_HELD_S + 1.0
        return []

    others = [] if is_alone else [Submit(request=make_request("b", "b", max_tokens=60))]
    stage = Stage(
        [Submit(request=A), *others], [], [], [Hold(id="a", is_held=True)], [], much_later,
        *idle(60), [Shutdown()], predict=endless,
    )  # fmt: skip
    stage.run()
    assert stage.rig.failed("a").error == "RequestTimeout"
    assert len(stage.rig.tokens("a")) < 12
    if not is_alone:
        assert stage.rig.finished("b").completion_tokens == 60
    stage.rig.check_idle()


def test_who_was_held_shortly_and_again_is_not_timed_out() -> None:
    def later() -> list[Command]:
        stage.rig.clock.now_s += MAX_HELD_S * 0.7
        return []

    held, free = Hold(id="a", is_held=True), Hold(id="a", is_held=False)
    stage = Stage(
        [Submit(request=A)], [], [held], later, [free], later, [held], later, [free], *idle(30),
        [Shutdown()], predict=endless,
    )  # fmt: skip
    stage.run()
    assert stage.rig.text("a") == stage.rig.expected(A)


def test_a_held_request_can_be_aborted() -> None:
    stage = Stage(
        [Submit(request=A)], [], [Hold(id="a", is_held=True)], [], [Abort(id="a")], [],
        [Hold(id="a", is_held=False), Hold(id="unknown", is_held=True)], *idle(3), [Shutdown()],
    )  # fmt: skip
    stage.run()
    assert not stage.rig.ends("a")
    stage.rig.check_idle()
