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


async def speed(
    server: Server, random: Random, streams: int, tokens: int, more: dict[str, Any]
) -> float:
    """Tokens a second of `streams` answers at once."""
    task = "Write down the orders of the day as JSON."
    settings = {**SAMPLED, "temperature": 1.0, "seed": random.randrange(1 << 30), **more}
    bodies = [body(cold(random, PROMPT_WORDS, task), tokens, **settings) for _ in range(streams)]
    return decode_speed(
        await asyncio.gather(*(chat(server.address, request) for request in bodies))
    )


async def compare(server: Server, streams: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Speeds of each of FORMS, round by round; the first round warms up and is left out."""
    random = Random(1)
    found: dict[str, list[float]] = {name: [] for name in FORMS}
    for _ in range(rounds + 1):
        for name, more in FORMS.items():
            found[name].append(await speed(server, random, streams, tokens, more))
    return {name: speeds[1:] for name, speeds in found.items()}


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
            free, constrained = (statistics.median(found[name]) for name in FORMS)
            ratios.append(constrained / free)
            print(
                f"{count:2} streams: free {free:.0f}, constrained {constrained:.0f} tokens/s, "
                f"ratio {ratios[-1]:.2f} (target: at least {TARGET})"
            )
    sys.exit(0 if min(ratios) >= TARGET else 1)


if __name__ == "__main__":
    main()
