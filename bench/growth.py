"""How speed and the cost of a step grow with the number of sequences and with the context."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scenario import Play
from bench.servers import Server
from bench.texts import SAMPLED, body, cold
from selfserve.cli.bench import decode_speed
from selfserve.cli.chat_stream import chat

SEQUENCES = (1, 2, 4, 8, 16, 32)
SEQUENCES_CONTEXT = 512
CONTEXTS = (128, 1024, 4096, 8000)
CONTEXTS_CONTEXT = 8192
TOKENS_PER_WORD = 1.05
"""Of the random words; with some reserve for the template."""
SHORT_WORDS = 10
QUICK = {"sequences": (1, 8), "context": (128, 1024)}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured place of a curve."""

    x: float
    """Sequences at once, or tokens of context."""
    tokens_per_s: float
    """Of all sequences together."""
    step_ms: float
    """Median time from one piece of text of a sequence to its next one."""


async def by_sequences(server: Server, play: Play, count: int) -> Point:
    """`count` short sequences at once. Their answers are long enough that all of them are written
    at the same time for most of it; only that time counts."""
    tokens = play.count(192, 24)
    bodies = [body(cold(play.random, SHORT_WORDS), tokens, **SAMPLED) for _ in range(count)]
    answers = await asyncio.gather(*(chat(server.address, request) for request in bodies))
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    return Point(count, decode_speed(answers), statistics.median(gaps) * 1e3)


async def by_context(server: Server, play: Play, tokens: int) -> Point:
    """One sequence behind a prompt of about so many tokens."""
    words = int((tokens - 60) / TOKENS_PER_WORD)
    request = body(cold(play.random, words), play.count(64, 6), **SAMPLED)
    answer = await chat(server.address, request)
    step_ms = statistics.median(answer.gaps_s) * 1e3
    return Point(answer.prompt_tokens, answer.tokens_per_s, step_ms)


def median(points: Sequence[Point]) -> Point:
    """The median of several measurements of one place, figure by figure."""
    return Point(
        statistics.median(point.x for point in points),
        statistics.median(point.tokens_per_s for point in points),
        statistics.median(point.step_ms for point in points),
    )
