"""One generating request as its handler sees it: a body to read, a client that may leave, a
deadline, and an answer that is either whole or a stream.

Rules of this file:
- From the moment the body is read, a task listens for the client's departure and cancels the
  handler; so queueing, preparing, prefill and decoding all end at once.
- The deadline counts from the request's arrival to its last token, the upload included.
- An error before the first byte of the answer is an answer with a status; after it, one event.
- A body is held in memory only as far as there is room for it among all others; a large one is not
  read on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from selfserve.api.budget import ByteBudget
from selfserve.api.errors import error_json, request_id_of, translate
from selfserve.api.json_body import SMALL_BODY_BYTES, decode_json
from selfserve.api.sse import EventStream, data_event
from selfserve.api.workers import Workers
from selfserve.errors import (
    InvalidRequest,
    QueueFull,
    RequestTimeout,
    RequestTooLarge,
    SelfError,
    shown,
)
from selfserve.limits import MAX_BODY_BYTES, UNREAD_S, UPLOAD_PAUSE_S

CLOSING_S = 5.0
"""Time that a client has to take the rest of a stream that failed."""

LINGER_S = 10.0
"""Time for which an oversized body is read on and thrown away after its refusal: a client that
is still writing finds a closed connection otherwise, and never sees the answer."""


PIECE_BYTES = 1 << 16
"""Piece of an answer that a client must take within UNREAD_S."""

P = ParamSpec("P")
R = TypeVar("R")


class ClientGone(Exception):
    """The client closed its connection; nobody waits for an answer any more."""


class Exchange:
    """One request and its answer, from arrival to the last byte."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, workers: Workers, bodies: ByteBudget
    ) -> None:
        self.scope = scope
        self.request_id = request_id_of(scope)
        self.workers = workers
        self.body_size = 0
        self._is_costly = False
        self.is_gone = False
        self.stream: EventStream | None = None
        self._room = bodies.share()
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        task = asyncio.current_task()
        assert task is not None, "an exchange lives in a task"
        self._task = task

    async def read_json(self) -> object:
        """The decoded body. Raises InvalidRequest, RequestTooLarge or ClientGone."""
        check_content_type(self.scope)
        body = await self._read_body()
        self.body_size = len(body)
        self._watcher = asyncio.create_task(self._watch())
        if not self.is_large:
            return decode_json(body)
        return await self.workers.run_large(decode_json, body)

    @property
    def is_large(self) -> bool:
        """Whether its work belongs on the few threads that may take long."""
        return self._is_costly or self.body_size > SMALL_BODY_BYTES

    def expect_cost(self) -> None:
        """What the body asks for takes long, whatever its size: a grammar, a schema."""
        self._is_costly = True

    async def work(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `function` in a worker thread, among those for bodies of this size."""
        run = self.workers.run_large if self.is_large else self.workers.run
        return await run(function, *args, **kwargs)

    def body_done(self) -> None:
        """To be called when nothing of the body is kept any more: others get its room."""
        self._room.close()

    async def send_json(self, body: bytes) -> None:
        """Sends the whole answer. A client that takes nothing for UNREAD_S is given up."""
        self._stop_watching()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        for begin in range(0, max(1, len(body)), PIECE_BYTES):
            piece, more = body[begin : begin + PIECE_BYTES], begin + PIECE_BYTES < len(body)
            try:
                async with asyncio.timeout(UNREAD_S):
                    await self._send(
                        {"type": "http.response.body", "body": piece, "more_body": more}
                    )
            except TimeoutError as error:
                raise ClientGone from error

    def open_stream(self, ping_s: float) -> EventStream:
        """Begins a streamed answer; its status goes out with the first event or ping."""
        self.stream = EventStream(self._send, ping_s=ping_s, on_broken=self.client_gone)
        return self.stream

    async def end_stream(self) -> None:
        """Sends what was pushed and ends the stream."""
        assert self.stream is not None, "the stream was opened"
        self._stop_watching()
        await self.stream.close()

    def client_gone(self) -> None:
        """Ends the handler, because nobody waits for it."""
        if not self.is_gone:
            self.is_gone = True
            self._task.cancel()

    async def fail_stream(self, error: SelfError) -> None:
        """Ends a begun stream with one error event."""
        assert self.stream is not None, "the stream was begun"
        self.stream.push(data_event(error_json(error)))
        try:
            async with asyncio.timeout(CLOSING_S):
                await self.end_stream()
        except TimeoutError:  # the client does not read; its connection ends with the task
            return

    def release(self) -> None:
        """Ends the tasks that belong to the exchange."""
        self._stop_watching()
        self._room.close()
        if self.stream is not None:
            self.stream.abandon()

    def _stop_watching(self) -> None:
        """Must come before the last byte of an answer: servers report a complete answer in the
        same words as a departure."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_gone()

    async def _read_body(self) -> bytearray:
        declared = Headers(scope=self.scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
            await self._refuse_body(_too_large(), more=True)
        body = bytearray()  # grows in place: joining pieces of a large one would hold the loop up
        size = 0
        more = True
        while more:
            message = await self._receive_piece(size)
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                del body[:]
                self._room.close()
                await self._refuse_body(_too_large(), more)
            if size > SMALL_BODY_BYTES:
                try:
                    await self._room.grow(size)
                except QueueFull as error:
                    del body[:]
                    self._room.close()
                    await self._refuse_body(error, more)
            body += chunk
        return body

    async def _receive_piece(self, size: int) -> Message:
        """The next message; of a body that is `size` bytes large already."""
        try:
            async with asyncio.timeout(UPLOAD_PAUSE_S if size > SMALL_BODY_BYTES else None):
                return await self._receive()
        except TimeoutError as error:
            raise RequestTimeout(
                f"the body must come without pauses of more than {UPLOAD_PAUSE_S:g} s"
            ) from error

    async def _refuse_body(self, error: SelfError, more: bool) -> None:
        """Answers while the body is still coming, then reads the rest into nothing."""
        body = error_json(error).encode("ascii")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if error.retry_after_s:
            headers.append((b"retry-after", str(error.retry_after_s).encode()))
        start = {"type": "http.response.start", "status": error.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while more:
                    more = (await self._receive()).get("more_body", False)
        except TimeoutError:
            pass
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        raise AnswerSent


def _too_large() -> RequestTooLarge:
    return RequestTooLarge(f"the body must be at most {MAX_BODY_BYTES} bytes")


class AnswerSent(Exception):
    """The answer is complete, although the handler is not."""


Handler = Callable[[Exchange], Awaitable[None]]


class Answer(Response):
    """What a route returns to answer by `handler`: the exchange runs when the server calls it."""

    def __init__(
        self,
        handler: Handler,
        *,
        workers: Workers,
        bodies: ByteBudget,
        timeout_s: float,
        on_cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """`timeout_s`: 0 for no deadline. `on_cancel` is called when the client left early."""
        self.background = None
        self.status_code = 200
        self._handler = handler
        self._workers = workers
        self._bodies = bodies
        self._timeout_s = timeout_s or None
        self._on_cancel = on_cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._workers, self._bodies)
        try:
            await self._run(exchange)
        except AnswerSent:
            pass
        except ClientGone:
            self._on_cancel()
        except Exception as error:
            if exchange.stream is None or not exchange.stream.begun:
                raise
            await exchange.fail_stream(translate(error, exchange.request_id))
        finally:
            exchange.release()

    async def _run(self, exchange: Exchange) -> None:
        """Runs the handler; departure and deadline come out as exceptions of ours."""
        task = exchange._task
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                await self._handler(exchange)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RequestTimeout(
                f"the request must be done within {self._timeout_s:g} s"
            ) from error
        except asyncio.CancelledError as error:
            if not exchange.is_gone or task.uncancel() > 0:
                raise
            raise ClientGone from error


def check_content_type(scope: Scope) -> None:
    """Only JSON: a page of another origin can send other types without asking first."""
    for value in Headers(scope=scope).getlist("content-type"):
        if value.split(";", 1)[0].strip().lower() != "application/json":
            raise InvalidRequest(f"Content-Type must be application/json, got {shown(value)}")


def as_object(body: object) -> dict[str, Any]:
    """The body, if it is a JSON object. Raises InvalidRequest otherwise."""
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {shown(body)}")
    return body
