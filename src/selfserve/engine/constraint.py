"""Grammars while decoding: which tokens may come next, for one sequence.

Rules of this file
- A token reaches the matcher only if the matcher allows it, so a matcher never breaks. What goes
  wrong anyway (a grammar that became too complex) ends this one request with a RequestError.
- Tokens that end a generation are allowed exactly where the grammar is complete, all of them.
- llguidance releases the GIL while it builds a grammar (milliseconds) and computes a mask (tens of
  microseconds). The rest holds it: 0.1 ms to apply a mask to 262,144 logits, a few microseconds
  for everything else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from selfserve.errors import InternalError, InvalidRequest, shown
from selfserve.logs import get_logger
from selfserve.request import Constraint

_log = get_logger("constraint")

CACHED_GRAMMARS = 64
"""Compiled grammars that are kept: a service uses a few dozen schemas at most."""

CACHED_CHARACTERS = 4_000_000
"""Bound on the text of all kept grammars; what a compiled one takes grows with its text."""

_MASK_WORD_BITS = 32


class ConstraintFactory:
    """Compiles grammars for one vocabulary and remembers them. Any thread may use it.

    `vocab_size` is the length of a row of logits. It may differ from the tokenizer's count of
    tokens: those that one of the two lacks are never allowed. `eog_ids` are all tokens that end a
    generation; the tokenizer need not know them as such.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        *,
        eog_ids: frozenset[int],
        vocab_size: int,
        cached_grammars: int = CACHED_GRAMMARS,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eog_ids = np.array(sorted(i for i in eog_ids if 0 <= i < vocab_size), dtype=np.int64)
        self.eog_set = frozenset(self.eog_ids.tolist())
        self.known_size = min(vocab_size, int(tokenizer.vocab_size))
        """Tokens that both know."""
        self._limit = cached_grammars
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> ConstraintState:
        """The state at the beginning of `constraint`.

        Takes microseconds for a grammar that is remembered, else milliseconds (up to half a second
        for the largest allowed), most of it without the GIL: call it from a side thread.
        Raises InvalidRequest if the grammar cannot be compiled.
        """
        return ConstraintState(self, self._pristine(constraint.text).deep_copy())

    def remembers(self, constraint: Constraint) -> bool:
        """True if `constraint` is compiled already."""
        return constraint.text in self._compiled

    def _pristine(self, text: str) -> LLMatcher:
        with self._lock:
            known = self._compiled.get(text)
            if known is not None:
                self._compiled.move_to_end(text)
                return known
        matcher = LLMatcher(self.tokenizer, text, log_level=0)
        if not matcher.is_error():
            # The first step costs the most and fills caches that all copies share.
            first = ConstraintState(self, matcher.deep_copy())
            first.warm_up()
            matcher = first.matcher if first.matcher.is_error() else matcher
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be compiled: {_first_line(matcher)}")
        with self._lock:
            if text not in self._compiled:
                self._compiled[text] = matcher
                self._characters += len(text)
            while self._compiled and (
                len(self._compiled) > self._limit or self._characters > CACHED_CHARACTERS
            ):
                dropped, _ = self._compiled.popitem(last=False)
                self._characters -= len(dropped)
        return matcher


def _first_line(matcher: LLMatcher) -> str:
    """What llguidance says about a broken matcher, without its dump of the parser's state."""
    text = str(matcher.get_error()).strip()
    return shown(text.splitlines()[0] if text else "unknown reason")


class ConstraintState:
    """Where one sequence stands in its grammar. One thread at a time may use it.

    A step is `apply` (forbid), choose a token, `accept` it. To save masks, choose first and ask
    `allows`; only when that refuses, `apply` and choose again: greedy decoding gives the same.
    """

    def __init__(self, factory: ConstraintFactory, matcher: LLMatcher) -> None:
        self._factory = factory
        self.matcher = matcher
        self._ended = 0
        """Accepted end-of-generation tokens (0 or 1): the matcher does not see them."""
        words = -(-int(factory.tokenizer.vocab_size) // _MASK_WORD_BITS)
        self._mask: NDArray[np.int32] = np.zeros(words, dtype=np.int32)

    def warm_up(self) -> None:
        """Computes the first mask and the first forced tokens. Never raises: a matcher that broke
        says so itself."""
        self.matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self.matcher.compute_ff_tokens()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Sets each forbidden token's place in `logits` to −inf, in place.

        `logits` is one row of at least `vocab_size` float32; places beyond it are forbidden too.
        Raises InternalError if no token is left that may be chosen: the request cannot go on
        (the grammar is complete and its end is banned, or all that it allows is banned).
        """
        forbidden = self._forbidden()
        row = logits[: forbidden.size]
        np.copyto(row, np.float32(-np.inf), where=forbidden)
        logits[forbidden.size :] = -np.inf
        if not row.max() > -np.inf:
            raise InternalError("no token that the grammar allows can be chosen here")

    def allowed(self) -> NDArray[np.bool_]:
        """For each token of the vocabulary whether it may come next. Raises InternalError if the
        grammar became too complex."""
        return np.logical_not(self._forbidden())

    def _forbidden(self) -> NDArray[np.bool_]:
        size = self._factory.vocab_size
        if self._ended:
            return np.ones(size, dtype=np.bool_)
        self.matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        np.invert(self._mask, out=self._mask)
        known = self._factory.known_size
        bits = np.unpackbits(self._mask.view(np.uint8), count=known, bitorder="little")
        forbidden: NDArray[np.bool_] = bits.view(np.bool_)
        if known < size:
            forbidden = np.concatenate((forbidden, np.ones(size - known, dtype=np.bool_)))
        forbidden[self._factory.eog_ids] = not self.matcher.is_accepting()
        return forbidden

    def allows(self, token_id: int) -> bool:
        """True if `token_id` may come next: a test of one token, far cheaper than a mask."""
        if self._ended or not 0 <= token_id < self._factory.vocab_size:
            return False
        if token_id in self._factory.eog_set:
            return bool(self.matcher.is_accepting())
        return self.count_allowed((token_id,)) == 1

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids`, from the first on, the grammar allows one after the other.

        Tokens that end a generation are not counted. The state stays as it is.
        """
        if self._ended or self.matcher.is_error():
            return 0
        size = self._factory.known_size
        ids = list(takewhile(lambda token_id: 0 <= token_id < size, token_ids))
        return int(self.matcher.validate_tokens(ids)) if ids else 0

    def accept(self, token_id: int) -> None:
        """Goes on by one token. A refused token raises InternalError and changes nothing."""
        if not self.allows(token_id):
            self._check()
            raise InternalError("a token was chosen that the grammar does not allow")
        if token_id in self._factory.eog_set:
            self._ended = 1
        elif not self.matcher.consume_token(token_id):
            self._check()
            raise InternalError("a token was chosen that the grammar does not allow")

    @property
    def is_complete(self) -> bool:
        """True if the text so far satisfies the whole grammar: the generation may end here."""
        return bool(self._ended) or bool(self.matcher.is_accepting())

    @property
    def must_stop(self) -> bool:
        """True if the grammar is complete and nothing may follow but the end."""
        return bool(self._ended) or (
            bool(self.matcher.is_stopped()) and bool(self.matcher.is_accepting())
        )

    def forced_tokens(self) -> list[int]:
        """The tokens that the grammar leaves no choice about, in the tokenizer's own cut.

        They may be appended (after `accept` of each) without asking the model. Where the forced
        text could merge with what follows into other tokens, its end is left out. Empty if the
        next token is open, or only an end is possible.
        """
        if self._ended or self.matcher.is_error():
            return []
        return [int(i) for i in self.matcher.compute_ff_tokens()]

    def rollback(self, count: int) -> None:
        """Takes the last `count` accepted tokens back. Raises InternalError if there are fewer."""
        if count > 0 and self._ended:
            self._ended = 0
            count -= 1
        if count > 0 and not self.matcher.rollback(count):
            raise InternalError("more tokens were taken back than the grammar accepted")

    def copy(self) -> ConstraintState:
        """An independent state at the same place. Takes microseconds."""
        twin = ConstraintState(self._factory, self.matcher.deep_copy())
        twin._ended = self._ended
        return twin

    def _check(self) -> None:
        if self.matcher.is_error():
            _log.error("a grammar failed while decoding: %s", _first_line(self.matcher))
            raise InternalError("the grammar became too complex to go on")
