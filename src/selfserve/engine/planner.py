"""Which tokens the next step computes. Reads, and changes nothing.

Theory of operation
    There is no prefill phase and no decode phase. Each sequence has tokens, and a number of them
    is computed; a step computes some of the difference. Sequences that generate come first, since
    somebody watches them; what is left of the step's allowance goes to prompts (see `costs`). In
    turn the oldest prompt comes first, so that none waits for ever, and the shortest, so that none
    is stuck behind a long one. One prompt gets all it can use: libllama computes pieces of
    different lengths in several passes, each of which reads all weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from selfserve.engine.costs import MIN_PREFILL, Costs
from selfserve.engine.memory import PromptMemory
from selfserve.engine.pictures import Pictures
from selfserve.engine.plan import Chunk, PicturePlan, Plan, TextPlan
from selfserve.engine.runner import Capabilities
from selfserve.engine.sequence import Sequence

MIN_PIECE = 16
"""Tokens of a second prompt in one step, at least, unless they are all it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a plan depends on besides costs and memory."""

    sequences: tuple[Sequence, ...]
    """Those that may be computed, oldest first."""
    suspects: tuple[str, ...] = ()
    """Ids of the sequences of a failed step: each is tried alone until it proves good."""
    spent_ms: float = 0.0
    """What memory operations took of this step's allowance."""
    turn: int = 0
    """Number of the step. Those of whom a step has no room for all take turns by it."""
    picture_first: bool = True
    """Whether a picture may be computed before those who decode beside it go on."""


@dataclass(slots=True)
class Draft:
    """A text plan in the making: what is left of the step's room."""

    room: int
    chunks: list[Chunk] = field(default_factory=list)
    num_outputs: int = 0
    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0

    def add(self, sequence: Sequence, count: int, guess: list[int] | None = None) -> None:
        """Takes the next `count` tokens of a sequence, and guesses that follow its last one."""
        start, guess = sequence.num_computed, guess or []
        ends = start + count == len(sequence.tokens)
        chunk = Chunk(
            sequence=sequence,
            slot=sequence.slot,
            start=start,
            tokens=[*sequence.tokens[start : start + count], *guess],
            draft=guess,
            num_outputs=1 + len(guess) if ends else 0,
        )
        self.chunks.append(chunk)
        self.room -= len(chunk.tokens)
        self.num_outputs += chunk.num_outputs
        if sequence.is_decoding:
            self.num_decode_tokens += len(chunk.tokens)
        else:
            self.num_prefill_tokens += len(chunk.tokens)

    def finished(self) -> TextPlan | None:
        if not self.chunks:
            return None
        return TextPlan(
            chunks=tuple(sorted(self.chunks, key=lambda chunk: chunk.slot)),
            num_decode_tokens=self.num_decode_tokens,
            num_prefill_tokens=self.num_prefill_tokens,
        )


class Planner:
    """Makes plans out of situations."""

    def __init__(
        self,
        capabilities: Capabilities,
        costs: Costs,
        memory: PromptMemory,
        pictures: Pictures | None,
    ) -> None:
        self._capabilities = capabilities
        self._costs = costs
        self._memory = memory
        self._pictures = pictures

    def plan(self, situation: Situation) -> Plan | None:
        """The next step; None if nothing can be computed."""
        suspects = [s for s in situation.sequences if s.id in situation.suspects]
        others = [s for s in situation.sequences if s.id not in situation.suspects]
        for suspect in suspects:  # one that waits for a picture keeps nobody from going on
            plan = self._plan([suspect], situation)
            if plan is not None:
                return plan
        return self._plan(others, situation)

    def _plan(self, sequences: list[Sequence], situation: Situation) -> Plan | None:
        if situation.picture_first:
            return self._picture_step(sequences, situation) or self._text_step(sequences, situation)
        return self._text_step(sequences, situation) or self._picture_step(sequences, situation)

    def _picture_step(self, sequences: list[Sequence], situation: Situation) -> PicturePlan | None:
        """The oldest sequence that has come to a picture whose embeddings are there."""
        if self._pictures is None:
            return None
        budget = self._costs.prefill_budget(
            sum(s.is_decoding for s in sequences), situation.spent_ms
        )
        for sequence in sequences:
            rows = self._pictures.rows(sequence, min(budget, self._capabilities.batch_size))
            if rows is not None:
                draft = Draft(room=self._capabilities.batch_size)
                draft.add(sequence, len(rows.embeddings))
                return PicturePlan(chunk=draft.chunks[0], rows=rows)
        return None

    def _text_step(self, sequences: list[Sequence], situation: Situation) -> TextPlan | None:
        draft = Draft(room=self._capabilities.batch_size)
        decoding = [s for s in sequences if s.is_decoding]
        prompts = [s for s in sequences if not s.is_decoding]
        room = draft.room - min(MIN_PREFILL, draft.room // 2) * bool(prompts)
        if len(decoding) > room:
            first = situation.turn * room % len(decoding)
            decoding = [*decoding[first:], *decoding[:first]][:room]
        self._add_decoding(draft, decoding)
        self._add_prompts(draft, prompts, len(decoding), situation)
        return draft.finished()

    def _add_decoding(self, draft: Draft, decoding: list[Sequence]) -> None:
        num_decoding = len(decoding)
        tokens_left = self._costs.draft_budget(num_decoding)
        for index, sequence in enumerate(decoding):
            num_waiting = len(decoding) - index - 1
            # After a failed step a whole answer may have to be computed again.
            count = min(sequence.num_pending, sequence.num_text_pending, draft.room - num_waiting)
            if count > 1 and not self._costs.worth_a_pass(count, num_decoding):
                count = 1
            if count <= 0:
                continue
            guess: list[int] = []
            if count == sequence.num_pending:
                guess = self._guess(draft, sequence, count, num_waiting, tokens_left)
                tokens_left -= len(guess)
            draft.add(sequence, count, guess)

    def _guess(
        self, draft: Draft, sequence: Sequence, count: int, num_waiting: int, most: int
    ) -> list[int]:
        """Guessed tokens to be verified beside the decode tokens; see `speculation`. They get what
        the step's target leaves, the sequences in turn."""
        limits = self._capabilities
        most = min(
            most,
            limits.max_outputs - draft.num_outputs - num_waiting - 1,
            draft.room - num_waiting - count,
            limits.context_size - len(sequence.tokens) - 1,
            sequence.num_left - 1,
        )
        drafter = sequence.answer.drafter
        if drafter is None:
            return []
        return drafter.draft(most, others=draft.num_decode_tokens + num_waiting)

    def _add_prompts(
        self, draft: Draft, prompts: list[Sequence], num_decoding: int, situation: Situation
    ) -> None:
        if not prompts:
            return
        budget = self._costs.prefill_budget(num_decoding, situation.spent_ms)
        budget = min(budget, draft.room)
        order: Iterable[Sequence] = prompts
        if situation.turn % 2:
            order = sorted(prompts, key=lambda s: s.num_pending)
        least = 1
        for sequence in order:
            if budget < 1:
                return
            left = min(
                self._memory.next_stop(sequence) - sequence.num_computed, sequence.num_text_pending
            )
            count = min(left, budget)
            if count > 0 and (count == left or count >= least):
                draft.add(sequence, count)
                # Beside decoding each further piece is paid for with its pass over the weights.
                budget -= count + (self._costs.pass_tokens if num_decoding else 0)
                least = MIN_PIECE
