"""The loop: commands in, events out, a heartbeat, and nobody left waiting whatever goes wrong."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from selfserve.engine.grammars import GrammarBuilder
from selfserve.engine.turns import ComputeTurns
from tests.support.builders import Rig, make_request, random_text
from tests.support.byte_vocabulary import EOS, VOCAB_SIZE, grammar_tokenizer
from tests.support.scripted_runner import endless

from selfserve.engine.constraint import ConstraintFactory
from selfserve.engine.loop import HEARTBEAT_S, EngineLoop
from selfserve.engine.plan import Outcome, Plan
from selfserve.request import (
    Abort,
    Command,
    Constraint,
    Delta,
    Failed,
    Finished,
    Heartbeat,
    Message,
    Shutdown,
    Submit,
)

Scene = list[Command] | Callable[[], list[Command]]


class ScriptedInbox:
    """Hands out one list of commands for each round; idle rounds let the clock move on."""

    def __init__(self, rig: Rig, rounds: Sequence[Scene]) -> None:
        self._rig = rig
        self._rounds = deque(rounds)
        self.timeouts: list[float] = []
        self.woken = threading.Event()

    def receive(self, timeout_s: float) -> list[Command]:
        self.timeouts.append(timeout_s)
        if timeout_s > 0 and not self._rounds:
            self._rig.clock.now_s += timeout_s
        if not self._rounds:
            return [Shutdown()] if len(self.timeouts) > 2000 else []
        scene = self._rounds.popleft()
        return scene() if callable(scene) else scene

    def wake(self) -> None:
        self.woken.set()


class Stage:
    """A loop on a scripted runner. Rounds after the last one of the script find no commands."""

    def __init__(self, *rounds: Scene, factory: Callable[[], Any] | None = None, **fields: Any):
        self.rig = Rig(**fields)
        self.inbox = ScriptedInbox(self.rig, rounds)
        self.messages: list[list[Message]] = []
        self.grammars = GrammarBuilder(factory or make_factory, self.inbox.wake)
        rig = self.rig
        self.loop = EngineLoop(
            rig.runner,
            rig.scheduler,
            self.grammars,
            self.inbox,
            self._out,
            turns=ComputeTurns(0.05),
            clock=rig.clock,
        )

    def _out(self, messages: Sequence[Message]) -> None:
        self.messages.append(list(messages))
        self.rig.events += [m for m in messages if isinstance(m, Delta | Finished | Failed)]

    def run(self) -> None:
        self.loop.run()
        self.grammars.close()

    def all(self, kind: type[Any]) -> list[Any]:
        return [m for sent in self.messages for m in sent if isinstance(m, kind)]


def make_factory() -> ConstraintFactory:
    return ConstraintFactory(grammar_tokenizer(), eog_ids=frozenset({EOS}), vocab_size=VOCAB_SIZE)


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
    timeouts = stage.inbox.timeouts
    assert timeouts[:2] == [HEARTBEAT_S, HEARTBEAT_S]
    assert timeouts[2 : 2 + busy - 1] == [0.0] * (busy - 1)
    assert set(timeouts[2 + busy :]) == {HEARTBEAT_S}


def test_an_idle_engine_still_has_a_heart_beat() -> None:
    stage = Stage()  # ends by itself after many rounds
    stage.run()
    assert len(stage.all(Heartbeat)) >= 1900


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
    advance = stage.rig.scheduler.advancer.advance

    def broken(chunk: Any, rows: Any) -> Any:
        if chunk.sequence.id == "b":
            raise RuntimeError
        return advance(chunk, rows)

    monkeypatch.setattr(stage.rig.scheduler.advancer, "advance", broken)
    stage.run()
    assert stage.rig.text("a") == stage.rig.expected(first)
    stage.rig.finished("a")
    assert stage.rig.failed("b").error == "InternalError"
    stage.rig.check_idle()


def test_a_request_that_cannot_be_begun_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([Submit(request=A)], *idle(3))

    def broken(params: Any, prompt: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(stage.rig.runner, "sampler", broken)
    stage.loop.turn()
    assert stage.rig.failed("a").error == "InternalError"
    stage.rig.check_idle()


def test_shutdown_ends_everybody_wherever_they_are() -> None:
    gate = threading.Event()

    def slow() -> ConstraintFactory:
        assert gate.wait(20)
        return make_factory()

    compiling = make_request("compiling", constraint=Constraint(text='start: "a"'))
    requests = [make_request(str(i), random_text(i, 40), max_tokens=None) for i in range(3)]

    def end() -> list[Command]:
        return [Shutdown()]

    stage = Stage(
        [Submit(request=request) for request in [*requests, compiling]], [], [], end,
        factory=slow, num_slots=2, predict=endless,
    )  # fmt: skip
    stage.loop.run()
    gate.set()
    stage.grammars.close()
    ends = {e.id: e.error for e in stage.rig.events if isinstance(e, Failed)}
    assert ends == dict.fromkeys(["0", "1", "2", "compiling"], "ShuttingDown")
    stage.rig.check_idle()


# --- grammars -----------------------------------------------------------------------------


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    gate = threading.Event()

    def slow() -> ConstraintFactory:
        assert gate.wait(20)
        return make_factory()

    bound = make_request("bound", constraint=Constraint(text='start: "yes" | "no"'))

    def release() -> list[Command]:
        gate.set()
        assert stage.inbox.woken.wait(20)
        return []

    stage = Stage([Submit(request=bound), Submit(request=A)], *idle(40), release, factory=slow)
    stage.run()
    ends = [m.id for m in stage.all(Finished)]
    assert ends == ["a", "bound"]
    assert stage.rig.text("bound") in ("yes", "no")


def test_a_bad_grammar_ends_its_own_request() -> None:
    bad = make_request("bad", constraint=Constraint(text="start: nonsense nonsense"))

    def wait() -> list[Command]:
        assert stage.inbox.woken.wait(20)
        return []

    stage = Stage([Submit(request=bad), Submit(request=A)], wait, *idle(40))
    stage.run()
    assert stage.rig.failed("bad").error == "InvalidRequest"
    assert stage.rig.text("a") == stage.rig.expected(A)


def test_an_abort_while_the_grammar_is_compiled_is_the_end_of_it() -> None:
    gate = threading.Event()

    def slow() -> ConstraintFactory:
        assert gate.wait(20)
        return make_factory()

    def release() -> list[Command]:
        gate.set()
        assert stage.inbox.woken.wait(20)
        return []

    bound = make_request("bound", constraint=Constraint(text='start: "a"'))
    stage = Stage([Submit(request=bound)], [Abort(id="bound")], release, *idle(3), factory=slow)
    stage.run()
    assert not stage.rig.events
    assert not stage.rig.runner.plans
    stage.rig.check_idle()
