"""Only one computes at a time, and each gets its turn."""

from __future__ import annotations

import threading
import time

from tests.support.builders import Clock

from selfserve.engine.turns import ComputeTurns

PATIENCE_S = 10.0


class Side:
    """A side thread that has its turn until told to pause or to end."""

    def __init__(self, turns: ComputeTurns) -> None:
        self.turns = turns
        self.has_turn = threading.Event()
        self._orders: list[str] = []
        self._order = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with self.turns.side():
            self.has_turn.set()
            self._done.release()
            while True:
                assert self._order.acquire(timeout=PATIENCE_S)
                if self._orders.pop(0) == "end":
                    return
                self.has_turn.clear()
                self.turns.pause()
                self.has_turn.set()
                self._done.release()

    def tell(self, order: str) -> None:
        self._orders.append(order)
        self._order.release()

    def await_turn(self) -> None:
        assert self._done.acquire(timeout=PATIENCE_S)

    def end(self) -> None:
        self.tell("end")
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


class Engine:
    """An engine's thread that wants a turn and ends it when told to."""

    def __init__(self, turns: ComputeTurns) -> None:
        self.entered, self._leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(turns,))
        self.thread.start()

    def _run(self, turns: ComputeTurns) -> None:
        with turns.engine():
            self.entered.set()
            assert self._leave.wait(PATIENCE_S)

    def await_wanting(self, turns: ComputeTurns) -> None:
        while not turns._engine_wants:  # there is no event for beginning to wait
            assert self.thread.is_alive()

    def leave(self) -> None:
        assert self.entered.wait(PATIENCE_S)
        self._leave.set()
        self.thread.join(PATIENCE_S)


def check_length_of_a_turn(turns: ComputeTurns, clock: Clock, length_s: float) -> None:
    """An engine that waits gets its turn after `length_s` of the side's, not before."""
    side = Side(turns)
    side.await_turn()
    engine = Engine(turns)
    engine.await_wanting(turns)
    clock.now_s += length_s - 0.001
    side.tell("pause")
    side.await_turn()
    assert not engine.entered.is_set(), "the turn was cut short"
    clock.now_s += 0.002
    side.tell("pause")
    engine.leave()
    side.await_turn()
    side.end()


def test_the_side_keeps_its_turn_until_its_time_is_over() -> None:
    clock = Clock()
    check_length_of_a_turn(ComputeTurns(0.05, clock), clock, 0.05)


def test_nobody_waits_where_the_other_has_nothing_to_do() -> None:
    turns = ComputeTurns(0.05)
    for _ in range(3):
        with turns.engine():
            pass
        with turns.side():
            turns.pause()


def test_after_a_long_turn_of_the_engine_the_side_has_as_long() -> None:
    clock = Clock()
    turns = ComputeTurns(0.05, clock)
    with turns.engine():
        clock.now_s += 0.4
    check_length_of_a_turn(turns, clock, 0.4)


def test_an_engine_that_always_comes_back_at_once_leaves_the_side_its_turns() -> None:
    turns = ComputeTurns(0.0)
    inside: list[str] = []
    both = threading.Event()
    num_side = 0
    is_over = threading.Event()

    def enter(name: str) -> None:
        inside.append(name)
        time.sleep(0)  # lets the other thread run, if it may
        if len(inside) > 1:
            both.set()
        inside.remove(name)

    def side() -> None:
        nonlocal num_side
        while num_side < 200:
            with turns.side():
                for _ in range(3):
                    enter("side")
                    turns.pause()
            num_side += 1
        is_over.set()

    thread = threading.Thread(target=side)
    thread.start()
    while not is_over.is_set():
        with turns.engine():
            enter("engine")
    thread.join(PATIENCE_S)
    assert num_side == 200
    assert not both.is_set(), "both computed at once"
