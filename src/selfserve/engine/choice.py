"""Choosing the next token of one sequence: grammar mask, sampler chain, probabilities."""

from __future__ import annotations

import numpy as np

from selfserve.engine.constraint import ConstraintState
from selfserve.engine.interface import Vocabulary
from selfserve.engine.runner import Logits, TokenSampler
from selfserve.request import Request, TokenProb, TokenProbs
from selfserve.sampling import banned_ids, is_greedy


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities of one row, shape (n_vocab,), in float32; −inf stays −inf."""
    shifted = logits - logits.max()
    result: Logits = shifted - np.log(np.exp(shifted).sum(dtype=np.float64)).astype(np.float32)
    return result


def top_indices(values: Logits, count: int) -> list[int]:
    """Indices of the `count` highest values, highest first."""
    count = min(count, values.size)
    found = np.argpartition(values, values.size - count)[values.size - count :]
    order: list[int] = found[np.argsort(-values[found], kind="stable")].tolist()
    return order


class TokenChooser:
    """Owns a request's sampler and the state of its grammar; `close()` frees the sampler."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        request: Request,
        sampler: TokenSampler,
        constraint: ConstraintState | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._request = request
        self._sampler = sampler
        self.constraint = constraint
        # Bans are the chain's work, so it must run.
        self._greedy = (
            is_greedy(request.sampling)
            and not banned_ids(request.sampling, vocabulary.eog_ids)
            and not request.post_sampling_probs
        )

    def choose(
        self, logits: Logits, row: int, *, constrained: bool
    ) -> tuple[int, TokenProbs | None]:
        """The next token, from one row of logits (n_vocab,) which is row `row` of the batch.

        With `constrained` the grammar masks the row first and is advanced by the choice. Raises
        RequestError if the grammar leaves nothing to choose from.
        """
        probs = None
        num_probs = self._request.n_probs
        wants_raw = num_probs > 0 and not self._request.post_sampling_probs
        raw = log_softmax(logits) if wants_raw else None
        constraint = self.constraint if constrained else None
        if constraint is not None and not self._is_allowed_anyway(constraint, logits):
            constraint.apply(logits)
        if num_probs > 0 and self._request.post_sampling_probs:
            token, ids, values = self._sampler.sample_with_probs(logits)
            top = [(int(ids[i]), float(values[i])) for i in top_indices(values, num_probs)]
            chosen = float(values[np.flatnonzero(ids == token)[0]])
            probs = self._probs(token, chosen, [pair for pair in top if pair[1] > 0.0])
        elif self._greedy:
            token = int(logits.argmax())
        else:
            token = self._sampler.sample(row)
        if raw is not None:
            top = [(i, float(raw[i])) for i in top_indices(raw, num_probs)]
            probs = self._probs(token, float(raw[token]), top)
        if constraint is not None:
            constraint.accept(token)
        return token, probs

    def _is_allowed_anyway(self, constraint: ConstraintState, logits: Logits) -> bool:
        """True if the mask would change nothing: the one token that can be chosen is allowed.
        Testing it costs far less than a mask over a large vocabulary."""
        return self._greedy and constraint.allows(int(logits.argmax()))

    def accept(self, token: int, *, constrained: bool) -> None:
        """Takes note of a token that the engine wrote itself."""
        if not self._greedy:
            self._sampler.accept(token)
        if constrained and self.constraint is not None:
            self.constraint.accept(token)

    def _probs(self, token: int, value: float, top: list[tuple[int, float]]) -> TokenProbs:
        def prob(token_id: int, value: float) -> TokenProb:
            piece = self._vocabulary.piece(token_id, special=True)
            return TokenProb(id=token_id, piece=piece, value=value)

        return TokenProbs(chosen=prob(token, value), top=tuple(prob(i, v) for i, v in top))

    def close(self) -> None:
        self._sampler.close()
