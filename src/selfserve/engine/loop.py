"""The engine's loop: what arrived in, one step, events out; for ever.

Rules of this file
    The loop waits only for arrivals, and only when there is nothing to compute: it neither spins
    nor sleeps through an arrival.
    Events of one step leave as one message. Sending never blocks the loop.
    An exception fails the requests that were there and the loop goes on; nobody is left waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Protocol

from selfserve.engine.intake import Arrival
from selfserve.engine.runner import Runner
from selfserve.engine.scheduler import Scheduler, failed
from selfserve.engine.sequence import Sequence
from selfserve.engine.stats import EngineStats, PhaseTimes
from selfserve.errors import InternalError, ShuttingDown
from selfserve.logs import get_logger
from selfserve.request import Abort, Event, Failed, Hold, Message, Shutdown

log = get_logger("engine")

HEARTBEAT_S = 1.0


class Arrivals(Protocol):
    """Where what arrives comes from."""

    def take(self, timeout_s: float) -> list[Arrival]:
        """What arrived, in order; waits for the first at most `timeout_s`."""
        ...

    def close(self) -> list[str]:
        """Ends it; ids of the requests that were under way to the loop."""
        ...


Outbox = Callable[[Several[Message]], None]


class EngineLoop:
    """Runs a scheduler until it is told to shut down. Everything happens on one thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        stats: EngineStats,
        arrivals: Arrivals,
        outbox: Outbox,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._stats = stats
        self._arrivals = arrivals
        self._outbox = outbox
        self._clock = clock
        self._is_stopping = False
        self._is_waiting = False
        """Whether all work waits for somebody else, who will wake the loop."""
        self._beat_s = 0.0

    def run(self) -> None:
        """Blocks until a Shutdown arrives."""
        while not self._is_stopping:
            try:
                self.step()
            except Exception:
                log.exception("the engine's step failed; its requests end, the engine goes on")
                error = InternalError("the engine failed while it computed this request")
                self._scheduler.fail_all(error)
                self._tell()
        reason = ShuttingDown("the server is shutting down")
        self._send([failed(request_id, reason) for request_id in self._arrivals.close()])
        self._scheduler.fail_all(reason)
        self._tell()

    def step(self) -> None:
        """One round of the four phases; waits if there is nothing to do."""
        can_go_on = self._scheduler.has_work and not self._is_waiting
        arrivals = self._arrivals.take(0.0 if can_go_on else HEARTBEAT_S)
        begin_s = self._clock()
        for arrival in arrivals:
            self._take_in(arrival)
        self._beat()
        taken_s = self._clock()
        self._scheduler.operate()
        operated_s = self._clock()
        plan = self._scheduler.plan()
        self._is_waiting = plan is None and not self._scheduler.has_put_off
        self._tell()
        if plan is None:
            return
        planned_s = self._clock()
        result = self._runner.run(plan)
        ran_s = self._clock()
        self._scheduler.commit(plan, result, (ran_s - planned_s) * 1e3)
        self._tell()
        times = PhaseTimes(
            take_in=taken_s - begin_s,
            operate=operated_s - taken_s,
            plan=planned_s - operated_s,
            run=ran_s - planned_s,
            commit=self._clock() - ran_s,
        )
        self._stats.record(plan, times)

    def _take_in(self, arrival: Arrival) -> None:
        match arrival:
            case Sequence():
                self._scheduler.take_in(arrival)
            case Failed():
                self._send([arrival])
            case Abort(id=request_id):
                self._stats.num_aborted += 1
                self._scheduler.abort(request_id)
            case Hold(id=request_id, is_held=is_held):
                self._scheduler.hold(request_id, is_held)
            case Shutdown():
                self._is_stopping = True

    def _beat(self) -> None:
        now_s = self._clock()
        if now_s - self._beat_s < HEARTBEAT_S:
            return
        self._beat_s = now_s
        self._outbox([self._stats.heartbeat()])

    def _tell(self) -> None:
        self._send(self._scheduler.take_events())

    def _send(self, events: Several[Event]) -> None:
        if events:
            self._outbox(events)
            self._stats.count(events)
