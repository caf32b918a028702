"""One HTTP request driven by hand against an ASGI application: to see when bytes go out, and to
hang up in the midst of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

PATIENCE_S = 5.0
"""A test that waits longer has failed."""

CHAT = "/v1/chat/completions"


def chat_body(**fields: Any) -> dict[str, Any]:
    """A small valid chat; `fields` are added or replaced."""
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


@dataclass
class Call:
    """A request, and what was sent back so far."""

    app: ASGIApp
    path: str = CHAT
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    chunks: Iterable[bytes] | None = None
    """The body in pieces instead; the last one ends it."""
    sent: list[Message] = field(default_factory=list)

    async def start(self) -> Call:
        """Begins the request in a task of its own."""
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._news = asyncio.Event()
        for message in self._body_messages():
            self._incoming.put_nowait(message)
        self.task = asyncio.create_task(self.app(self._scope(), self._receive, self._send))
        return self

    async def finish(self) -> Call:
        """Runs the request to its end."""
        await self.start()
        await asyncio.wait_for(self.task, PATIENCE_S)
        return self

    def hang_up(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until_sent(self, text: str) -> None:
        """Waits until `text` is in the body."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.text:
                self._news.clear()
                await self._news.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def response_headers(self) -> dict[str, str]:
        return {k.decode().lower(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def text(self) -> str:
        return self.content.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.content, parse_constant=_no_constant)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; checks the form of the envelope."""
        body = self.json
        assert list(body) == ["error"]
        assert {"type", "message", "param", "code"} <= set(body["error"])
        assert isinstance(body["error"]["message"], str)
        return dict(body["error"])

    @property
    def events(self) -> list[Any]:
        """The decoded data of a stream's events, `[DONE]` as it is; pings left out."""
        blocks = self.text.split("\n\n")
        assert blocks.pop() == "", "an event is cut off"
        found: list[Any] = []
        for block in blocks:
            if block.startswith(":"):
                continue
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        return found

    @property
    def is_complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", True)

    def _scope(self) -> dict[str, Any]:
        headers = list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)
        names = {name.lower() for name, _ in headers}
        if "host" not in names:
            headers.append(("host", "127.0.0.1:8080"))
        if "content-type" not in names and self.method == "POST":
            headers.append(("content-type", "application/json"))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers if v != ""],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8080),
        }

    def _body_messages(self) -> list[Message]:
        if self.chunks is not None:
            chunks = list(self.chunks)
        elif isinstance(self.body, bytes):
            chunks = [self.body]
        else:
            chunks = [json.dumps(self.body).encode() if self.body is not None else b""]
        last = len(chunks) - 1
        return [
            {"type": "http.request", "body": chunk, "more_body": i < last}
            for i, chunk in enumerate(chunks)
        ]

    async def _receive(self) -> Message:
        if self.is_complete:  # servers say so once the answer is complete
            return {"type": "http.disconnect"}
        return await self._incoming.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self._news.set()
        if self.is_complete:
            self._incoming.put_nowait({"type": "http.disconnect"})


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def call(app: ASGIApp, body: Any = None, **fields: Any) -> Call:
    """Runs one request in an event loop of its own."""
    return asyncio.run(Call(app, body=body, **fields).finish())
