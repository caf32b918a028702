"""What is remembered of prompts in host RAM, under one limit of bytes.

Rules of this file
    The limit holds for saved states and for the checkpoints of slots together, at every moment:
    room is made before memory is taken.
    What was used longest ago leaves first, whichever of the two it is.
"""

from __future__ import annotations

from selfserve.engine.remembered import HOST, Record, common_length, thin_out
from selfserve.engine.sequence import TokenArray

MAX_RECORDS = 512
"""All are compared with every new prompt, which takes about a microsecond each."""


class HostRam:
    """The records of saved states. Belongs to the memory of prompts."""

    def __init__(self, limit_bytes: int, slots: list[Record], *, can_cut: bool) -> None:
        """`slots`: those whose checkpoints count as well. `can_cut`: whether a saved state serves
        all prompts that begin as it does."""
        self.limit_bytes = limit_bytes
        self._slots = slots
        self._can_cut = can_cut
        self.records: list[Record] = []
        self.num_evictions = 0

    @property
    def num_bytes(self) -> int:
        """Of saved states and checkpoints; one that two records share counts once."""
        blobs = {id(r.blob): r.blob.nbytes for r in self.records if r.blob is not None}
        for record in (*self._slots, *self.records):
            blobs.update((id(c.blob), c.blob.nbytes) for c in record.checkpoints)
        return sum(blobs.values())

    def holds(self, tokens: TokenArray) -> bool:
        """Whether it can restore all that a slot with these tokens holds."""
        return any(
            common_length(tokens, r.tokens) == len(tokens)
            and (self._can_cut or len(r.tokens) == len(tokens))
            for r in self.records
        )

    def put(self, record: Record) -> None:
        """Stores a record for which room was made."""
        if self._can_cut:  # a longer state answers for those that it begins with
            tokens = record.tokens
            self.records = [
                r for r in self.records if common_length(r.tokens, tokens) < len(r.tokens)
            ]
        self.records.append(record)
        if len(self.records) > MAX_RECORDS:
            self._evict(min(self.records, key=lambda r: r.used))

    def make_room(self, size: int, sparing: Record | None = None) -> bool:
        """Gives up what was used longest ago until `size` bytes more fit: saved states whole, of
        slots (but for one to spare) one checkpoint after the other. False, and nothing given up, if
        they never fit."""
        if size > self.limit_bytes:
            return False
        while self.num_bytes + size > self.limit_bytes:
            holders = [r for r in self._slots if r.checkpoints and r is not sparing]
            candidates = [*self.records, *holders]
            if not candidates:
                return False
            self._evict(min(candidates, key=lambda r: r.used))
        return True

    def _evict(self, record: Record) -> None:
        if record.slot == HOST:
            self.records.remove(record)
            self.num_evictions += 1
        else:
            thin_out(record.checkpoints)

    def check(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert self.num_bytes <= self.limit_bytes
        assert len(self.records) <= MAX_RECORDS
        for record in self.records:
            assert record.slot == HOST
            assert record.blob is not None
            assert len(record.tokens)
