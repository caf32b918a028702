"""Prompt memory in host RAM: the states that slots lost, found again by their tokens.

Rules of this file
- `num_bytes` never exceeds the limit, not for a moment: room is made before memory is taken
  (`make_room`, then the copy out of the context, then `put`).
- An entry is used only for tokens equal to its own: the trie compares the tokens themselves, not
  hashes of them, so one client's text cannot reach another.
- How far an entry can be used depends on the memory of the model. A *cuttable* state (plain
  attention) serves every sequence that begins alike: restore it, drop its tail. A *whole* state
  (recurrent, hybrid, sliding window, and every checkpoint) serves only sequences that begin with
  all of its tokens. The two kinds lie in two tries, so no look-up can confuse them.

Theory of operation
A chat of ten turns would leave ten cuttable states, each of which contains the one before; the
newest alone answers for all, so `put` drops those that it contains. Whole states do not contain
one another in that sense and all stay, until the least recently used make room: of one chat these
are its oldest turns, while the common system prompt stays, as each new chat uses it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from selfserve.engine.token_trie import TokenTrie, TrieEntry

B = TypeVar("B")


@dataclass(eq=False, slots=True)
class Entry(Generic[B]):
    """One saved state. `blob` stays readable for whoever holds the entry, even after it left."""

    blob: B
    num_tokens: int
    num_bytes: int
    whole: bool
    """True if the state cannot be cut: it is usable with all of its tokens or not at all."""
    _place: TrieEntry[Entry[B]] | None = None


@dataclass(frozen=True, slots=True)
class Found(Generic[B]):
    """`length` tokens of `entry` are the beginning of the sequence that was asked for."""

    entry: Entry[B]
    length: int


class PrefixPool(Generic[B]):
    """Saved states by their tokens, under a limit of bytes. Belongs to the engine thread.

    `B` is whatever the runner saves; the pool never looks into it and believes the caller's
    `num_bytes`. `limit_bytes` 0 stores nothing. `cuttable` says whether the model's memory can
    drop the tail of a sequence; if not, all entries are whole ones. With `keeps_contained` entries
    are found by any common beginning, but a longer one never stands in for a shorter: for states
    that can be brought back to some lengths (checkpoints), though not to all.
    """

    def __init__(
        self, limit_bytes: int, *, cuttable: bool = True, keeps_contained: bool = False
    ) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes must not be negative: {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.cuttable = cuttable
        self._keeps_contained = keeps_contained
        self.num_bytes = 0
        self.num_hits = 0
        self.num_evictions = 0
        self._cuttable: TokenTrie[Entry[B]] = TokenTrie()
        self._whole: TokenTrie[Entry[B]] = TokenTrie()
        self._by_use: OrderedDict[Entry[B], None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._by_use)

    def __contains__(self, entry: Entry[B]) -> bool:
        return entry in self._by_use

    def find(self, tokens: Sequence[int], *, exact: bool = False) -> Found[B] | None:
        """The entry that saves the most of computing `tokens`; None if none saves anything.

        With `exact` only entries all of whose tokens begin `tokens`, even if they could be cut.
        Changes nothing, so it may be asked at any time; `touch` the entry when it is used.
        """
        in_whole = self._cuttable if self._keeps_contained else self._whole
        whole = in_whole.longest_whole(tokens)
        other = self._cuttable.longest_whole(tokens) if exact else self._cuttable.longest(tokens)
        # At equal length the whole one: nothing has to be cut off after restoring it.
        best = max(whole, other, key=lambda match: match.length if match else 0)
        return None if best is None else Found(best.entry.value, best.length)

    def covers(self, tokens: Sequence[int]) -> bool:
        """True if saving the state of `tokens` would add nothing to what the pool can restore."""
        found = self.find(tokens)
        if not len(tokens) or found is None or found.length < len(tokens):
            return not len(tokens)
        return not self._keeps_contained or found.entry.num_tokens == len(tokens)

    def make_room(
        self, num_bytes: int, *, tokens: Sequence[int] = (), checkpoint: bool = False
    ) -> bool:
        """Evicts by least recent use until `num_bytes` more fit: call it before taking the memory.

        False, and nothing evicted, if they never fit: then do not store. With the `tokens` (and
        `checkpoint`) of the coming `put`, entries that it replaces leave first, before any other.
        An entry about to be restored should be touched before, so that it leaves last.
        """
        if num_bytes <= 0:
            raise ValueError(f"num_bytes must be positive: {num_bytes}")
        if num_bytes > self.limit_bytes:
            return False
        for entry in self._replaced_by(tokens, checkpoint):
            self.remove(entry)
        while self.num_bytes + num_bytes > self.limit_bytes:
            self.remove(next(iter(self._by_use)))
            self.num_evictions += 1
        return True

    def put(
        self, tokens: Sequence[int], blob: B, num_bytes: int, *, checkpoint: bool = False
    ) -> Entry[B]:
        """Stores the state after `tokens`, as the most recently used one.

        A cuttable entry replaces those that are its beginning; a whole one replaces only one of
        the same tokens. A `checkpoint` is whole in any pool. Makes room itself if need be; raises
        ValueError if `num_bytes` is over the limit or `tokens` is empty.
        """
        if not len(tokens):
            raise ValueError("the state of an empty sequence cannot be stored")
        if not self.make_room(num_bytes, tokens=tokens, checkpoint=checkpoint):
            raise ValueError(f"num_bytes {num_bytes} is over the limit of {self.limit_bytes}")
        whole = checkpoint or not self.cuttable
        entry = Entry(blob, len(tokens), num_bytes, whole)
        entry._place = self._trie(entry).insert(tokens, entry)
        self._by_use[entry] = None
        self.num_bytes += num_bytes
        return entry

    def touch(self, entry: Entry[B]) -> None:
        """Counts a hit and makes `entry` the last to be evicted. KeyError if it is not in."""
        if entry._place is None:
            raise KeyError("the entry is not in the pool")
        self._by_use.move_to_end(entry)
        self._trie(entry).touch(entry._place)
        self.num_hits += 1

    def remove(self, entry: Entry[B]) -> None:
        """Takes `entry` out, for instance because it could not be restored. KeyError if absent."""
        if entry._place is None:
            raise KeyError("the entry is not in the pool")
        self._trie(entry).remove(entry._place)
        entry._place = None
        del self._by_use[entry]
        self.num_bytes -= entry.num_bytes

    def clear(self) -> None:
        """Takes everything out; the counters of hits and evictions stay."""
        for entry in list(self._by_use):
            self.remove(entry)

    def check(self) -> None:
        """Raises AssertionError where the books do not agree. For tests and idle times."""
        self._cuttable.check()
        self._whole.check()
        placed = {place.value for trie in (self._cuttable, self._whole) for place in trie}
        if placed != set(self._by_use) or len(self._cuttable) + len(self._whole) != len(placed):
            raise AssertionError("the tries and the order of use hold different entries")
        if any(place.value._place is not place for place in self._cuttable):
            raise AssertionError("an entry does not know its place")
        counted = sum(entry.num_bytes for entry in self._by_use)
        if not counted == self.num_bytes <= self.limit_bytes:
            raise AssertionError(
                f"{counted} bytes held, {self.num_bytes} counted, limit {self.limit_bytes}"
            )

    def _trie(self, entry: Entry[B]) -> TokenTrie[Entry[B]]:
        return self._whole if entry.whole else self._cuttable

    def _replaced_by(self, tokens: Sequence[int], checkpoint: bool) -> list[Entry[B]]:
        is_whole = checkpoint or not self.cuttable
        trie = self._whole if is_whole else self._cuttable
        only_equal = is_whole or self._keeps_contained
        return [
            place.value
            for place in trie.whole_prefixes(tokens)
            if not only_equal or place.num_tokens == len(tokens)
        ]
