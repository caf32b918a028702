"""What things cost on this machine: the one model from which every threshold of a step follows.

Rules of this file
    All times are milliseconds. Nothing here is a constant of one machine but the first guesses,
    which the start measures and every step corrects.
    A slow measurement may be another program's fault and counts as twice the estimate at most. A
    fast one cannot be wrong and counts in full: a busy moment at the start is unlearnt within a
    few steps.

Theory of operation
    A step beside decoding is two passes over the weights: one for the decoding sequences' tokens,
    one for a piece of a prompt. What the first costs is known by the number of sequences; what a
    piece costs, and what copying memory costs, is a line: a fixed part and a part for each token
    or byte. A measurement moves a line by the least change that explains a part of the surprise
    (normalized least mean squares), so what it says nothing about stays as it was: pieces of one
    size cannot turn a dear pass into dear tokens.

    The promise: decoding is never silent for longer than what decoding itself takes plus
    `allowance_ms`. Memory operations are paid from the same allowance as prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import pairwise

WEIGHT = 0.25
"""Of the newest measurement."""
MAX_SURPRISE = 2.0
"""A measurement counts as this many times the estimate at most."""
IDLE_STEP_MS = 1000.0
"""About the longest step while nobody is decoding: newcomers and hang-ups are noticed only between
steps."""
PASS_SHARE = 64
"""A prompt alone goes in pieces for which the fixed cost is at most this part of the whole."""
MIN_PREFILL = 8
"""Prompt tokens in a step, at least: prompts always move on."""
MIN_IDLE_BUDGET = 32
HYSTERESIS = 1.5
"""How far the ideal piece of a prompt alone must leave the one in use, which is a power of two: the
same prompt alone has to make the same batches every time, since others round differently."""


class StepCosts:
    """The time of one decode call by its tokens: measured points, lines between.

    Sizes beyond the last point continue its line.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """Raises ValueError unless there are two points or more, the first at one token, with
        positive costs that do not fall."""
        ordered = sorted(points.items())
        if len(ordered) < 2 or ordered[0][0] != 1 or ordered[0][1] <= 0:
            raise ValueError(f"costs need a positive one for 1 token and another point: {points}")
        if any(later < earlier for (_, earlier), (_, later) in pairwise(ordered)):
            raise ValueError(f"costs must not fall with the number of tokens: {points}")
        self._costs = [0.0, ordered[0][1]]  # by number of tokens, up to the last point
        for (size, cost), (next_size, next_cost) in pairwise(ordered):
            self._slope = (next_cost - cost) / (next_size - size)
            self._costs.extend(cost + self._slope * n for n in range(1, next_size - size + 1))

    def of(self, num_tokens: int) -> float:
        """The cost of a call with `num_tokens` ≥ 1."""
        beyond = num_tokens - len(self._costs) + 1
        return self._costs[num_tokens] if beyond <= 0 else self._costs[-1] + self._slope * beyond


GUESS = StepCosts({1: 5.0, 16: 20.0})
"""For where nothing was measured at the start."""


class Line:
    """`fixed + slope * count`, learnt. `scale` is a count of the usual size."""

    def __init__(self, fixed: float, slope: float, scale: float) -> None:
        self.fixed = fixed
        self.slope = slope
        self._scale = scale

    def of(self, count: float) -> float:
        return self.fixed + self.slope * count

    def learn(self, count: float, ms: float) -> None:
        """Takes note that `count` took `ms`."""
        expected = self.of(count)
        surprise = WEIGHT * (min(ms, MAX_SURPRISE * expected) - expected)
        x = count / self._scale
        share = surprise / (1.0 + x * x)
        self.fixed = max(self.fixed + share, 0.0)
        # A slope of nothing would ask for endless pieces; the floor is far under any processor.
        self.slope = max(self.slope + share * x / self._scale, self.slope / MAX_SURPRISE)


class Costs:
    """Learns from steps and memory operations, and says what the next ones may do."""

    def __init__(
        self,
        step_ms: float,
        batch_size: int,
        num_slots: int,
        *,
        batches: StepCosts = GUESS,
        copy: tuple[int, float] = (1 << 20, 1.0),
    ) -> None:
        """`step_ms`: what a step may add to decoding. As measured at the start: `batches`, the
        milliseconds of small batches; `copy`, bytes and milliseconds of one copy of memory."""
        self._step_ms = step_ms
        self._batch_size = batch_size
        self._batches = batches
        self._drift = 1.0
        """What steps take, relative to the measurements of the start."""
        self._decode_ms = [0.0] * (num_slots + 1)
        """By the number of decoding sequences; 0: not measured."""
        small, large = batches.of(1), batches.of(16)
        token_ms = max((large - small) / 15, large / 64)
        pass_ms = max(large - 16 * token_ms, 0.0)
        self._prompt = Line(pass_ms, token_ms, scale=max(16.0, pass_ms / token_ms))
        num_bytes, ms = copy
        self._copy = Line(0.0, ms / num_bytes, scale=float(num_bytes))
        self.row_ms = 0.0
        """Choosing a token and what follows from it, for one row of logits."""
        self._idle_budget = self._rounded(self._ideal_idle_budget())

    # --- learning -------------------------------------------------------------------------

    def record_step(self, num_decoding: int, num_decode: int, num_prefill: int, ms: float) -> None:
        """Learns from a step of `num_decode` tokens for `num_decoding` sequences, and
        `num_prefill` prompt tokens, that took `ms`."""
        if num_prefill:
            decode_ms = self.decode_ms(num_decoding)
            if ms < decode_ms:  # a part cannot take longer than the whole: both were taken for dear
                decode_ms *= ms / (decode_ms + self._prompt.of(num_prefill))
                self._decode_ms[num_decoding] = decode_ms
            self._prompt.learn(num_prefill, max(ms - decode_ms, 0.0))
            self._settle_idle_budget()
        elif num_decode == num_decoding > 0:
            old = self.decode_ms(num_decoding)
            new = old + WEIGHT * (min(ms, old * MAX_SURPRISE) - old)
            self._decode_ms[num_decoding] = new
            drift = new / self._batches.of(num_decoding)
            self._drift += WEIGHT * (min(drift, self._drift * MAX_SURPRISE) - self._drift)

    def record_rows(self, num_rows: int, ms: float) -> None:
        """Learns from the recording of a step with `num_rows` rows of logits."""
        if num_rows:
            old = self.row_ms or ms / num_rows
            self.row_ms = old + WEIGHT * (min(ms / num_rows, old * MAX_SURPRISE) - old)

    def record_copy(self, num_bytes: int, ms: float) -> None:
        """Learns from a copy of memory."""
        self._copy.learn(num_bytes, ms)

    # --- what things cost -----------------------------------------------------------------

    @property
    def pass_ms(self) -> float:
        """One more pass over the weights, whatever is computed in it. Never more than a step of
        one token, which is such a pass."""
        return min(self._prompt.fixed, self.decode_ms(1))

    @property
    def token_ms(self) -> float:
        """A prompt token beyond that."""
        return self._prompt.slope

    @property
    def pass_tokens(self) -> int:
        """As many prompt tokens as a pass over the weights costs."""
        return int(self.pass_ms / self.token_ms)

    def decode_ms(self, num_decoding: int) -> float:
        """A step of one token for each of so many sequences."""
        if num_decoding == 0:
            return 0.0
        return self._decode_ms[num_decoding] or self.of(num_decoding)

    def of(self, num_tokens: int) -> float:
        """One decode call with so many tokens, for drafts."""
        return self._batches.of(num_tokens) * self._drift

    def copy_ms(self, num_bytes: int) -> float:
        """Copying so many bytes out of the model's memory or into it."""
        return self._copy.of(num_bytes)

    # --- what a step may do ---------------------------------------------------------------

    def allowance_ms(self, num_decoding: int) -> float:
        """What everything but decoding may take of a step: its target; on models slower than that
        as long again as decoding takes. Nobody decodes: a step's whole time."""
        if num_decoding == 0:
            return IDLE_STEP_MS
        # To take the decoding off the target would make pieces so small that much of their time
        # went into passes over the weights.
        return max(self._step_ms, self.decode_ms(num_decoding))

    def prefill_budget(self, num_decoding: int, spent_ms: float = 0.0) -> int:
        """Prompt tokens of the next step, beside one token for each decoding sequence, after
        memory operations that took `spent_ms`."""
        if num_decoding == 0:
            return self._idle_budget
        rest_ms = self.allowance_ms(num_decoding) - spent_ms - self.pass_ms
        return max(MIN_PREFILL, min(int(rest_ms / self.token_ms), self._batch_size))

    def worth_a_pass(self, count: int, num_decoding: int) -> bool:
        """Whether a sequence should compute `count` known tokens at once beside the others.

        libllama computes sequences together for as many tokens as each of them has; the rest of
        the longer one is a pass of its own over the weights. Its alternative is one token a step,
        where each costs its share of the step.
        """
        if num_decoding <= 1:
            return True
        share_ms = self.decode_ms(num_decoding) / num_decoding
        return (count - 1) * (share_ms - self.token_ms) > self.pass_ms

    def worth_a_stop(self, num_tokens: int) -> bool:
        """Whether having so many tokens outweighs ending a piece of a prompt early, which is one
        more pass."""
        return num_tokens * self.token_ms > self.pass_ms

    def draft_budget(self, num_decoding: int) -> int:
        """Guessed tokens that a decode step may carry without going over the target."""
        rest_ms = self._step_ms - self.decode_ms(num_decoding)
        return max(0, min(int(rest_ms / (self.token_ms + self.row_ms)), self._batch_size))

    def worth_copying(self, num_tokens: int, num_bytes: int, num_copies: int) -> bool:
        """Whether copying memory so many times beats computing what it holds once."""
        computing_ms = self.pass_ms + num_tokens * self.token_ms
        return num_copies * self.copy_ms(num_bytes) < computing_ms

    def _ideal_idle_budget(self) -> float:
        """The piece of which the fixed cost is a small part, within the time of an idle step."""
        return min(PASS_SHARE * self._prompt.fixed, IDLE_STEP_MS) / self.token_ms

    def _settle_idle_budget(self) -> None:
        ideal = self._ideal_idle_budget()
        if not self._idle_budget / HYSTERESIS <= ideal <= self._idle_budget * HYSTERESIS:
            self._idle_budget = self._rounded(ideal)

    def _rounded(self, size: float) -> int:
        power = 1 << max(0, round(math.log2(max(size, 1.0))))
        return min(max(power, MIN_IDLE_BUDGET), self._batch_size)


class Operation(StrEnum):
    """What a memory phase can do to the runner's memory."""

    SAVE = "save"
    RESTORE = "restore"
    COPY = "copy"
    MOVE = "move"
    CHECKPOINT = "checkpoint"
    CUT = "cut"
    SHIFT = "shift"
    DROP = "drop"


class Allowance:
    """The time that the memory operations of one step may take."""

    def __init__(self, costs: Costs, limit_ms: float, clock: Callable[[], float]) -> None:
        self._costs = costs
        self._limit_ms = limit_ms
        self._clock = clock
        self.spent_ms = 0.0
        self.done: list[Operation] = []
        self.has_put_off = False
        """Whether an operation has to wait for the next step."""
        self._has_copied = False

    def permits(self, num_bytes: int) -> bool:
        """Whether an operation on so many bytes may still begin. The first of a step always may:
        what is large moves on as well. So may one that copies nothing."""
        expected_ms = self.spent_ms + self._costs.copy_ms(num_bytes)
        is_permitted = not num_bytes or not self._has_copied or expected_ms <= self._limit_ms
        self.has_put_off = self.has_put_off or not is_permitted
        return is_permitted

    @contextmanager
    def operation(self, kind: Operation, num_bytes: int = 0) -> Iterator[None]:
        """Times an operation, and learns from it if it copies."""
        begin_s = self._clock()
        try:
            yield
        finally:
            ms = (self._clock() - begin_s) * 1e3
            self.done.append(kind)
            self.spent_ms += ms
            if num_bytes:
                self._has_copied = True
                self._costs.record_copy(num_bytes, ms)
