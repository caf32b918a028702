"""Bytes that all requests share: bodies that are read, pictures that wait."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call, chat_body
from tests.support.fake_engine import FakeEngine, Script

from selfserve.api import exchange, pictures, service
from selfserve.api.budget import ByteBudget
from selfserve.api.json_body import SMALL_BODY_BYTES
from selfserve.errors import QueueFull
from selfserve.images.limits import ImageLimits
from selfserve.request import Ready

AppMaker = Callable[..., ASGIApp]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def test_who_finds_no_room_waits_in_line() -> None:
    async def scene() -> None:
        budget = ByteBudget(10, wait_s=5, what="things")
        first, second, third = budget.share(), budget.share(), budget.share()
        await first.grow(8)
        large = asyncio.ensure_future(second.grow(9))
        small = asyncio.ensure_future(third.grow(2))
        await turns()
        assert (budget.used, large.done(), small.done()) == (8, False, False)
        first.shrink(1)
        await turns()
        assert (budget.used, large.done()) == (10, True)
        second.close()
        second.close()
        await small
        assert budget.used == 3
        first.close()
        third.give(5)
        assert budget.used == 0

    asyncio.run(scene())


def test_nobody_waits_for_ever_and_nothing_is_lost() -> None:
    async def scene() -> None:
        budget = ByteBudget(10, wait_s=0.01, what="things")
        first = budget.share()
        await first.grow(100)  # the whole of it
        with pytest.raises(QueueFull, match="too many things") as caught:
            await budget.share().grow(1)
        assert caught.value.retry_after_s == 1
        gone = asyncio.ensure_future(budget.share().grow(10))
        behind = asyncio.ensure_future(budget.take(3))
        await turns()
        gone.cancel()
        first.shrink(7)
        await behind
        assert budget.used == 10
        late = asyncio.ensure_future(budget.share().grow(5))
        await turns()
        first.close()  # its turn comes, and it is cancelled in the same moment
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert budget.used == 3

    asyncio.run(scene())


def large_chat(size: int) -> bytes:
    return json.dumps(chat_body(user="x" * size)).encode()


def test_a_large_body_is_not_read_on_before_there_is_room(
    make_app: AppMaker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BODY_BYTES", 200_000)
    app = make_app()
    body = large_chat(150_000)
    half = len(body) // 2

    async def scene() -> None:
        first = await Call(app, chunks=[body[:half], b" ", b" "]).start()
        first._incoming.get_nowait()  # the head comes, the rest does not
        first._incoming = asyncio.Queue()
        first._incoming.put_nowait({"type": "http.request", "body": body[:half], "more_body": True})
        second = await Call(app, chunks=[body[:-1], body[-1:]]).start()
        await turns()
        assert second._incoming.qsize() == 1
        assert not second.sent
        small = await Call(app, body=chat_body()).finish()
        assert small.status == 200
        first._incoming.put_nowait({"type": "http.request", "body": body[half:]})
        await asyncio.gather(first.task, second.task)
        assert (first.status, second.status) == (200, 200), second.text

    asyncio.run(scene())


def test_a_body_without_room_is_refused_in_the_end(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BODY_BYTES", 200_000)
    monkeypatch.setattr(service, "BODY_WAIT_S", 0.01)
    app = make_app()
    body = large_chat(150_000)

    async def scene() -> None:
        first = await Call(app, chunks=[body[:-9], b""]).start()
        first._incoming = asyncio.Queue()
        first._incoming.put_nowait({"type": "http.request", "body": body[:-9], "more_body": True})
        await turns()
        refused = await Call(app, body=body).finish()
        assert (refused.status, refused.error["type"]) == (429, "queue_full")
        assert "retry-after" in refused.response_headers
        first.hang_up()
        await first.task
        assert (await Call(app, body=body).finish()).status == 200

    asyncio.run(scene())


def test_a_large_upload_that_pauses_ends(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "UPLOAD_PAUSE_S", 0.01)

    async def scene() -> None:
        slow = await Call(make_app(), chunks=[b"x"]).start()
        slow._incoming = asyncio.Queue()
        slow._incoming.put_nowait(
            {"type": "http.request", "body": b"x" * (SMALL_BODY_BYTES + 1), "more_body": True}
        )
        await asyncio.wait_for(slow.task, 5)
        assert (slow.status, slow.error["type"]) == (504, "timeout")

    asyncio.run(scene())


def test_the_room_of_a_body_is_free_while_the_engine_works(
    make_app: AppMaker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BODY_BYTES", 200_000)
    app = make_app()

    async def scene() -> None:
        engine.script = Script(stalls=True)
        chats = [await Call(app, body=large_chat(150_000)).start() for _ in range(3)]
        await until(lambda: len(engine.requests) == 3)
        engine.gate.set()
        await asyncio.gather(*(chat.task for chat in chats))
        assert [chat.status for chat in chats] == [200] * 3

    asyncio.run(scene())


def picture_url(color: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), color).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_chat(**fields: Any) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": picture_url("red")}}
    return {"messages": [{"role": "user", "content": [part]}], **fields}


@pytest.mark.parametrize("stream", [True, False])
def test_pictures_wait_for_room_until_the_engine_has_read_others(
    make_app: AppMaker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=True, info={"vision": True})
    monkeypatch.setattr(pictures, "PIXEL_BYTES", ImageLimits().kept_bytes)
    app = make_app(max_images=1)

    async def scene() -> None:
        engine.script = Script(pieces=["a"], stalls=True, stalls_at_end=True)
        first = await Call(app, body=picture_chat(stream=stream)).start()
        await until(lambda: len(engine.requests) == 1)
        second = await Call(app, body=picture_chat(stream=stream)).start()
        # A picture of 12 kB has shrunk to that, but the next one may turn out to be the largest.
        await turns(200)
        assert len(engine.requests) == 1
        engine.gate.set()
        await asyncio.gather(first.task, second.task)
        assert len(engine.requests) == 2

    asyncio.run(scene())


def test_the_room_of_pictures_is_free_with_the_first_token(
    make_app: AppMaker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=True, info={"vision": True})
    monkeypatch.setattr(pictures, "PIXEL_BYTES", ImageLimits().kept_bytes)
    app = make_app(max_images=1)

    async def scene() -> None:
        engine.script = Script(pieces=["a"], stalls_at_end=True)
        calls = [await Call(app, body=picture_chat()).start() for _ in range(3)]
        await until(lambda: len(engine.requests) == 3)
        engine.gate.set()
        await asyncio.gather(*(chat.task for chat in calls))

    asyncio.run(scene())


def test_pictures_without_room_are_refused_in_the_end(
    make_app: AppMaker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.ready = Ready(context_size=4096, num_slots=2, can_shift=True, info={"vision": True})
    monkeypatch.setattr(pictures, "PIXEL_BYTES", ImageLimits().kept_bytes)
    monkeypatch.setattr(pictures, "PIXEL_WAIT_S", 0.01)
    app = make_app(max_images=1)

    async def scene() -> None:
        engine.script = Script(stalls=True)
        first = await Call(app, body=picture_chat()).start()
        await until(lambda: engine.requests)
        refused = await Call(app, body=picture_chat()).finish()
        assert (refused.status, refused.error["type"]) == (429, "queue_full")
        engine.gate.set()
        await first.task

    asyncio.run(scene())
    assert call(app, picture_chat()).status == 200
