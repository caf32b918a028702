"""Batches whose arrays are numpy's, filled without a C call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.native import library


class Batch:
    """A reusable batch: rows of (token, position, sequence, wants logits), at most `capacity`.

    The arrays belong to this object, so nothing has to be freed; it must outlive every decode
    that uses it.
    """

    def __init__(self, capacity: int) -> None:
        lib: Any = library.load()
        self.capacity = capacity
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._num_seq_ids = np.ones(capacity, dtype=np.int32)
        self._seq_ids = np.zeros(capacity, dtype=np.int32)
        self._logits = np.zeros(capacity, dtype=np.int8)
        # llama_batch.seq_id is an array of pointers to each row's list of ids, here of length one.
        self._seq_pointers = self._seq_ids.ctypes.data + np.arange(capacity, dtype=np.uint64) * 4
        self._offsets = np.arange(capacity, dtype=np.int32)

        def pointer(array: Any, kind: Any) -> Any:
            return array.ctypes.data_as(kind)

        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.struct = lib.llama_batch()
        self.struct.token = pointer(self._tokens, int32_p)
        self.struct.pos = pointer(self._positions, int32_p)
        self.struct.n_seq_id = pointer(self._num_seq_ids, int32_p)
        self.struct.seq_id = pointer(self._seq_pointers, ctypes.POINTER(int32_p))
        self.struct.logits = pointer(self._logits, ctypes.POINTER(ctypes.c_int8))
        self.struct.n_tokens = 0
        self.num_outputs = 0

    def __len__(self) -> int:
        return int(self.struct.n_tokens)

    def clear(self) -> None:
        self.struct.n_tokens = 0
        self.num_outputs = 0

    def add(self, seq_id: int, position: int, tokens: Sequence[int], num_outputs: int) -> None:
        """Appends tokens of one sequence from `position` on; the last `num_outputs` want logits."""
        start = self.struct.n_tokens
        end = start + len(tokens)
        if end > self.capacity:
            # More than n_batch tokens would end the process inside libllama.
            raise OverflowError(f"batch of {end} rows is over its capacity of {self.capacity}")
        if end - start == 1:  # most are of one token; slices would take three times as long
            self._tokens[start] = tokens[0]
            self._positions[start] = position
            self._seq_ids[start] = seq_id
            self._logits[start] = num_outputs
            self.struct.n_tokens = end
            self.num_outputs += num_outputs
            return
        self._tokens[start:end] = tokens
        self._positions[start:end] = self._offsets[: end - start] + position
        self._seq_ids[start:end] = seq_id
        self._logits[start:end] = 0
        self._logits[end - num_outputs : end] = 1
        self.struct.n_tokens = end
        self.num_outputs += num_outputs


class EmbeddingBatch:
    """Rows of one sequence that come as embeddings instead of tokens: a picture, or part of one.

    Refers to the arrays that it was made from; it must outlive the decode that uses it.
    """

    def __init__(
        self,
        seq_id: int,
        embeddings: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        num_outputs: int,
    ) -> None:
        """Shapes (n, n_embd) and (sections, n); the last `num_outputs` rows want logits."""
        lib: Any = library.load()
        size = len(embeddings)
        self._embeddings = np.ascontiguousarray(embeddings)
        self._positions = np.ascontiguousarray(positions)
        self._num_seq_ids = np.ones(size, dtype=np.int32)
        self._seq_ids = np.full(size, seq_id, dtype=np.int32)
        self._seq_pointers = self._seq_ids.ctypes.data + np.arange(size, dtype=np.uint64) * 4
        self._logits = np.zeros(size, dtype=np.int8)
        self._logits[size - num_outputs :] = 1
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.struct = lib.llama_batch()
        self.struct.n_tokens = size
        self.struct.embd = self._embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self.struct.pos = self._positions.ctypes.data_as(int32_p)
        self.struct.n_seq_id = self._num_seq_ids.ctypes.data_as(int32_p)
        self.struct.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(int32_p))
        self.struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
