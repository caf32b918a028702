"""The runner on libllama: plans become batches. The only module that imports `native`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.config import EngineSettings
from selfserve.engine.costs import StepCosts
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Outcome, PicturePlan, Plan, Row, StepResult, TextPlan
from selfserve.engine.runner import Blob, Capabilities, PictureReader, TokenSampler, WarmUp
from selfserve.engine.speculation import MAX_DRAFT
from selfserve.native import context as native_context
from selfserve.native import kernels, library
from selfserve.native.batch import Batch, EmbeddingBatch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.devices import Device, choose, found_devices
from selfserve.native.model import Model
from selfserve.native.sampler import Sampler
from selfserve.native.vision import Projector
from selfserve.request import SamplingParams

WARM_UP_SIZES = (1, 2, 4, 8, 16)
"""Tokens of the batches that are timed at the start: what drafts of these sizes cost."""
COPIED_BYTES = 16 << 20
"""Of the copy that is timed at the start."""
WORTH_REPEATING_MS = 100.0
"""A shorter measurement is disturbed easily, and taken three times."""
OUTCOMES = {
    native_context.Outcome.OK: Outcome.OK,
    native_context.Outcome.NO_ROOM: Outcome.UNCHANGED,
    native_context.Outcome.INVALID: Outcome.UNCHANGED,
    native_context.Outcome.PARTIAL: Outcome.PARTIAL,
}


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """The native library on this machine."""

    version: str
    features: str
    """libllama's own line: CPU features and back ends of the build."""
    devices: tuple[Device, ...]
    kernels: tuple[str, ...]
    """Types of weights that the project's own kernels multiply; none if they were not compiled."""


def system_info() -> SystemInfo:
    """What libllama is and finds. Raises LibraryError if it cannot be loaded."""
    types = kernels.TYPES if kernels.library_path() else ()
    return SystemInfo(library.version(), library.system_info(), tuple(found_devices()), types)


def choose_gpus(device: str, gpu_layers: int) -> list[Device]:
    """The GPUs that these settings compute on; see `native.devices.choose` for the errors."""
    return [] if device == "cpu" else choose(device, gpu_layers, found_devices())


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
            device=settings.device,
            gpu_layers=settings.gpu_layers,
            on_progress=on_progress,
        )
        self._model.check_decodable()
        self._projector = self._load_projector(settings)
        trained = self._model.train_context or settings.DEFAULT_CONTEXT
        context_size = settings.context_size or min(trained, settings.DEFAULT_CONTEXT)
        batch_size = min(settings.batch_size, context_size * settings.num_slots)
        max_outputs = min(batch_size, settings.num_slots * (MAX_DRAFT + 1))
        ubatch_size = min(settings.ubatch_size, batch_size)
        if self._projector is not None:
            at_once = self._projector.most_tokens_at_once()
            batch_size, ubatch_size = max(batch_size, at_once), max(ubatch_size, at_once)
        options = ContextOptions(
            context_size=context_size,
            num_sequences=settings.num_slots,
            batch_size=batch_size,
            ubatch_size=ubatch_size,
            max_outputs=max_outputs,
            num_threads=settings.num_threads,
            flash_attention=settings.flash_attention,
            kv_type=settings.kv_type,
        )
        self._context = Context(self._model, options)
        self._batch = Batch(batch_size)
        self._ubatch_size = ubatch_size
        model = self._model
        can_cut = not (model.is_recurrent or model.is_hybrid or model.sliding_window)
        self._capabilities = Capabilities(
            context_size=self._context.context_size,
            num_slots=settings.num_slots,
            batch_size=batch_size,
            max_outputs=max_outputs,
            can_cut=can_cut,
            # A recurrent state keeps what was dropped from the middle, whatever libllama says.
            can_shift=can_cut and self._context.can_shift,
        )

    def _load_projector(self, settings: EngineSettings) -> Projector | None:
        if settings.projector_path is None:
            return None
        return Projector(
            settings.projector_path,
            self._model,
            # The rest is for the answers that go on meanwhile.
            num_threads=max(1, settings.num_threads // 2),
            use_gpu=bool(self._model.gpus),
            flash_attention=settings.flash_attention,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def vocabulary(self) -> Vocabulary:
        return self._model.vocab

    @property
    def pictures(self) -> PictureReader | None:
        return self._projector

    @property
    def info(self) -> dict[str, Any]:
        """Facts of the loaded file for people."""
        return {
            "description": self._model.description,
            "size_bytes": self._model.size_bytes,
            "parameters": self._model.num_parameters,
            "train_context": self._model.train_context,
            "vision": self._projector is not None,
        }

    def run(self, plan: Plan) -> StepResult:
        if isinstance(plan, PicturePlan):
            return self._run_picture(plan)
        if self._model.sliding_window and not self._fits_one_ubatch(plan):
            return self._run_in_parts(plan)
        batch = self._batch
        batch.clear()
        first_rows = []
        for chunk in plan.chunks:
            first_rows.append(len(batch) + len(chunk.tokens) - chunk.num_outputs)
            batch.add(chunk.slot, chunk.position, chunk.tokens, chunk.num_outputs)
        return self._result(plan, OUTCOMES[self._context.decode(batch)], first_rows)

    def _result(self, plan: Plan, outcome: Outcome, first_rows: Sequence[int]) -> StepResult:
        """`first_rows`: of each chunk the row of the last batch that its first logits are of."""
        counts = [chunk.num_outputs for chunk in plan.chunks]
        if outcome is not Outcome.OK or not any(counts):
            return StepResult(outcome, tuple([] for _ in counts))
        logits = self._context.logits(sum(counts))
        rows, begin = [], 0
        for count, first in zip(counts, first_rows, strict=True):
            rows.append([Row(logits[begin + i], first + i) for i in range(count)])
            begin += count
        return StepResult(outcome, tuple(rows))

    def _fits_one_ubatch(self, plan: TextPlan) -> bool:
        """Whether no sequence's tokens of the plan are spread over several ubatches."""
        sizes = [len(chunk.tokens) for chunk in plan.chunks]
        return max(sizes) == 1 or (len(sizes) == 1 and sizes[0] <= self._ubatch_size)

    def _run_in_parts(self, plan: TextPlan) -> StepResult:
        """Computes a plan in calls that each take one ubatch of a sequence, all rows with logits
        in the last one.

        In a call of several ubatches libllama makes room for all before it computes the first,
        and gives up cells of a sliding window that the first still has to see: it does so when
        the cells are not in the order of their positions, as after restoring a state.
        """
        batch = self._batch
        for chunk in plan.chunks:
            end = len(chunk.tokens) - chunk.num_outputs
            for begin in range(0, end, self._ubatch_size):
                tokens = chunk.tokens[begin : min(begin + self._ubatch_size, end)]
                batch.clear()
                batch.add(chunk.slot, chunk.position + begin, tokens, 0)
                if OUTCOMES[self._context.decode(batch)] is not Outcome.OK:
                    return self._result(plan, Outcome.PARTIAL, ())
        batch.clear()
        first_rows = []
        for chunk in plan.chunks:
            first_rows.append(len(batch))
            if chunk.num_outputs:
                end = len(chunk.tokens) - chunk.num_outputs
                batch.add(chunk.slot, chunk.position + end, chunk.tokens[end:], chunk.num_outputs)
        is_done = not len(batch) or OUTCOMES[self._context.decode(batch)] is Outcome.OK
        return self._result(plan, Outcome.OK if is_done else Outcome.PARTIAL, first_rows)

    def _run_picture(self, plan: PicturePlan) -> StepResult:
        chunk, rows = plan.chunk, plan.rows
        batch = EmbeddingBatch(chunk.slot, rows.embeddings, rows.positions, chunk.num_outputs)
        outcome = OUTCOMES[self._context.decode_embeddings(batch, is_causal=rows.is_causal)]
        return self._result(plan, outcome, [len(chunk.tokens) - chunk.num_outputs])

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler:
        return LlamaSampler(
            self._context,
            Sampler(
                self._model.vocab, params, prompt, context_size=self._capabilities.context_size
            ),
        )

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

    def warm_up(self) -> WarmUp:
        self._context.set_warm_up(True)
        self._time_batch(min(WARM_UP_SIZES))
        self._context.set_warm_up(False)
        batches: dict[int, float] = {}
        most = math.inf
        for size in sorted(WARM_UP_SIZES, reverse=True):
            if size <= self._batch.capacity:
                ms = self._time_batch(size)
                if ms < WORTH_REPEATING_MS:
                    ms = min(ms, self._time_batch(size), self._time_batch(size))
                # Whatever made fewer tokens take longer than more was not the model.
                most = batches[size] = min(most, ms)
        return WarmUp(StepCosts(batches), _time_copy())

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
        if self._projector is not None:
            self._projector.close()
        self._context.close()
        self._model.close()


class LlamaSampler:
    """A chain of libllama's samplers, and the context whose rows it reads."""

    def __init__(self, context: Context, chain: Sampler) -> None:
        self._context = context
        self._chain = chain
        self.accept = chain.accept
        self.close = chain.close

    def sample(self, row: Row) -> int:
        return self._chain.sample(self._context, row.handle)

    def sample_masked(self, row: Row) -> int:
        return self._chain.sample(self._context, row.handle, is_masked=True)

    def sample_with_probs(
        self, row: Row
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        return self._chain.sample_with_probs(row.logits)


def _time_copy() -> tuple[int, float]:
    """Bytes and milliseconds of a copy into memory that is touched for the first time, as saving a
    slot is."""
    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    begin_s = time.perf_counter()
    source.copy()
    return COPIED_BYTES, (time.perf_counter() - begin_s) * 1e3
