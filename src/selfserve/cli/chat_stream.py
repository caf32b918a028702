"""A client that measures: one streamed chat over one connection, each arrival with its time.

While a stream runs, bytes are only put aside with the time of their arrival; they are read when
it is over. Client and server share the processors, so what the client does meanwhile would slow
down what it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from selfserve.errors import StartError, shown

END = b"data: [DONE]"


class RequestFailed(StartError):
    """The server refused or broke off a request."""

    type, code = "request_failed", "request_failed"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, as `parse_address` reads it."""

    host: str
    port: int
    path: str = ""
    key: str = ""


def parse_address(url: str, key: str = "") -> Address:
    """Reads `http://host:port`; a path, with or without `/v1`, may follow. Raises StartError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme != "http":
        raise StartError(f"the address must look like http://host:port, got {shown(url)}")
    return Address(host, port or 80, parts.path.rstrip("/").removesuffix("/v1"), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as its client saw it. Times are those of `time.perf_counter`, in seconds."""

    sent_s: float
    times_s: tuple[float, ...]
    """Arrival of each piece of text."""
    text: str
    finish_reason: str | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    timings: Mapping[str, Any] = field(default_factory=dict)
    """The server's own, if it sends any."""

    @property
    def ttft_s(self) -> float:
        """From sending the request to the first piece of text."""
        return self.times_s[0] - self.sent_s

    @property
    def end_s(self) -> float:
        return self.times_s[-1]

    @property
    def gaps_s(self) -> list[float]:
        """Times between two pieces of text."""
        return [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def tokens_per_s(self) -> float:
        """Speed of the tokens behind the first one; 0 if there are none."""
        duration = self.end_s - self.times_s[0]
        return (self.completion_tokens - 1) / duration if duration > 0 else 0.0


async def chat(address: Address, body: Mapping[str, Any]) -> Answer:
    """Sends a chat and waits for the end of its answer. Raises RequestFailed."""
    stream = await ChatStream.open(address, body)
    try:
        await stream.finish()
        return stream.answer()
    finally:
        stream.close()


class ChatStream(asyncio.Protocol):
    """A running answer. `close()` hangs up."""

    def __init__(self) -> None:
        self.sent_s = 0.0
        self._arrivals: list[tuple[float, bytes]] = []
        self._num_events = 0
        self._wanted: tuple[int, asyncio.Future[None]] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls, address: Address, body: Mapping[str, Any]) -> ChatStream:
        """Connects and sends the request; usage is always asked for. Raises RequestFailed."""
        payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        loop = asyncio.get_running_loop()
        begin_s = time.perf_counter()
        try:
            transport, stream = await loop.create_connection(cls, address.host, address.port)
        except OSError as error:
            raise RequestFailed(
                f"nobody answers at http://{address.host}:{address.port}: {error}"
            ) from error
        stream.sent_s = begin_s
        transport.write(_request(address, payload.encode()))
        return stream

    async def wait_events(self, count: int) -> None:
        """Until so many events have arrived, or the stream has ended."""
        if self._num_events < count and not self._ended.done():
            reached = asyncio.get_running_loop().create_future()
            self._wanted = (count, reached)
            await asyncio.wait({reached, self._ended}, return_when=asyncio.FIRST_COMPLETED)

    async def finish(self) -> None:
        await asyncio.shield(self._ended)

    def answer(self) -> Answer:
        """What has arrived so far. Raises RequestFailed for an error or an answer without text."""
        return parse_answer(self.sent_s, self._arrivals)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrivals.append((time.perf_counter(), data))
        self._num_events += data.count(b"data: ")
        if self._wanted is not None and self._num_events >= self._wanted[0]:
            if not self._wanted[1].done():
                self._wanted[1].set_result(None)
            self._wanted = None
        if END in data:
            self._end()

    def connection_lost(self, _: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def _request(address: Address, payload: bytes) -> bytes:
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"POST {address.path}/v1/chat/completions HTTP/1.1",
        f"Host: {host}:{address.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        "Connection: close",
    ]
    if address.key:
        lines.append(f"Authorization: Bearer {address.key}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


def parse_answer(sent_s: float, arrivals: list[tuple[float, bytes]]) -> Answer:
    """Reads a response that arrived in pieces at the given times."""
    head, body, ends = _body(arrivals)
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise RequestFailed(f"the server answered {_reason(head, body)}")
    times: list[float] = []
    texts: list[str] = []
    reason: str | None = None
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for end, event in _events(body):
        if "error" in event:
            raise RequestFailed(f"the stream ended with {shown(event['error'])}")
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            reason = choice.get("finish_reason") or reason
            if text:
                texts.append(text)
                times.append(arrivals[bisect_left(ends, end)][0])
    if not times:
        raise RequestFailed(f"the answer has no text (finish reason {reason!r})")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        sent_s=sent_s,
        times_s=tuple(times),
        text="".join(texts),
        finish_reason=reason,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        timings=timings,
    )


def _reason(head: bytes, body: bytes) -> str:
    line = head.split(b"\r\n", 1)[0].decode("latin-1") or "nothing"
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return line
    return f"{line}: {message}"


def _body(arrivals: list[tuple[float, bytes]]) -> tuple[bytes, bytes, list[int]]:
    """Head and body without chunk framing; and for each arrival, how much of the body was there
    when it had come in."""
    raw = b"".join(data for _, data in arrivals)
    head = raw.partition(b"\r\n\r\n")[0]
    spans = [(len(head) + 4, len(raw))]
    if b"transfer-encoding: chunked" in head.lower():
        spans = _chunks(raw, len(head) + 4)
    body = b"".join(raw[begin:end] for begin, end in spans)
    ends: list[int] = []
    done = position = index = 0
    for _, data in arrivals:
        position += len(data)
        while index < len(spans) and spans[index][1] <= position:
            done += spans[index][1] - spans[index][0]
            index += 1
        part = max(0, position - spans[index][0]) if index < len(spans) else 0
        ends.append(done + part)
    return head, body, ends


def _chunks(raw: bytes, position: int) -> list[tuple[int, int]]:
    """Where the chunks' contents lie; an unfinished one up to what is there."""
    spans: list[tuple[int, int]] = []
    while (line_end := raw.find(b"\r\n", position)) > position:
        size = int(raw[position:line_end].split(b";")[0], 16)
        if size == 0:
            break
        begin = line_end + 2
        spans.append((begin, min(begin + size, len(raw))))
        position = begin + size + 2
    return spans


def _events(body: bytes) -> list[tuple[int, dict[str, Any]]]:
    """(offset of its end, object) of each whole event; comments and [DONE] are left out."""
    events: list[tuple[int, dict[str, Any]]] = []
    position = 0
    while (end := body.find(b"\n", position)) >= 0:
        line = body[position:end].strip()
        position = end + 1
        if line.startswith(b"data: {"):
            events.append((position, json.loads(line[6:])))
    return events
