"""All requests that the engine has, and the four phases of a step.

Rules of this file
    A step is `take_in`, `operate`, `plan`, `commit`, in this order, each timed by the loop.
        take_in   what arrived: finished preparations, aborts, holds. Touches no memory.
        operate   memory operations, as many as the step's allowance permits, and with them who
                  gets a slot. An error ends only the request that it belongs to.
        plan      which tokens the step computes. Reads, and changes nothing.
        commit    records what the step gave: tokens, text, ends.
    Containers keep their order: the same requests in the same order make the same batches.
    A request leaves only by one final event, or because nobody waits for it any more.

The promise
    decode + memory operations + prompts <= decode + `Costs.allowance_ms`
    Operations of a step begin only while what they spent and will cost stays within the allowance
    (the first one always may), and the planner gives prompts the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selfserve.engine.costs import Allowance, Costs
from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import Pictures
from selfserve.engine.plan import Chunk, Outcome, PicturePlan, Plan, Row, StepResult
from selfserve.engine.planner import Planner, Situation
from selfserve.engine.remembered import Record
from selfserve.engine.runner import Capabilities
from selfserve.engine.sequence import Sequence
from selfserve.errors import InternalError, OutOfMemory, RequestTimeout, SelfError
from selfserve.limits import MAX_HELD_S
from selfserve.logs import get_logger
from selfserve.request import Event, Failed, Progress, StopType

log = get_logger("engine")

MAX_FAILURES = 2
"""Failed steps of one sequence alone after which the request fails."""


def failed(request_id: str, error: SelfError) -> Failed:
    """The final event of a request that ended in `error`."""
    return Failed(
        id=request_id,
        error=type(error).__name__,
        message=error.message,
        param=error.param,
        details=error.details,
    )


def failed_by(request_id: str, error: Exception) -> Failed:
    """The final event of a request that an exception ended; only the log tells foreign ones."""
    if isinstance(error, SelfError):
        log.warning("request %s failed: %s", request_id, type(error).__name__)
        return failed(request_id, error)
    log.error("request %s failed", request_id, exc_info=error)
    return failed(request_id, InternalError("the engine failed while it computed this request"))


class Scheduler:
    """Belongs to the engine's thread."""

    def __init__(
        self,
        capabilities: Capabilities,
        memory: PromptMemory,
        costs: Costs,
        *,
        pictures: Pictures | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`pictures`: None for a model that takes text only."""
        self._memory = memory
        self._costs = costs
        self._pictures = pictures
        self._clock = clock
        self._planner = Planner(capabilities, costs, memory, pictures)
        self.waiting: dict[str, Sequence] = {}
        """By request id, oldest first."""
        self.running: dict[str, Sequence] = {}
        """By request id, oldest first."""
        self._awaited: dict[str, tuple[Sequence, int]] = {}
        """Id of a waiting sequence → the running one whose prompt begins like its own, and the
        length from which on it is of use."""
        self._held_since_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        """Failed steps alone, by the id of a running sequence."""
        self._suspects: list[str] = []
        """Sequences of a failed step; each is tried alone until it proves good."""
        self._turn = 0
        self._picture_first = True
        self._spent_ms = 0.0
        self.has_put_off = False
        """Whether a memory operation waits for the next step."""
        self._dear_debt_ms = 0.0
        """What dear rows took beyond the allowances of the steps since."""
        self._dear_served: dict[str, int] = {}
        """Id of a sequence with dear rows → number of the step that served it last."""
        self._num_steps = 0
        self._events: list[Event] = []
        self.num_generated = 0
        self.num_drafted = 0
        self.num_accepted = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def take_events(self) -> list[Event]:
        """What is to be told since the last call."""
        taken, self._events = self._events, []
        return taken

    # --- take in --------------------------------------------------------------------------

    def take_in(self, sequence: Sequence) -> None:
        """A prepared request joins the queue. It belongs to the scheduler from now on."""
        self.waiting[sequence.id] = sequence
        for other in self.running.values():
            self._find_fork(sequence, other)

    def abort(self, request_id: str) -> None:
        """Forgets a request; its slot is free at once. Unknown ids are ignored: the request may
        have ended while the abort was under way."""
        sequence = self.running.get(request_id)
        if sequence is not None:
            self._memory.release(sequence)
        else:
            sequence = self.waiting.get(request_id)
        if sequence is not None:
            self._forget(sequence)

    def hold(self, request_id: str, is_held: bool) -> None:
        """Nobody reads the request's stream at the moment, or somebody does again."""
        sequence = self.running.get(request_id)
        if sequence is None or sequence.is_held == is_held:
            return
        sequence.is_held = is_held
        if is_held:
            self._held_since_s[request_id] = self._clock()
        else:
            self._held_since_s.pop(request_id, None)

    def fail_all(self, error: SelfError) -> None:
        """Ends every request with `error`; slots are emptied, since their state is in doubt."""
        for sequence in list(self.running.values()):
            self._end_badly(sequence, error)
        for sequence in list(self.waiting.values()):
            self._events.append(failed(sequence.id, error))
            self._forget(sequence)
        self._suspects.clear()

    # --- operate --------------------------------------------------------------------------

    def operate(self) -> None:
        """Does what is due in the slots, gives free ones to waiting sequences, closes gaps."""
        num_decoding = sum(s.is_decoding and not s.is_held for s in self.running.values())
        allowance = Allowance(self._costs, self._costs.allowance_ms(num_decoding), self._clock)
        self._memory.begin_phase()
        self._end_long_held()
        for slot in self._memory.slots:
            if slot.due:
                self._settle(slot, allowance)
        self._admit(allowance)
        try:
            self._memory.close_gap(self.running.values(), allowance)
        except Exception:  # whoever was to move stays where it is
            log.exception("a sequence could not be moved to another slot")
        self._order_pictures()
        self._spent_ms = allowance.spent_ms
        self.has_put_off = allowance.has_put_off

    def _settle(self, slot: Record, allowance: Allowance) -> None:
        try:
            self._memory.settle(slot, allowance)
        except Exception as error:
            if slot.owner is not None:
                self._end_badly(slot.owner, error)
            else:
                log.exception("a free slot could not be brought in order and is emptied")
                self._memory.forget(slot)

    @contextmanager
    def _guard(self, sequence: Sequence) -> Iterator[None]:
        """Whatever goes wrong with one sequence ends that one alone."""
        try:
            yield
        except Exception as error:
            self._end_badly(sequence, error)

    def _admit(self, allowance: Allowance) -> None:
        """Moves waiting sequences into free slots, oldest first. One that waits for a certain
        slot, or for a prompt that is being computed anyway, lets others pass."""
        for sequence in list(self.waiting.values()):
            if not self._memory.num_free:
                return
            wanted = sequence.request.slot
            if not self._memory.free_slot_exists(wanted) or self._is_awaiting(sequence):
                continue
            with self._guard(sequence):
                if not self._memory.admit(sequence, allowance):
                    return
                del self.waiting[sequence.id]
                self.running[sequence.id] = sequence
                sequence.answer.start()
                for other in self.waiting.values():
                    self._find_fork(other, sequence)

    def _find_fork(self, sequence: Sequence, running: Sequence) -> None:
        """Lets a waiting sequence wait for the common beginning that a running one computes."""
        if running.is_decoding or running.is_held or sequence.id in self._awaited:
            return
        length = self._memory.fork(sequence, running)
        if length:
            self._awaited[sequence.id] = running, length
            self._memory.await_fork(running, length)

    def _is_awaiting(self, sequence: Sequence) -> bool:
        running, length = self._awaited.get(sequence.id, (None, 0))
        if running is None:
            return False
        is_coming = self.running.get(running.id) is running and not running.is_held
        if is_coming and not running.is_decoding and running.num_computed < length:
            return True
        del self._awaited[sequence.id]
        for other in self.running.values():  # another may have come further in common since then
            self._find_fork(sequence, other)
        return sequence.id in self._awaited

    def _order_pictures(self) -> None:
        if self._pictures is None:
            return
        for sequence in list(self.running.values()):
            with self._guard(sequence):
                self._pictures.order(sequence)

    def _end_long_held(self) -> None:
        now_s = self._clock()
        for request_id, since_s in list(self._held_since_s.items()):
            if now_s - since_s > MAX_HELD_S:
                error = RequestTimeout(f"nobody read the stream for {MAX_HELD_S:g} s")
                sequence = self.running[request_id]
                self._events.append(failed(request_id, error))
                self._memory.release(sequence)
                self._forget(sequence)

    # --- plan -----------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next step, or None if there is nothing to compute."""
        running = self.running.values()
        ready = [s for s in running if not s.is_held and self._memory.is_settled(s)]
        dear = [s for s in ready if self._is_dear(s, len(ready))]
        plan = None
        if len(dear) < len(ready):
            plan = self._planner.plan(self._situation(self._affordable(ready, dear)))
        if plan is None and dear:  # nobody else can go on
            plan = self._planner.plan(self._situation([self._next_dear(dear)]))
        return plan

    def _situation(self, sequences: list[Sequence]) -> Situation:
        return Situation(
            sequences=tuple(sequences),
            suspects=tuple(self._suspects),
            spent_ms=self._spent_ms,
            turn=self._turn,
            picture_first=self._picture_first,
        )

    def _affordable(self, ready: list[Sequence], dear: list[Sequence]) -> list[Sequence]:
        """Without those whose rows are dear, but for one, and that only once the time of the last
        one is paid: what a client asks for at each token is no reason for others to wait."""
        if not dear:
            return ready
        turn = self._next_dear(dear) if self._dear_debt_ms <= 0 else None
        return [s for s in ready if s is turn or s not in dear]

    def _next_dear(self, dear: list[Sequence]) -> Sequence:
        """The one that was not served for longest."""
        return min(dear, key=lambda s: self._dear_served.get(s.id, -1))

    def _is_dear(self, sequence: Sequence, num_sequences: int) -> bool:
        """Whether a row of logits costs more than a sequence's share of decoding. One that comes to
        its first row in the next step cannot be told when it asks for much."""
        row_ms = sequence.answer.row_ms
        if row_ms is not None:
            return row_ms > self._costs.decode_ms(num_sequences) / num_sequences
        return sequence.answer.is_unusual and sequence.num_pending <= self._costs.prefill_budget(0)

    def _pay(self, plan: Plan) -> float:
        """Takes note of what the dear rows of a step took, and returns it: it is nothing to learn
        the cost of decoding from."""
        self._num_steps += 1
        num_decoding = sum(chunk.sequence.is_decoding for chunk in plan.chunks)
        dear_ms = 0.0
        for chunk in plan.chunks:
            if chunk.num_outputs and self._is_dear(chunk.sequence, len(plan.chunks)):
                self._dear_served[chunk.sequence.id] = self._num_steps
                dear_ms += (chunk.sequence.answer.row_ms or 0.0) * chunk.num_outputs
        allowance_ms = self._costs.allowance_ms(num_decoding)
        self._dear_debt_ms = max(self._dear_debt_ms + dear_ms - allowance_ms, 0.0)
        return dear_ms

    # --- commit ---------------------------------------------------------------------------

    def commit(self, plan: Plan, result: StepResult, run_ms: float) -> None:
        """Records a step whose computing took `run_ms`."""
        self._turn += 1
        # Whoever decodes beside a picture goes on between its parts.
        self._picture_first = not isinstance(plan, PicturePlan)
        if result.outcome is not Outcome.OK:
            self._recover(plan, result.outcome)
            return
        num_decoding = sum(chunk.sequence.is_decoding for chunk in plan.chunks)
        begin_s = self._clock()
        for chunk, rows in zip(plan.chunks, result.rows, strict=True):
            with self._guard(chunk.sequence):
                self._record(chunk, rows, begin_s)
        ms = (self._clock() - begin_s) * 1e3 - self._pay(plan)
        self._costs.record_rows(sum(map(len, result.rows)), ms)
        self._costs.record_step(
            num_decoding, plan.num_decode_tokens, plan.num_prefill_tokens, run_ms + ms
        )
        if self._suspects:
            proven = {chunk.sequence.id for chunk in plan.chunks}
            self._suspects = [suspect for suspect in self._suspects if suspect not in proven]

    def _record(self, chunk: Chunk, rows: list[Row], now_s: float) -> None:
        """One sequence's part of a step."""
        sequence, answer = chunk.sequence, chunk.sequence.answer
        sequence.computed(chunk.num_computed - chunk.start)
        self._failures.pop(sequence.id, None)
        self._memory.computed(sequence)
        if sequence.request.return_progress and not sequence.is_decoding:
            self._events.append(self._progress(sequence, now_s))
        if not rows:
            return
        num_before = sequence.num_generated
        stop = answer.advance(sequence, chunk, rows)
        self.num_generated += sequence.num_generated - num_before
        self._follow(chunk)
        delta = answer.take_delta(sequence, now_s, is_last=stop is not None)
        if delta is not None:
            self._events.append(delta)
        if stop is not None:
            self._finish(sequence, stop, now_s)

    def _follow(self, chunk: Chunk) -> None:
        """The memory has to follow what became of a sequence's tokens: refused drafts go, and what
        a context shift dropped."""
        sequence, shift = chunk.sequence, chunk.sequence.answer.shift
        num_wanted = sequence.num_computed + (shift[1] if shift else 0)
        self.num_drafted += len(chunk.draft)
        self.num_accepted += num_wanted - chunk.num_computed
        if chunk.start + len(chunk.tokens) > num_wanted:
            self._memory.cut(sequence, num_wanted)
        if shift:
            self._memory.shift(sequence, *shift)

    def _finish(self, sequence: Sequence, stop: tuple[StopType, bool], now_s: float) -> None:
        self._events.append(sequence.answer.finished(sequence, stop, now_s))
        self._memory.release(sequence)
        self._forget(sequence)

    def _progress(self, sequence: Sequence, now_s: float) -> Progress:
        return Progress(
            id=sequence.id,
            total=sequence.num_prompt,
            cache=sequence.num_cached,
            processed=sequence.num_computed,
            time_ms=(now_s - sequence.answer.started_s) * 1e3,
        )

    def _recover(self, plan: Plan, outcome: Outcome) -> None:
        """A step failed. Every sequence of it is brought back and tried alone; one that fails
        alone again is the culprit, and only its request ends."""
        self._suspects = [chunk.sequence.id for chunk in plan.chunks]
        for chunk in plan.chunks:
            if outcome is Outcome.PARTIAL:
                self._memory.restart(chunk.sequence, chunk.start)
        if len(plan.chunks) > 1:
            return
        sequence = plan.chunks[0].sequence
        self._failures[sequence.id] = self._failures.get(sequence.id, 0) + 1
        if self._failures[sequence.id] >= MAX_FAILURES:
            log.error("request %s cannot be computed (%s)", sequence.id, outcome.name)
            error: SelfError = InternalError("the engine could not compute this request")
            if outcome is Outcome.UNCHANGED:
                error = OutOfMemory("the engine has no room for this request")
            self._end_badly(sequence, error)

    def _end_badly(self, sequence: Sequence, error: Exception) -> None:
        """Ends a request whose slot, if it has one, holds nobody knows what."""
        self._events.append(failed_by(sequence.id, error))
        if sequence.slot >= 0:
            self._memory.discard(sequence)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """The request is over, and its slot is free."""
        books: tuple[dict[str, Any], ...] = (
            *(self.running, self.waiting, self._awaited),
            *(self._held_since_s, self._failures, self._dear_served),
        )
        for book in books:
            book.pop(sequence.id, None)
        if sequence.id in self._suspects:
            self._suspects.remove(sequence.id)
        sequence.answer.close()
        if self._pictures is not None:
            self._pictures.forget(sequence)
