"""How many prompt tokens fit into a step: learnt from what steps cost so far."""

from __future__ import annotations

IDLE_STEP_MS = 1000.0
"""About the longest step while nobody is decoding: newcomers and hang-ups are noticed only between
steps."""
IDLE_BUDGETS = (512, 256, 128, 64, 32)
"""Prompt tokens of such a step: the largest that keeps to that time. One of few sizes, chosen at
the start, since the same prompt alone has to make the same batches every time: other batches round
differently. Larger ones are no faster."""
MIN_PREFILL = 4
"""Prompt tokens in a step, at least: prompts always move on."""
LEARN_FROM = 8
"""Steps with fewer prompt tokens say nothing about the price of one."""
WEIGHT = 0.25
"""Of the newest measurement in the running means."""


class StepPace:
    """Measures steps and derives the prompt budget of the next one. Times are milliseconds."""

    def __init__(self, step_ms: float, batch_size: int, num_slots: int) -> None:
        self._step_ms = step_ms
        self._batch_size = batch_size
        self._decode_ms = [0.0] * (num_slots + 1)
        """By the number of decoding sequences; 0: not measured."""
        self._prefill_ms = 1.0
        """Of one prompt token; the start value is a guess that the first prompt corrects."""
        self._idle_budget = IDLE_BUDGETS[0]

    def set_prefill_cost(self, num_tokens: int, ms: float) -> None:
        """Starts with a measured batch of prompt tokens instead of a guess."""
        self._prefill_ms = ms / num_tokens
        fitting = (n for n in IDLE_BUDGETS if n * self._prefill_ms <= IDLE_STEP_MS)
        self._idle_budget = next(fitting, IDLE_BUDGETS[-1])

    def record(self, num_decoding: int, num_decode: int, num_prefill: int, ms: float) -> None:
        """Learns from a step of `num_decode` tokens for `num_decoding` sequences, and
        `num_prefill` prompt tokens, that took `ms`."""
        if num_prefill == 0 and num_decode == num_decoding:
            old = self._decode_ms[num_decoding]
            self._decode_ms[num_decoding] = ms if old == 0.0 else old + WEIGHT * (ms - old)
        elif num_prefill >= LEARN_FROM:
            share = max(ms - self.decode_ms(num_decoding), ms * 0.1) / num_prefill
            self._prefill_ms += WEIGHT * (share - self._prefill_ms)

    def decode_ms(self, num_decoding: int) -> float:
        """Cost of a step of one token for each of so many sequences: measured, or that of the
        next smaller measured number."""
        for n in range(num_decoding, 0, -1):
            if self._decode_ms[n]:
                return self._decode_ms[n]
        return 0.0

    def prefill_budget(self, num_decoding: int) -> int:
        """Prompt tokens of the next step, beside one token for each decoding sequence.

        While someone decodes, the rest of the step's target; on models so slow that decoding
        alone fills it, as long again as decoding takes, or prompts would never get on.
        """
        if num_decoding == 0:
            return min(self._idle_budget, self._batch_size)
        decode_ms = self.decode_ms(num_decoding)
        rest_ms = max(self._step_ms - decode_ms, decode_ms)
        return max(MIN_PREFILL, min(int(rest_ms / self._prefill_ms), self._batch_size))

    def draft_budget(self, num_decoding: int) -> int:
        """Guessed tokens that a decode step may carry without going over the target."""
        rest_ms = self._step_ms - self.decode_ms(num_decoding)
        return max(0, min(int(rest_ms / self._prefill_ms), self._batch_size))
