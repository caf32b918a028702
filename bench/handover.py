"""How long running streams are silent while slots change hands at a deep context.

    python -m bench.handover --model FILE [--tokens 8000] [--shared 7000] [--rounds 3]

More clients than slots talk in turn, each in a conversation of its own that is about `--tokens`
long. Every turn finds its slot held by another conversation: that one is saved, the own one is
restored, and where two slots lie apart one is moved. Measured is the longest time between two
pieces of a running answer, against the same with as many clients as slots, at the same depth, when
nobody else wants a slot. The exit code is 1 if the ratio is over 2.

`--shared` tokens at the beginning are the same for all, and so are computed once: a model of real
size reads some dozens of tokens a second on two processors. What is saved and restored is as large
as without. A model file can be any GGUF; sizes say more if it is one of some gigabytes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import httpx

from bench.texts import SAMPLED, Message, assistant, body, system, user
from selfserve.cli.chat_stream import Address, Answer, chat, parse_address
from selfserve.cli.child_server import child_server
from selfserve.cli.sample_text import cold_text
from selfserve.resources import available_cpus

TARGET = 2.0
TOKENS_PER_WORD = 1.05
"""Of the random words."""
QUESTION_WORDS = 10
TURN_TOKENS = (16, 48)
"""Answers of one turn: unequal, so that slots become free at different times."""
QUIET_TOKENS = 64
TURN_ROOM = 160
"""Tokens by which a conversation grows in a turn, at most, and some reserve."""
SETTLE_S = 1.5
"""Until the counters of the next heartbeat are there."""
COUNTERS = ("cache_hits", "cache_evictions", "cache_entries", "cache_bytes", "steps", "step_ms")


@dataclass(slots=True)
class Conversation:
    """One client's; it grows with every turn."""

    messages: list[Message]
    random: Random = field(repr=False)

    async def turn(self, address: Address, tokens: int) -> Answer:
        """Asks, and keeps the answer as a part of what it asks next."""
        self.messages.append(user(cold_text(self.random, QUESTION_WORDS)))
        sampled = SAMPLED | {"seed": self.random.randrange(2**31), "reasoning_effort": "none"}
        answer = await chat(address, body(self.messages, tokens, **sampled))
        self.messages.append(assistant(answer.text))
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the clients saw of one kind of turns."""

    title: str
    answers: tuple[Answer, ...]
    seconds: float

    @property
    def gaps_ms(self) -> list[float]:
        return [gap * 1e3 for answer in self.answers for gap in answer.gaps_s]

    @property
    def longest_ms(self) -> float:
        return max(self.gaps_ms)

    def __str__(self) -> str:
        cached = sum(answer.cached_tokens for answer in self.answers)
        prompt = sum(answer.prompt_tokens for answer in self.answers)
        ttft_s = statistics.median(answer.ttft_s for answer in self.answers)
        return (
            f"{self.title:<34} {len(self.answers):>3} answers in {self.seconds:5.0f} s, "
            f"silence: longest {self.longest_ms:6.0f} ms, median "
            f"{statistics.median(self.gaps_ms):5.0f} ms; first token {ttft_s:5.1f} s; "
            f"{cached / prompt:4.0%} of {prompt // len(self.answers)} prompt tokens remembered"
        )


def conversations(count: int, tokens: int, shared: int, random: Random) -> list[Conversation]:
    """`count` chats of about `tokens` tokens, the first `shared` of which are those of all."""
    common = system(cold_text(random, int(shared / TOKENS_PER_WORD) or 1))
    own_words = max(1, int((tokens - shared) / TOKENS_PER_WORD))
    found = []
    for _ in range(count):
        own = Random(random.randrange(2**31))
        first = [user(cold_text(own, own_words)), assistant("I see.")]
        found.append(Conversation([common, *first], own))
    return found


async def quiet(title: str, address: Address, clients: Sequence[Conversation]) -> Phase:
    """All clients at once, one for each slot; only the time when all of them generate counts."""
    begin_s = time.perf_counter()
    answers = await asyncio.gather(*(client.turn(address, QUIET_TOKENS) for client in clients))
    first_s = max(answer.times_s[0] for answer in answers)
    last_s = min(answer.end_s for answer in answers)
    together = tuple(within(answer, first_s, last_s) for answer in answers)
    return Phase(title=title, answers=together, seconds=time.perf_counter() - begin_s)


def within(answer: Answer, first_s: float, last_s: float) -> Answer:
    """The pieces of an answer between two times."""
    times = tuple(each for each in answer.times_s if first_s <= each <= last_s)
    return replace(answer, times_s=times)


async def in_turn(
    title: str, address: Address, clients: Sequence[Conversation], num_slots: int, random: Random
) -> Phase:
    """One turn of each client, `num_slots` at a time: who ends makes room for the next."""
    begin_s = time.perf_counter()
    places = asyncio.Semaphore(num_slots)

    async def turn(client: Conversation) -> Answer:
        async with places:
            return await client.turn(address, random.randint(*TURN_TOKENS))

    answers = tuple(await asyncio.gather(*(turn(client) for client in clients)))
    return Phase(title=title, answers=answers, seconds=time.perf_counter() - begin_s)


def counters(url: str) -> dict[str, float]:
    """Those of COUNTERS that the server has, as of its next heartbeat."""
    time.sleep(SETTLE_S)
    found = {}
    for line in httpx.get(f"{url}/metrics", trust_env=False).text.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.removeprefix("self_engine_").removesuffix("_total")
        if name in COUNTERS:
            found[name] = float(value)
    return found


def tell(text: object) -> None:
    print(text, flush=True)


async def measure(url: str, arguments: argparse.Namespace) -> float:
    """Longest silence beside handovers as a multiple of the longest without."""
    address, random, slots = parse_address(url), Random(arguments.seed), arguments.slots
    clients = conversations(arguments.clients, arguments.tokens, arguments.shared, random)
    tell(await in_turn("first prompt, alone", address, clients[:1], 1, random))
    tell(await in_turn("first turn of each", address, clients[1:], slots, random))
    before = await quiet("one client a slot", address, clients[-slots:])
    tell(before)
    counted = await asyncio.to_thread(counters, url)
    rounds = []
    for number in range(arguments.rounds):
        title = f"slots change hands, round {number + 1}"
        rounds.append(await in_turn(title, address, clients, slots, random))
        tell(rounds[-1])
    for name, value in (await asyncio.to_thread(counters, url)).items():
        tell(f"  {name}: {counted.get(name, 0):.0f} before, {value:.0f} after these rounds")
    after = await quiet("one client a slot, again", address, clients[-slots:])
    tell(after)
    without_ms = max(before.longest_ms, after.longest_ms)
    with_ms = max(each.longest_ms for each in rounds)
    ratio = with_ms / without_ms
    tell(
        f"longest silence: {with_ms:.0f} ms beside handovers, {without_ms:.0f} ms without; "
        f"ratio {ratio:.2f} (target: at most {TARGET:g})"
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a GGUF file or a known name")
    parser.add_argument("--tokens", type=int, default=8000, help="of a conversation at its start")
    parser.add_argument("--shared", type=int, default=0, help="of these, common to all")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each client")
    parser.add_argument("--cache-ram", type=int, default=4096, help="MiB for saved conversations")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    room = (arguments.rounds + 4) * TURN_ROOM
    options = {
        "--context-size": arguments.tokens + room,
        "--parallel": arguments.slots,
        "--cache-ram": arguments.cache_ram,
        "--threads": arguments.threads,
        "--request-timeout": 0,
        "--port": 0,
    }
    command = [sys.executable, "-m", "selfserve", "serve", arguments.model]
    command += [str(word) for option in options.items() for word in option]
    with child_server(command) as server:
        ratio = asyncio.run(measure(server.url, arguments))
    sys.exit(0 if ratio <= TARGET else 1)


if __name__ == "__main__":
    main()
