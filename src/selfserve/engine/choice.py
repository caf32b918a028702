"""Choosing the next token of one sequence: bans, grammar mask, sampler chain, probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfserve.engine.constraint import ConstraintState
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Logits, Row
from selfserve.engine.runner import TokenSampler
from selfserve.errors import InvalidRequest
from selfserve.request import Request, TokenProbs
from selfserve.sampling import banned_ids, is_greedy


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities of one row, shape (n_vocab,), in float32; −inf stays −inf."""
    shifted = logits - logits.max()
    result: Logits = shifted - np.log(np.exp(shifted).sum(dtype=np.float64)).astype(np.float32)
    return result


def top_indices(values: Logits, count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` highest values, highest first."""
    count = min(count, values.size)
    found = np.argpartition(values, values.size - count)[values.size - count :]
    order: npt.NDArray[np.intp] = found[np.argsort(-values[found], kind="stable")]
    return order


class TokenChooser:
    """Owns a request's sampler and the state of its grammar; `close()` frees the sampler.

    What is banned and what the grammar forbids is masked before the chain, since several of
    libllama's samplers cannot bear −inf.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        request: Request,
        sampler: TokenSampler,
        constraint: ConstraintState | None = None,
    ) -> None:
        """Raises InvalidRequest if the request leaves nothing to choose from at the very start;
        the sampler is closed then."""
        self._vocabulary = vocabulary
        self._request = request
        self._sampler = sampler
        self.constraint = constraint
        self._banned = frozenset(banned_ids(request.sampling, vocabulary.eog_ids))
        self._banned_ids = np.array(sorted(self._banned), dtype=np.int64)
        self._greedy = is_greedy(request.sampling) and not request.post_sampling_probs
        try:
            self._check_possible()
        except InvalidRequest:
            sampler.close()
            raise

    def _check_possible(self) -> None:
        if len(self._banned) >= self._vocabulary.size:
            raise InvalidRequest(
                "logit_bias must leave a token that may be chosen", param="logit_bias"
            )
        if self.constraint is not None and self._banned:
            self.constraint.check_possible(self._banned)

    def choose(self, row: Row, *, constrained: bool) -> tuple[int, TokenProbs | None]:
        """The next token. With `constrained` the grammar forbids what it does not allow and is
        advanced by the choice. Raises InvalidRequest if nothing is left to choose from."""
        logits = row.logits
        probs = None
        num_probs = self._request.n_probs
        wants_raw = num_probs > 0 and not self._request.post_sampling_probs
        raw = log_softmax(logits) if wants_raw else None
        constraint = self.constraint if constrained else None
        is_masked = self._mask(logits, constraint)
        if num_probs > 0 and self._request.post_sampling_probs:
            token, ids, values = self._sampler.sample_with_probs(row)
            best = top_indices(values, num_probs)
            best = best[values[best] > 0.0]
            chosen = float(values[np.flatnonzero(ids == token)[0]])
            probs = self._probs(token, chosen, ids[best], values[best])
        elif self._greedy:
            token = int(logits.argmax())
        elif is_masked:
            token = self._sampler.sample_masked(row)
        else:
            token = self._sampler.sample(row)
        if raw is not None:
            best = top_indices(raw, num_probs)
            probs = self._probs(token, float(raw[token]), best, raw[best])
        if constraint is not None:
            constraint.accept(token)
        return token, probs

    def _mask(self, logits: Logits, constraint: ConstraintState | None) -> bool:
        """Sets what may not be chosen to −inf; whether anything was."""
        if self._banned:
            logits[self._banned_ids] = -np.inf
        # The one token that can be chosen is allowed: testing it costs far less than a mask over a
        # large vocabulary.
        if constraint is None or (self._greedy and constraint.allows(int(logits.argmax()))):
            return bool(self._banned)
        constraint.apply(logits)
        return True

    def accept(self, token: int, *, constrained: bool) -> None:
        """Takes note of a token that the engine wrote itself."""
        if not self._greedy:
            self._sampler.accept(token)
        if constrained and self.constraint is not None:
            self.constraint.accept(token)

    def forced_tokens(self) -> list[int]:
        """The tokens that the grammar leaves no choice about, up to one that is banned: from there
        on the model finds other tokens for the same text."""
        return [] if self.constraint is None else self.constraint.forced_tokens(self._banned)

    def _probs(
        self, token: int, value: float, top_ids: npt.NDArray[np.integer], top_values: Logits
    ) -> TokenProbs:
        # What ends a generation is no part of its text.
        is_text = token not in self._vocabulary.eog_ids
        return TokenProbs(
            id=token,
            piece=self._vocabulary.piece(token, special=True) if is_text else b"",
            value=value,
            top_ids=top_ids.astype("<i4").tobytes(),
            top_values=top_values.astype("<f4").tobytes(),
        )

    def close(self) -> None:
        self._sampler.close()
