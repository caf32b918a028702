"""Grammars while decoding: which tokens may come next, for one sequence.

Rules of this file
- A token reaches the matcher only if the matcher allows it, so a matcher never breaks. What goes
  wrong anyway ends this one request: with InvalidRequest where the grammar became too complex
  (compiling.LIMITS) or bans leave nothing that it allows, else with InternalError.
- Tokens that end a generation are allowed exactly where the grammar is complete, all of them.
- llguidance releases the GIL while it builds a grammar (milliseconds) and computes a mask (tens of
  microseconds, at its limits some 15 milliseconds). The rest holds it: 0.1 ms to apply a mask to
  262,144 logits, a few microseconds for everything else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence, Set
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from selfserve.errors import InternalError, InvalidRequest, shown
from selfserve.logs import get_logger
from selfserve.request import Constraint
from selfserve.text.compiling import LIMITS

_log = get_logger("constraint")

CACHED_GRAMMARS = 64
"""Compiled grammars that are kept: a service uses a few dozen schemas at most."""

CACHED_BYTES = 256 * 2**20
"""Bound on the memory of all kept grammars."""

BYTES_PER_GRAMMAR = 500_000
BYTES_PER_CHARACTER = 250
"""What a compiled grammar is taken to occupy, from its text. Measured with 152,000 tokens: 0.2 MB
for one of a page, 0 to 460 bytes a character for large ones, up to 4 MB for small ones that
multiply alternatives."""

_MASK_WORD_BITS = 32
_TOO_COMPLEX = ("lexer error", "parser error")
"""How llguidance begins to tell that a limit was reached."""


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
        cached_bytes: int = CACHED_BYTES,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eog_ids = np.array(sorted(i for i in eog_ids if 0 <= i < vocab_size), dtype=np.int64)
        self.eog_set = frozenset(self.eog_ids.tolist())
        self.known_size = min(vocab_size, int(tokenizer.vocab_size))
        """Tokens that both know."""
        self._max_grammars = cached_grammars
        self._max_bytes = cached_bytes
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        """Guards the cache, never held while a grammar is compiled."""

    def compile(self, constraint: Constraint) -> ConstraintState:
        """The state at the beginning of `constraint`.

        Takes microseconds for a grammar that is remembered, else milliseconds (a second or two for
        the largest allowed), most of it without the GIL: call it from a side thread. Several
        threads compile side by side.
        Raises InvalidRequest if the grammar cannot be compiled.
        """
        text = constraint.text
        with self._lock:
            pristine = self._compiled.get(text)
            if pristine is not None:
                self._compiled.move_to_end(text)
        if pristine is None:
            pristine = self._build(text)
            self._remember(text, pristine)
        return ConstraintState(self, pristine.deep_copy(), text)

    def forget(self, text: str) -> None:
        """Compiles the grammar anew the next time. One that reached a limit has to be forgotten:
        all copies share its lexer, and with it what was used up."""
        with self._lock:
            if self._compiled.pop(text, None) is not None:
                self._bytes -= _size(text)

    def _build(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self.tokenizer, text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            # The first step costs the most and fills caches that all copies share.
            first = ConstraintState(self, matcher.deep_copy(), text)
            first.warm_up()
            matcher = first.matcher if first.matcher.is_error() else matcher
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be compiled: {_first_line(matcher)}")
        return matcher

    def _remember(self, text: str, matcher: LLMatcher) -> None:
        with self._lock:
            if text not in self._compiled:
                self._compiled[text] = matcher
                self._bytes += _size(text)
            while len(self._compiled) > self._max_grammars or self._bytes > self._max_bytes:
                dropped, _ = self._compiled.popitem(last=False)
                self._bytes -= _size(dropped)


def _size(text: str) -> int:
    return BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * len(text)


def _first_line(matcher: LLMatcher) -> str:
    """What llguidance says about a broken matcher, without its dump of the parser's state."""
    text = str(matcher.get_error()).strip()
    return shown(text.splitlines()[0] if text else "unknown reason")


class ConstraintState:
    """Where one sequence stands in its grammar. One thread at a time may use it.

    A step is `apply` (forbid), choose a token, `accept` it. To save masks, choose first and ask
    `allows`; only when that refuses, `apply` and choose again: greedy decoding gives the same.
    """

    def __init__(self, factory: ConstraintFactory, matcher: LLMatcher, text: str) -> None:
        self._factory = factory
        self.matcher = matcher
        self._text = text
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
        Raises InvalidRequest if no token is left that may be chosen: those that the grammar allows
        were banned, which is −inf in `logits` already. Where the text may end and nothing else may
        follow, `must_stop` says so before.
        """
        forbidden = self._forbidden()
        row = logits[: forbidden.size]
        np.copyto(row, np.float32(-np.inf), where=forbidden)
        logits[forbidden.size :] = -np.inf
        if not row.max() > -np.inf:
            if np.isnan(row).any():
                raise InternalError("the model's output is not a number")
            raise _nothing_left()

    def check_possible(self, banned: Set[int]) -> None:
        """Raises InvalidRequest if each token that the grammar allows next is in `banned`."""
        allowed = np.logical_not(self._forbidden())
        allowed[[token_id for token_id in banned if 0 <= token_id < allowed.size]] = False
        if not allowed.any():
            raise _nothing_left()

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
    def must_stop(self) -> bool:
        """True if the grammar is complete and nothing may follow but the end."""
        return bool(self._ended) or (
            bool(self.matcher.is_stopped()) and bool(self.matcher.is_accepting())
        )

    def forced_tokens(self, banned: Set[int] = frozenset()) -> list[int]:
        """The tokens that the grammar leaves no choice about, in the tokenizer's own cut, up to
        the first one in `banned`: from there on other tokens have to write the same text.

        They may be appended (after `accept` of each) without asking the model. Where the forced
        text could merge with what follows into other tokens, its end is left out. Empty if the
        next token is open, or only an end is possible.
        """
        if self._ended or self.matcher.is_error():
            return []
        forced = map(int, self.matcher.compute_ff_tokens())
        return list(takewhile(lambda token_id: token_id not in banned, forced))

    def _check(self) -> None:
        if not self.matcher.is_error():
            return
        self._factory.forget(self._text)
        reason = str(self.matcher.get_error()).strip()
        if reason.lower().startswith(_TOO_COMPLEX):
            raise InvalidRequest(
                f"the grammar is too complex to go on: {_first_line(self.matcher)}"
            )
        _log.error("a grammar failed while decoding: %s", _first_line(self.matcher))
        raise InternalError("the grammar cannot go on")


def _nothing_left() -> InvalidRequest:
    return InvalidRequest(
        "logit_bias: it bans every token that the grammar allows next", param="logit_bias"
    )
