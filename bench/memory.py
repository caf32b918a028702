"""Resident memory while many different prompts come and go."""

from __future__ import annotations

from bench.scenario import Play
from bench.servers import Server
from bench.texts import body, cold
from selfserve.cli.chat_stream import chat

NUM_PROMPTS = 1000
QUICK_PROMPTS = 10
PROMPT_WORDS = 450
"""About 500 tokens with the template."""
NUM_SAMPLES = 20
CACHE_RAM_MIB = 256
"""Full after a few dozen prompts, so that most of the run shows whether it stays full."""


async def resident_memory(server: Server, play: Play) -> list[tuple[int, float]]:
    """(prompts so far, MiB) at NUM_SAMPLES places, the first one before any prompt."""
    count = play.count(NUM_PROMPTS, QUICK_PROMPTS)
    words = play.count(PROMPT_WORDS, 40)
    every = max(1, count // NUM_SAMPLES)
    samples = [(0, server.rss_mib)]
    for done in range(1, count + 1):
        await chat(server.address, body(cold(play.random, words), 1))
        if done % every == 0:
            samples.append((done, server.rss_mib))
    return samples


def growth_share(samples: list[tuple[int, float]]) -> float:
    """How much the memory still grew over the last three quarters of the run, as a share."""
    settled = [mib for _, mib in samples[len(samples) // 4 :]]
    return max(settled) / settled[0] - 1
