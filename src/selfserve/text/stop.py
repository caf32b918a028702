"""Stop strings in a stream of text, found wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """What one push gives out."""

    text: str
    """Text that can be shown: it is neither a stop string nor may it become one."""
    matched: str | None = None
    """The stop string that ended the text; nothing comes after it."""


class StopMatcher:
    """Cuts a text at the first stop string in it, holding back only what may still become one.

    The match that begins first wins, and of those that begin together the longest. A longer stop
    string therefore delays a shorter one that it begins with until the text decides.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(sorted({stop for stop in stops if stop}, key=len, reverse=True))
        self._first = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """Text that is safe to show. After a match every further push gives nothing."""
        if not self._stops:
            return StopResult(text)
        if self._matched is not None:
            return StopResult("", self._matched)
        self._held += text
        return self._advance(final=False)

    def flush(self) -> str:
        """End of generation: the text that was held back. A stop string still cuts it."""
        if self._matched is not None or not self._held:
            return ""
        return self._advance(final=True).text

    @property
    def matched(self) -> str | None:
        """The stop string that was found, also one that only `flush` decided."""
        return self._matched

    def _advance(self, *, final: bool) -> StopResult:
        held = self._held
        for start, character in enumerate(held):
            if character not in self._first:
                continue
            if not final and self._may_grow(start):
                self._held = held[start:]
                return StopResult(held[:start])
            for stop in self._stops:
                if held.startswith(stop, start):
                    self._matched, self._held = stop, ""
                    return StopResult(held[:start], stop)
        self._held = ""
        return StopResult(held)

    def _may_grow(self, start: int) -> bool:
        """True if the text from `start` to its end is the beginning of a longer stop string."""
        length = len(self._held) - start
        if length >= self._longest:
            return False
        tail = self._held[start:]
        return any(len(stop) > length and stop.startswith(tail) for stop in self._stops)
