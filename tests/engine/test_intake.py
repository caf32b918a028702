"""Requests are made ready beside the loop; whoever waits for one hears of it, whatever becomes of
it, and nobody waits for another's."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.support.builders import Rig, make_request
from tests.support.scripted_runner import ScriptedRunner

from selfserve.engine.constraint import ConstraintState
from selfserve.engine.intake import Arrival, Intake, Preparation
from selfserve.engine.sequence import Sequence
from selfserve.errors import UnsupportedImage
from selfserve.request import (
    Abort,
    Command,
    Constraint,
    Failed,
    Hold,
    Request,
    SamplingParams,
    Shutdown,
    Submit,
)

PATIENCE_S = 20.0


def bound(id: str, text: str = 'start: "a"') -> Request:
    return make_request(id, constraint=Constraint(text=text))


def with_dry(id: str) -> Request:
    return make_request(id, sampling=SamplingParams(dry_multiplier=0.8))


class GatedPreparation(Preparation):
    """Requests whose id begins with "slow" wait for `gate`; those in `errors` fail."""

    def __init__(self, runner: ScriptedRunner) -> None:
        super().__init__(runner, None)
        self.gate = threading.Event()
        self.errors: dict[str, Exception] = {}
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()

    def sequence(self, request: Request, constraint: ConstraintState | None = None) -> Sequence:
        self.begun.put(request.id)
        if request.id.startswith("slow"):
            assert self.gate.wait(PATIENCE_S)
        if request.id in self.errors:
            raise self.errors[request.id]
        return super().sequence(request, constraint)


class Desk:
    """An intake, the commands to it, and what comes out."""

    def __init__(self) -> None:
        self.runner = ScriptedRunner()
        self.preparation = GatedPreparation(self.runner)
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.intake = Intake(self, self.preparation)

    def receive(self, timeout_s: float) -> list[Command]:
        try:
            return [self.commands.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def send(self, *commands: Command | Request) -> None:
        for command in commands:
            is_request = isinstance(command, Request)
            self.commands.put(Submit(request=command) if is_request else command)

    def take(self, count: int) -> list[Arrival]:
        arrivals: list[Arrival] = []
        while len(arrivals) < count:
            found = self.intake.take(PATIENCE_S)
            assert found, f"{count - len(arrivals)} more never arrived"
            arrivals += found
        assert len(arrivals) == count
        return arrivals


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    desk.intake.start()
    yield desk
    desk.preparation.gate.set()
    desk.intake.close()


def ids(arrivals: list[Arrival]) -> list[str]:
    return [a.id for a in arrivals if not isinstance(a, Shutdown)]


@pytest.mark.parametrize("make", [make_request, bound, with_dry])
def test_requests_arrive_ready_in_the_order_in_which_they_came(make: type, desk: Desk) -> None:
    requests = [make(str(i)) for i in range(20)]
    desk.send(*requests)
    arrivals = desk.take(20)
    assert ids(arrivals) == [request.id for request in requests]
    for arrival, request in zip(arrivals, requests, strict=True):
        assert isinstance(arrival, Sequence)
        assert arrival.request == request
        arrival.answer.close()
    assert desk.runner.num_open_samplers == 0


def test_other_commands_arrive_in_their_place(desk: Desk) -> None:
    desk.send(make_request("a"), Hold(id="a", is_held=True), Abort(id="a"), Shutdown())
    first, *rest = desk.take(4)
    assert isinstance(first, Sequence)
    assert rest == [Hold(id="a", is_held=True), Abort(id="a"), Shutdown()]
    first.answer.close()


@pytest.mark.parametrize("make", [bound, with_dry])
def test_a_slow_preparation_keeps_no_plain_request_waiting(make: type, desk: Desk) -> None:
    desk.send(make("slow"), make_request("plain"), Abort(id="somebody"))
    plain, abort = desk.take(2)
    assert ids([plain, abort]) == ["plain", "somebody"]
    desk.preparation.gate.set()
    (slow,) = desk.take(1)
    assert isinstance(plain, Sequence)
    assert isinstance(slow, Sequence)
    assert slow.id == "slow"
    plain.answer.close()
    slow.answer.close()


def test_who_leaves_while_it_is_made_ready_never_arrives(desk: Desk) -> None:
    desk.send(bound("slow"), bound("next"), bound("stays"))
    assert desk.preparation.begun.get(timeout=PATIENCE_S) == "slow"
    desk.send(Abort(id="slow"), Abort(id="next"))
    assert ids(desk.take(2)) == ["slow", "next"]  # the aborts themselves
    desk.preparation.gate.set()
    (stays,) = desk.take(1)
    assert isinstance(stays, Sequence)
    assert stays.id == "stays"
    stays.answer.close()
    assert desk.runner.num_open_samplers == 0
    assert desk.preparation.begun.get(timeout=PATIENCE_S) == "stays"  # nothing was done for "next"


@pytest.mark.parametrize("make", [make_request, bound])
@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (UnsupportedImage("no such picture"), "UnsupportedImage", "no such picture"),
        (ValueError("secret cause"), "InternalError", "the engine failed"),
        (MemoryError(), "InternalError", "the engine failed"),
    ],
)
def test_a_request_that_cannot_be_made_ready_ends_alone(
    make: type, error: Exception, name: str, message: str, desk: Desk
) -> None:
    desk.preparation.errors["bad"] = error
    desk.send(make("bad"), make("good"))
    bad, good = desk.take(2)
    assert isinstance(bad, Failed)
    assert (bad.id, bad.error) == ("bad", name)
    assert bad.message.startswith(message)
    assert "secret" not in bad.message
    assert isinstance(good, Sequence)
    good.answer.close()


def test_a_grammar_that_cannot_be_compiled_is_the_fault_of_its_request(desk: Desk) -> None:
    desk.send(bound("bad", "start: nonsense nonsense"), bound("good"))
    bad, good = desk.take(2)
    assert isinstance(bad, Failed)
    assert isinstance(good, Sequence)
    assert bad.error == "InvalidRequest"
    good.answer.close()
    assert desk.runner.num_open_samplers == 0


def test_the_tables_of_the_vocabulary_are_made_at_the_first_grammar_and_once(desk: Desk) -> None:
    calls: Counter[str] = Counter()
    make = desk.runner.grammar_tokenizer

    def counted() -> object:
        calls["made"] += 1
        return make()

    desk.runner.grammar_tokenizer = counted  # type: ignore[method-assign]
    desk.send(make_request("plain"))
    arrivals = desk.take(1)
    assert not calls
    desk.send(bound("a"), bound("b", 'start: "b"'))
    arrivals += desk.take(2)
    assert calls["made"] == 1
    for arrival in arrivals:
        assert isinstance(arrival, Sequence)
        arrival.answer.close()


# --- waiting and the end ------------------------------------------------------------------


def test_any_thread_ends_a_wait(desk: Desk) -> None:
    threads = [threading.Thread(target=desk.intake.wake) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert desk.intake.take(1e6) == []  # returns, however long it may wait
    for thread in threads:
        thread.join()


def test_wakes_that_nobody_waited_for_hide_no_arrival(desk: Desk) -> None:
    for _ in range(2500):
        desk.intake.wake()
    desk.send(Abort(id="a"))
    while not (found := desk.intake.take(PATIENCE_S)):
        pass
    assert found == [Abort(id="a")]
    assert desk.intake.take(0.0) == []


def test_closing_tells_who_was_under_way_and_leaves_nothing() -> None:
    before = threading.active_count()
    desk = Desk()
    desk.intake.start()
    desk.send(make_request("arrived"), bound("slow"), bound("queued"), Abort(id="other"))
    while desk.preparation.begun.get(timeout=PATIENCE_S) != "slow":
        pass
    desk.send(Shutdown())
    desk.preparation.gate.set()
    left = desk.intake.close()
    assert sorted(left) == ["arrived", "queued", "slow"]
    assert desk.intake.close() == []
    assert threading.active_count() == before
    assert desk.runner.num_open_samplers == 0


def test_closing_without_a_shutdown_ends_the_threads_too() -> None:
    before = threading.active_count()
    desk = Desk()
    desk.intake.start()
    assert desk.intake.close() == []
    assert threading.active_count() == before


def test_who_could_not_be_made_ready_in_time_is_closed_later() -> None:
    desk = Desk()
    desk.intake.CLOSING_S = 0.01
    desk.intake.start()
    desk.send(bound("slow"))
    assert desk.preparation.begun.get(timeout=PATIENCE_S) == "slow"
    assert desk.intake.close() == ["slow"]
    desk.preparation.gate.set()
    desk.intake.CLOSING_S = PATIENCE_S
    assert desk.intake.close() == []
    assert desk.runner.num_open_samplers == 0


# --- preparation --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("can_cut", "has_drafts", "drafts"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_drafts_are_made_where_they_were_asked_for_and_can_be_taken_back(
    can_cut: bool, has_drafts: bool, drafts: bool
) -> None:
    rig = Rig(
        predict=lambda tokens: b"la "[len(tokens) % 3], can_cut=can_cut, has_drafts=has_drafts
    )
    rig.run([make_request("a", "la " * 20, max_tokens=60)])
    assert (rig.finished("a").timings.draft_n > 0) == drafts
