"""Sets of Unicode characters as ranges of code points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class CharSet:
    """Disjoint ranges (both ends included), ascending, none of which touches the next."""

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

    def __init__(self, sets: Iterable[CharSet]) -> None:
        bounds = {bound for each in sets for low, high in each.ranges for bound in (low, high + 1)}
        self._bounds = sorted(bounds)
        self._known: dict[CharSet, int] = {}

    def bits(self, chars: CharSet) -> int:
        """`chars`, one of the sets that the alphabet was made from, as an integer."""
        known = self._known.get(chars)
        if known is None:
            known = 0
            for low, high in chars.ranges:
                start = bisect_left(self._bounds, low)
                known |= (1 << bisect_left(self._bounds, high + 1)) - (1 << start)
            self._known[chars] = known
        return known


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high
