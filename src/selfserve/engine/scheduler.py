"""Who computes what in the next step, and what follows from the step before.

Rules of this file
    `schedule` decides, `commit` records; nothing else changes a running sequence.
    Containers keep their order: the same requests in the same order make the same batches.
    A request leaves only by one final event, or because nobody waits for it any more.

Theory of operation
    There is no prefill phase and no decode phase. Each sequence has tokens, and a number of them
    is computed; a step computes some of the difference. Sequences that generate come first, since
    somebody watches them; what is left of the step's budget goes to prompts (see `pace`). In turn
    the oldest prompt comes first, so that none waits for ever, and the shortest, so that none is
    stuck behind a long one. One prompt gets all it can use: libllama computes pieces of different
    lengths in several passes, each of which reads all weights.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from selfserve.engine.advance import Advancer
from selfserve.engine.constraint import ConstraintState
from selfserve.engine.gaps import GapCloser
from selfserve.engine.long_prompts import LongPrompts
from selfserve.engine.media import NO_MEDIA
from selfserve.engine.output import OutputStream
from selfserve.engine.pace import StepPace
from selfserve.engine.pictures import Pictures
from selfserve.engine.plan import Chunk, Outcome, Plan
from selfserve.engine.prefiller import Prefiller
from selfserve.engine.runner import Logits, Runner
from selfserve.engine.sequence import Sequence
from selfserve.engine.slots import SlotTable
from selfserve.engine.speculation import StepCosts
from selfserve.errors import InternalError, OutOfMemory, SelfError
from selfserve.logs import get_logger
from selfserve.request import Event, Failed, Progress, Request

log = get_logger("engine")

MAX_FAILURES = 2
"""Failed steps of one sequence alone after which the request fails."""
MIN_PIECE = 16
"""Tokens of a second prompt in one step, at least, unless they are all it needs."""


def failed(request_id: str, error: SelfError) -> Failed:
    """The final event of a request that ended in `error`."""
    return Failed(
        id=request_id,
        error=type(error).__name__,
        message=error.message,
        param=error.param,
        details=error.details,
    )


def _failed_by(request_id: str, error: Exception) -> Failed:
    """The final event of a request that an exception ended; only the log tells foreign ones."""
    if isinstance(error, SelfError):
        log.warning("request %s failed: %s", request_id, type(error).__name__)
        return failed(request_id, error)
    log.error("request %s failed", request_id, exc_info=error)
    return failed(request_id, InternalError("the engine failed while it computed this request"))


class Scheduler:
    """All requests that the engine has. Belongs to the engine's thread."""

    def __init__(
        self,
        runner: Runner,
        slots: SlotTable,
        pace: StepPace,
        *,
        costs: StepCosts | None = None,
        pictures: Pictures | None = None,
        prefiller: Prefiller | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`costs` are those of verifying drafts; None, or a memory that cannot be cut: no
        drafts. `pictures`: None for a model that takes text only. `prefiller`: None: long
        prompts are read by steps alone."""
        self._runner = runner
        self._capabilities = runner.capabilities
        self._pace = pace
        self._clock = clock
        self.slots = slots
        self.pictures = pictures
        self.long_prompts = LongPrompts(prefiller, slots, pace)
        self._had_picture = False
        """Whether the last step computed a picture."""
        if not runner.capabilities.can_cut:
            costs = None
        self.advancer = Advancer(runner, slots, costs=costs, clock=clock)
        self._gaps = GapCloser()
        self._is_oldest_turn = False
        self.waiting: deque[tuple[Sequence, ConstraintState | None]] = deque()
        self.running: dict[str, Sequence] = {}
        """By request id, oldest first."""
        self._suspects: deque[str] = deque()
        """Sequences of a failed step; each is tried alone until it proves good."""
        self._untold: list[Event] = []
        """Events that belong to no step, such as those of requests that could not be begun."""

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # --- arrivals and departures ----------------------------------------------------------

    def add(self, request: Request, constraint: ConstraintState | None = None) -> None:
        """Takes a request into the waiting queue. `constraint` is its compiled grammar."""
        media = NO_MEDIA
        try:
            if self.pictures is not None and request.pictures:
                request, media = self.pictures.expand(request)
            sequence = Sequence(
                request=request,
                media=media,
                prompt=np.array(request.prompt, dtype=np.int64),
                tokens=list(request.prompt),
                output=OutputStream(self._runner.vocabulary, request),
                arrived_s=self._clock(),
            )
        except Exception as error:
            self._untold.append(_failed_by(request.id, error))
        else:
            self.waiting.append((sequence, constraint))

    def take_untold(self) -> list[Event]:
        """What happened since the last call besides steps: requests that could not be begun,
        progress of prompts on the side."""
        taken, self._untold = self._untold, []
        return taken

    def abort(self, request_id: str) -> None:
        """Forgets a request; its slot is free at once. Unknown ids are ignored: the request may
        have ended while the abort was under way."""
        sequence = self.running.pop(request_id, None)
        if sequence is not None:
            self._close(sequence)
            self.slots.release(sequence)
            return
        for item in self.waiting:
            if item[0].id == request_id:
                self.waiting.remove(item)
                return

    def fail_all(self, error: SelfError) -> list[Event]:
        """Ends every request with `error`; slots are emptied, since their state is in doubt."""
        events: list[Event] = [failed(s.id, error) for s in self.running.values()]
        events += [failed(sequence.id, error) for sequence, _ in self.waiting]
        events += self.take_untold()
        for sequence in self.running.values():
            self._close(sequence)
            self.slots.discard(sequence)
        self.running.clear()
        self.waiting.clear()
        self._suspects.clear()
        return events

    # --- deciding -------------------------------------------------------------------------

    def schedule(self) -> Plan | None:
        """The next step, or None if there is nothing to compute."""
        self._advance_long_prompt()
        self._admit()
        self._close_gap()
        self.slots.step_begins()
        sequences = self._isolated() or list(self.running.values())
        kinds = [self._picture_step, self._text_step]
        if self._had_picture:  # whoever decodes beside a picture goes on between its parts
            kinds.reverse()
        for kind in kinds:
            plan = kind(sequences)
            if plan.chunks:
                self._had_picture = plan.chunks[0].picture is not None
                return plan.finish()
        return None

    def _text_step(self, sequences: list[Sequence]) -> Plan:
        plan = Plan()
        decoding = [s for s in sequences if s.is_decoding]
        for num_served, sequence in enumerate(decoding, start=1):
            # After a failed step a whole answer may have to be computed again.
            room = self._capabilities.batch_size - plan.num_tokens - (len(decoding) - num_served)
            count = min(sequence.num_pending, sequence.num_text_pending, room)
            if not self._pace.worth_a_pass(count, len(decoding)):
                count = min(count, 1)
            if count:
                self._add_chunk(plan, sequence, count)
        self._add_drafts(plan, decoding)
        self._share_prefill(plan, [s for s in sequences if not s.is_decoding])
        return plan

    def _picture_step(self, sequences: list[Sequence]) -> Plan:
        """The oldest sequence that has come to a picture whose embeddings are there."""
        plan = Plan()
        if self.pictures is None:
            return plan
        budget = self._pace.prefill_budget(sum(s.is_decoding for s in sequences))
        budget = min(budget, self._capabilities.batch_size)
        for sequence in sequences:
            try:
                rows = self.pictures.rows(sequence, budget) if sequence.media else None
            except SelfError as error:
                self._untold.append(self._end_badly(sequence, _failed_by(sequence.id, error)))
                continue
            if rows is not None:
                self._add_chunk(plan, sequence, len(rows.embeddings))
                plan.chunks[0].picture = rows
                break
        return plan

    def _isolated(self) -> list[Sequence]:
        """The first suspect alone, if a failed step left any."""
        while self._suspects:
            sequence = self.running.get(self._suspects[0])
            if sequence is not None:
                return [sequence]
            self._suspects.popleft()
        return []

    def _admit(self) -> None:
        """Moves waiting requests into free slots, oldest first. One that waits for a certain
        slot, or for a prompt that is being computed anyway, lets others pass."""
        for item in list(self.waiting):
            if not self.slots.num_free:
                return
            sequence, constraint = item
            if self.slots.free_slot_exists(sequence.request.slot) and not self._awaited(sequence):
                self.waiting.remove(item)
                self._begin(sequence, constraint)

    def _begin(self, sequence: Sequence, constraint: ConstraintState | None) -> None:
        """Gives a sequence a slot; whatever goes wrong with that is its own matter alone."""
        try:
            self.slots.attach(sequence)
            self.advancer.start(sequence, constraint)
        except Exception as error:
            self._close(sequence)
            if sequence.slot >= 0:
                self.slots.discard(sequence)
            self._untold.append(_failed_by(sequence.id, error))
        else:
            self.running[sequence.id] = sequence

    def _close_gap(self) -> None:
        move = self._gaps.next_move(self.running.values())
        if move is not None:
            self.slots.move(*move)

    def _awaited(self, sequence: Sequence) -> bool:
        """True while a running sequence computes a prompt that begins like this one."""
        return any(
            not other.is_decoding and self.slots.promise(sequence, other)
            for other in self.running.values()
        )

    def _advance_long_prompt(self) -> None:
        news = self.long_prompts.advance(self.running)
        if news is not None and news[0].request.return_progress:
            sequence, num_computed = news
            self._untold.append(self._progress(sequence, num_computed, self._clock()))

    def _share_prefill(self, plan: Plan, sequences: list[Sequence]) -> None:
        sequences = [s for s in sequences if not self.long_prompts.is_away(s)]
        if not sequences:
            return
        num_decoding = len(plan.chunks)
        budget = self._pace.prefill_budget(num_decoding, is_shared=self.long_prompts.is_busy)
        budget = min(budget, self._capabilities.batch_size - plan.num_tokens)
        self._is_oldest_turn = not self._is_oldest_turn
        if not self._is_oldest_turn:
            sequences = sorted(sequences, key=lambda s: s.num_pending)
        least = 1
        for sequence in sequences:
            if budget < least:
                return
            sequence.next_stop = self._stop_of(sequence)
            if num_decoding and self.long_prompts.try_send(sequence, budget):
                continue
            left = min(sequence.next_stop - sequence.num_computed, sequence.num_text_pending)
            count = min(left, budget)
            if count > 0 and (count == left or count >= least):
                self._add_chunk(plan, sequence, count)
                budget -= count
                least = MIN_PIECE

    def _stop_of(self, sequence: Sequence) -> int:
        """Where the next chunk of a prompt has to end."""
        stop = self.slots.next_stop(sequence)
        if self._capabilities.can_cut or not self.waiting:
            return stop
        # Whoever waits for this prompt can use a memory that cannot be cut only as it is exactly
        # where the two part.
        promises = [self.slots.promise(other, sequence) for other, _ in self.waiting]
        return min([stop, *(p for p in promises if p > sequence.num_computed)])

    def _add_chunk(self, plan: Plan, sequence: Sequence, count: int) -> None:
        start = sequence.num_computed
        ends = start + count == len(sequence.tokens)
        chunk = Chunk(
            sequence=sequence,
            slot=sequence.slot,
            start=start,
            tokens=sequence.tokens[start : start + count],
            num_outputs=1 if ends else 0,
        )
        plan.chunks.append(chunk)
        if sequence.is_decoding:
            plan.num_decode_tokens += count
        else:
            plan.num_prefill_tokens += count

    def _add_drafts(self, plan: Plan, decoding: list[Sequence]) -> None:
        """Guessed tokens are verified beside the decode tokens; see `speculation`. They get what
        the step's target leaves, the sequences in turn."""
        room = self._pace.draft_budget(len(decoding))
        num_outputs = len(plan.chunks)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if not chunk.num_outputs or not sequence.is_decoding:
                continue
            most = min(
                room,
                self._capabilities.max_outputs - num_outputs,
                self._capabilities.batch_size - plan.num_tokens,
                self._capabilities.context_size - len(sequence.tokens) - 1,
                sequence.num_left - 1,
            )
            chunk.draft = sequence.drafter.draft(most, others=plan.num_tokens - 1)
            count = len(chunk.draft)
            chunk.tokens = chunk.tokens + chunk.draft
            chunk.num_outputs += count
            plan.num_decode_tokens += count
            num_outputs += count
            room -= count

    # --- recording ------------------------------------------------------------------------

    def commit(self, plan: Plan, outcome: Outcome, ms: float) -> list[Event]:
        """Records a step that took `ms` and returns what is to be told about it."""
        if outcome is not Outcome.OK:
            return self._recover(plan, outcome)
        num_decoding = sum(chunk.sequence.is_decoding for chunk in plan.chunks)
        self._pace.record(num_decoding, plan.num_decode_tokens, plan.num_prefill_tokens, ms)
        num_outputs = sum(chunk.num_outputs for chunk in plan.chunks)
        logits = self._runner.logits(num_outputs) if num_outputs else None
        events: list[Event] = []
        now_s = self._clock()
        for chunk in plan.chunks:
            try:
                self._record(chunk, logits, now_s, events)
            except Exception as error:  # of one sequence; the others' events must get out
                events.append(self._end_badly(chunk.sequence, _failed_by(chunk.sequence.id, error)))
        if self._suspects and plan.chunks[0].sequence.id == self._suspects[0]:
            self._suspects.popleft()
        return events

    def _record(
        self, chunk: Chunk, logits: Logits | None, now_s: float, events: list[Event]
    ) -> None:
        """One sequence's part of a step; adds to `events` what is to be told about it."""
        sequence = chunk.sequence
        sequence.num_computed = chunk.num_computed
        sequence.num_failures = 0
        self.slots.computed(sequence)
        if sequence.request.return_progress and not sequence.is_decoding:
            events.append(self._progress(sequence, sequence.num_computed, now_s))
        if logits is None or not chunk.num_outputs:
            return
        rows = logits[chunk.first_output : chunk.first_output + chunk.num_outputs]
        new, has_finished = self.advancer.advance(chunk, rows)
        if has_finished:
            self.slots.release(sequence)
            del self.running[sequence.id]
            self._close(sequence)
        events += new

    def _progress(self, sequence: Sequence, num_computed: int, now_s: float) -> Progress:
        return Progress(
            id=sequence.id,
            total=sequence.num_prompt,
            cache=sequence.num_cached,
            processed=num_computed,
            time_ms=(now_s - sequence.started_s) * 1e3,
        )

    def _recover(self, plan: Plan, outcome: Outcome) -> list[Event]:
        """A step failed. Every sequence of it is brought back and tried alone; one that fails
        alone again is the culprit, and only its request ends."""
        events: list[Event] = []
        self._suspects.clear()
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if outcome is Outcome.PARTIAL:
                self.slots.restart(sequence, chunk.start)
            if len(plan.chunks) > 1:
                self._suspects.append(sequence.id)
                continue
            sequence.num_failures += 1
            self._suspects.append(sequence.id)
            if sequence.num_failures >= MAX_FAILURES:
                events.append(self._give_up(sequence, outcome))
        return events

    def _give_up(self, sequence: Sequence, outcome: Outcome) -> Event:
        log.error("request %s cannot be computed (%s)", sequence.id, outcome.name)
        error: SelfError = InternalError("the engine could not compute this request")
        if outcome is Outcome.UNCHANGED:
            error = OutOfMemory("the engine has no room for this request")
        return self._end_badly(sequence, failed(sequence.id, error))

    def _end_badly(self, sequence: Sequence, event: Event) -> Event:
        """Ends a request whose slot holds nobody knows what."""
        self.running.pop(sequence.id, None)
        self._close(sequence)
        self.slots.discard(sequence)
        return event

    def _close(self, sequence: Sequence) -> None:
        if sequence.chooser is not None:
            sequence.chooser.close()
            sequence.chooser = None
        self.long_prompts.forget(sequence)
        if self.pictures is not None:
            self.pictures.forget(sequence)
