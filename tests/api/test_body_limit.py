"""Bodies over the limit are refused while they are read, and the client gets to see it."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import CHAT, Call, call, chat_body
from tests.support.fake_engine import FakeEngine

from selfserve.limits import MAX_BODY_BYTES

MIB = bytes(1 << 20)


def body_of_size(size: int) -> bytes:
    body = json.dumps(chat_body(user="")).encode()
    return body.replace(b'"user": ""', b'"user": "' + b"x" * (size - len(body)) + b'"')


def test_a_body_on_the_limit_is_taken(app: ASGIApp) -> None:
    body = body_of_size(MAX_BODY_BYTES)
    assert len(body) == MAX_BODY_BYTES
    half = len(body) // 2
    assert call(app, chunks=[body[:half], body[half:]]).status == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused(app: ASGIApp, engine: FakeEngine, declared: bool) -> None:
    body = body_of_size(MAX_BODY_BYTES + 1)
    headers = {"Content-Length": str(len(body))} if declared else {}
    refused = call(app, chunks=[body[:-1], body[-1:]], headers=headers)
    assert refused.status == 413
    assert refused.error["type"] == "request_too_large"
    assert refused.response_headers["connection"] == "close"
    assert refused.is_complete
    assert engine.requests == []


@pytest.mark.parametrize("declared", [True, False])
def test_the_refusal_goes_out_before_the_body_ends(app: ASGIApp, declared: bool) -> None:
    async def scene() -> None:
        chunks = [MIB] * 33
        headers = {"Content-Length": str(100 << 20)} if declared else {}
        refused = Call(app, chunks=[*chunks, b""], headers=headers)
        await refused.start()
        await refused.until_sent("request_too_large")
        await asyncio.wait_for(refused.task, 5)
        assert refused.is_complete

    asyncio.run(scene())


def test_the_rest_of_an_oversized_body_is_read_so_that_the_client_sees_the_answer(
    app: ASGIApp,
) -> None:
    async def scene() -> None:
        refused = Call(app, chunks=[MIB] * 40)
        await refused.finish()
        assert refused._incoming.qsize() == 1  # nothing but the end of the connection

    asyncio.run(scene())


def test_a_client_that_leaves_after_the_refusal_ends_quietly(app: ASGIApp) -> None:
    async def scene() -> None:
        left = Call(app, path=CHAT, headers={"Content-Length": "999999999"}, chunks=[b"x", b""])
        await left.start()
        left._incoming.get_nowait()
        left._incoming.get_nowait()
        left.hang_up()
        await asyncio.wait_for(left.task, 5)
        assert left.status == 413

    asyncio.run(scene())
