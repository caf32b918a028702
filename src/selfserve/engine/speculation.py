"""Prompt look-up: guesses the next tokens from what the prompt and the answer said before.

Rules of this file
- A drafter only proposes. The engine decodes the draft in its batch and samples each place as
  ever, and keeps tokens as long as the sampled one equals the drafted one; what comes out has the
  distribution of an answer without drafts.
- A drafter knows one sequence. Nothing in it comes from another request or lives on after it.
- Appending a token and drafting cost O(1) in the length of the sequence.

Theory of operation
The tail of the sequence is looked up among its earlier n-grams, and what followed there is the
guess. The place is kept and moved forward while the guesses are right, so inside a copied passage
nothing is looked up again.

Whether a guess was right is known even if nobody drafted it: every appended token is compared
with the guess. So the drafter learns what drafts would be worth at no cost, from the first token
of the answer on; there is no need for trial drafts, nor for pauses after which to try again. It
keeps one rate of right guesses for each match length, since a tail of two equal tokens says little
and one of six says much, and forgets old evidence, since answers change between copying and
telling. From these rates and the costs of batches of different sizes follows the draft length with
the most tokens for the time, very often none.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

MAX_DRAFT = 16
MIN_NGRAM = 2
MAX_NGRAM = 6
MAX_CANDIDATES = 8
"""Earlier occurrences of the last n-gram that are looked at for the longest match."""

MAX_INDEXED = 32_768
"""Tokens of a prompt that are indexed, its last ones: about 6 ms of one step."""

MEMORY = 0.95
"""What the result of a guess still weighs one guess later: about the last 20 count."""

PRIOR_WEIGHT = 2.0
"""How many guesses the assumption made before there was any is worth."""

MIN_GAIN = 1.05
"""Tokens for the time, relative to no draft, below which it is not worth the trouble."""


class BatchCosts(Protocol):
    """The time of decode calls, in any unit."""

    def of(self, num_tokens: int) -> float:
        """One call with `num_tokens` ≥ 1."""
        ...


class LookupDrafter:
    """Drafts by prompt look-up for one sequence.

    `tokens` is the prompt, copied; negative ones stand for pictures and are never drafted. A match
    is at least `min_ngram` tokens; beyond `max_ngram` its length makes no difference. Making one
    takes milliseconds for a long prompt.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        *,
        max_draft: int = MAX_DRAFT,
        min_ngram: int = MIN_NGRAM,
        max_ngram: int = MAX_NGRAM,
        costs: BatchCosts,
    ) -> None:
        if not (max_draft >= 1 and 1 <= min_ngram <= max_ngram):
            raise ValueError(
                f"max_draft {max_draft} and min_ngram {min_ngram} must be at least 1, "
                f"max_ngram {max_ngram} at least min_ngram"
            )
        self.num_drafted = 0
        self.num_accepted = 0
        self._max_draft = max_draft
        self._max_ngram = max_ngram
        self._costs = costs
        self._tokens = list(tokens)
        self._ngrams = _NgramIndex(self._tokens, min_ngram)
        self._rates = _HitRates(max_ngram)
        self._source = 0
        """Index of the token guessed to come next; 0: no guess."""
        self._match_length = 0
        self._look_up()

    def append(self, token: int) -> None:
        """Tells every token that the sequence gained, drafted, sampled or forced."""
        guess = self._tokens[self._source] if self._source else None
        self._tokens.append(token)
        self._ngrams.advance()
        if guess is None:
            self._look_up()
            return
        self._rates.record(self._match_length, guess == token)
        if guess == token:
            self._source += 1
            self._match_length = min(self._match_length + 1, self._max_ngram)
        else:
            self._look_up()

    def draft(self, max_tokens: int, *, others: int = 0) -> list[int]:
        """The next tokens as guessed, at most `max_tokens`; empty where a draft does not pay.

        `others` are the tokens of other sequences in the same step: drafts pay less in a full
        batch. Asking again without an append gives the same answer.
        """
        limit = min(max_tokens, self._max_draft)
        if limit <= 0 or not self._source:
            return []
        return self._continuation(self._best_length(limit, others))

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Counts one verified draft. Its tokens are appended apart from this."""
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted

    def _look_up(self) -> None:
        """Finds the earlier place with the longest match to the tail; of equals the latest."""
        tokens, end = self._tokens, len(self._tokens)
        self._source, self._match_length = 0, 0
        for candidate in self._ngrams.earlier(MAX_CANDIDATES):
            length = 0
            most = min(self._max_ngram, candidate)
            while length < most and tokens[candidate - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length > self._match_length:
                self._source, self._match_length = candidate, length
            if length == self._max_ngram:
                return

    def _best_length(self, limit: int, others: int) -> int:
        """The draft length with the most expected tokens for the cost of the step."""
        best, best_speed = 0, MIN_GAIN * (others + 1) / self._costs.of(others + 1)
        expected, all_right = others + 1.0, 1.0
        for length in range(1, limit + 1):
            all_right *= self._rates.of(self._match_length + length - 1)
            expected += all_right
            speed = expected / self._cost(length, others)
            if speed > best_speed:
                best, best_speed = length, speed
        return best

    def _cost(self, length: int, others: int) -> float:
        """Of a step with a draft. Beside other sequences the draft is a batch of its own, since
        libllama computes sequences together only for as many tokens as each of them has."""
        if others:
            return self._costs.of(others + 1) + self._costs.of(length)
        return self._costs.of(1 + length)

    def _continuation(self, length: int) -> list[int]:
        found = self._tokens[self._source : self._source + length]
        while len(found) < length:
            # The source reaches the end of the sequence: the text repeats with this period.
            found += found[: length - len(found)]
        picture = next((at for at, token in enumerate(found) if token < 0), length)
        return found[:picture]


class _NgramIndex:
    """Where each n-gram of a growing list occurred, latest first: a chain for each n-gram.

    A place is the index of the token after the n-gram. The n-gram at the very end has none yet
    and enters with the next token, so a look-up of the tail finds earlier places only. Making one
    enters the last MAX_INDEXED tokens of the list; all else is O(1).
    """

    def __init__(self, tokens: list[int], n: int) -> None:
        self._tokens = tokens
        self._n = n
        self._latest: dict[tuple[int, ...], int] = {}
        latest = self._latest
        first = max(0, len(self._tokens) - MAX_INDEXED)
        before = array("l", [0]) * (first + n)
        shifted = [self._tokens[first + at :] for at in range(n - 1)]
        shifted.append(self._tokens[first + n - 1 : -1])  # the last n-gram has no place yet
        for place, ngram in enumerate(zip(*shifted, strict=False), first + n):
            before.append(latest.get(ngram, 0))
            latest[ngram] = place
        self._before = before  # by place: the place before it of the same n-gram, or 0

    def advance(self) -> None:
        """Enters the n-gram that ended before the newest token."""
        place = len(self._tokens) - 1
        if place < self._n:
            return
        ngram = tuple(self._tokens[place - self._n : place])
        self._before.append(self._latest.get(ngram, 0))
        self._latest[ngram] = place

    def earlier(self, most: int) -> list[int]:
        """Up to `most` places of the n-gram that ends the list, latest first."""
        places: list[int] = []
        place = self._latest.get(tuple(self._tokens[-self._n :]), 0)
        while place and len(places) < most:
            places.append(place)
            place = self._before[place]
        return places


class _HitRates:
    """The share of right guesses by match length, recent ones weighing most."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        # Before any evidence: even chances for three equal tokens, too little to draft for two.
        self._priors = [max(0.1, 1 - 1.5 / max(length, 1)) for length in range(max_length + 1)]
        self._hits = [0.0] * (max_length + 1)
        self._guesses = [0.0] * (max_length + 1)

    def of(self, match_length: int) -> float:
        at = min(match_length, self._max_length)
        hits = self._hits[at] + PRIOR_WEIGHT * self._priors[at]
        return hits / (self._guesses[at] + PRIOR_WEIGHT)

    def record(self, match_length: int, hit: bool) -> None:
        at = min(match_length, self._max_length)
        self._hits[at] = MEMORY * self._hits[at] + hit
        self._guesses[at] = MEMORY * self._guesses[at] + 1
