"""A runner without a model: what it predicts depends on every token that a slot's memory holds, so
a wrong position, a wrong copy or somebody else's text changes the answer."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.byte_vocabulary import EOS, VOCAB_SIZE, ByteVocabulary, grammar_tokenizer

from selfserve.engine.costs import GUESS
from selfserve.engine.plan import Chunk, Logits, Outcome, Plan, Row, StepResult
from selfserve.engine.runner import Blob, Capabilities, PictureReader, WarmUp
from selfserve.request import SamplingParams

ALPHABET = b"abcdefghijklmnopqrstuvwxyz \n"
BEST, SECOND = 10.0, 5.0
"""Logits of the most probable token and of the one after it; all others have 0."""

Fault = Callable[[Plan], Outcome | None]
"""Looks at a plan; an outcome other than None happens to it. May raise, or wait."""

Predictor = Callable[[Sequence[int]], int]
"""The token that follows these."""


def hashed(tokens: Sequence[int]) -> int:
    """A letter that depends on all tokens and their order; now and then the end of the text."""
    value = zlib.crc32(array("q", tokens).tobytes())
    return EOS if value % 31 == 0 else ALPHABET[(value >> 8) % len(ALPHABET)]


def endless(tokens: Sequence[int]) -> int:
    """As `hashed`, but never ends."""
    value = zlib.crc32(array("q", tokens).tobytes())
    return ALPHABET[(value >> 8) % len(ALPHABET)]


def reading(answers: Mapping[str, str | Sequence[int]]) -> Predictor:
    """Writes `answers[prompt]` after that prompt and then ends; a text is its bytes."""
    scripts = {
        tuple(prompt.encode()): list(answer.encode() if isinstance(answer, str) else answer)
        for prompt, answer in answers.items()
    }

    def predict(tokens: Sequence[int]) -> int:
        for prompt, answer in scripts.items():
            if tuple(tokens[: len(prompt)]) == prompt:
                done = len(tokens) - len(prompt)
                return answer[done] if done < len(answer) else EOS
        return hashed(tokens)

    return predict


def answer_of(
    prompt: Sequence[int], num_tokens: int, predict: Predictor = hashed, *, context_size: int = 512
) -> list[int]:
    """What a runner that computes everything from the start, alone, answers; with its end token."""
    tokens = list(prompt)
    limit = min(len(prompt) + num_tokens, context_size)
    while len(tokens) < limit and (len(tokens) == len(prompt) or tokens[-1] != EOS):
        tokens.append(predict(tokens))
    return tokens[len(prompt) :]


class ScriptedSampler:
    """Greedy at temperature 0, else drawn with a generator of its own."""

    def __init__(self, runner: ScriptedRunner, params: SamplingParams) -> None:
        self._runner = runner
        self._temperature = params.temperature
        self._bias = {token: bias for token, bias in params.logit_bias if bias > -np.inf}
        self._generator = np.random.default_rng(params.seed)
        self.accepted: list[int] = []
        runner.num_open_samplers += 1

    def sample(self, row: Row) -> int:
        logits = self._runner.row(row.handle)
        assert np.isfinite(logits).all(), "a masked row came as one that is not"
        return self._choose(logits)[0]

    def sample_masked(self, row: Row) -> int:
        return self._choose(row.logits)[0]

    def sample_with_probs(
        self, row: Row
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        token, probs = self._choose(row.logits)
        ids = np.flatnonzero(probs).astype(np.int32)
        return token, ids, probs[ids].astype(np.float32)

    def _choose(self, logits: Logits) -> tuple[int, npt.NDArray[np.float64]]:
        values = logits.astype(np.float64)
        for token, bias in self._bias.items():
            values[token] += bias
        if self._temperature <= 0:
            probs = np.zeros(values.size)
            probs[values.argmax()] = 1.0
        else:
            probs = np.exp((values - values.max()) / self._temperature)
            probs /= probs.sum()
        token = int(self._generator.choice(probs.size, p=probs))
        self.accept(token)
        return token, probs

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None:
        self._runner.num_open_samplers -= 1


class ScriptedRunner:
    """Checks every plan and every call against what its memory holds; a violation of the border's
    rules raises AssertionError, and what libllama would do silently wrong does so too.

    With `can_cut` false it behaves as hybrid memory does: a partial state rolls back a slot that
    still holds all tokens of that state, and nothing else brings a slot back.
    """

    def __init__(
        self,
        *,
        num_slots: int = 4,
        context_size: int = 512,
        batch_size: int = 64,
        max_outputs: int = 64,
        can_cut: bool = True,
        can_shift: bool = True,
        predict: Predictor = hashed,
        add_bos: bool = False,
    ) -> None:
        self.capabilities = Capabilities(
            context_size=context_size,
            num_slots=num_slots,
            batch_size=batch_size,
            max_outputs=max_outputs,
            can_cut=can_cut,
            can_shift=can_shift,
        )
        self.vocabulary = ByteVocabulary(add_bos=add_bos)
        self.predict = predict
        self.memory: list[list[int]] = [[] for _ in range(num_slots)]
        self.damaged: set[int] = set()
        """Slots whose memory a failed step left in a state that nothing may be computed from."""
        self.fault: Fault | None = None
        self.on_operation: Callable[[str, int], bool] = lambda name, slot: True
        """Sees the name and slot of each call for a memory before it happens. False: the call is
        refused. May raise, or move a clock."""
        self.plans: list[list[tuple[int, int, int]]] = []
        """Of each step: (slot, start, number of tokens) of its chunks."""
        self.computed: Counter[int] = Counter()
        """Tokens computed so far, by slot."""
        self.calls: Counter[str] = Counter()
        self.num_open_samplers = 0
        self.pictures: PictureReader | None = None
        self.info: dict[str, Any] = {}
        self._rows: dict[int, Logits] = {}

    @property
    def num_computed(self) -> int:
        return self.computed.total()

    # --- a step ---------------------------------------------------------------------------

    def warm_up(self) -> WarmUp:
        return WarmUp(GUESS, (1 << 20, 1.0))

    def run(self, plan: Plan) -> StepResult:
        self._check_plan(plan)
        self.plans.append([(c.slot, c.start, len(c.tokens)) for c in plan.chunks])
        self._rows = {}
        outcome = self.fault(plan) if self.fault is not None else None
        if outcome is not None and outcome is not Outcome.OK:
            if outcome is Outcome.PARTIAL:
                self._spoil(plan)
            return StepResult(outcome, tuple([] for _ in plan.chunks))
        return StepResult(Outcome.OK, tuple(self._compute(chunk) for chunk in plan.chunks))

    def _check_plan(self, plan: Plan) -> None:
        limits = self.capabilities
        slots = [chunk.slot for chunk in plan.chunks]
        assert slots, "a plan without chunks"
        assert slots == sorted(set(slots)), f"slots {slots} do not ascend"
        assert slots[0] >= 0
        assert slots[-1] < limits.num_slots
        sizes = [len(chunk.tokens) for chunk in plan.chunks]
        assert min(sizes) > 0, "a chunk without tokens"
        assert sum(sizes) == plan.num_tokens <= limits.batch_size, f"{sizes} in one batch"
        for chunk in plan.chunks:
            self._check_chunk(chunk)
        output = sum(chunk.num_outputs for chunk in plan.chunks)
        assert output <= limits.max_outputs, f"{output} rows of logits"

    def _check_chunk(self, chunk: Chunk) -> None:
        held = self.memory[chunk.slot]
        assert chunk.slot not in self.damaged, f"slot {chunk.slot} is used after a failed step"
        assert chunk.start == len(held), f"start {chunk.start}, but {len(held)} tokens are held"
        assert chunk.start + len(chunk.tokens) <= self.capabilities.context_size
        num_draft = len(chunk.draft)
        assert chunk.num_outputs in (0, 1 + num_draft)
        assert not num_draft or chunk.tokens[-num_draft:] == chunk.draft
        assert len(chunk.tokens) > num_draft

    def _compute(self, chunk: Chunk) -> list[Row]:
        held = self.memory[chunk.slot]
        rows = []
        for i, token in enumerate(chunk.tokens):
            held.append(token)
            if i >= len(chunk.tokens) - chunk.num_outputs:
                handle = len(self._rows)
                self._rows[handle] = np.array(self._predictions(held), dtype=np.float32)
                rows.append(Row(self._rows[handle], handle))
        self.computed[chunk.slot] += len(chunk.tokens)
        return rows

    def _predictions(self, held: Sequence[int]) -> list[float]:
        row = [0.0] * VOCAB_SIZE
        row[zlib.crc32(b"second" + array("q", held).tobytes()) % 256] = SECOND
        row[self.predict(held)] = BEST
        return row

    def _spoil(self, plan: Plan) -> None:
        """Half of each chunk arrived, as after a step that failed in the middle."""
        for chunk in plan.chunks:
            self.memory[chunk.slot] += chunk.tokens[: (len(chunk.tokens) + 1) // 2]
            self.damaged.add(chunk.slot)

    def row(self, handle: int) -> Logits:
        """Logits of a row of the last batch, as a sampler reads them."""
        return self._rows[handle]

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> ScriptedSampler:
        return ScriptedSampler(self, params)

    def grammar_tokenizer(self) -> Any:
        return grammar_tokenizer()

    # --- memory of one slot ---------------------------------------------------------------

    def _permits(self, name: str, slot: int) -> bool:
        self.calls[name] += 1
        return self.on_operation(name, slot)

    def clear(self, slot: int) -> None:
        self._permits("clear", slot)  # what cannot be refused
        self._empty(slot)

    def _empty(self, slot: int) -> None:
        self.memory[slot] = []
        self.damaged.discard(slot)

    def cut(self, slot: int, length: int) -> bool:
        if not self._permits("cut", slot):
            return False
        held = self.memory[slot]
        if length > len(held):
            return False
        if length == len(held) and slot not in self.damaged:
            return True
        if not self.capabilities.can_cut and length > 0:
            return False
        del held[length:]
        self.damaged.discard(slot)
        return True

    def shift(self, slot: int, keep: int, drop: int) -> bool:
        if not self._permits("shift", slot) or not self.capabilities.can_shift:
            return False
        assert 0 <= keep < keep + drop <= len(self.memory[slot])
        del self.memory[slot][keep : keep + drop]
        return True

    def state_size(self, slot: int, *, partial: bool = False) -> int:
        return 8 * (len(self.memory[slot]) + 1)

    def save(self, slot: int, *, partial: bool = False) -> Blob | None:
        """The tokens themselves, behind a word that tells the two kinds apart."""
        assert slot not in self.damaged
        if not self._permits("save", slot):
            return None
        blob: Blob = np.array([partial, *self.memory[slot]], dtype=np.int64).view(np.uint8)
        return blob

    def restore(self, slot: int, blob: Blob, *, length: int, partial: bool = False) -> bool:
        is_permitted = self._permits("restore", slot)
        was_partial, *tokens = blob.view(np.int64).tolist()
        assert was_partial == partial, "a state must be loaded as it was saved"
        assert len(tokens) == length
        if not is_permitted:
            self._empty(slot)
            return False
        if not partial and not self.capabilities.can_cut:
            assert not self.memory[slot], "hybrid memory mixes a state with what the slot held"
        if partial and not self.capabilities.can_cut:
            held = self.memory[slot]
            assert held[:length] == tokens, "this slot lacks the other part of the state"
        self.memory[slot] = tokens
        self.damaged.discard(slot)
        return True

    def close(self) -> None:
        assert self.num_open_samplers == 0
