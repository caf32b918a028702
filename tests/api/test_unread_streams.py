"""Streams whose client does not read: they hold little, make the engine wait, and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message
from tests.support.asgi_call import Call, chat_body
from tests.support.fake_engine import FakeEngine, Script

from selfserve.api import exchange, sse
from selfserve.api.llamacpp.merge import MAX_AHEAD, merged

AppMaker = Callable[..., ASGIApp]
PIECE = "x" * 999 + "y"
NUM_PIECES = 2000

CHAT = ("/v1/chat/completions", chat_body(stream=True))
STREAMS = [
    CHAT,
    ("/completion", {"prompt": "a", "stream": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True}),
]


class Reader(Call):
    """Takes `allowed` messages of an answer, then no more until `open` is set."""

    allowed = 0
    num_taken = 0
    open: asyncio.Event

    async def _send(self, message: Message) -> None:
        self.num_taken += 1
        if self.num_taken > self.allowed:
            await self.open.wait()
        await super()._send(message)

    async def begin(self, allowed: int) -> Reader:
        self.allowed, self.open = allowed, asyncio.Event()
        await self.start()
        return self


class CountingEngine(FakeEngine):
    """Counts what was taken from it."""

    num_given = 0

    def _deltas(self, request: Any) -> Any:
        for delta in super()._deltas(request):
            self.num_given += 1
            yield delta


@pytest.fixture
def engine() -> FakeEngine:
    return CountingEngine(script=Script(pieces=[PIECE] * NUM_PIECES, pauses=False))


async def turns(count: int = 3000) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_no_more_is_taken_from_the_engine_than_the_client_reads(
    app: ASGIApp, engine: CountingEngine, path: str, body: dict[str, Any]
) -> None:
    async def scene() -> None:
        reader = await Reader(app, path=path, body=body).begin(allowed=2)
        await turns()
        assert engine.num_given * len(PIECE) < sse.MAX_UNSENT + 40 * len(PIECE) + sse.SENT_AT_ONCE
        assert engine.num_given < NUM_PIECES // 2
        reader.open.set()
        await asyncio.wait_for(reader.task, 5)
        num_pieces = NUM_PIECES * len(engine.requests)
        assert reader.text.count(PIECE) in (num_pieces, 2 * num_pieces)  # as text and as content
        assert reader.is_complete

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body"), STREAMS)
@pytest.mark.parametrize("allowed", [1, 3])
def test_a_stream_that_nobody_reads_ends_after_a_while(
    app: ASGIApp,
    engine: CountingEngine,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    allowed: int,
) -> None:
    monkeypatch.setattr(sse, "UNREAD_S", 0.01)

    async def scene() -> None:
        reader = await Reader(app, path=path, body=body).begin(allowed)
        await asyncio.wait_for(reader.task, 5)
        assert not reader.is_complete
        assert sorted(engine.aborted) == sorted(request.id for request in engine.requests)
        assert engine.num_reserved == 0

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body"), [(path, {**b, "stream": False}) for path, b in STREAMS])
def test_a_whole_answer_that_nobody_reads_keeps_no_place_and_ends(
    app: ASGIApp,
    engine: CountingEngine,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
) -> None:
    engine.script = Script()

    async def scene() -> None:
        reader = await Reader(app, path=path, body=body).begin(allowed=1)
        async with asyncio.timeout(5):
            while reader.num_taken < 2:
                await asyncio.sleep(0)
        assert engine.num_reserved == 0
        reader.open.set()
        await reader.task
        assert reader.is_complete
        monkeypatch.setattr(exchange, "UNREAD_S", 0.01)
        unread = await Reader(app, path=path, body=body).begin(allowed=1)
        await asyncio.wait_for(unread.task, 5)
        assert not unread.is_complete

    asyncio.run(scene())


def test_a_stream_that_is_read_to_its_end_keeps_no_place_while_it_is(
    app: ASGIApp, engine: CountingEngine
) -> None:
    engine.script = Script(pieces=["a"], pauses=False)

    async def scene() -> None:
        reader = await Reader(app, body=chat_body(stream=True)).begin(allowed=1)
        await turns(100)
        assert not reader.task.done()
        assert engine.num_reserved == 0
        reader.open.set()
        await reader.task
        assert reader.events[-1] == "[DONE]"

    asyncio.run(scene())


def test_no_ping_is_added_to_what_nobody_reads(make_app: AppMaker, engine: CountingEngine) -> None:
    engine.script = Script(pieces=["a"] * 3, stalls_at_end=True)

    async def scene() -> None:
        app = make_app(ping_s=0.001)
        reader = await Reader(app, body=chat_body(stream=True)).begin(allowed=1)
        await asyncio.sleep(0.05)
        reader.open.set()
        engine.gate.set()
        await reader.task
        assert reader.text.count(": ping") <= 2

    asyncio.run(scene())


def test_merged_streams_are_taken_from_as_they_are_asked_for() -> None:
    taken = [0, 0]

    async def numbers(index: int) -> AsyncGenerator[int, None]:
        for value in range(1000):
            taken[index] += 1
            yield value

    async def scene() -> None:
        events = merged([numbers(0), numbers(1)])
        await anext(events)
        await turns(100)
        assert sum(taken) <= MAX_AHEAD + 4
        assert len([event async for event in events]) == 1999

    asyncio.run(scene())
