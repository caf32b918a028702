"""Stop strings in a stream of text, found wherever the stream is cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """What one push gives out."""

    text: str
    """Text that can be shown: it is neither a stop string nor may it become one."""
    matched: str | None = None
    """The stop string that ended the text; nothing comes after it."""
    cut: int = 0
    """Characters at the end of all that was pushed that are no part of the text: the stop string,
    of which earlier pushes may have brought the beginning, and what this push had after it."""


class StopMatcher:
    """Cuts a text at the first stop string in it, holding back only what may still become one.

    The match that ends first wins, and of those that end together the longest: so the text alone
    decides, the moment a stop string is whole, and none has to wait for a longer one.

    The cost of a character does not grow with the number of stop strings, but for those that end
    with it: these are compared one by one, in C (2 µs for 256 of them).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._sorted = sorted({stop for stop in stops if stop})
        self._longest = max(map(len, self._sorted), default=0)
        self._first = frozenset(stop[0] for stop in self._sorted)
        ending: dict[str, list[str]] = {}
        for stop in sorted(self._sorted, key=len, reverse=True):
            ending.setdefault(stop[-1], []).append(stop)
        self._ending = {last: tuple(stops) for last, stops in ending.items()}
        """The stop strings by their last character, longest first."""
        self._held = ""
        """The longest end of the text so far that a stop string begins with."""
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """Text that is safe to show. After a match every further push gives nothing."""
        if self._matched is not None:
            return StopResult("", self._matched, len(text))
        if not self._sorted:
            return StopResult(text)
        window = self._held + text
        # A stop string that ends in `text` begins in `window`: else more would be held.
        for end in range(len(self._held) + 1, len(window) + 1):
            ending = self._ending.get(window[end - 1])
            if ending is not None and window.endswith(ending, 0, end):
                stop = next(stop for stop in ending if window.endswith(stop, 0, end))
                self._matched, self._held = stop, ""
                kept = end - len(stop)
                return StopResult(window[:kept], stop, len(window) - kept)
        held_from = self._held_from(window)
        self._held = window[held_from:]
        return StopResult(window[:held_from])

    def flush(self) -> str:
        """End of generation: the text that was held back is text after all."""
        held, self._held = self._held, ""
        return held

    @property
    def matched(self) -> str | None:
        """The stop string that was found."""
        return self._matched

    def _held_from(self, window: str) -> int:
        """Where the longest end of `window` begins that a stop string begins with.

        What is passed over here is never looked at again, so this is one search among the stop
        strings for each character of the text, and one for each push.
        """
        for start in range(max(0, len(window) - self._longest + 1), len(window)):
            if window[start] in self._first:
                tail = window[start:]
                place = bisect_left(self._sorted, tail)
                if place < len(self._sorted) and self._sorted[place].startswith(tail):
                    return start
        return len(window)
