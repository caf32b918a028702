"""The scenarios. Each plays once on one server and returns its figures, measured at the client."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from random import Random

from bench.scenario import FEW_SLOTS, Figures, Measure, Play, Scenario
from bench.servers import Server
from bench.texts import CODE, ORDER_SCHEMA, SAMPLED, Message, assistant, body, cold, system, user
from selfserve.cli.chat_stream import Answer, ChatStream, chat
from selfserve.cli.sample_text import cold_text

LONG_WORDS = 1500
TURN_WORDS = 20
"""Words that a person writes in one turn of a chat."""
SHORT_WORDS = 60
MAX_ORDER_TOKENS = 400
AT_ONCE = 8


async def one_stream(server: Server, play: Play) -> Figures:
    """One user alone: the speed of the answer, and the wait for its first word."""
    random = play.random
    waits = [
        (await chat(server.address, body(cold(random, SHORT_WORDS), 2))).ttft_s
        for _ in range(play.count(5, 1))
    ]
    request = body(cold(random, SHORT_WORDS), play.count(256, 24), **SAMPLED)
    answer = await chat(server.address, request)
    return {"speed": answer.tokens_per_s, "ttft": statistics.median(waits) * 1e3}


async def many_requests(server: Server, play: Play) -> Figures:
    """16 requests arrive at once on 8 slots."""
    tokens = play.count(64, 8)
    bodies = [body(cold(play.random, SHORT_WORDS), tokens, **SAMPLED) for _ in range(16)]
    answers, elapsed_s = await _together(server, bodies)
    return {"speed": sum(answer.completion_tokens for answer in answers) / elapsed_s}


async def long_prompt(server: Server, play: Play) -> Figures:
    """A stream runs while somebody else's long prompt is read."""
    words = play.count(LONG_WORDS, 200)
    alone = await chat(server.address, body(cold(play.random, words), 1))
    stream = await ChatStream.open(
        server.address, body(cold(play.random, SHORT_WORDS), play.count(2000, 400), **SAMPLED)
    )
    try:
        await stream.wait_events(20)
        beside = await chat(server.address, body(cold(play.random, words), 1))
        running = stream.answer()
        if running.finish_reason is not None:
            raise RuntimeError("the stream ended before the long prompt was read")
    finally:
        stream.close()
    await chat(server.address, body(cold(play.random, 5), 1))  # the hang-up is noticed by now
    return {
        "silence": _silence(running, beside) * 1e3,
        "ttft": beside.ttft_s / alone.ttft_s,
    }


def _silence(running: Answer, beside: Answer) -> float:
    """Longest gap of the stream that touches the time in which the other prompt was read; the gap
    that was not over when the first token came counts as well. Seconds."""
    times = [*(t for t in running.times_s if t <= beside.end_s), beside.end_s]
    pairs = itertools.pairwise(times)
    return max(later - earlier for earlier, later in pairs if later >= beside.sent_s)


async def shared_system(server: Server, play: Play) -> Figures:
    """Eight users of one application ask at once: a long common text, different questions."""
    common = system(cold_text(play.random, play.count(1000, 150)))
    bodies = [
        body([common, user(cold_text(play.random, 10))], play.count(16, 4)) for _ in range(AT_ONCE)
    ]
    _, elapsed_s = await _together(server, bodies)
    return {"time": elapsed_s}


async def chats(server: Server, play: Play) -> Figures:
    """Four people chat in turn, and there are two slots."""
    histories: list[list[Message]] = [
        [system(cold_text(play.random, play.count(150, 40)))] for _ in range(4)
    ]
    waits: list[float] = []
    for turn in range(play.count(4, 2)):
        for history in histories:
            history.append(user(cold_text(play.random, TURN_WORDS)))
            answer = await chat(server.address, body(history, play.count(48, 4)))
            history.append(assistant(answer.text))
            if turn > 0:
                waits.append(answer.ttft_s)
    return {"ttft": statistics.median(waits) * 1e3}


async def orders(server: Server, play: Play) -> Figures:
    """Objects of a given schema, one after the other."""
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER_SCHEMA}}
    count = play.count(5, 1)
    begin_s = time.perf_counter()
    for _ in range(count):
        name = cold_text(play.random, 3)
        request = body(
            [system(f"{name} writes orders as JSON."), user(f"An order of {name}, two articles.")],
            MAX_ORDER_TOKENS,
            response_format=form,
            ignore_eos=False,
        )
        json.loads((await chat(server.address, request)).text)
    return {"speed": count / (time.perf_counter() - begin_s)}


async def repeat_code(server: Server, play: Play) -> Figures:
    """An answer that repeats what stands in the prompt, as when code is edited."""
    text = f"{CODE}\nRepeat this code exactly, without any comment."
    # So small a model would rather talk about the code; the first lines in its mouth make it copy.
    beginning = "".join(CODE.splitlines(keepends=True)[:6])
    messages = [
        system(f"{cold_text(play.random, 5)}. You repeat code."),
        user(text),
        assistant(beginning),
    ]
    answer = await chat(server.address, body(messages, play.count(300, 30)))
    return {"speed": answer.tokens_per_s}


async def one_token(server: Server, play: Play) -> Figures:
    """Many tiny requests, as of a classifier: 8 at a time, one token each."""
    count = play.count(200, 16)
    bodies = iter([body(cold(play.random, 8, "Yes or no?"), 1) for _ in range(count)])
    begin_s = time.perf_counter()
    await asyncio.gather(*(_ask_all(server, bodies) for _ in range(AT_ONCE)))
    return {"speed": count / (time.perf_counter() - begin_s)}


async def _ask_all(server: Server, bodies: Iterator[dict[str, object]]) -> None:
    for request in bodies:
        await chat(server.address, request)


async def _together(server: Server, bodies: list[dict[str, object]]) -> tuple[list[Answer], float]:
    """Sends all at once: the answers, and the seconds until the last one was complete."""
    begin_s = time.perf_counter()
    answers = await asyncio.gather(*(chat(server.address, request) for request in bodies))
    return answers, time.perf_counter() - begin_s


async def warm_up(server: Server) -> None:
    """First touches of code and memory belong to no measurement."""
    random = Random(server.name)
    await asyncio.gather(
        *(chat(server.address, body(cold(random, SHORT_WORDS), 8)) for _ in range(2))
    )


SCENARIOS = (
    Scenario(
        name="one-stream",
        title="one stream",
        play=one_stream,
        measures=(
            Measure(key="speed", title="decode", unit="tokens/s", at_least=0.98),
            Measure(key="ttft", title="TTFT of a cold 60-word prompt", unit="ms", at_most=1.05),
        ),
    ),
    Scenario(
        name="many-requests",
        title="16 requests on 8 slots",
        play=many_requests,
        measures=(Measure(key="speed", title="output", unit="tokens/s", at_least=1.4),),
    ),
    Scenario(
        name="long-prompt",
        title="a stream runs, a 1,500-word prompt arrives",
        play=long_prompt,
        measures=(
            Measure(
                key="silence", title="longest silence of the stream", unit="ms", own_at_most=120
            ),
            Measure(
                key="ttft",
                title="TTFT of the prompt to that alone",
                unit="times",
                own_at_most=1.5,
                is_compared=False,
                digits=2,
            ),
        ),
    ),
    Scenario(
        name="shared-system",
        title="8 requests with one 1,000-word system prompt",
        play=shared_system,
        measures=(Measure(key="time", title="wall time", unit="s", at_most=1 / 6, digits=2),),
    ),
    Scenario(
        name="chats",
        title="4 chats of 4 turns on 2 slots",
        play=chats,
        measures=(Measure(key="ttft", title="median TTFT of turns 2–4", unit="ms", at_most=0.7),),
        num_slots=FEW_SLOTS,
    ),
    Scenario(
        name="orders",
        title="order object by JSON schema",
        play=orders,
        measures=(Measure(key="speed", title="objects", unit="1/s", at_least=2, digits=2),),
    ),
    Scenario(
        name="repeat-code",
        title="repeat this code, 300 tokens",
        play=repeat_code,
        measures=(Measure(key="speed", title="decode", unit="tokens/s", at_least=2),),
    ),
    Scenario(
        name="one-token",
        title="200 one-token requests, 8 at a time",
        play=one_token,
        measures=(Measure(key="speed", title="requests", unit="1/s", at_least=1.2),),
    ),
)
