"""The engine's loop: commands in, one step, events out; for ever.

Rules of this file
    The loop waits only for commands, and only when there is nothing to compute: it neither spins
    nor sleeps through an arrival.
    Events of one step leave as one message. Sending never blocks the loop.
    An exception fails the requests that were there and the loop goes on; nobody is left waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from selfserve.engine.grammars import GrammarBuilder
from selfserve.engine.runner import Runner
from selfserve.engine.scheduler import Scheduler, failed
from selfserve.engine.stats import EngineStats
from selfserve.engine.turns import ComputeTurns
from selfserve.errors import InternalError, SelfError, ShuttingDown
from selfserve.logs import get_logger
from selfserve.request import Abort, Command, Event, Message, Request, Shutdown, Submit

log = get_logger("engine")

HEARTBEAT_S = 1.0


class Inbox(Protocol):
    """Where commands come from."""

    def receive(self, timeout_s: float) -> list[Command]:
        """All commands that are there; waits for the first one at most `timeout_s`."""
        ...

    def wake(self) -> None:
        """Ends a `receive` that waits. May be called by any thread."""
        ...


Outbox = Callable[[Sequence[Message]], None]


class EngineLoop:
    """Runs a scheduler until it is told to shut down. Everything happens on one thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        grammars: GrammarBuilder,
        inbox: Inbox,
        outbox: Outbox,
        *,
        turns: ComputeTurns,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`turns`: those of the steps and of a prompt that is read beside them."""
        self._runner = runner
        self._turns = turns
        self._scheduler = scheduler
        self._grammars = grammars
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._stats = EngineStats(scheduler)
        self._is_stopping = False
        self._is_waiting = False
        """Whether all work waits for a side thread, which will wake the loop."""
        self._beat_s = 0.0

    def run(self) -> None:
        """Blocks until a Shutdown command."""
        while not self._is_stopping:
            try:
                self.turn()
            except Exception:
                log.exception("the engine's step failed; its requests end, the engine goes on")
                error = InternalError("the engine failed while it computed this request")
                self._send(self._scheduler.fail_all(error))
        reason = ShuttingDown("the server is shutting down")
        self._send([failed(request_id, reason) for request_id in self._grammars.forget_all()])
        self._send(self._scheduler.fail_all(reason))

    def turn(self) -> None:
        """One round: commands, grammars that are ready, and a step if there is work."""
        can_go_on = self._scheduler.has_work and not self._is_waiting
        for command in self._inbox.receive(0.0 if can_go_on else HEARTBEAT_S):
            self._obey(command)
        for request, result in self._grammars.take_built():
            if isinstance(result, SelfError):
                self._send([failed(request.id, result)])
            else:
                self._scheduler.add(request, result)
        self._beat()
        plan = self._scheduler.schedule()
        self._is_waiting = plan is None
        self._send(self._scheduler.take_untold())
        if plan is None:
            return
        with self._turns.engine():
            begin_s = self._clock()
            outcome = self._runner.run(plan)
            ms = (self._clock() - begin_s) * 1e3
        events = self._scheduler.commit(plan, outcome, ms)
        self._send(events)
        self._stats.record(plan, ms)

    def _obey(self, command: Command) -> None:
        match command:
            case Submit(request=request):
                self._submit(request)
            case Abort(id=request_id):
                self._grammars.forget(request_id)
                self._scheduler.abort(request_id)
                self._stats.num_aborted += 1
            case Shutdown():
                self._is_stopping = True

    def _submit(self, request: Request) -> None:
        if request.constraint is None:
            self._scheduler.add(request)
        else:
            self._grammars.build(request)

    def _beat(self) -> None:
        now_s = self._clock()
        if now_s - self._beat_s < HEARTBEAT_S:
            return
        self._beat_s = now_s
        self._outbox([self._stats.heartbeat()])

    def _send(self, events: Sequence[Event]) -> None:
        if events:
            self._outbox(events)
            self._stats.count(events)
