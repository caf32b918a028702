"""What one step's logits mean for a sequence: its next tokens, their text, its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from selfserve.engine.choice import TokenChooser
from selfserve.engine.constraint import ConstraintState
from selfserve.engine.plan import Chunk
from selfserve.engine.runner import Logits, Runner
from selfserve.engine.sequence import Sequence
from selfserve.engine.slots import SlotTable
from selfserve.engine.speculation import MAX_DRAFT, LookupDrafter, StepCosts
from selfserve.request import Event, Finished, StopType

Stop = tuple[StopType, bool]
"""Why a sequence ends, and whether its text was cut off by the end of the context."""


class Advancer:
    """Appends chosen tokens to sequences and decides when they end."""

    def __init__(
        self,
        runner: Runner,
        slots: SlotTable,
        *,
        costs: StepCosts | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`costs` are those of decoding drafts; None: no drafts."""
        self._runner = runner
        self._costs = costs
        self._vocabulary = runner.vocabulary
        self._context_size = runner.capabilities.context_size
        self._slots = slots
        self._clock = clock

    def start(self, sequence: Sequence, constraint: ConstraintState | None) -> None:
        """The sequence has a slot: makes what chooses its tokens."""
        request = sequence.request
        text = request.prompt
        if sequence.media:
            text = tuple(token for token in text if token >= 0)
        sampler = self._runner.sampler(request.sampling, text)
        sequence.chooser = TokenChooser(self._vocabulary, request, sampler, constraint)
        if self._costs is not None:
            sequence.drafter = LookupDrafter(request.prompt, max_draft=MAX_DRAFT, costs=self._costs)
        sequence.started_s = self._clock()

    def advance(self, chunk: Chunk, rows: Logits) -> tuple[list[Event], bool]:
        """Chooses from logits of shape (chunk.num_outputs, n_vocab). Returns the events, and
        whether the sequence has finished. Raises RequestError if it cannot go on."""
        sequence = chunk.sequence
        stop = self._stop_before(sequence)
        if stop is None:
            stop = self._choose(chunk, rows)
        if stop is None:
            stop = self._make_room(sequence)
        if stop is not None:
            sequence.output.finish()
            if sequence.output.stopping_word:
                stop = StopType.WORD, False
        now_s = self._clock()
        events: list[Event] = []
        delta = sequence.take_delta(now_s, is_last=stop is not None)
        if delta is not None:
            events.append(delta)
        if stop is not None:
            events.append(self._finished(sequence, stop, now_s))
        return events, stop is not None

    def _stop_before(self, sequence: Sequence) -> Stop | None:
        """A request for no tokens at all ends when its prompt is computed."""
        if sequence.request.max_tokens == 0:
            return StopType.LIMIT, False
        return None

    def _choose(self, chunk: Chunk, rows: Logits) -> Stop | None:
        """Takes tokens for as long as they confirm the draft; the first that does not is the
        last one. What the draft guessed wrong is dropped from memory."""
        sequence = chunk.sequence
        num_draft, num_accepted = len(chunk.draft), 0
        stop: Stop | None = None
        for i in range(num_draft + 1):
            token, stop = self._choose_one(sequence, rows[i], chunk.first_row + i)
            if stop is not None or i == num_draft or token != chunk.draft[i]:
                break
            if sequence.num_pending > 1:  # tokens were written beside the chosen one
                break
            num_accepted += 1
            sequence.num_computed += 1
        if num_draft:
            sequence.drafter.record(num_draft, num_accepted)
            if not self._slots.cut(sequence, sequence.num_computed):
                self._slots.restart(sequence, 0)
        return stop

    def _choose_one(self, sequence: Sequence, logits: Logits, row: int) -> tuple[int, Stop | None]:
        """One token from one row of logits, and the tokens that follow from it without asking
        the model."""
        assert sequence.chooser is not None
        constrained = not sequence.output.in_reasoning
        token, probs = sequence.chooser.choose(logits, row, constrained=constrained)
        if probs is not None:
            sequence.probs.append(probs)
        stop = self._append(sequence, token)
        if stop is None and sequence.output.closing_due:
            stop = self._close_reasoning(sequence)
        elif stop is None and constrained:
            stop = self._append_forced(sequence)
        return token, stop

    def _append_forced(self, sequence: Sequence) -> Stop | None:
        """Where the grammar leaves one way, goes it; where it leaves none, ends."""
        chooser = sequence.chooser
        assert chooser is not None
        if chooser.constraint is None:
            return None
        if chooser.constraint.must_stop:
            return StopType.EOS, False
        if sequence.request.n_probs:
            return None  # tokens that nobody sampled have no probabilities to show
        # The context may be full before the forced text ends.
        room = self._context_size - len(sequence.tokens)
        for token in chooser.constraint.forced_tokens()[:room]:
            chooser.accept(token, constrained=True)
            stop = self._append(sequence, token)
            if stop is not None:
                return stop
        return (StopType.EOS, False) if chooser.constraint.must_stop else None

    def _append(self, sequence: Sequence, token: int) -> Stop | None:
        request = sequence.request
        if sequence.num_generated == 0:
            sequence.first_token_s = self._clock()
        sequence.append(token)
        output = sequence.output
        if token in self._vocabulary.eog_ids and not request.sampling.ignore_eos:
            return StopType.EOS, False
        output.push(token)
        if output.stopping_word:
            return StopType.WORD, False
        if output.is_dedented or sequence.num_left <= 0:
            return StopType.LIMIT, False
        if request.time_limit_ms:
            spent_ms = (self._clock() - sequence.first_token_s) * 1e3
            if spent_ms > request.time_limit_ms:
                return StopType.LIMIT, False
        return None

    def _close_reasoning(self, sequence: Sequence) -> Stop | None:
        """The thinking budget is used up: writes the end marker in the model's place."""
        assert sequence.chooser is not None
        assert sequence.request.reasoning is not None
        for token in sequence.request.reasoning.closing_ids:
            sequence.chooser.accept(token, constrained=False)
            stop = self._append(sequence, token)
            if stop is not None:
                return stop
        return None

    def _make_room(self, sequence: Sequence) -> Stop | None:
        """Ends or shifts a sequence that has filled its context."""
        if len(sequence.tokens) < self._context_size:
            return None
        request = sequence.request
        if request.n_keep is None or sequence.media:  # half a picture would be no picture
            return StopType.LIMIT, True
        keep = sequence.num_prompt if request.n_keep < 0 else request.n_keep
        keep = min(keep + self._vocabulary.add_bos, self._context_size - 4)
        drop = (len(sequence.tokens) - keep) // 2
        if not self._slots.shift(sequence, keep, drop):
            return StopType.LIMIT, True
        del sequence.tokens[keep : keep + drop]
        sequence.num_computed -= drop
        sequence.num_shifted += drop
        return None

    def _finished(self, sequence: Sequence, stop: Stop, now_s: float) -> Finished:
        stop_type, truncated = stop
        return Finished(
            id=sequence.id,
            stop_type=stop_type,
            stopping_word=sequence.output.stopping_word,
            truncated=truncated or sequence.num_shifted > 0,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached,
            completion_tokens=sequence.num_generated,
            reasoning_tokens=sequence.output.num_reasoning_tokens,
            slot=sequence.slot,
            timings=sequence.timings(now_s),
        )
