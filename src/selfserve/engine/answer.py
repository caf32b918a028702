"""What a sequence says: its next tokens, their text, and its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from selfserve.engine.choice import TokenChooser
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Chunk, Row
from selfserve.engine.speculation import LookupDrafter
from selfserve.limits import MAX_SHIFTED_CONTEXTS
from selfserve.request import (
    Delta,
    Finished,
    Request,
    StopType,
    Timings,
    TokenProbs,
)
from selfserve.sampling import DEFAULT_SAMPLERS
from selfserve.text.detokenizer import Detokenizer
from selfserve.text.indentation import IndentationGuard
from selfserve.text.reasoning import ReasoningSplitter
from selfserve.text.stop import StopMatcher

if TYPE_CHECKING:
    from selfserve.engine.sequence import Sequence

MAX_FORCED = 256
"""Tokens of forced text that one row brings: writing one takes some microseconds."""

Stop = tuple[StopType, bool]
"""Why a sequence ends, and whether its text was cut off by the end of the context."""


class OutputText:
    """Tokens to text: pieces, characters, reasoning, stop strings, in this order.

    Stop strings act on content, never on reasoning. `stopping_word` and `is_dedented` tell, after
    a push, that the text came to its end; what was pushed after that is ignored.
    """

    def __init__(self, vocabulary: Vocabulary, request: Request) -> None:
        spec = request.reasoning
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer()
        self._splitter = ReasoningSplitter(spec) if spec is not None else None
        self._hidden_ids = frozenset(spec.hidden_ids) if spec is not None else frozenset()
        self._stop = StopMatcher(request.stop)
        self._indentation = IndentationGuard(request.n_indent) if request.n_indent > 0 else None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._num_read = 0
        self.num_given = 0
        """Characters of content that are certain."""
        self.stopping_word = ""
        self.is_dedented = False

    @property
    def in_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.in_reasoning

    @property
    def num_reasoning_tokens(self) -> int:
        return self._splitter.num_reasoning_tokens if self._splitter is not None else 0

    @property
    def closing_due(self) -> bool:
        """The thinking budget is used up: the engine has to write the end marker now."""
        if self._splitter is None or self._detokenizer.is_pending:
            return False  # not in the middle of a character
        return self._splitter.closing_due

    @property
    def has_ended(self) -> bool:
        return bool(self.stopping_word) or self.is_dedented

    @property
    def end(self) -> int:
        """Characters of content up to the end of the last token, held back or not."""
        return self._num_read + self._detokenizer.is_pending

    def push(self, token_id: int) -> None:
        piece = self._vocabulary.piece(token_id, special=token_id in self._hidden_ids)
        text = self._detokenizer.push(piece)
        if self._splitter is None:
            self._push_content(text)
            return
        split = self._splitter.push(token_id, text)
        if split.reasoning:
            self._reasoning.append(split.reasoning)
        self._push_content(split.content)

    def finish(self) -> None:
        """The generation ended by itself: what was held back is text after all."""
        if self.has_ended:
            return
        text = self._detokenizer.flush()
        if self._splitter is not None:
            # Not a token of its own: the end of a character that the last tokens began.
            split, rest = self._splitter.push(-1, text), self._splitter.flush()
            self._reasoning.append(split.reasoning + rest.reasoning)
            text = split.content + rest.content
        self._push_content(text)
        if not self.has_ended:
            self._give(self._stop.flush())
        if self._indentation is not None and not self.has_ended:
            self._keep(self._indentation.flush())

    def take(self) -> tuple[str, str]:
        """(content, reasoning) that became certain since the last call."""
        if not (self._content or self._reasoning):
            return "", ""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        self._content.clear()
        self._reasoning.clear()
        return content, reasoning

    def _push_content(self, text: str) -> None:
        if not text or self.has_ended:
            return
        self._num_read += len(text)
        result = self._stop.push(text)
        self._give(result.text)
        if result.matched is not None and not self.is_dedented:
            self._end_at(result.matched)

    def _end_at(self, stopping_word: str) -> None:
        """A stop string was found; blanks that stood right before it are text."""
        self.stopping_word = stopping_word
        if self._indentation is not None:
            self._keep(self._indentation.flush())

    def _give(self, text: str) -> None:
        if text and self._indentation is not None:
            text = self._indentation.push(text)
            self.is_dedented = self._indentation.is_dedented
        self._keep(text)

    def _keep(self, text: str) -> None:
        if text:
            self._content.append(text)
            self.num_given += len(text)


class Answer:
    """Appends chosen tokens to a sequence and decides when it ends. Close it."""

    def __init__(
        self,
        request: Request,
        vocabulary: Vocabulary,
        chooser: TokenChooser,
        *,
        context_size: int,
        drafter: LookupDrafter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Owns `chooser`. `drafter`: None: no drafts."""
        self._request = request
        self._vocabulary = vocabulary
        self._chooser = chooser
        self._context_size = context_size
        self.drafter = drafter
        self._clock = clock
        self._text = OutputText(vocabulary, request)
        self.started_s = 0.0
        self._first_token_s = 0.0
        self._forced: deque[int] = deque()
        """Tokens that the grammar leaves no choice about, not written yet."""
        self._unsent_tokens: list[int] = []
        self._unsent_probs: deque[tuple[int, TokenProbs]] = deque()
        """With the place in the text at which the token ends."""
        sampling = request.sampling
        self.is_unusual = len(sampling.samplers) > len(DEFAULT_SAMPLERS) or request.n_probs > 0
        """Whether what a row costs cannot be told from what others cost."""
        self.row_ms: float | None = None
        """What one row of logits costs, the choice and what follows from it; None: not known."""
        self.shift: tuple[int, int] | None = None
        """Tokens kept and dropped by the context shift of the last `advance`, if there was one:
        the memory has to follow."""

    def start(self) -> None:
        """The sequence has a slot."""
        self.started_s = self._clock()

    def close(self) -> None:
        """Frees the sampler."""
        self._chooser.close()

    # --- tokens ---------------------------------------------------------------------------

    def advance(self, sequence: Sequence, chunk: Chunk, rows: list[Row]) -> Stop | None:
        """Chooses from the rows of logits that a step of this sequence gave. Returns why it ends,
        if it does. Raises InvalidRequest if it cannot go on."""
        begin_s = self._clock()
        try:
            return self._advance(sequence, chunk, rows)
        finally:
            ms = (self._clock() - begin_s) * 1e3 / len(rows)
            self.row_ms = ms if self.row_ms is None else (self.row_ms + ms) / 2

    def _advance(self, sequence: Sequence, chunk: Chunk, rows: list[Row]) -> Stop | None:
        self.shift = None
        stop: Stop | None = None
        if self._request.max_tokens == 0:
            stop = StopType.LIMIT, False
        if stop is None:  # text that the grammar forced may have filled the context
            stop = self._make_room(sequence)
        if stop is None:
            stop = self._choose(sequence, chunk.draft, rows)
        if stop is None:
            stop = self._make_room(sequence)
        if stop is not None:
            self._text.finish()
            if self._text.stopping_word:
                stop = StopType.WORD, False
        return stop

    def _choose(self, sequence: Sequence, draft: list[int], rows: list[Row]) -> Stop | None:
        """Takes tokens for as long as they confirm the draft; the first that does not is the
        last one."""
        num_accepted = 0
        stop: Stop | None = None
        for i, row in enumerate(rows):
            token, stop = self._choose_one(sequence, row)
            if stop is not None or i == len(draft) or token != draft[i]:
                break
            if sequence.num_pending > 1:  # tokens were written beside the chosen one
                break
            num_accepted += 1
            sequence.computed(1)
        if draft and self.drafter is not None:
            self.drafter.record(len(draft), num_accepted)
        return stop

    def _choose_one(self, sequence: Sequence, row: Row) -> tuple[int, Stop | None]:
        """One token from one row, and the tokens that follow from it without asking the model."""
        constrained = not self._text.in_reasoning
        if self._forced:  # what is certain goes on, whatever the row says
            token = self._forced[0]
            return token, self._write_forced(sequence)
        token, probs = self._chooser.choose(row, constrained=constrained)
        stop = self._append(sequence, token)
        if probs is not None:
            self._unsent_probs.append((self._text.end, probs))
        if stop is None and self._text.closing_due:
            stop = self._close_reasoning(sequence)
        elif stop is None and constrained:
            stop = self._append_forced(sequence)
        return token, stop

    def _append_forced(self, sequence: Sequence) -> Stop | None:
        """Where the grammar leaves one way, goes it; where it leaves none, ends."""
        chooser = self._chooser
        if chooser.constraint is None:
            return None
        if chooser.constraint.must_stop:
            return StopType.EOS, False
        if self._request.n_probs:
            return None  # tokens that nobody sampled have no probabilities to show
        self._forced.extend(chooser.forced_tokens())
        return self._write_forced(sequence)

    def _write_forced(self, sequence: Sequence) -> Stop | None:
        """Writes a piece of the forced text: as much as the context has room for, and no more than
        others can wait for."""
        chooser = self._chooser
        assert chooser.constraint is not None
        room = self._context_size - len(sequence.tokens)
        for _ in range(min(room, MAX_FORCED, len(self._forced))):
            token = self._forced.popleft()
            chooser.accept(token, constrained=True)
            stop = self._append(sequence, token)
            if stop is not None:
                return stop
        return (StopType.EOS, False) if chooser.constraint.must_stop else None

    def _append(self, sequence: Sequence, token: int) -> Stop | None:
        request = self._request
        if sequence.num_generated == 0:
            self._first_token_s = self._clock()
        sequence.append(token)
        self._unsent_tokens.append(token)
        if self.drafter is not None:
            self.drafter.append(token)
        if token in self._vocabulary.eog_ids and not request.sampling.ignore_eos:
            return StopType.EOS, False
        self._text.push(token)
        if self._text.stopping_word:
            return StopType.WORD, False
        if self._text.is_dedented or sequence.num_left <= 0:
            return StopType.LIMIT, False
        if request.time_limit_ms:
            spent_ms = (self._clock() - self._first_token_s) * 1e3
            if spent_ms > request.time_limit_ms:
                return StopType.LIMIT, False
        return None

    def _close_reasoning(self, sequence: Sequence) -> Stop | None:
        """The thinking budget is used up: writes the end marker in the model's place."""
        assert self._request.reasoning is not None
        for token in self._request.reasoning.closing_ids:
            self._chooser.accept(token, constrained=False)
            stop = self._append(sequence, token)
            if stop is not None:
                return stop
        return None

    def _make_room(self, sequence: Sequence) -> Stop | None:
        """Ends or shifts a sequence that has filled its context."""
        size = len(sequence.tokens)
        if size < self._context_size:
            return None
        request = self._request
        if request.n_keep is None or sequence.media:  # half a picture would be no picture
            return StopType.LIMIT, True
        if sequence.num_shifted + size >= MAX_SHIFTED_CONTEXTS * self._context_size:
            return StopType.LIMIT, True
        if sequence.num_pending > 1:
            return None  # forced text, which still fits; only what is computed can be shifted
        keep = sequence.num_prompt if request.n_keep < 0 else request.n_keep
        keep = min(keep + self._vocabulary.add_bos, self._context_size - 4)
        self.shift = keep, min((size - keep) // 2, sequence.num_computed - keep)
        sequence.drop(*self.shift)
        return None

    # --- what is told ---------------------------------------------------------------------

    def take_delta(self, sequence: Sequence, now_s: float, *, is_last: bool) -> Delta | None:
        """The text that became certain since the last call, if there is anything to tell. The last
        one also carries tokens without text, such as the end token or those of a stop string."""
        content, reasoning = self._text.take()
        probs = self._take_probs()
        if not (content or reasoning or probs or (is_last and self._unsent_tokens)):
            return None
        delta = Delta(
            id=self._request.id,
            content=content,
            reasoning=reasoning,
            tokens=tuple(self._unsent_tokens),
            probs=probs,
            timings=self.timings(sequence, now_s) if self._request.timings_per_token else None,
        )
        self._unsent_tokens.clear()
        return delta

    def _take_probs(self) -> tuple[TokenProbs, ...]:
        """Those of tokens whose text is certain; a stop string cuts them as it cuts the text."""
        unsent, taken = self._unsent_probs, []
        while unsent and unsent[0][0] <= self._text.num_given:
            taken.append(unsent.popleft()[1])
        return tuple(taken)

    def timings(self, sequence: Sequence, now_s: float) -> Timings:
        """Counts and times up to `now_s`; the queue's time is not part of the prompt's."""
        first_s = self._first_token_s or now_s
        return Timings(
            cache_n=sequence.num_cached,
            prompt_n=sequence.num_prompt - sequence.num_cached,
            prompt_ms=(first_s - self.started_s) * 1e3,
            predicted_n=sequence.num_generated,
            predicted_ms=(now_s - first_s) * 1e3,
            draft_n=self.drafter.num_drafted if self.drafter else 0,
            draft_n_accepted=self.drafter.num_accepted if self.drafter else 0,
        )

    def finished(self, sequence: Sequence, stop: Stop, now_s: float) -> Finished:
        """The final event."""
        stop_type, truncated = stop
        return Finished(
            id=self._request.id,
            stop_type=stop_type,
            stopping_word=self._text.stopping_word,
            truncated=truncated or sequence.num_shifted > 0,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached,
            completion_tokens=sequence.num_generated,
            reasoning_tokens=self._text.num_reasoning_tokens,
            slot=sequence.slot,
            timings=self.timings(sequence, now_s),
        )
