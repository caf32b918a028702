"""What a scenario is: a function that plays it once on one server, and what is asked of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from bench.servers import Server

MAX_SLOTS = 8
FEW_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Play:
    """One repetition: the same random texts for every server, others in the next repetition."""

    random: Random
    is_quick: bool = False

    def count(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure that a scenario returns, under `key`."""

    key: str
    title: str
    unit: str
    at_least: float | None = None
    """Target for the ratio of our median to the peer's."""
    at_most: float | None = None
    own_at_most: float | None = None
    """Target for our own median, whatever the peer does."""
    is_compared: bool = True
    """Whether the picture of gains shows it."""
    digits: int = 1


Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A situation of use."""

    name: str
    title: str
    play: Callable[[Server, Play], Awaitable[Figures]]
    measures: tuple[Measure, ...]
    num_slots: int = MAX_SLOTS
    limit_s: float = 180.0
    """One repetition on one server; beyond, it counts as failed."""
