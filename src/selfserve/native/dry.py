"""Samplers of DRY, cloned from kept ones: libllama looks through the whole vocabulary for each
sequence breaker when it makes one anew."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from selfserve.errors import InvalidRequest
from selfserve.native.pieces import PieceStatistics

ENTRY_BYTES = 96
"""Of one token that a breaker may begin in: a node of libllama's table, and the tokens after it."""
MAX_KEPT_BYTES = 32 << 20
MAX_BREAKER_BYTES = 64 << 20
"""Of the breakers of one request, of which each `dry` of its chain holds a copy. The usual ones
take less than one."""


@dataclass(frozen=True, slots=True)
class DryOptions:
    """The arguments of libllama's constructor, which a clone cannot change."""

    multiplier: float
    base: float
    allowed_length: int
    window: int
    breakers: tuple[bytes, ...]
    """Distinct and none empty."""


class DryPrototypes:
    """Samplers without a history, the least used of which are freed beyond a number of bytes.

    Every thread may use it; one waits while another makes a prototype. `close()` frees them.
    """

    def __init__(self, lib: Any, vocab: Any, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._lib = lib
        self._vocab = vocab
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[DryOptions, tuple[Any, int]] = OrderedDict()
        self.kept_bytes = 0
        self.num_made = 0
        """Looks through the vocabulary so far."""

    def sampler(self, options: DryOptions, statistics: PieceStatistics) -> Any:
        """A sampler for the caller to free, with a history of its own."""
        with self._lock:
            found = self._kept.get(options)
            if found is not None:
                self._kept.move_to_end(options)
                return self._lib.llama_sampler_clone(found[0])
            made = self._make(options)
            size = size_of(options, statistics)
            if size > self._max_bytes:
                return made
            clone = self._lib.llama_sampler_clone(made)
            self._kept[options] = (made, size)
            self.kept_bytes += size
            while self.kept_bytes > self._max_bytes:
                self._forget_oldest()
            return clone

    def _make(self, options: DryOptions) -> Any:
        self.num_made += 1
        breakers = (ctypes.c_char_p * max(1, len(options.breakers)))(*options.breakers)
        return self._lib.llama_sampler_init_dry(
            self._vocab,
            options.multiplier,
            options.base,
            options.allowed_length,
            options.window,
            breakers,
            len(options.breakers),
        )

    def _forget_oldest(self) -> None:
        _, (sampler, size) = self._kept.popitem(last=False)
        self.kept_bytes -= size
        self._lib.llama_sampler_free(sampler)

    def close(self) -> None:
        with self._lock:
            while self._kept:
                self._forget_oldest()


def size_of(options: DryOptions, statistics: PieceStatistics) -> int:
    """Bytes of one sampler, at most about that many."""
    entries = sum(map(statistics.most_beginning, options.breakers))
    return ENTRY_BYTES * entries + 16 * options.window


def check_size(options: DryOptions, statistics: PieceStatistics, copies: int) -> None:
    """Raises InvalidRequest for breakers that are in so much of the vocabulary that the copies of
    one request would take a noticeable part of the machine's memory."""
    size = copies * size_of(options, statistics)
    if size > MAX_BREAKER_BYTES:
        raise InvalidRequest(
            f"dry_sequence_breakers: must take at most {MAX_BREAKER_BYTES >> 20} MiB, these take "
            f"{-(-size >> 20)}: they are parts of too many tokens, or samplers names dry too often",
            param="dry_sequence_breakers",
        )
