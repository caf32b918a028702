"""Commands as they arrive, and requests made ready: everything that may take its time happens here,
beside the engine's loop.

Rules of this file
    The loop gets finished objects: a sequence with its sampler chain, grammar, drafter, pictures'
    tokens and output, or the error that ended the request.
    What may take long has a thread of its own for each kind (grammars; DRY, which scans the
    vocabulary, and windows that many tokens are shown to), so that it keeps no plain request
    waiting.
    A request that is aborted while it is made ready never reaches the loop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from selfserve.engine.answer import Answer
from selfserve.engine.choice import TokenChooser
from selfserve.engine.constraint import ConstraintFactory, ConstraintState
from selfserve.engine.costs import Costs
from selfserve.engine.pictures import NO_MEDIA, PromptMedia, expand
from selfserve.engine.runner import Runner
from selfserve.engine.scheduler import failed_by
from selfserve.engine.sequence import Sequence
from selfserve.engine.speculation import MAX_DRAFT, LookupDrafter
from selfserve.errors import UnsupportedCapability
from selfserve.request import Abort, Command, Failed, Hold, Request, Shutdown, Submit
from selfserve.sampling import DEFAULT_SAMPLERS
from selfserve.threads import yield_to_others

Arrival = Sequence | Failed | Abort | Hold | Shutdown
"""What the loop finds in front of its door."""


class Inbox(Protocol):
    """Where commands come from. Belongs to the intake's thread."""

    def receive(self, timeout_s: float) -> list[Command]:
        """All commands that are there; waits for the first one at most `timeout_s`."""
        ...


class Lane(StrEnum):
    """Threads for requests that may take long to prepare."""

    GRAMMAR = "grammars"
    CHAIN = "chains"


class Preparation:
    """Makes sequences out of requests. Any thread may use it."""

    def __init__(
        self,
        runner: Runner,
        costs: Costs | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`costs` are those of verifying drafts; None, or a memory that cannot be cut: no
        drafts."""
        self._runner = runner
        self._limits = runner.capabilities
        self._costs = costs if runner.capabilities.can_cut else None
        self._clock = clock
        self._factory: ConstraintFactory | None = None
        self._lock = threading.Lock()

    def lane(self, request: Request) -> Lane | None:
        """Which thread prepares the request; None: it takes no time worth a thread."""
        sampling = request.sampling
        if sampling.dry_multiplier != 0.0 or len(sampling.samplers) > len(DEFAULT_SAMPLERS):
            return Lane.CHAIN
        return Lane.GRAMMAR if request.constraint is not None else None

    def sequence(self, request: Request, constraint: ConstraintState | None = None) -> Sequence:
        """A request ready to run. Raises SelfError. `constraint`: its grammar, if it was compiled
        elsewhere."""
        arrived_s = self._clock()
        request, media = self._with_pictures(request)
        if constraint is None and request.constraint is not None:
            constraint = self._constraints().compile(request.constraint)
        text = request.prompt
        if media:
            text = tuple(token for token in text if token >= 0)
        sampler = self._runner.sampler(request.sampling, text)
        drafter = None
        if self._costs is not None:
            drafter = LookupDrafter(request.prompt, max_draft=MAX_DRAFT, costs=self._costs)
        vocabulary = self._runner.vocabulary
        chooser = TokenChooser(vocabulary, request, sampler, constraint)
        answer = Answer(
            request,
            vocabulary,
            chooser,
            context_size=self._limits.context_size,
            drafter=drafter,
            clock=self._clock,
        )
        return Sequence(request, answer, media=media, arrived_s=arrived_s)

    def _with_pictures(self, request: Request) -> tuple[Request, PromptMedia]:
        reader = self._runner.pictures
        if not request.pictures:
            return request, NO_MEDIA
        if reader is None:
            raise UnsupportedCapability("the loaded model takes text only")
        return expand(request, reader.layout, self._limits.context_size)

    def _constraints(self) -> ConstraintFactory:
        """Made at the first grammar: the vocabulary's tables take memory and up to two seconds."""
        with self._lock:
            if self._factory is None:
                vocabulary = self._runner.vocabulary
                self._factory = ConstraintFactory(
                    self._runner.grammar_tokenizer(),
                    eog_ids=vocabulary.eog_ids,
                    vocab_size=vocabulary.size,
                )
            return self._factory


class Intake:
    """Reads commands on a thread of its own, and has requests prepared."""

    POLL_S = 0.25
    CLOSING_S = 1.5
    """Time for the request that is being made ready at the end."""

    def __init__(self, inbox: Inbox, preparation: Preparation) -> None:
        self._inbox = inbox
        self._preparation = preparation
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._orders: dict[Lane, queue.SimpleQueue[Request | None]] = {
            lane: queue.SimpleQueue() for lane in Lane
        }
        self._lock = threading.Lock()
        self._ordered: dict[str, None] = {}
        """Ids of the requests that wait in lanes, oldest first."""
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._read, name="intake", daemon=True),
            *(
                threading.Thread(target=self._prepare, args=(lane,), name=lane, daemon=True)
                for lane in Lane
            ),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def take(self, timeout_s: float) -> list[Arrival]:
        """What arrived since the last call, in order; waits for the first at most `timeout_s`."""
        arrivals: list[Arrival] = []
        try:
            item = self._arrivals.get(timeout_s > 0, timeout_s)
            while True:
                if item is not None:
                    arrivals.append(item)
                item = self._arrivals.get_nowait()
        except queue.Empty:
            return arrivals

    def wake(self) -> None:
        """Ends a `take` that waits. Any thread may call it."""
        self._arrivals.put(None)

    def close(self) -> list[str]:
        """Ends the threads, after the request that each works on; ids of requests that were under
        way to the loop. May be called again."""
        self._is_closing = True
        for orders in self._orders.values():
            orders.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(self.CLOSING_S)
        left = list(self._ordered)
        self._ordered.clear()
        for arrival in self.take(0.0):
            if isinstance(arrival, Sequence):
                arrival.answer.close()
                left.append(arrival.id)
        return left

    # --- on the threads -------------------------------------------------------------------

    def _read(self) -> None:
        while not self._is_closing:
            for command in self._inbox.receive(self.POLL_S):
                self._obey(command)
                if isinstance(command, Shutdown):
                    return

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            request = command.request
            lane = self._preparation.lane(request)
            if lane is not None:
                with self._lock:
                    self._ordered[request.id] = None
                self._orders[lane].put(request)
            else:
                self._arrivals.put(self._prepared(request))
            return
        if isinstance(command, Abort):
            with self._lock:
                self._ordered.pop(command.id, None)
        self._arrivals.put(command)

    def _prepare(self, lane: Lane) -> None:
        yield_to_others()
        while (request := self._orders[lane].get()) is not None:
            if request.id not in self._ordered:
                continue
            arrival = self._prepared(request)
            with self._lock:
                is_wanted = request.id in self._ordered
                self._ordered.pop(request.id, None)
                if is_wanted:
                    self._arrivals.put(arrival)
            if not is_wanted and isinstance(arrival, Sequence):
                arrival.answer.close()

    def _prepared(self, request: Request) -> Sequence | Failed:
        try:
            return self._preparation.sequence(request)
        except Exception as error:
            return failed_by(request.id, error)
