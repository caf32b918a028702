"""How many prompt tokens fit into a step: learnt from what steps cost so far.

A step beside decoding sequences is two passes over the weights: one for their tokens, one for the
piece of a prompt. The second costs a fixed part and a part for each token; only the second part is
learnt from steps. Learning both at once from small pieces would take the fixed part for a dearer
token, ask for still smaller pieces, and never find back.
"""

from __future__ import annotations

from selfserve.engine.speculation import StepCosts

IDLE_STEP_MS = 1000.0
"""About the longest step while nobody is decoding: newcomers and hang-ups are noticed only between
steps."""
IDLE_BUDGETS = (512, 256, 128, 64, 32)
"""Prompt tokens of such a step: the largest that keeps to that time. One of few sizes, chosen at
the start and at most raised later, since the same prompt alone has to make the same batches every
time: other batches round differently. Larger ones are no faster."""
MIN_PREFILL = 8
"""Prompt tokens in a step, at least: prompts always move on, and every step teaches something."""
FULL_LESSON = 64
"""Prompt tokens of a step that counts with full weight."""
WEIGHT = 0.25
"""Of the newest measurement in the running means."""
MAX_SURPRISE = 2.0
"""A measurement counts as this many times the mean at most: another program had the processor."""
GUESS = StepCosts({1: 1.0, 16: 16.0})
"""Milliseconds, for where nothing was measured at the start."""


class StepPace:
    """Measures steps and derives the prompt budget of the next one. Times are milliseconds."""

    def __init__(
        self, step_ms: float, batch_size: int, num_slots: int, costs: StepCosts = GUESS
    ) -> None:
        """`costs`: milliseconds of small batches, as measured at the start."""
        self._step_ms = step_ms
        self._batch_size = batch_size
        self._costs = costs
        self._decode_ms = [0.0] * (num_slots + 1)
        """By the number of decoding sequences; 0: not measured."""
        small, large = costs.of(1), costs.of(16)
        self._token_ms = max((large - small) / 15, large / 64)
        self._pass_ms = max(large - 16 * self._token_ms, 0.0)
        self._idle_budget = self._fitting_idle_budget()

    def record(self, num_decoding: int, num_decode: int, num_prefill: int, ms: float) -> None:
        """Learns from a step of `num_decode` tokens for `num_decoding` sequences, and
        `num_prefill` prompt tokens, that took `ms`."""
        if num_prefill:
            rest_ms = ms - self.decode_ms(num_decoding) - self._pass_ms
            token_ms = max(rest_ms / num_prefill, self._token_ms / MAX_SURPRISE)
            token_ms = min(token_ms, self._token_ms * MAX_SURPRISE)
            weight = WEIGHT * min(1.0, num_prefill / FULL_LESSON)
            self._token_ms += weight * (token_ms - self._token_ms)
            # Only ever larger: the measurements of the start may come from a busy moment.
            self._idle_budget = max(self._idle_budget, self._fitting_idle_budget())
        elif num_decode == num_decoding:
            old = self.decode_ms(num_decoding)
            self._decode_ms[num_decoding] = old + WEIGHT * (min(ms, old * MAX_SURPRISE) - old)

    def _fitting_idle_budget(self) -> int:
        fitting = (n for n in IDLE_BUDGETS if n * self._token_ms <= IDLE_STEP_MS)
        return next(fitting, IDLE_BUDGETS[-1])

    def decode_ms(self, num_decoding: int) -> float:
        """Cost of a step of one token for each of so many sequences."""
        if num_decoding == 0:
            return 0.0
        return self._decode_ms[num_decoding] or self._costs.of(num_decoding)

    def prefill_budget(self, num_decoding: int, *, is_shared: bool = False) -> int:
        """Prompt tokens of the next step, beside one token for each decoding sequence. `is_shared`:
        a long prompt is read between the steps, and decoding waits for both.

        While someone decodes, they may add the step's target to what decoding takes. To take the
        decoding off it would make the pieces so small that much of their time went into passes
        over the weights. On models slower than that, as long again as decoding takes.
        """
        if num_decoding == 0:
            return min(self._idle_budget, self._batch_size)
        decode_ms = self.decode_ms(num_decoding)
        rest_ms = max(self._step_ms, decode_ms) / (2 if is_shared else 1) - self._pass_ms
        return max(MIN_PREFILL, min(int(rest_ms / self._token_ms), self._batch_size))

    def worth_a_pass(self, count: int, num_decoding: int) -> bool:
        """Whether a sequence should compute `count` known tokens at once beside the others.

        libllama computes sequences together for as many tokens as each of them has; the rest of
        the longer one is a pass of its own over the weights. Its alternative is one token a step,
        where each costs its share of the step.
        """
        if num_decoding <= 1:
            return True
        share_ms = self.decode_ms(num_decoding) / num_decoding
        return (count - 1) * (share_ms - self._token_ms) > self._pass_ms

    def draft_budget(self, num_decoding: int) -> int:
        """Guessed tokens that a decode step may carry without going over the target."""
        rest_ms = self._step_ms - self.decode_ms(num_decoding)
        return max(0, min(int(rest_ms / self._token_ms), self._batch_size))
