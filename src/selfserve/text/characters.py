"""Sets of Unicode characters as ranges of code points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from selfserve.text.fuel import Fuel

LAST = 0x10FFFF
MAX_BOUNDS = 20_000
"""Boundaries of an Alphabet, and so the bits of each of its integers."""
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True, eq=False)
class CharSet:
    """Disjoint ranges (both ends included), ascending, none of which touches the next.

    Sets are keys by identity: a hash over ranges would cost as much as the set is large.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> CharSet:
        """The union of `ranges`, in any order; surrogates, which no text holds, are left out."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(_without_surrogates(ranges)):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    @classmethod
    def one(cls, char: str) -> CharSet:
        return cls(((ord(char), ord(char)),))

    @classmethod
    def any(cls) -> CharSet:
        return cls.of([(0, LAST)])

    def holds(self, code: int) -> bool:
        return any(low <= code <= high for low, high in self.ranges)

    def inverted(self) -> CharSet:
        gaps: list[tuple[int, int]] = []
        start = 0
        for low, high in self.ranges:
            gaps.append((start, low - 1))
            start = high + 1
        gaps.append((start, LAST))
        return CharSet.of((low, high) for low, high in gaps if low <= high)


class Alphabet:
    """The characters that a grammar can tell apart, so that a set of them is one integer.

    Every boundary of a range begins a new bit; a set is the union of the bits of its ranges. So
    union is `|` and overlap is `&`, however many ranges the sets have.
    """

    def __init__(self, sets: Iterable[CharSet], fuel: Fuel) -> None:
        """Raises ValueError if there are more than MAX_BOUNDS boundaries."""
        bounds: set[int] = set()
        for each in sets:
            fuel.spend(1 + len(each.ranges))
            bounds.update(bound for low, high in each.ranges for bound in (low, high + 1))
        if len(bounds) > MAX_BOUNDS:
            raise ValueError(f"more than {MAX_BOUNDS // 2} characters are told apart")
        self._bounds = sorted(bounds)
        self._fuel = fuel
        self._known: dict[CharSet, int] = {}

    def bits(self, chars: CharSet) -> int:
        """`chars`, one of the sets that the alphabet was made from, as an integer."""
        known = self._known.get(chars)
        if known is None:
            self._fuel.spend(len(chars.ranges))
            known = 0
            for low, high in chars.ranges:
                known |= (1 << self._place(high + 1)) - (1 << self._place(low))
            self._known[chars] = known
        return known

    def text_bits(self, text: str) -> int:
        """The characters of `text`, whose sets the alphabet was made from, as an integer."""
        found = 0
        for char in set(text):
            self._fuel.spend()
            found |= 1 << self._place(ord(char))
        return found

    def _place(self, bound: int) -> int:
        return bisect_left(self._bounds, bound)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high
