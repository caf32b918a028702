"""A `llama_context`: decoding with a typed outcome, logits, and each sequence's memory.

One thread owns a context; no method may run beside another one. `decode` and the state calls
block for as long as the computation takes and release the GIL meanwhile.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.errors import ModelLoadError
from selfserve.native.batch import Batch, EmbeddingBatch
from selfserve.native.model import Model

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2, "bf16": 30}
"""ggml_type of the names that settings use."""
QUANTIZED_KV_TYPES = frozenset({"q8_0", "q4_0"})
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
STATE_FULL = 0
STATE_PARTIAL = 1
"""Flags of llama_state_seq_*_ext: all of a sequence, or only what cannot be cut (the recurrent
or sliding-window part). A blob must be loaded with the flag that it was saved with."""

MROPE_TYPES = frozenset({8, 40})
"""llama_rope_type of models whose positions have several sections: MROPE, IMROPE."""


class Outcome(Enum):
    """What `llama_decode` did, by its return code as llama.h documents it."""

    OK = auto()
    NO_ROOM = auto()
    """1: no cells; the memory is as it was before the call."""
    INVALID = auto()
    """−1: the batch is inconsistent; the memory is as it was before the call."""
    PARTIAL = auto()
    """2 or below −1: aborted or failed half-way; the memory holds some of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """Sizes are tokens. `context_size` is that of one sequence; each sequence has cells of its own
    (`kv_unified` false), so one can never take another's room."""

    context_size: int
    num_sequences: int
    batch_size: int
    ubatch_size: int
    max_outputs: int
    num_threads: int
    flash_attention: str = "auto"
    kv_type: str = "f16"


class Context:
    """Owns a `llama_context` of a model. Close it before the model."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        """Raises ModelLoadError."""
        if options.flash_attention == "off" and options.kv_type in QUANTIZED_KV_TYPES:
            raise ModelLoadError(
                f"--kv-type {options.kv_type} needs flash attention: leave --flash-attention at "
                "auto, or choose --kv-type f16"
            )
        self._lib: Any = model._lib
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx = options.context_size * options.num_sequences
        params.n_seq_max = options.num_sequences
        params.n_batch = options.batch_size
        params.n_ubatch = options.ubatch_size
        params.n_outputs_max = options.max_outputs
        params.n_threads = params.n_threads_batch = options.num_threads
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
        params.type_k = params.type_v = KV_TYPES[options.kv_type]
        params.kv_unified = False
        # The C default keeps full-size caches for sliding-window layers; the small ones are what
        # such models are chosen for, and checkpoints make up for what they forget.
        params.swa_full = False
        params.no_perf = True
        self.handle = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ModelLoadError(
                "libllama cannot make a context: most likely there is too little memory for "
                f"{options.num_sequences} slots of {options.context_size} tokens; try a smaller "
                "--context-size or --parallel"
            )
        self._memory = lib.llama_get_memory(self.handle)
        self._num_vocab = model.vocab.size
        self.num_sequences = options.num_sequences
        self.sliding_window = model.sliding_window
        self.context_size = min(int(lib.llama_n_ctx_seq(self.handle)), options.context_size)
        self.can_shift = bool(lib.llama_memory_can_shift(self._memory))
        self._has_mrope = int(lib.llama_model_rope_type(model.handle)) in MROPE_TYPES

    def decode(self, batch: Batch | EmbeddingBatch) -> Outcome:
        """Computes a batch. Blocks; releases the GIL. Never raises."""
        code: int = self._lib.llama_decode(self.handle, batch.struct)
        if code == 0:
            return Outcome.OK
        return {1: Outcome.NO_ROOM, -1: Outcome.INVALID}.get(code, Outcome.PARTIAL)

    def decode_embeddings(self, batch: EmbeddingBatch, *, is_causal: bool) -> Outcome:
        """As `decode`, for a batch of embeddings. Not causal: each row attends to all others, for
        which the batch must not be larger than `ubatch_size`."""
        if is_causal:
            return self.decode(batch)
        self._lib.llama_set_causal_attn(self.handle, False)
        try:
            return self.decode(batch)
        finally:
            self._lib.llama_set_causal_attn(self.handle, True)

    def logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        """Logits of the last decode, shape (num_rows, n_vocab), rows in the order in which the
        batch asked for them. A view that may be written to; the next decode overwrites it."""
        pointer = self._lib.llama_get_logits(self.handle)
        return _floats(pointer, num_rows * self._num_vocab).reshape(num_rows, self._num_vocab)

    def row(self, index: int) -> npt.NDArray[np.float32]:
        """As `logits`, the one of row `index` of the last batch, shape (n_vocab,)."""
        pointer = self._lib.llama_get_logits_ith(self.handle, index)
        return _floats(pointer, self._num_vocab)

    # --- memory of one sequence -----------------------------------------------------------

    def positions(self, seq_id: int) -> tuple[int, int]:
        """(first, last) position that the sequence's memory holds; (−1, −1) if it is empty.
        With a sliding window they speak of the windowed layers only."""
        self._check(seq_id)
        return (
            int(self._lib.llama_memory_seq_pos_min(self._memory, seq_id)),
            int(self._lib.llama_memory_seq_pos_max(self._memory, seq_id)),
        )

    def clear(self, seq_id: int) -> None:
        """Empties one sequence. Works for every kind of memory."""
        self._check(seq_id)
        self._lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def cut(self, seq_id: int, length: int) -> bool:
        """Drops everything from position `length` on. False: the memory cannot do that (and is
        unchanged, or for a sliding window no longer of use), so the sequence must be cleared."""
        first, last = self.positions(seq_id)
        if length > last:
            return length == last + 1
        if length == 0:
            self.clear(seq_id)
            return True
        # libllama says true even where the window before `length` is gone already.
        if self.sliding_window and not (first == 0 or first <= length - self.sliding_window + 1):
            return False
        return bool(self._lib.llama_memory_seq_rm(self._memory, seq_id, length, -1))

    def shift(self, seq_id: int, keep: int, drop: int) -> bool:
        """Drops `drop` positions after the first `keep` and moves the rest down into the gap."""
        if not self.can_shift:  # libllama would end the process
            return False
        self._check(seq_id)
        lib, memory = self._lib, self._memory
        if not lib.llama_memory_seq_rm(memory, seq_id, keep, keep + drop):
            return False
        lib.llama_memory_seq_add(memory, seq_id, keep + drop, -1, -drop)
        return True

    def save(self, seq_id: int, *, partial: bool = False) -> npt.NDArray[np.uint8] | None:
        """A copy of a sequence's memory in host RAM, or None if there is nothing to save."""
        self._check(seq_id)
        flags = STATE_PARTIAL if partial else STATE_FULL
        size = int(self._lib.llama_state_seq_get_size_ext(self.handle, seq_id, flags))
        blob = np.empty(size, dtype=np.uint8)
        pointer = blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = self._lib.llama_state_seq_get_data_ext(self.handle, pointer, size, seq_id, flags)
        return blob if written == size and size > 0 else None

    def state_size(self, seq_id: int, *, partial: bool = False) -> int:
        """Bytes that `save` would take."""
        self._check(seq_id)
        flags = STATE_PARTIAL if partial else STATE_FULL
        return int(self._lib.llama_state_seq_get_size_ext(self.handle, seq_id, flags))

    def restore(
        self, seq_id: int, blob: npt.NDArray[np.uint8], *, length: int, partial: bool = False
    ) -> bool:
        """Loads a saved state of `length` positions. On False the sequence was emptied.

        A partial blob rolls back a sequence that still holds its other part: it is loaded first
        and the tail dropped after, the one order that is right for every kind of memory.
        """
        self._check(seq_id)
        flags = STATE_PARTIAL if partial else STATE_FULL
        pointer = blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = self._lib.llama_state_seq_set_data_ext(
            self.handle, pointer, blob.size, seq_id, flags
        )
        done = read == blob.size
        if done and partial:
            done = bool(self._lib.llama_memory_seq_rm(self._memory, seq_id, length, -1))
        last = self.positions(seq_id)[1]
        # With M-RoPE the tokens of a picture share positions: a state that ends in one ends early.
        if not done or not (last == length - 1 or (self._has_mrope and 0 <= last < length)):
            self.clear(seq_id)
            return False
        return True

    def _check(self, seq_id: int) -> None:
        """An id out of range would end the process inside libllama."""
        if not 0 <= seq_id < self.num_sequences:
            raise IndexError(f"sequence id {seq_id} is not in 0 … {self.num_sequences - 1}")

    def set_warm_up(self, on: bool) -> None:
        """While on, a decode touches all weights (all experts of a mixture too)."""
        self._lib.llama_set_warmup(self.handle, on)

    def close(self) -> None:
        if self.handle:
            self._lib.llama_free(self.handle)
            self.handle = None


def _floats(pointer: Any, count: int) -> npt.NDArray[np.float32]:
    """A view of `count` floats that libllama owns: a tenth of the time of numpy's own way."""
    owned: Any = (ctypes.c_float * count).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(owned, np.float32)
