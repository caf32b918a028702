"""What the scheduler does about prompts that are long while somebody is decoding.

Theory of operation
    A piece of a prompt that fits beside decoding is small, and small pieces are dear: each is a
    pass over the weights, and libllama's attention has a fast way only for 64 tokens or more of
    one sequence. So a long prompt leaves the steps: a side thread reads it in pieces as large as
    those of a prompt alone, in a memory of its own, and takes turns with the steps after every few
    operations instead of after every piece. What it computed comes back into the sequence's slot,
    and the steps go on from there. Measured with SmolLM2 Q4_0 on two cores, 2,000 tokens beside
    one stream take about 1.3 times as long as alone, in pieces beside decoding 2.7 times.
"""

from __future__ import annotations

from collections.abc import Mapping

from selfserve.engine.pace import StepPace
from selfserve.engine.prefiller import Job, Prefiller
from selfserve.engine.sequence import Sequence
from selfserve.engine.slots import SlotTable

MIN_TOKENS = 256
"""Shorter prompts are read faster in pieces: 16 of 100 tokens on 8 slots gave 227 tokens a second
that way and 190 when each left the steps."""
MIN_STEPS = 2
"""Steps that a prompt must need before it is worth copying its memory twice."""


class LongPrompts:
    """The prompt that is being read by the side thread, if any. Belongs to the engine's thread."""

    def __init__(self, prefiller: Prefiller | None, slots: SlotTable, pace: StepPace) -> None:
        """`prefiller`: None where prompts never leave the steps."""
        self._prefiller = prefiller
        self._slots = slots
        self._pace = pace
        self.num_tokens = 0
        """Computed on the side so far."""
        self._told = 0
        """Tokens of the job's prompt that were computed at the last call of `advance`."""

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    @property
    def _job(self) -> Job | None:
        return self._prefiller.job if self._prefiller is not None else None

    def is_away(self, sequence: Sequence) -> bool:
        """Whether the sequence's prompt is being read on the side, so that no step may touch it."""
        job = self._job
        return job is not None and job.request_id == sequence.id and not job.is_cancelled

    def try_send(self, sequence: Sequence, budget: int) -> bool:
        """Sends a sequence to the side if that is free and its prompt is worth it; `budget` is
        what a step would take of it. Its `next_stop` must be set."""
        prefiller = self._prefiller
        if prefiller is None or prefiller.job is not None or prefiller.is_broken:
            return False
        # The last token is computed by a step, whose logits choose the first token of the answer.
        end = min(sequence.next_stop, sequence.num_prompt - 1)
        count = end - sequence.num_computed
        if count < max(MIN_TOKENS, MIN_STEPS * budget) or sequence.media or sequence.stays:
            return False
        start = sequence.num_computed
        blob = None
        if start and not prefiller.holds(sequence.id, start):
            blob = prefiller.copy_slot(sequence.slot)
            if blob is None:
                return False
        piece = self._pace.prefill_budget(0)
        tokens = sequence.tokens[start:end]
        prefiller.begin(Job(sequence.id, tokens, start, piece, blob, sequence.num_prompt))
        return True

    def advance(self, running: Mapping[str, Sequence]) -> tuple[Sequence, int] | None:
        """Brings what the side has read back into its slot, if it is done. Returns the sequence
        that came further since the last call, and how many of its tokens are computed."""
        job = self._job
        if self._prefiller is None or job is None:
            return None
        is_done = self._prefiller.collect() is not None
        has_news = job.num_computed > self._told
        self._told = 0 if is_done else job.num_computed
        sequence = None if job.is_cancelled else running.get(job.request_id)
        if sequence is None:
            return None
        if is_done:
            self._bring_back(sequence, job)
        return (sequence, job.num_computed) if has_news else None

    def _bring_back(self, sequence: Sequence, job: Job) -> None:
        if job.result is None or not self._slots.take_over(sequence, job.end, job.result):
            sequence.stays = True
        else:
            self.num_tokens += job.end - job.start

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if self._prefiller is not None and self.is_away(sequence):
            self._prefiller.cancel()

    def close(self) -> None:
        """Ends the side thread; blocks until it is."""
        if self._prefiller is not None:
            self._prefiller.close()
