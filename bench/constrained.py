"""What it costs to decode under a schema: tokens a second, beside free text.

    python -m bench.constrained [--streams 1,8] [--tokens 160] [--rounds 5] [--model q4_1]

Free and constrained rounds take turns, so that a slow moment of the machine meets both. Each
answer is a list of orders (nested, with bounds, patterns and enumerations) that is longer than
`--tokens`, so both kinds of answer have equally many tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.models import NAMES, model_path
from bench.servers import SELF, Server, Setting, started
from bench.texts import ORDER_SCHEMA, SAMPLED, body, cold
from selfserve.cli.bench import decode_speed
from selfserve.cli.chat_stream import chat
from selfserve.resources import available_cpus

TARGET = 0.9
PROMPT_WORDS = 30
SCHEMA = {"type": "array", "items": ORDER_SCHEMA, "minItems": 20}
FORM = {"type": "json_schema", "json_schema": {"name": "orders", "schema": SCHEMA}}
FORMS: dict[str, dict[str, Any]] = {"free": {}, "constrained": {"response_format": FORM}}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one round took."""

    tokens_per_s: float
    """All streams together."""
    cpu_ms: float
    """Processor time for each token: says the same on a machine that others use, too."""


async def cost(
    server: Server, random: Random, streams: int, tokens: int, more: dict[str, Any]
) -> Cost:
    """Lets the server write `streams` answers at once."""
    task = "Write down the orders of the day as JSON."
    settings = {**SAMPLED, "temperature": 1.0, "seed": random.randrange(1 << 30), **more}
    bodies = [body(cold(random, PROMPT_WORDS, task), tokens, **settings) for _ in range(streams)]
    before_s = server.cpu_s
    answers = await asyncio.gather(*(chat(server.address, request) for request in bodies))
    num_tokens = sum(answer.completion_tokens for answer in answers)
    return Cost(decode_speed(answers), (server.cpu_s - before_s) / num_tokens * 1e3)


async def compare(server: Server, streams: int, tokens: int, rounds: int) -> dict[str, Cost]:
    """Medians of each of FORMS over the rounds; one more round, the first, warms up."""
    random = Random(1)
    found: dict[str, list[Cost]] = {name: [] for name in FORMS}
    for _ in range(rounds + 1):
        for name, more in FORMS.items():
            found[name].append(await cost(server, random, streams, tokens, more))
    return {name: median(costs[1:]) for name, costs in found.items()}


def median(costs: Sequence[Cost]) -> Cost:
    """Figure by figure."""
    return Cost(
        statistics.median(each.tokens_per_s for each in costs),
        statistics.median(each.cpu_ms for each in costs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of decoding under a schema.")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=NAMES, default=NAMES[0])
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.streams.split(",")]
    setting = Setting(
        model=model_path(arguments.model),
        num_slots=max(counts),
        context_size=1024,
        num_threads=available_cpus(),
        cache_ram_mib=0,
    )
    ratios = []
    with started(SELF, setting) as server:
        for count in counts:
            found = asyncio.run(compare(server, count, arguments.tokens, arguments.rounds))
            free, constrained = (found[name] for name in FORMS)
            ratios.append(constrained.tokens_per_s / free.tokens_per_s)
            print(
                f"{count:2} streams: free {free.tokens_per_s:.0f}, constrained "
                f"{constrained.tokens_per_s:.0f} tokens/s, ratio {ratios[-1]:.2f} (target: at "
                f"least {TARGET}); {free.cpu_ms:.1f} and {constrained.cpu_ms:.1f} ms of processor "
                "time for a token"
            )
    sys.exit(0 if min(ratios) >= TARGET else 1)


if __name__ == "__main__":
    main()
