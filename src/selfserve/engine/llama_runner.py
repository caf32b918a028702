"""The runner on libllama: plans become batches. The only module that imports `native`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfserve.config import EngineSettings
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Outcome, Plan
from selfserve.engine.runner import Blob, Capabilities, Logits, TokenSampler
from selfserve.engine.speculation import MAX_DRAFT
from selfserve.native import context as native_context
from selfserve.native.batch import Batch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.model import Model
from selfserve.native.sampler import Sampler
from selfserve.request import SamplingParams

WARM_UP_SIZES = (1, 2, 4, 8, 16)
"""Tokens of the batches that are timed at the start: what drafts of these sizes cost."""
WORTH_REPEATING_MS = 100.0
"""A shorter measurement is disturbed easily, and taken twice."""
OUTCOMES = {
    native_context.Outcome.OK: Outcome.OK,
    native_context.Outcome.NO_ROOM: Outcome.UNCHANGED,
    native_context.Outcome.INVALID: Outcome.UNCHANGED,
    native_context.Outcome.PARTIAL: Outcome.PARTIAL,
}


def load_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a model file without its weights. Lives as long as the process."""
    return Model(path, vocab_only=True).vocab


class LlamaRunner:
    """Owns model, context and batch; `close()` frees them in the right order."""

    def __init__(
        self, settings: EngineSettings, *, on_progress: Callable[[float], None] | None = None
    ) -> None:
        """Loads the model; blocks until that is done. Raises ModelLoadError."""
        self._model = Model(
            settings.model_path,
            use_mmap=settings.use_mmap,
            gpu_layers=settings.gpu_layers,
            on_progress=on_progress,
        )
        self._model.check_decodable()
        trained = self._model.train_context or settings.DEFAULT_CONTEXT
        context_size = settings.context_size or min(trained, settings.DEFAULT_CONTEXT)
        batch_size = min(settings.batch_size, context_size * settings.num_slots)
        max_outputs = min(batch_size, settings.num_slots * (MAX_DRAFT + 1))
        self._context = Context(
            self._model,
            ContextOptions(
                context_size=context_size,
                num_sequences=settings.num_slots,
                batch_size=batch_size,
                ubatch_size=min(settings.ubatch_size, batch_size),
                max_outputs=max_outputs,
                num_threads=settings.num_threads,
                flash_attention=settings.flash_attention,
                kv_type=settings.kv_type,
            ),
        )
        self._batch = Batch(batch_size)
        model = self._model
        self._capabilities = Capabilities(
            context_size=self._context.context_size,
            num_slots=settings.num_slots,
            batch_size=batch_size,
            max_outputs=max_outputs,
            can_cut=not (model.is_recurrent or model.is_hybrid or model.sliding_window),
            can_shift=self._context.can_shift and not model.sliding_window,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def vocabulary(self) -> Vocabulary:
        return self._model.vocab

    @property
    def info(self) -> dict[str, Any]:
        """Facts of the loaded file for people."""
        return {
            "description": self._model.description,
            "size_bytes": self._model.size_bytes,
            "parameters": self._model.num_parameters,
            "train_context": self._model.train_context,
        }

    def run(self, plan: Plan) -> Outcome:
        batch = self._batch
        batch.clear()
        for chunk in plan.chunks:
            batch.add(chunk.slot, chunk.start, chunk.tokens, chunk.num_outputs)
        return OUTCOMES[self._context.decode(batch)]

    def logits(self, num_outputs: int) -> Logits:
        return self._context.logits(num_outputs)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler:
        return Sampler(self._context, self._model.vocab, params, prompt)

    def grammar_tokenizer(self) -> Any:
        return self._model.vocab.grammar_tokenizer()

    def clear(self, slot: int) -> None:
        self._context.clear(slot)

    def cut(self, slot: int, length: int) -> bool:
        return self._context.cut(slot, length)

    def shift(self, slot: int, keep: int, drop: int) -> bool:
        return self._context.shift(slot, keep, drop)

    def save(self, slot: int, *, partial: bool = False) -> Blob | None:
        return self._context.save(slot, partial=partial)

    def state_size(self, slot: int, *, partial: bool = False) -> int:
        return self._context.state_size(slot, partial=partial)

    def restore(self, slot: int, blob: Blob, *, length: int, partial: bool = False) -> bool:
        return self._context.restore(slot, blob, length=length, partial=partial)

    def warm_up(self) -> dict[int, float]:
        """Decodes a few small batches, so that no request pays for first touches of memory.

        Returns their milliseconds by their number of tokens, rising with it.
        """
        self._context.set_warm_up(True)
        self._time_batch(min(WARM_UP_SIZES))
        self._context.set_warm_up(False)
        costs: dict[int, float] = {}
        least = 0.0
        for size in WARM_UP_SIZES:
            if size <= self._batch.capacity:
                ms = self._time_batch(size)
                if ms < WORTH_REPEATING_MS:
                    ms = min(ms, self._time_batch(size))
                least = costs[size] = max(least, ms)
        return costs

    def _time_batch(self, size: int) -> float:
        token = self._model.vocab.bos_id or 0
        begin_s = time.perf_counter()
        self._batch.clear()
        self._batch.add(0, 0, [token] * size, 1)
        self._context.decode(self._batch)
        self._context.logits(1)
        self._context.clear(0)
        return (time.perf_counter() - begin_s) * 1e3

    def close(self) -> None:
        self._context.close()
        self._model.close()
