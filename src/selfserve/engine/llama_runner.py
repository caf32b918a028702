"""The runner on libllama: plans become batches. The only module that imports `native`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfserve.config import EngineSettings
from selfserve.engine.interface import Vocabulary
from selfserve.engine.plan import Chunk, Outcome, PictureRows, Plan
from selfserve.engine.runner import Blob, Capabilities, Logits, TokenSampler
from selfserve.engine.speculation import MAX_DRAFT
from selfserve.native import context as native_context
from selfserve.native import kernels, library
from selfserve.native.batch import Batch, EmbeddingBatch
from selfserve.native.context import Context, ContextOptions
from selfserve.native.devices import Device, choose, found_devices
from selfserve.native.model import Model
from selfserve.native.sampler import Sampler
from selfserve.native.state import StateForm
from selfserve.native.vision import Projector
from selfserve.request import SamplingParams

WARM_UP_SIZES = (1, 2, 4, 8, 16)
"""Tokens of the batches that are timed at the start: what drafts of these sizes cost."""
MIN_SIDE_CONTEXT = 2048
"""Tokens of the smallest side memory."""
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
        self.projector = self._load_projector(settings)
        trained = self._model.train_context or settings.DEFAULT_CONTEXT
        context_size = settings.context_size or min(trained, settings.DEFAULT_CONTEXT)
        batch_size = min(settings.batch_size, context_size * settings.num_slots)
        max_outputs = min(batch_size, settings.num_slots * (MAX_DRAFT + 1))
        ubatch_size = min(settings.ubatch_size, batch_size)
        if self.projector is not None:
            at_once = self.projector.most_tokens_at_once()
            batch_size, ubatch_size = max(batch_size, at_once), max(ubatch_size, at_once)
        self._options = ContextOptions(
            context_size=context_size,
            num_sequences=settings.num_slots,
            batch_size=batch_size,
            ubatch_size=ubatch_size,
            max_outputs=max_outputs,
            num_threads=settings.num_threads,
            flash_attention=settings.flash_attention,
            kv_type=settings.kv_type,
        )
        self._context = Context(self._model, self._options)
        self._state_form = StateForm(
            has_keys=not self._model.is_recurrent or self._model.is_hybrid,
            has_window=bool(self._model.sliding_window),
            has_state=self._model.is_recurrent or self._model.is_hybrid,
        )
        self._is_wanted_aside = settings.reads_aside
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
    def info(self) -> dict[str, Any]:
        """Facts of the loaded file for people."""
        return {
            "description": self._model.description,
            "size_bytes": self._model.size_bytes,
            "parameters": self._model.num_parameters,
            "train_context": self._model.train_context,
            "vision": self.projector is not None,
        }

    def run(self, plan: Plan) -> Outcome:
        picture = plan.chunks[0].picture
        if picture is not None:
            return self._run_picture(plan.chunks[0], picture)
        if self._model.sliding_window and not self._fits_one_ubatch(plan):
            return self._run_in_parts(plan)
        batch = self._batch
        batch.clear()
        for chunk in plan.chunks:
            batch.add(chunk.slot, chunk.position, chunk.tokens, chunk.num_outputs)
        return OUTCOMES[self._context.decode(batch)]

    def _fits_one_ubatch(self, plan: Plan) -> bool:
        """Whether no sequence's tokens of the plan are spread over several ubatches."""
        sizes = [len(chunk.tokens) for chunk in plan.chunks]
        return max(sizes) == 1 or (len(sizes) == 1 and sizes[0] <= self._ubatch_size)

    def _run_in_parts(self, plan: Plan) -> Outcome:
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
                    return Outcome.PARTIAL
        batch.clear()
        for chunk in plan.chunks:
            chunk.first_row = chunk.first_output  # the last call has no other rows
            if chunk.num_outputs:
                end = len(chunk.tokens) - chunk.num_outputs
                batch.add(chunk.slot, chunk.position + end, chunk.tokens[end:], chunk.num_outputs)
        if not len(batch) or OUTCOMES[self._context.decode(batch)] is Outcome.OK:
            return Outcome.OK
        return Outcome.PARTIAL

    def _run_picture(self, chunk: Chunk, rows: PictureRows) -> Outcome:
        batch = EmbeddingBatch(chunk.slot, rows.embeddings, rows.positions, chunk.num_outputs)
        return OUTCOMES[self._context.decode_embeddings(batch, is_causal=rows.is_causal)]

    def logits(self, num_outputs: int) -> Logits:
        return self._context.logits(num_outputs)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler:
        vocab, context = self._model.vocab, self._context
        bans = [token for token, bias in params.logit_bias if bias == -math.inf]
        if params.ignore_eos:
            bans += vocab.eog_ids
        sampler = Sampler(vocab, params, prompt, context_size=context.context_size)
        return _ContextSampler(context, sampler, bans)

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

    @property
    def can_read_aside(self) -> bool:
        """Whether a long prompt is better read in a memory of its own. A GPU computes a step with
        a piece of a prompt hardly slower than one without, and its memory is scarce."""
        model = self._model
        has_known_state = not (model.is_hybrid and model.sliding_window)
        is_wanted = self._is_wanted_aside and self._capabilities.num_slots > 1
        return is_wanted and has_known_state and not model.gpus

    def open_side_memory(self, size: int, between: Callable[[], bool]) -> LlamaSideMemory:
        """See `prefiller.OpenMemory`. Close it before the runner. Raises ModelLoadError."""
        # Doubled until it fits: a memory as large as a slot would mostly lie idle, and one for
        # each prompt would be made too often.
        context_size = MIN_SIDE_CONTEXT
        while context_size < size:
            context_size *= 2
        context_size = min(context_size, self._capabilities.context_size)
        options = replace(self._options, context_size=context_size)
        return LlamaSideMemory(self._model, options, self._state_form, between)

    def copy_to_side(self, slot: int) -> Blob | None:
        """A copy of a slot's memory that the side memory can be restored from."""
        blob = self._context.save(slot)
        if blob is None:
            return None
        return self._state_form.convert(blob, self._context.state_size(slot, partial=True), 1)

    def warm_up(self) -> dict[int, float]:
        """Decodes a few small batches, so that no request pays for first touches of memory.

        Returns their milliseconds by their number of tokens, rising with it.
        """
        self._context.set_warm_up(True)
        self._time_batch(min(WARM_UP_SIZES))
        self._context.set_warm_up(False)
        costs: dict[int, float] = {}
        most = math.inf
        for size in sorted(WARM_UP_SIZES, reverse=True):
            if size <= self._batch.capacity:
                ms = self._time_batch(size)
                if ms < WORTH_REPEATING_MS:
                    ms = min(ms, self._time_batch(size), self._time_batch(size))
                # Whatever made fewer tokens take longer than more was not the model.
                most = costs[size] = min(most, ms)
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
        if self.projector is not None:
            self.projector.close()
        self._context.close()
        self._model.close()


class LlamaSideMemory:
    """A context of one sequence; see `prefiller.SideMemory`."""

    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        form: StateForm,
        between: Callable[[], bool],
    ) -> None:
        self._form, self._num_slots = form, options.num_sequences
        size = options.ubatch_size
        options = replace(options, num_sequences=1, batch_size=size, max_outputs=1)
        self.size = options.context_size
        self._between = between
        self._was_stopped = False
        self._context = Context(model, options, between=self._go_on)
        self._batch = Batch(size)

    def _go_on(self) -> bool:
        self._was_stopped = self._was_stopped or not self._between()
        return not self._was_stopped

    def clear(self) -> None:
        self._context.clear(0)

    def restore(self, blob: Blob, length: int) -> bool:
        return self._context.restore(0, blob, length=length)

    def compute(self, tokens: list[int], position: int) -> bool:
        self._was_stopped = False
        # One ubatch a call: of several, a sliding window would lose cells that the first needs.
        for begin in range(0, len(tokens), self._batch.capacity):
            self._batch.clear()
            part = tokens[begin : begin + self._batch.capacity]
            self._batch.add(0, position + begin, part, 0)
            outcome = self._context.decode(self._batch)
            if outcome is not native_context.Outcome.OK or self._was_stopped:
                self._context.clear(0)
                return False
        return True

    def save(self) -> Blob | None:
        blob = self._context.save(0)
        if blob is None:
            return None
        size = self._context.state_size(0, partial=True)
        return self._form.convert(blob, size, self._num_slots)

    def close(self) -> None:
        self._context.close()


class _ContextSampler:
    """A sampler that knows its context, and bans tokens."""

    def __init__(self, context: Context, sampler: Sampler, bans: list[int]) -> None:
        self._context = context
        self._sampler = sampler
        self._bans = bans
        self.accept = sampler.accept
        self.close = sampler.close

    def sample(self, row: int) -> int:
        return self._sampler.sample_masked(self._masked(self._context.row(row)))

    def sample_with_probs(self, logits: Logits) -> Any:
        return self._sampler.sample_with_probs(self._masked(logits))

    def _masked(self, logits: Logits) -> Logits:
        logits[self._bans] = -math.inf
        return logits
