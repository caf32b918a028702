"""The candidates of one draw as libllama takes them, in memory that each thread keeps."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.native import library

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""
FEW = 64
"""Masked logits up to which copying the runs between them is faster than picking the others."""


class Candidates:
    """An array for rows of up to `capacity` logits. One draw uses it at a time."""

    def __init__(self, capacity: int) -> None:
        lib: Any = library.load()
        self.capacity = capacity
        self._data = np.zeros(capacity, dtype=TOKEN_DATA)
        self._start = self._data.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        self._address = self._data.ctypes.data
        self._ids = np.arange(capacity, dtype=np.int32)
        self._is_left = np.empty(capacity, dtype=np.bool_)
        self.struct = lib.llama_token_data_array()
        self.reference = ctypes.byref(self.struct)

    def fill(self, logits: npt.NDArray[np.float32]) -> None:
        """Takes what is above −inf, in the order of the ids."""
        is_left = np.greater(logits, -np.inf, out=self._is_left[: logits.size])
        count = int(np.count_nonzero(is_left))
        if logits.size - count <= FEW:
            holes = np.flatnonzero(np.logical_not(is_left, out=is_left)).tolist()
            self._copy_between(holes, logits)
        else:
            ids = np.flatnonzero(is_left)
            self._data["id"][:count] = ids
            self._data["logit"][:count] = logits[ids]
        struct = self.struct
        struct.data, struct.size, struct.selected, struct.sorted = self._start, count, -1, False

    def _copy_between(self, holes: list[int], logits: npt.NDArray[np.float32]) -> None:
        target = begin = 0
        for hole in (*holes, logits.size):
            end = target + hole - begin
            self._data["id"][target:end] = self._ids[begin:hole]
            self._data["logit"][target:end] = logits[begin:hole]
            target, begin = end, hole + 1

    @property
    def left(self) -> npt.NDArray[Any]:
        """A view of those that are left. Some samplers cut from the front: they move the start."""
        moved = ctypes.cast(self.struct.data, ctypes.c_void_p).value or 0
        first = (moved - self._address) // TOKEN_DATA.itemsize
        view: npt.NDArray[Any] = self._data[first : first + self.struct.size]
        return view

    def keep(self, is_kept: npt.NDArray[np.bool_]) -> None:
        """Drops the others of those that are left; the order stays."""
        left = self.left
        kept = left[is_kept]
        left[: kept.size] = kept
        self.struct.size = kept.size


class _Local(threading.local):
    candidates: Candidates | None = None


_local = _Local()


def of_this_thread(capacity: int) -> Candidates:
    """The thread's own, with room for at least so many."""
    found = _local.candidates
    if found is None or found.capacity < capacity:
        found = _local.candidates = Candidates(capacity)
    return found
